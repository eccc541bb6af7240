"""A contraction bound to the kinds of its parameters, and bound to tensors of one layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..ir.autodiff import undifferentiable
from ..ir.definition import Definition, bind
from ..ir.node import Number
from .autograd import Recorded, constant
from .checks import check_apart, number_of, overlaps_any
from .execute import BoundProgram


class Bound(NamedTuple):
    """A program's text, where its values come from, and the reduction without a gradient, if it has one.

    ``alias``: the second operand is the first one, which the program takes once.
    """

    text: str
    tensor_parameters: tuple[str, ...]
    numbers: tuple[str | Number, ...]
    without_gradient: str
    alias: bool

    def tensors(self, operands: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the tensors of the program: operands in the equation's order, then named ones."""
        own = (operands[0], *operands[2:]) if self.alias else operands
        return [*own, *[named[name] for name in self.tensor_parameters]] if self.tensor_parameters else own


@constant
def bind_program(text: str, tensors: tuple[str, ...], literals: tuple[tuple[str, Number], ...], alias: bool) -> Bound:
    """Return the program of a definition's text; parameters in ``tensors`` are arrays, ``literals`` part of it."""
    definition = Definition.parse(text)
    binding = bind(definition, frozenset(tensors), literals, alias)
    reduction = undifferentiable(binding.program)
    missing = "" if reduction is None else reduction.name
    return Bound(binding.program.text, binding.tensor_parameters, binding.numbers, missing, alias)


@dataclass(frozen=True, eq=False)
class BoundContraction:
    """The bound call of a contraction: its program on tensors of one layout, under autograd if it is recorded.

    ``numbers`` are names of parameters and their defaults, or "" and a number of the expressions; ``takes_operands``
    says that the program takes the operands as they are. ``spans`` are the bytes that the only result and the arrays
    reach over, empty unless one is written to.
    """

    program: BoundProgram | Recorded
    inputs: Bound
    takes_operands: bool
    numbers: tuple[tuple[str, Any], ...]
    single: bool
    route: str
    spans: tuple[int, ...] = ()

    def __call__(self, tensors: Sequence[Any], numbers: Mapping[str, Any], outs: Any) -> Any:
        """Return the results on operands and named arguments, in tensors of their own or written to ``outs``."""
        arrays = tensors if self.takes_operands else self.inputs.tensors(tensors, numbers)
        values: Sequence[float] = ()
        if self.numbers:
            values = [
                own if type(own := numbers.get(name, value)) is float else number_of(own, name)
                for name, value in self.numbers
            ]
        if outs is None:
            results = self.program.results(arrays, values)
            return results[0] if self.single else tuple(results)
        targets = (outs,) if self.single else outs
        if not self.spans or overlaps_any(outs, arrays, self.spans):
            check_apart(targets, arrays)
        self.program(arrays, values, targets)  # pyright: ignore[reportCallIssue]
        for target in targets:
            if not target.is_inference():
                torch.autograd.graph.increment_version(target)
        return outs
