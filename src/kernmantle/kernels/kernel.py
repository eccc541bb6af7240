"""Kernels: one fused contraction each, however they are composed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ..contraction.definition import define
from ..errors import ParameterError
from ..expr.node import variables
from ..ops.apply import routes
from ..ops.checks import is_number, number_of
from . import agop, apply, gradient, neighbours
from .call import Call, Value, prepare
from .form import Form, changed, combine, gram, is_stationary, is_symmetric, raised, swapped
from .operator import Operator
from .row import literal

_SUM, _PRODUCT, _POWER, _ATOM = 1, 2, 3, 4


class Kernel:
    """A kernel k(x, y) of rows, ``epilogue(reduce(map(x, y)))``, evaluated in one fused pass.

    Kernels add, multiply, scale and take powers: ``0.5 * km.Gaussian(3.0) + km.Matern(2.0) ** 2`` is one kernel
    again, whose sums are taken in one pass and once where they are equal. The named ones are
    ``km.Laplace, km.Gaussian, ...``; this class takes a map of one's own.

    Parameters
    ----------
    map : callable
        Lambda of an entry of x, one of y and hyperparameters by name; summed over the columns. May return a tuple.
    epilogue : callable, optional
        Lambda of the sums and hyperparameters.
    reduce : str or sequence of str
        As of :class:`Contraction`.
    **hyperparameters : number or tensor
        Their values: 0-d, or a batch of any shape. Tensors may require a gradient.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> hat = km.Kernel(lambda x, y, width: km.maximum(1 - abs(x - y) / width, 0), width=2.0)
    >>> hat(np.array([[0.0], [1.0]]))
    array([[1. , 0.5],
           [0.5, 1. ]])
    >>> (2 * hat + km.Linear())(np.array([[0.0], [1.0]]))
    array([[2., 1.],
           [1., 3.]])
    """

    __slots__ = ("_form", "_level", "_numbers", "_text", "_values", "_weights")
    __array_ufunc__ = None

    def __init__(
        self,
        map: Callable[..., Any],
        epilogue: Callable[..., Any] | None = None,
        *,
        reduce: Any = "sum",
        **hyperparameters: Any,
    ) -> None:
        definition = define("mk,nk->mn", map, reduce, epilogue)
        if len(definition.outputs) != 1:
            raise ParameterError(f"a kernel has one value, this one has {len(definition.outputs)}: give it an epilogue")
        given = {**dict(definition.defaults), **hyperparameters}
        unknown = next((name for name in hyperparameters if name not in definition.parameters), None)
        if unknown is not None:
            listing = ", ".join(definition.parameters) or "none"
            raise ParameterError(f"unknown hyperparameter {unknown!r}; the lambdas have {listing}")
        missing = next((name for name in definition.parameters if name not in given), None)
        if missing is not None:
            raise ParameterError(f"hyperparameter {missing!r} is missing: pass it by name")
        used = set(variables([*definition.map, *definition.outputs]))
        values = {name: value_of(given[name], name) for name in definition.parameters}
        values = {name: value for name, value in values.items() if name in used}
        form = Form(definition.map, definition.reductions, definition.outputs[0], tuple(values))
        self._set(form, values, {}, f"Kernel({', '.join(f'{n}={shown(v)}' for n, v in values.items())})", _ATOM)

    def _set(
        self, form: Form, values: Mapping[str, Value], weights: Mapping[str, torch.Tensor], text: str, level: int
    ) -> None:
        self._form, self._text, self._level = form, text, level
        self._values, self._weights = dict(values), dict(weights)
        self._numbers: dict[str, Any] = self._values

    @staticmethod
    def made(
        form: Form, values: Mapping[str, Value], weights: Mapping[str, torch.Tensor], text: str, level: int = _ATOM
    ) -> Kernel:
        """A kernel of a form and the values of its parameters and weights."""
        self = Kernel.__new__(Kernel)
        self._set(form, values, weights, text, level)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel.made, (self._form, self._values, self._weights, self._text, self._level)

    def __repr__(self) -> str:
        return self._text

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Values of the hyperparameters by name; a name that two parts share has a number behind it."""
        lengths = {f"lengthscales{'' if i == 0 else f'_{i + 1}'}": w for i, w in enumerate(self._weights.values())}
        return MappingProxyType({**self._values, **lengths})

    @property
    def form(self) -> Form:
        """The expressions."""
        return self._form

    @property
    def is_symmetric(self) -> bool:
        """Whether the expressions prove that k(x, y) = k(y, x)."""
        return is_symmetric(self._form)

    @property
    def is_stationary(self) -> bool:
        """Whether k(x, y) is seen to depend on x - y alone."""
        return is_stationary(self._form)

    @property
    def info(self) -> str:
        """What is summed and made of the sums, and what ran its matrix and the products with it last."""
        matrix = gram(self._form)
        return "\n".join([repr(matrix), *(f"{how} ran as {route}" for how, route in routes(matrix).items())])

    def prepared(self, x: Any, y: Any, precision: str | None = None, **extra: Any) -> tuple[Call, list[torch.Tensor]]:
        """Rows and further arrays, checked and placed on tensors."""
        return prepare(self._form, self._values, self._weights, x, y, extra, precision)

    def __call__(
        self,
        x: Any,
        y: Any = None,
        *,
        out: Any = None,
        diagonal: Any = None,
        offsets: tuple[int, int] = (0, 0),
        precision: str | None = None,
    ) -> Any:
        """All pairs of rows.

        Parameters
        ----------
        x : array, shape (..., m, k)
            Tensor, numpy or DLPack array. Batch axes on the left broadcast with each other and with those of
            the hyperparameters.
        y : array, shape (..., n, k), optional
            By default ``x``, for half the work.
        out : array, shape (..., m, n), optional
            Written in place.
        diagonal : number or tensor, optional
            Added where row and column have the same index, for example a regularisation.
        offsets : pair of int
            Indices of the first row of x and of y, when they are blocks of larger arrays.
        precision : {None, "ieee", "tf32"}
            Arithmetic of recognised matrix products.

        Returns
        -------
        array, shape (..., m, n)
            Of the kind and dtype of x; integers are computed and returned as floating point.
        """
        if diagonal is None and self._is_direct(x, y):
            return gram(self._form)(x, x if y is None else y, out=out, precision=precision, **self._numbers)
        call, _ = self.prepared(x, y, precision)
        if diagonal is not None:
            diagonal = value_of(diagonal, "diagonal")
        return apply.dense(call, out, diagonal, offsets)

    def _is_direct(self, x: Any, y: Any) -> bool:
        """Whether tensors can go to the contraction as they are."""
        if not isinstance(x, torch.Tensor) or self._form.operands or x.dim() != 2:
            return False
        if any(type(value) is not float and type(value) is not int for value in self._values.values()):
            return False
        if y is not None and (
            not isinstance(y, torch.Tensor) or y.dim() != 2 or y.dtype != x.dtype or y.device != x.device
            or y.shape[1] != x.shape[1]
        ):  # fmt: skip
            return False
        return x.dtype in (torch.float32, torch.float64)

    def diagonal(self, x: Any) -> Any:
        """k(x_i, x_i) of every row: shape (..., m)."""
        call, _ = self.prepared(x, None)
        return call.finished(call.diagonal())

    def matmul(self, x: Any, y: Any, v: Any, *, diagonal: Any = None, precision: str | None = None) -> Any:
        """``k(x, y) @ v`` without the matrix k(x, y).

        Parameters
        ----------
        x, y : array, shapes (..., m, k) and (..., n, k)
            As of a call; y None is x.
        v : array, shape (n,) or (..., n, c)
            Of the dtype of x.
        diagonal : number or tensor, optional
            ``diagonal * v`` is added; x and y are then the same rows.
        precision : {None, "ieee", "tf32"}
            Arithmetic of recognised matrix products.

        Returns
        -------
        array, shape (..., m) for a vector, else (..., m, c)

        Notes
        -----
        One pass, memory of inputs and result and at most 64 MB. Gradients of every order exist for x, y, v and the
        hyperparameters, from blocks of the matrix that are computed again. Halves are multiplied and summed in
        float32. ``k.info`` says what ran.
        """
        call, (vector,) = self.prepared(x, y, precision, v=v)
        if diagonal is not None:
            diagonal = value_of(diagonal, "diagonal")
        return call.finished(apply.matmul(call, vector, diagonal))

    def sum(self, x: Any, y: Any = None) -> Any:
        """Sum over the rows of y, (..., m), without the matrix k(x, y)."""
        call, _ = self.prepared(x, y)
        return call.finished(apply.reduced(call, "sum"))

    def max(self, x: Any, y: Any = None) -> Any:
        """Largest over the rows of y, (..., m), without the matrix k(x, y)."""
        call, _ = self.prepared(x, y)
        return call.finished(apply.reduced(call, "max"))

    def min(self, x: Any, y: Any = None) -> Any:
        """Smallest over the rows of y, (..., m), without the matrix k(x, y)."""
        call, _ = self.prepared(x, y)
        return call.finished(apply.reduced(call, "min"))

    def logsumexp(self, x: Any, y: Any = None) -> Any:
        """Logarithm of the sum over the rows of y of exp(k(x, y)), (..., m), without the matrix k(x, y)."""
        call, _ = self.prepared(x, y)
        return call.finished(apply.reduced(call, "logsumexp"))

    def argkmax(self, x: Any, y: Any = None, count: int = 1, *, return_values: bool = False) -> Any:
        """Indices of the ``count`` rows of y with the largest k(x, y), best first: (..., m, count).

        With ``return_values`` the pair (values, indices); the values have gradients.
        """
        call, _ = self.prepared(x, y)
        return neighbours.nearest_of(call, count, True, return_values)

    def argkmin(self, x: Any, y: Any = None, count: int = 1, *, return_values: bool = False) -> Any:
        """Indices of the ``count`` rows of y with the smallest k(x, y), smallest first; as ``argkmax``."""
        call, _ = self.prepared(x, y)
        return neighbours.nearest_of(call, count, False, return_values)

    def operator(self, x: Any, y: Any = None, *, diagonal: Any = None) -> Operator:
        """``k(x, y)``, with ``diagonal`` added, as a linear operator that never stores it."""
        return Operator(self, x, y, diagonal)

    def gradient(self, z: Any, x: Any, coef: Any) -> Any:
        """Gradient by z of the predictor f_o(z) = Σ_n coef[n, o] k(z, x_n).

        Parameters
        ----------
        z, x : array, shapes (..., m, k) and (..., n, k)
            Points, and rows of the predictor; x None is z, which then moves as the points alone.
        coef : array, shape (n,) or (..., n, o)
            Coefficients.

        Returns
        -------
        array, shape (..., m, k) for a vector, else (..., o, m, k)

        Notes
        -----
        The factors of the epilogue are included. Memory: inputs, result and blocks of 64 MB. Differentiable in
        z, x, coef and the hyperparameters.
        """
        call, (coefficients,) = self.prepared(z, x, coef=coef)
        return call.finished(gradient.gradient(call, coefficients))

    def agop(
        self, z: Any, x: Any, coef: Any, *, average: bool = False, centred: bool = False, diagonal: bool = False
    ) -> Any:
        """Sum over outputs and points of the outer products of the predictor's gradients.

        Parameters
        ----------
        z, x, coef : array
            As of :meth:`gradient`.
        average : bool
            Divide by the number of points.
        centred : bool
            Subtract each output's mean gradient first.
        diagonal : bool
            Only the diagonal, (..., k).

        Returns
        -------
        array, shape (..., k, k)
        """
        call, (coefficients,) = self.prepared(z, x, coef=coef)
        return call.finished(agop.agop(call, coefficients, average, centred, diagonal))

    def transposed(self) -> Kernel:
        """The kernel k(y, x), this one where it is symmetric."""
        if self.is_symmetric:
            return self
        return Kernel.made(swapped(self._form), self._values, self._weights, f"{_bracketed(self, _ATOM)}.transposed()")

    def _same(self, other: Kernel) -> dict[str, str]:
        same = {}
        for mine, theirs in ((self._values, other._values), (self._weights, other._weights)):
            for name, value in theirs.items():
                twin = next((known for known, kept in mine.items() if _equal(kept, value)), None)
                if twin is not None:
                    same[name] = twin
        return same

    def _joined(self, op: str, other: Kernel, sign: str, level: int) -> Kernel:
        form, names = combine(op, self._form, other._form, self._same(other))
        values = self._values | {names[name]: value for name, value in other._values.items()}
        weights = self._weights | {names[name]: value for name, value in other._weights.items()}
        text = f"{_bracketed(self, level)} {sign} {_bracketed(other, level + (sign == '-'))}"
        return Kernel.made(form, values, weights, text, level)

    def _with(self, op: str, name: str, value: Any, first: bool = False) -> tuple[Form, dict[str, Value]]:
        form, name = changed(self._form, op, name, first)
        return form, {**self._values, name: value_of(value, name)}

    def __add__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return self._joined("add", other, "+", _SUM)
        form, values = self._with("add", "offset", other)
        return Kernel.made(form, values, self._weights, f"{self._text} + {shown(other)}", _SUM)

    def __radd__(self, other: Any) -> Kernel:
        return self + other

    def __sub__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return self._joined("sub", other, "-", _SUM)
        form, values = self._with("sub", "offset", other)
        return Kernel.made(form, values, self._weights, f"{self._text} - {shown(other)}", _SUM)

    def __mul__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return self._joined("mul", other, "*", _PRODUCT)
        form, values = self._with("mul", "scale", other, first=True)
        return Kernel.made(form, values, self._weights, f"{shown(other)} * {_bracketed(self, _PRODUCT)}", _PRODUCT)

    def __rmul__(self, other: Any) -> Kernel:
        return self * other

    def __truediv__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return self._joined("div", other, "/", _PRODUCT)
        form, values = self._with("div", "divisor", other)
        return Kernel.made(form, values, self._weights, f"{_bracketed(self, _PRODUCT)} / {shown(other)}", _PRODUCT)

    def __neg__(self) -> Kernel:
        return -1 * self

    def __pow__(self, exponent: Any) -> Kernel:
        text = f"{_bracketed(self, _ATOM)} ** {shown(exponent)}"
        if literal(exponent):
            return Kernel.made(raised(self._form, exponent), self._values, self._weights, text, _POWER)
        form, values = self._with("pow", "exponent", exponent)
        return Kernel.made(form, values, self._weights, text, _POWER)


def _bracketed(kernel: Kernel, level: int) -> str:
    return repr(kernel) if kernel._level >= level else f"({kernel!r})"


def _equal(one: Value, other: Value) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return type(one) is type(other) and one == other


def shown(value: Any) -> str:
    """A value for a repr: tensors by their shape unless they are a single number on the CPU."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 and value.device.type == "cpu":
            return f"tensor({value.item():.6g})"
        return f"tensor{tuple(value.shape)}"
    return f"array{value.shape}" if getattr(value, "shape", ()) else repr(value)


def value_of(value: Any, name: str) -> Any:
    """Number or tensor of a hyperparameter."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise ParameterError(f"hyperparameter {name!r} has dtype {value.dtype}; pass real numbers")
        return value
    if is_number(value):
        number = number_of(value, name)
        if number != number:
            raise ParameterError(f"hyperparameter {name!r} is NaN")
        return number
    if hasattr(value, "__array__") and not isinstance(value, Kernel):
        return value_of(torch.from_numpy(value.__array__().copy()), name)
    raise ParameterError(f"hyperparameter {name!r} must be a number or an array, not {type(value).__name__}")
