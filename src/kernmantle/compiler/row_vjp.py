"""The derivative of a product with a matrix that is never stored, by the points that its entries are made of.

With the cotangent g of ``out[m, c] = Σ_n w(s[m, n]) v[n, c]`` and ``s[m, n] = Σ_k map(x[m, k], y[n, k])`` it is
``Σ_n (Σ_c g[m, c] v[n, c]) w'(s[m, n]) ∂map(x[m, k], y[n, k])``, for every k; by y, with rows and columns exchanged.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from functools import lru_cache

from ..ir.differentiate import differentiate
from ..ir.node import Node, const, postorder, rewrite, var, variables
from ..ir.program import Operand, Program
from .hoist import fold
from .patterns import factors, product
from .row_reduce import Apply, to_base_two


@dataclass(frozen=True)
class RowVjp:
    """``slope`` reads s0, ``partial`` and ``map`` the operands ``own`` and ``other``; all may read what is below.

    ``numbers`` are those of the program, then those that are the values of ``folded``; ``scalars`` are tensors of one
    number.
    """

    own: str
    other: str
    map: Node
    partial: Node
    slope: Node
    numbers: tuple[str, ...]
    folded: tuple[Node, ...]
    scalars: tuple[str, ...] = ()


@dataclass(frozen=True)
class DifferenceVjp:
    """A derivative by own points that is ``factor`` times the sum of weights times (own - other).

    ``text`` is the product with the matrix of the weights. With ``same`` it is that of the apply itself.
    """

    text: str
    factor: Node
    same: bool


@dataclass(frozen=True)
class _Parts:
    """Names of both operands, the derivative of the map by ``own``, and that of the output by the sum."""

    own: str
    other: str
    partial: Node
    slope: Node


@lru_cache(maxsize=1024)
def row_vjp(text: str, by_columns: bool) -> RowVjp | None:
    """Return the derivative of an apply by its points over rows, or over columns; None where it is not of this form."""
    inner, parts = Apply.parse(text).inner, _parts(text, by_columns)
    if parts is None:
        return None
    numbers, scalars = (tuple(operand.name for operand in of) for of in (inner.numbers, scalars_of(inner)))
    folded = fold(rewrite([parts.slope], lambda leaf: leaf, to_base_two), numbers, scalars, letter="f")
    (slope,), names = folded.outputs, numbers + folded.names
    return RowVjp(parts.own, parts.other, inner.map[0], parts.partial, slope, names, folded.values, scalars)


def scalars_of(program: Program) -> tuple[Operand, ...]:
    """Return the tensors of one number."""
    return tuple(operand for operand in program.tensors if not operand.axes)


@lru_cache(maxsize=1024)
def difference_vjp(text: str, by_columns: bool) -> DifferenceVjp | None:
    """Return the derivative of an apply by its points over rows, or over columns, if it is made of differences."""
    parts = _parts(text, by_columns)
    if parts is None or parts.partial.op != "sub":
        return None
    ends = [node.name for node in parts.partial.args]
    if sorted(ends) != sorted((parts.own, parts.other)):
        return None
    apply = Apply.parse(text)
    sign = const(1 if ends[0] == parts.own else -1)
    numbers = {operand.name for operand in (*apply.inner.numbers, *scalars_of(apply.inner))}
    of_slope = factors(parts.slope)
    of_slope = [each for factor in of_slope for each in factors(_unmasked(factor, numbers))]
    rest = [factor for factor in of_slope if set(variables([factor])) <= numbers]
    moving = [factor for factor in of_slope if factor not in rest]
    if moving == [apply.inner.outputs[0]]:
        return DifferenceVjp(text, product([sign, *rest]), same=True)
    weights = replace(apply, inner=replace(apply.inner, outputs=(parts.slope,)))
    return DifferenceVjp(weights.text, sign, same=False)


@lru_cache(maxsize=1024)
def scalar_vjp(text: str, name: str) -> str | None:
    """Return the product with the derivatives of entries by a tensor of one number; None where their sums read it."""
    apply = Apply.parse(text)
    if name in variables([*apply.inner.map]):
        return None
    (slope,) = differentiate(apply.inner.outputs[0], [name])
    return replace(apply, inner=replace(apply.inner, outputs=(slope,))).text


def _unmasked(node: Node, numbers: Set[str]) -> Node:
    """Return a value without the mask that makes it 0 for numbers for which it is not defined."""
    if node.op != "where" or node.args[1].number != 0 or not set(variables([node.args[0]])) <= numbers:
        return node
    return node.args[2]


def _parts(text: str, by_columns: bool) -> _Parts | None:
    apply = Apply.parse(text)
    inner = apply.inner
    arrays = [operand for operand in inner.operands if not operand.number and operand.axes]
    plain = apply.weighted and [red.name for red in inner.reductions] == ["sum"] and len(inner.reduced) == 1
    axes = {apply.row + inner.reduced: "row", apply.column + inner.reduced: "column"}
    by_role = {axes.get("".join(sorted(o.axes, key=inner.reduced.__eq__)), ""): o.name for o in arrays}
    if not plain or len(arrays) != 2 or set(by_role) != {"row", "column"}:
        return None
    own, other = (by_role["column"], by_role["row"]) if by_columns else (by_role["row"], by_role["column"])
    (partial,) = differentiate(inner.map[0], [own])
    (slope,) = differentiate(inner.outputs[0], ["s0"])
    parts = factors(_alike(partial, inner.map[0], own, other))
    literals = [part for part in parts if part.number is not None]
    rest = [part for part in parts if part.number is None]
    if literals and rest:
        partial, slope = product(rest), Node("mul", (product(literals), slope))
    if set(variables([slope])) - {"s0", *(operand.name for operand in (*inner.numbers, *scalars_of(inner)))}:
        return None
    return _Parts(own, other, partial, slope)


def _alike(partial: Node, mapped: Node, own: str, other: str) -> Node:
    """Return a derivative whose difference of both operands is that of the map, so that it is taken once."""
    taken, negated = Node("sub", (var(other), var(own))), Node("sub", (var(own), var(other)))
    if taken not in postorder([mapped]) or negated not in postorder([partial]):
        return partial
    swapped = {negated: Node("neg", (taken,))}
    (found,) = rewrite([partial], lambda leaf: leaf, lambda old, args: swapped.get(old, Node(old.op, args)))
    return found
