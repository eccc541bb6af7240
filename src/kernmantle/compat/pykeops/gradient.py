"""Derivatives of formulas by one of their variables, as formulas."""

from __future__ import annotations

from functools import lru_cache, reduce

import numpy as np

from ...errors import GradientError, ParameterError, ShapeError
from ...ir.differentiate import differentiate
from ...ir.node import Node, const, substitute, var
from .expression import BUILDERS, Expression, Fold, Leaf, Map, Symbol, components, constants, folded, source
from .operations import OPERATIONS


def gradient(e: Expression, variable: Expression, cotangent: Expression) -> Expression:
    """Return the transposed Jacobian of a formula by a variable times a vector of the formula's dimension."""
    _check(e, variable)
    if cotangent.dim != e.dim:
        raise ShapeError(f"the cotangent of a formula of dimension {e.dim} has as many; got {cotangent.dim}")
    found: list[Expression] = []
    _vjp(e, cotangent, variable, found)
    return _total(found, variable)


def differential(e: Expression, variable: Expression, tangent: Expression) -> Expression:
    """Return the Jacobian of a formula by a variable times a vector of the variable's dimension."""
    _check(e, variable)
    if tangent.dim != variable.dim:
        raise ShapeError(f"the tangent of a variable of dimension {variable.dim} has as many; got {tangent.dim}")
    found = _jvp(e, variable, tangent)
    return _total([] if found is None else [found], e)


def _check(e: Expression, variable: Expression) -> None:
    whole = isinstance(variable, Symbol) and variable.chosen is None
    if not whole and not (isinstance(variable, Leaf) and source(variable)[0] is variable):
        raise ParameterError("derivatives are by one variable, not by an expression or by some of its components")
    if isinstance(variable, Leaf) and not _depends(e, variable):
        raise ParameterError("the formula does not read this variable: give the LazyTensor that it was built from")


def _total(parts: list[Expression], like: Expression) -> Expression:
    """Return the sum with the dimension of another expression, zero of nothing."""
    if not parts:
        return Map("zero", like)
    return _wide(reduce(lambda a, b: Map("add", a, b), parts), like.dim)


def _wide(e: Expression, dim: int) -> Expression:
    return e if e.dim == dim else Map("mul", e, constants([1.0] * dim))


def _taken(part: Expression, variable: Expression) -> tuple[int, ...] | None:
    """Return which components of the variable a part is, None if it is none of it."""
    if isinstance(part, Symbol) and isinstance(variable, Symbol) and part.position == variable.position:
        return tuple(range(part.size)) if part.chosen is None else part.chosen
    if isinstance(part, Leaf) and isinstance(variable, Leaf):
        whole, chosen = source(part)
        return chosen if whole is variable else None
    return None


@lru_cache(maxsize=1024)
def _slope(op: str, arity: int, index: int) -> str | None:
    """Return the name of the derivative of an operation by an argument, None where it is zero."""
    names = [f"a{i}" for i in range(arity)]
    (slope,) = differentiate(BUILDERS[op](*map(var, names)), [names[index]])
    if slope is const(0):
        return None

    def build(*args: Node) -> Node:
        return substitute([slope], dict(zip(names, args, strict=True)))[0]

    name = f"{op}'{index}"
    BUILDERS[name] = build
    return name


def _only_sums(e: Fold) -> None:
    if e.op != "sum":
        raise GradientError(f"{e.op} of components has no symbolic derivative: use autograd on the reduction")


def _vjp(e: Expression, cotangent: Expression, variable: Expression, found: list[Expression]) -> None:
    """Add to ``found`` what a part of the formula contributes."""
    taken = _taken(e, variable)
    if taken is not None:
        if taken == tuple(range(variable.dim)):
            found.append(_wide(cotangent, e.dim))
        else:
            scatter = np.equal.outer(np.arange(variable.dim), taken).astype(float).ravel()
            found.append(OPERATIONS["MatVecMult"](constants(scatter.tolist()), _wide(cotangent, e.dim)))
    elif isinstance(e, Map):
        for index, arg in enumerate(e.args):
            name = _slope(e.op, len(e.args), index) if _depends(arg, variable) else None
            if name is not None:
                part = Map("mul", cotangent, Map(name, *e.args))
                _vjp(arg, folded("sum", part) if arg.dim == 1 else part, variable, found)
    elif isinstance(e, Fold) and _depends(e.arg, variable):
        _only_sums(e)
        repeated = components(cotangent, tuple(k // e.length for k in range(e.arg.dim)))
        _vjp(e.arg, _wide(repeated, e.arg.dim), variable, found)


def _jvp(e: Expression, variable: Expression, tangent: Expression) -> Expression | None:
    """Return the tangent of a part of the formula, None for zero."""
    taken = _taken(e, variable)
    if taken is not None:
        return components(tangent, taken)
    if isinstance(e, Map):
        parts: list[Expression] = []
        for index, arg in enumerate(e.args):
            moved = _jvp(arg, variable, tangent)
            name = None if moved is None else _slope(e.op, len(e.args), index)
            if moved is not None and name is not None:
                parts.append(Map("mul", moved, Map(name, *e.args)))
        return _total(parts, e) if parts else None
    if isinstance(e, Fold):
        moved = _jvp(e.arg, variable, tangent)
        if moved is None:
            return None
        _only_sums(e)
        return folded("sum", _wide(moved, e.arg.dim), e.dim)
    return None


def _depends(e: Expression, variable: Expression) -> bool:
    if _taken(e, variable) is not None:
        return True
    parts = e.args if isinstance(e, Map) else (e.arg,) if isinstance(e, Fold) else ()
    return any(_depends(part, variable) for part in parts)
