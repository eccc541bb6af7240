"""Arithmetic of symbolic tensors: operators, functions and the choice of components build a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ...errors import ParameterError
from .expression import Expression, Symbol, described, leaves, transposed
from .gradient import differential, gradient
from .operations import LEFT_OUT, OPERATIONS
from .sparsity import swap_axes
from .variables import is_number, variable

_METHODS = {
    "grad_matrix": "GradMatrix", "divergence": "Divergence", "laplacian": "Laplacian",
    "trace_operator": "TraceOperator", "factorize": "Factorize", "auto_factorize": "AutoFactorize",
    "bspline": "BSpline", "softdtw_sqdist": "SoftDTW_SqDist", "real2complex": "Real2Complex",
    "imag2complex": "Imag2Complex", "exp1j": "ComplexExp1j",
}  # fmt: skip


def _function(name: str, own: str) -> Callable[..., Any]:
    """Return a method that applies an operation of KeOps to the tensor and to further formulas."""

    def method(self: Any, *others: Any) -> Any:
        return self._of(OPERATIONS[name], *others)

    method.__name__ = own
    method.__doc__ = f"Return the operation ``{name}`` of KeOps."
    return method


class LazyFormula:
    """A formula over i and j with the operators of arrays."""

    __array_ufunc__ = None
    __GenericLazyTensor__ = True
    is_complex = False
    reduction_op: str | None = None

    def __init__(self, x: Any = None, axis: int | None = None, is_complex: bool = False) -> None:
        if is_complex:
            raise ParameterError(f"complex LazyTensors are not supported: {LEFT_OUT['Real2Complex']}")
        self.ranges: Any = None
        self.backend: str | None = None
        self.info = ""
        self.formula: Expression | None = None
        if isinstance(x, tuple):
            if len(x) != 3 or axis is not None or not all(type(part) is int for part in x):
                raise ParameterError(f"a symbolic variable is three integers (position, dimension, axis); got {x!r}")
            self.formula = Symbol(x[0], x[1], ("i", "j", "")[x[2]])
        elif isinstance(x, LazyFormula):
            self.formula = x.formula
        elif x is not None:
            self.formula = variable(x, axis)

    @staticmethod
    def _wrap(result: Any) -> Any:
        return result

    def lt_constructor(self, x: Any = None, axis: int | None = None) -> Any:
        """Return a LazyTensor of the same kind."""
        return type(self)(x, axis)

    @property
    def _e(self) -> Expression:
        if self.reduction_op is not None:
            raise ParameterError("the LazyTensor is a reduction already: call it with its variables")
        if self.formula is None:
            raise ParameterError("the LazyTensor is empty: make it of an array")
        return self.formula

    def _operand(self, value: Any) -> Any:
        if isinstance(value, LazyFormula):
            return value
        return self.lt_constructor(value)

    def _of(self, build: Callable[..., Expression], *others: Any) -> Any:
        """Return the LazyTensor of an operation on this one and others."""
        operands = [self._operand(other) for other in others]
        return self._joined(build(self._e, *(operand._e for operand in operands)), operands)

    def _joined(self, e: Expression, others: Any = ()) -> Any:
        result = self.lt_constructor()
        result.formula, result.ranges, result.backend = e, self.ranges, self.backend
        for other in others:
            if result.ranges is None:
                result.ranges = other.ranges
            elif other.ranges is not None and not _equal_ranges(result.ranges, other.ranges):
                raise ParameterError("two LazyTensors of the formula have different ranges; give them the same")
            result.backend = result.backend or other.backend
        return result

    def _swapped(self, other: Any, name: str) -> Any:
        first = self._operand(other)
        return first._of(OPERATIONS[name], self)

    # Shapes

    @property
    def ndim(self) -> int:
        """Components of the formula."""
        return self._e.dim

    @property
    def batchdims(self) -> tuple[int, ...] | None:
        """Batch dimensions, None without."""
        return self._e.batch or None

    @property
    def nbatchdims(self) -> int:
        """The number of batch dimensions."""
        return len(self._e.batch)

    @property
    def ni(self) -> int | None:
        """Rows, None if no variable is over i."""
        return self._e.extents.get("i")

    @property
    def nj(self) -> int | None:
        """Columns, None if no variable is over j."""
        return self._e.extents.get("j")

    @property
    def _shape(self) -> tuple[int, ...]:
        return (*self._e.batch, self.ni or 1, self.nj or 1, self.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, without the components of a scalar formula."""
        return self._shape[:-1] if self.ndim == 1 else self._shape

    def dim(self) -> int:
        """Return the number of dimensions, components included."""
        return len(self._shape)

    @property
    def dtype(self) -> str | None:
        """Name of the dtype of the arrays, None if there is none yet."""
        found = [leaf.tensor.dtype for leaf in leaves(self._e) if not leaf.weak]
        return str(found[0]).removeprefix("torch.") if found else None

    def __str__(self) -> str:
        ran = f"\n    ran as: {self.info}" if self.info else ""
        text = str(self.formula)
        return f"{type(self).__name__}\n    formula: {text}\n    shape: {self.shape if self.formula else ()}{ran}"

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            raise AttributeError(f"{name} of KeOps is not supported: {LEFT_OUT[_METHODS[name]]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Arithmetic

    def __add__(self, other: Any) -> Any:
        return self if is_number(other) and other == 0 else self._of(OPERATIONS["Add"], other)

    def __radd__(self, other: Any) -> Any:
        return self if is_number(other) and other == 0 else self._swapped(other, "Add")

    def __sub__(self, other: Any) -> Any:
        return self if is_number(other) and other == 0 else self._of(OPERATIONS["Subtract"], other)

    def __rsub__(self, other: Any) -> Any:
        return -self if is_number(other) and other == 0 else self._swapped(other, "Subtract")

    def __mul__(self, other: Any) -> Any:
        if is_number(other) and other in (0, 1, -1):
            return 0 if other == 0 else self if other == 1 else -self
        return self._of(OPERATIONS["Mult"], other)

    def __rmul__(self, other: Any) -> Any:
        return self * other if is_number(other) else self._swapped(other, "Mult")

    def __truediv__(self, other: Any) -> Any:
        return self if is_number(other) and other == 1 else self._of(OPERATIONS["Divide"], other)

    def __rtruediv__(self, other: Any) -> Any:
        if is_number(other) and other in (0, 1):
            return self._of(OPERATIONS["Inv"]) if other == 1 else 0
        return self._swapped(other, "Divide")

    def __or__(self, other: Any) -> Any:
        return self._of(OPERATIONS["Scalprod"], other)

    def __ror__(self, other: Any) -> Any:
        return self._swapped(other, "Scalprod")

    def __neg__(self) -> Any:
        return self._of(OPERATIONS["Minus"])

    def __abs__(self) -> Any:
        return self._of(OPERATIONS["Abs"])

    def __pow__(self, other: Any) -> Any:
        if not (is_number(other) or isinstance(other, LazyFormula)):
            raise ParameterError(f"the exponent is a number or a LazyTensor; got {described(other)}")
        return self._of(OPERATIONS["Pow"], other)

    __hash__ = None  # type: ignore[assignment]

    def __gt__(self, other: Any) -> Any:
        return self._swapped(other, "LessThan")

    def __ge__(self, other: Any) -> Any:
        return self._swapped(other, "LessOrEqual")

    def sinc(self) -> Any:
        """Return sin(π x) / (π x)."""
        return (math.pi * self)._of(OPERATIONS["SinXDivX"])

    def mod(self, modulus: Any, offset: Any = 0) -> Any:
        """Return x - n floor((x - d) / n)."""
        return self._of(OPERATIONS["Mod"], modulus, offset)

    def round(self, digits: int = 0) -> Any:
        """Return x rounded to decimal places, halves away from zero."""
        return self._joined(OPERATIONS["Round"](self._e, digits))

    def norm(self, dim: int = -1) -> Any:
        """Return the Euclidean norm of the components."""
        if dim not in (-1, self.dim() - 1):
            raise ParameterError(f"norm is over the components, dim=-1; got dim={dim}")
        return self.norm2()

    def weightedsqnorm(self, other: Any) -> Any:
        """Return the squared norm with weights: a scalar, a vector or a symmetric matrix of D² entries."""
        return self._swapped(other, "WeightedSqNorm")

    def weightedsqdist(self, other: Any, weights: Any) -> Any:
        """Return the squared norm with weights of a difference."""
        return (self - other).weightedsqnorm(weights)

    # Components

    def elem(self, i: int) -> Any:
        """Return a component."""
        return self._joined(OPERATIONS["Elem"](self._e, i))

    def extract(self, i: int, d: int) -> Any:
        """Return d components from the i-th on."""
        return self._joined(OPERATIONS["Extract"](self._e, i, d))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            whole = (slice(None),) * (self.dim() - 1)
            if key[:-1] not in (whole, (Ellipsis,)):
                raise ParameterError(f"a LazyTensor is indexed in its components alone, not by {key!r}")
            key = key[-1]
        if isinstance(key, slice) and key.step in (None, 1):
            first, stop = key.start or 0, self.ndim if key.stop is None else key.stop
            return self.extract(first, stop - first)
        if isinstance(key, int):
            return self.elem(key)
        raise ParameterError(f"a LazyTensor is indexed by an integer or a slice with step 1, not by {key!r}")

    def one_hot(self, D: int) -> Any:
        """Return the vector of D components that is 1 at the rounded value."""
        return self._joined(OPERATIONS["OneHot"](self._e, D))

    @staticmethod
    def concatenate(tensors: Any, axis: int = -1) -> Any:
        """Return the components of several LazyTensors."""
        if not isinstance(tensors, tuple | list) or not tensors:
            raise ParameterError(f"concatenate takes a tuple of LazyTensors; got {described(tensors)}")
        first, *rest = tensors
        if axis not in (-1, first.dim() - 1):
            raise ParameterError(f"LazyTensors are concatenated along their components, axis=-1; got {axis}")
        return first._of(OPERATIONS["Concat"], *rest)

    @staticmethod
    def cat(tensors: Any, dim: int = -1) -> Any:
        """Return the components of several LazyTensors."""
        return LazyFormula.concatenate(tensors, dim)

    def keops_kron(self, other: Any, dimfself: Any, dimfother: Any) -> Any:
        """Return the Kronecker product of components as arrays of these shapes."""
        other = self._operand(other)
        return self._joined(OPERATIONS["Kron"](self._e, other._e, dimfself, dimfother), [other])

    def keops_tensordot(self, other: Any, dimfa: Any, dimfb: Any, contfa: Any, contfb: Any, *order: Any) -> Any:
        """Return the sum over some axes of the product of components as arrays of these shapes."""
        other = self._operand(other)
        shapes = (
            part if isinstance(part, tuple | list) else (part,) for part in (dimfa, dimfb, contfa, contfb, *order)
        )
        return self._joined(OPERATIONS["TensorDot"](self._e, other._e, *shapes), [other])

    def grad(self, other: Any, gradin: Any) -> Any:
        """Return the transposed Jacobian by a variable times a vector, as a formula."""
        return self._of(gradient, other, gradin)

    def diff(self, other: Any, diffin: Any) -> Any:
        """Return the Jacobian by a variable times a vector, as a formula."""
        return self._of(differential, other, diffin)

    def t(self) -> Any:
        """Return the LazyTensor with i and j exchanged."""
        result = self._joined(transposed(self._e))
        result.ranges = swap_axes(self.ranges)
        return result

    @property
    def T(self) -> Any:
        """The LazyTensor with i and j exchanged."""
        return self.t()


def _equal_ranges(one: Any, other: Any) -> bool:
    pairs = [
        (np.asarray(torch.as_tensor(a).cpu()), np.asarray(torch.as_tensor(b).cpu()))
        for a, b in zip(one, other, strict=True)
    ]
    return one is other or all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


_FUNCTIONS = {
    "exp": "Exp", "log": "Log", "xlogx": "XLogX", "cos": "Cos", "sin": "Sin", "sinxdivx": "SinXDivX", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "atan2": "Atan2", "sqrt": "Sqrt", "rsqrt": "Rsqrt", "abs": "Abs", "sign": "Sign",
    "step": "Step", "relu": "ReLU", "square": "Square", "clamp": "Clamp", "ifelse": "IfElse", "power": "Pow",
    "sqnorm2": "SqNorm2", "norm2": "Norm2", "normalize": "Normalize", "sqdist": "SqDist", "concat": "Concat",
    "matvecmult": "MatVecMult", "vecmatmult": "VecMatMult", "tensorprod": "TensorProd", "__eq__": "Equal",
    "__ne__": "NotEqual", "__lt__": "LessThan", "__le__": "LessOrEqual",
}  # fmt: skip
for _own, _name in _FUNCTIONS.items():
    setattr(LazyFormula, _own, _function(_name, _own))
