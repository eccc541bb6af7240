"""Sums, products, quotients and powers of kernels, each one kernel again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ParameterError
from .hyperparameters import equal, shown, value_of
from .kernel_form import Form, changed, combine, raised
from .kernel_inputs import Value
from .kernel_row import literal

if TYPE_CHECKING:
    from typing_extensions import Self

SUM, PRODUCT, POWER, ATOM = 1, 2, 3, 4
"""How tightly the text of a kernel binds."""


class Algebra:
    """Arithmetic of kernels; ``made`` and ``_like`` are theirs."""

    __slots__ = ()
    made: Callable[..., Any]
    _like: Callable[..., Any]
    _form: Form
    _values: dict[str, Value]
    _weights: dict[str, torch.Tensor]
    _transform: torch.Tensor | None
    _named: bool
    _level: int
    _text: str

    def _same(self, other: Algebra) -> dict[str, str]:
        same = {}
        for mine, theirs in ((self._values, other._values), (self._weights, other._weights)):
            for name, value in theirs.items():
                alias = next((mine_name for mine_name, own in mine.items() if equal(own, value)), None)
                if alias is not None:
                    same[name] = alias
        return same

    def _joined(self, op: str, other: Algebra, sign: str, level: int) -> Self:
        if self._transform is not other._transform:
            raise ParameterError(
                f"{self!r} and {other!r} see different transforms of the rows, which one pass cannot: transform the "
                "kernel that is made of both, or add their matrices"
            )
        form, renamed = combine(self._form, other._form, op, tuple(self._same(other).items()))
        names = dict(renamed)
        values = self._values | {names[name]: value for name, value in other._values.items()}
        weights = self._weights | {names[name]: value for name, value in other._weights.items()}
        text = f"{bracketed(self, level)} {sign} {bracketed(other, level + (sign in '-/'))}"
        named = self._named or other._named
        return self.made(form, values, weights, text, level, self._transform, named)

    def _with(self, op: str, name: str, value: Any, first: bool = False) -> tuple[Form, dict[str, Value]]:
        form, name = changed(self._form, op, name, first)
        return form, {**self._values, name: value_of(value, name)}

    def _of_two(self, op: str, other: Any, sign: str, level: int, name: str) -> Self:
        if isinstance(other, Algebra):
            return self._joined(op, other, sign, level)
        form, values = self._with(op, name, other)
        return self._like(form, f"{bracketed(self, level)} {sign} {shown(other)}", level, values)

    def __add__(self, other: Any) -> Self:
        return self._of_two("add", other, "+", SUM, "offset")

    def __radd__(self, other: Any) -> Self:
        return self if isinstance(other, int) and other == 0 else self + other  # the 0 that sum() begins with

    def __sub__(self, other: Any) -> Self:
        return self._of_two("sub", other, "-", SUM, "offset")

    def __rsub__(self, other: Any) -> Self:
        return -self + other

    def __mul__(self, other: Any) -> Self:
        if isinstance(other, Algebra):
            return self._joined("mul", other, "*", PRODUCT)
        form, values = self._with("mul", "scale", other, first=True)
        return self._like(form, f"{shown(other)} * {bracketed(self, PRODUCT)}", PRODUCT, values)

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the product with a tensor, also while torch.compile traces; NotImplemented for everything else.

        torch.compile takes ``tensor * kernel`` and ``kernel * tensor`` for one operation of torch's, and asks here. It
        does not say which came first, so that other operators have no answer.
        """
        return args[1].__mul__(args[0]) if function is torch.Tensor.mul else NotImplemented

    def __truediv__(self, other: Any) -> Self:
        return self._of_two("div", other, "/", PRODUCT, "divisor")

    def __rtruediv__(self, other: Any) -> Self:
        return other * self**-1

    def __neg__(self) -> Self:
        return -1 * self

    def __pow__(self, exponent: Any) -> Self:
        text = f"{bracketed(self, ATOM)} ** {shown(exponent)}"
        if literal(exponent):
            return self._like(raised(self._form, exponent), text, POWER)
        form, values = self._with("pow", "exponent", exponent)
        return self._like(form, text, POWER, values)


def bracketed(kernel: Algebra, level: int) -> str:
    """Return the text of a kernel, in brackets where it binds less than ``level``."""
    return repr(kernel) if kernel._level >= level else f"({kernel!r})"
