"""A row of the table of metrics, and the contraction that is made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple

import torch

from ..torch_ops.contract import Contraction

Lambda = Callable[..., Any]
ACCUMULATORS = ("s", "t", "u")


class Arguments(NamedTuple):
    """Floating-point tensors of one call; ``y`` is ``x`` itself where only one set of rows was given."""

    x: torch.Tensor
    y: torch.Tensor
    w: torch.Tensor | None = None
    V: torch.Tensor | None = None
    VI: torch.Tensor | None = None
    base: Any = None
    condensed: bool = False


class Ready(NamedTuple):
    """Operands in the order of the form, weights last where there are any, and parameters by name."""

    operands: tuple[torch.Tensor, ...]
    parameters: Mapping[str, Any]
    weighted: bool


@dataclass(frozen=True)
class Form:
    """The arithmetic of a metric.

    ``map`` takes the operands, then the weight (1 where there is none) unless the form is unweighted, then
    parameters by name. ``finish`` takes the accumulators, called s, t, u, and parameters; ``root`` takes its
    result and parameters.
    """

    map: Lambda
    reduce: str | tuple[str, ...] = "sum"
    finish: Lambda | None = None
    root: Lambda | None = None
    operands: str = "mk,nk"
    weighted: bool = True

    def contraction(self, weighted: bool, root: bool) -> Contraction:
        """Return the contraction with or without weights, and with or without the root."""
        equation = f"{self.operands},k->mn" if weighted else f"{self.operands}->mn"
        mapped = self.map
        if self.weighted and not weighted:
            mapped = _without_weight(mapped, self.operands.count(",") + 1)
        epilogue = _then(self.finish, self.root if root else None)
        return Contraction(equation, mapped, reduce=self.reduce, epilogue=epilogue)


@dataclass(frozen=True)
class Metric:
    """One metric: its arithmetic, what may be asked of it and what it promises.

    Parameters
    ----------
    name : str
        What callers write.
    formula : str
        For the documentation.
    form : Form
        The arithmetic.
    prepare : callable, optional
        Makes the operands from the inputs, at a cost of O((m + n) k).
    options : tuple of str
        Which of ``w p V VI base`` it takes.
    symmetric, zero_diagonal, differentiable, boolean : bool
        Whether d(x, y) = d(y, x); d(x, x) = 0 exactly; gradients exist; inputs are true or false.
    domain : {"real", "positive", "boolean"}
        What rows it is meant for; tests and benchmarks draw them from it.
    scipy : str or None
        scipy's name.
    aliases : tuple of str
        Other names.
    note : str
        What deserves to be known, for the documentation.
    """

    name: str
    formula: str
    form: Form
    prepare: Callable[[Arguments], Ready] | None = None
    options: tuple[str, ...] = ("w",)
    symmetric: bool = True
    zero_diagonal: bool = True
    differentiable: bool = True
    boolean: bool = False
    domain: str = "real"
    scipy: str | None = None
    aliases: tuple[str, ...] = ()
    note: str = ""


def _signed(function: Lambda, positional: int, names: list[str]) -> Lambda:
    """Return the function, which says that it takes so many operands and then these parameters."""
    first = [Parameter(f"operand{index}", Parameter.POSITIONAL_ONLY) for index in range(positional)]
    rest = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
    function.__signature__ = Signature([*first, *rest])  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _without_weight(mapped: Lambda, index: int) -> Lambda:
    def unweighted(*operands: Any, **named: Any) -> Any:
        return mapped(*operands, 1, **named)

    return _signed(unweighted, index, list(signature(mapped).parameters)[index + 1 :])


def _then(finish: Lambda | None, root: Lambda | None) -> Lambda | None:
    if finish is None or root is None:
        return finish or root
    inner = list(signature(finish).parameters)
    outer = list(signature(root).parameters)[1:]
    positional = len([name for name in inner if name in ACCUMULATORS])

    def both(*accumulators: Any, **named: Any) -> Any:
        value = finish(*accumulators, **{name: named[name] for name in inner[positional:]})
        return root(value, **{name: named[name] for name in outer})

    return _signed(both, positional, list(dict.fromkeys([*inner[positional:], *outer])))
