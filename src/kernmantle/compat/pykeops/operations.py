"""The mathematical operations of KeOps by their names in formulas, as functions of expressions and integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ...errors import ParameterError, ShapeError
from .expression import Expression, Map, Number, components, concatenated, constants, folded


def _map(op: str, arity: int = 1) -> Callable[..., Expression]:
    def build(*args: Expression) -> Expression:
        if len(args) != arity:
            raise TypeError(f"takes {arity} arguments, got {len(args)}")
        return Map(op, *args)

    return build


def _scalar(op: str) -> Callable[[Expression], Expression]:
    def build(e: Expression) -> Expression:
        return folded(op, e)

    return build


def _power(e: Expression, exponent: Any) -> Expression:
    value = exponent.value if isinstance(exponent, Number) else exponent
    if isinstance(value, Expression):
        return Map("pow", e, value)
    by_name = {2: "square", 0.5: "sqrt", -0.5: "masked_rsqrt", -1: "rcp"}
    return Map(by_name[value], e) if value in by_name else Map("pow", e, Number(value))


def _dot(a: Expression, b: Expression) -> Expression:
    if a.dim != b.dim:
        raise ShapeError(f"the scalar product takes vectors of the same dimension; got {a.dim} and {b.dim}")
    return folded("sum", Map("mul", a, b))


def _squared(e: Expression) -> Expression:
    return folded("sum", Map("square", e))


def _squared_distance(a: Expression, b: Expression) -> Expression:
    return _squared(Map("sub", a, b))


def _weighted(weights: Expression, e: Expression) -> Expression:
    """Return the squared length weighted by a number, by one for each component, or by a symmetric matrix."""
    if weights.dim == 1:
        return Map("mul", weights, _squared(e))
    if weights.dim == e.dim:
        return folded("sum", Map("mul", weights, Map("square", e)))
    if weights.dim != e.dim**2:
        raise ShapeError(
            f"weights of a squared norm in dimension {e.dim} have dimension 1, {e.dim} or {e.dim**2}; got {weights.dim}"
        )
    return folded("sum", Map("mul", weights, _tensor_product(e, e)))


def _weighted_distance(weights: Expression, a: Expression, b: Expression) -> Expression:
    return _weighted(weights, Map("sub", a, b))


def _element(e: Expression, index: int) -> Expression:
    return _slice(e, index, 1)


def _slice(e: Expression, first: int, count: int) -> Expression:
    if not (first >= 0 and count >= 1 and first + count <= e.dim):
        raise ShapeError(f"components {first} to {first + count} are asked for of a vector of dimension {e.dim}")
    return components(e, tuple(range(first, first + count)))


def _concatenation(*parts: Expression) -> Expression:
    return reduce(concatenated, parts)


def _one_hot(e: Expression, dim: int) -> Expression:
    if e.dim != 1 or dim < 1:
        raise ShapeError(f"one_hot takes a scalar and a dimension of at least 1; got dimension {e.dim}, and {dim}")
    nearest = Map("floor", Map("add", e, Number(0.5)))
    return Map("is_eq", nearest, constants(range(dim)))


def _products(a: Expression, b: Expression, left: Any, right: Any, groups: int) -> Expression:
    """Return the sums over groups of products of chosen components."""
    pair = Map("mul", components(a, tuple(map(int, left))), components(b, tuple(map(int, right))))
    return folded("sum", pair, groups) if pair.dim > groups else pair


def _quotient(large: Expression, small: Expression, what: str) -> int:
    if large.dim % small.dim:
        raise ShapeError(f"{what}: a matrix of {large.dim} entries does not fit a vector of dimension {small.dim}")
    return large.dim // small.dim


def _matrix_vector(matrix: Expression, vector: Expression) -> Expression:
    rows = _quotient(matrix, vector, "matvecmult")
    return _products(matrix, vector, range(matrix.dim), [*range(vector.dim)] * rows, rows)


def _vector_matrix(vector: Expression, matrix: Expression) -> Expression:
    columns = _quotient(matrix, vector, "vecmatmult")
    order = np.arange(matrix.dim).reshape(vector.dim, columns).T.ravel()
    return _products(matrix, vector, order, [*range(vector.dim)] * columns, columns)


def _tensor_product(a: Expression, b: Expression) -> Expression:
    left, right = np.divmod(np.arange(a.dim * b.dim), b.dim)
    return Map("mul", components(a, tuple(map(int, left))), components(b, tuple(map(int, right))))


def _kron(a: Expression, b: Expression, shape_a: Any, shape_b: Any) -> Expression:
    _check_shapes(a, b, shape_a, shape_b)
    left = np.kron(np.arange(a.dim).reshape(shape_a), np.ones(shape_b, int)).ravel()
    right = np.kron(np.ones(shape_a, int), np.arange(b.dim).reshape(shape_b)).ravel()
    return Map("mul", components(a, tuple(map(int, left))), components(b, tuple(map(int, right))))


def _check_shapes(a: Expression, b: Expression, shape_a: Any, shape_b: Any) -> None:
    if int(np.prod(shape_a)) != a.dim or int(np.prod(shape_b)) != b.dim:
        raise ShapeError(f"shapes {tuple(shape_a)} and {tuple(shape_b)} do not have {a.dim} and {b.dim} entries")


def _tensordot(
    a: Expression, b: Expression, shape_a: Any, shape_b: Any, axes_a: Any, axes_b: Any, order: Any = None
) -> Expression:
    """Return the product over free axes of a, then of b, as NumPy does; ``order`` has their positions in it."""
    _check_shapes(a, b, shape_a, shape_b)
    axes_a, axes_b = [*axes_a], [*axes_b]
    if [shape_a[axis] for axis in axes_a] != [shape_b[axis] for axis in axes_b]:
        raise ShapeError(f"axes {axes_a} of {tuple(shape_a)} do not match axes {axes_b} of {tuple(shape_b)}")
    free_a = [axis for axis in range(len(shape_a)) if axis not in axes_a]
    free_b = [axis for axis in range(len(shape_b)) if axis not in axes_b]
    shape = [shape_a[axis] for axis in free_a] + [shape_b[axis] for axis in free_b]
    order = [*range(len(shape))] if order is None else [*order]
    if sorted(order) != [*range(len(shape))]:
        raise ShapeError(f"order {order} is not a permutation of the {len(shape)} axes of the result")
    summed = int(np.prod([shape_a[axis] for axis in axes_a]))
    left = np.arange(a.dim).reshape(shape_a).transpose(free_a + axes_a).reshape(-1, 1, summed)
    right = np.arange(b.dim).reshape(shape_b).transpose(free_b + axes_b).reshape(1, -1, summed)
    first, second = (
        side.reshape(*shape, summed).transpose([*np.argsort(order), len(shape)]).ravel()
        for side in np.broadcast_arrays(left, right)
    )
    return _products(a, b, first, second, int(np.prod(shape)))


def _round(e: Expression, digits: int = 0) -> Expression:
    if not digits:
        return Map("nearest", e)
    scale = Number(10.0**digits)
    return Map("div", Map("nearest", Map("mul", e, scale)), scale)


OPERATIONS: dict[str, Callable[..., Expression]] = {
    "Add": _map("add", 2), "Subtract": _map("sub", 2), "Mult": _map("mul", 2), "Divide": _map("div", 2),
    "Minus": _map("neg"), "Inv": _map("rcp"), "Exp": _map("exp"), "Log": _map("log"), "XLogX": _map("xlogx"),
    "Sin": _map("sin"), "Cos": _map("cos"), "SinXDivX": _map("sinxdivx"), "Asin": _map("asin"), "Acos": _map("acos"),
    "Atan": _map("atan"), "Atan2": _map("atan2", 2), "Sqrt": _map("sqrt"), "Rsqrt": _map("masked_rsqrt"),
    "Abs": _map("abs"), "Sign": _map("sign"), "Step": _map("step"), "ReLU": _map("relu"), "Floor": _map("floor"),
    "Square": _map("square"), "Pow": _power, "Powf": _power, "Clamp": _map("clamped", 3),
    "ClampInt": _map("clamped", 3), "IfElse": _map("ifelse", 3), "Mod": _map("modulo", 3), "Round": _round,
    "Equal": _map("is_eq", 2), "NotEqual": _map("is_ne", 2), "LessThan": _map("is_lt", 2),
    "LessOrEqual": _map("is_le", 2), "Sum": _scalar("sum"), "Max": _scalar("max"), "Min": _scalar("min"),
    "ArgMax": _scalar("argmax"), "ArgMin": _scalar("argmin"), "Scalprod": _dot, "SqNorm2": _squared,
    "SqDist": _squared_distance, "Norm2": lambda e: Map("sqrt", _squared(e)),
    "Normalize": lambda e: Map("mul", Map("masked_rsqrt", _squared(e)), e), "WeightedSqNorm": _weighted,
    "WeightedSqDist": _weighted_distance, "SqNormIso": _weighted, "SqNormDiag": _weighted, "SymSqNorm": _weighted,
    "Elem": _element, "Extract": _slice, "Concat": _concatenation, "OneHot": _one_hot, "MatVecMult": _matrix_vector,
    "VecMatMult": _vector_matrix, "TensorProd": _tensor_product, "Kron": _kron, "TensorDot": _tensordot,
    "IntCst": Number, "IntInv": lambda value: Number(1 / value),
    "RatCst": lambda p, q: Number(p / q), "Zero": lambda dim: constants([0.0] * dim),
}  # fmt: skip
"""A function of expressions, and of integers where KeOps has parameters of compilation, for every name."""

_AUTOGRAD = "call backward, or torch.autograd.grad with create_graph=True, on the reduction"
_REAL = "give real and imaginary parts as two variables"
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(("GradMatrix", "Divergence", "Laplacian", "TraceOperator", "AdjointOperator"), _AUTOGRAD),
    **dict.fromkeys(("Factorize", "AutoFactorize"), "leave it out: equal parts of a formula are computed once"),
    **dict.fromkeys(("ElemT", "ExtractT"), "concatenate with zeros instead"),
    "BSpline": "evaluate the basis with torch and pass it as a variable",
    "SoftDTW_SqDist": "write the recurrence with torch",
    **dict.fromkeys(
        ("Real2Complex", "Imag2Complex", "ComplexExp1j", "ComplexMult", "ComplexAbs", "Conj", "ComplexReal",
         "ComplexImag"), _REAL),
}  # fmt: skip
"""Operations of KeOps that are left out, with what to do instead."""


def operation(name: str) -> Callable[..., Expression]:
    """Return the operation of a name; raise with what to do instead for those that are left out."""
    if name in OPERATIONS:
        return OPERATIONS[name]
    if name in LEFT_OUT:
        raise ParameterError(f"{name} of KeOps is not supported: {LEFT_OUT[name]}")
    raise ParameterError(f"{name!r} is not an operation of KeOps")
