"""The derivative of a product with a matrix that is never stored, by the points that its entries are made of.

With the cotangent g of ``out[m, c] = Σ_n w(s[m, n]) v[n, c]`` and ``s[m, n] = Σ_k map(x[m, k], y[n, k])`` it is
``Σ_n (Σ_c g[m, c] v[n, c]) w'(s[m, n]) ∂map(x[m, k], y[n, k])``, for every k; by y, with rows and columns exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..ir.differentiate import differentiate
from ..ir.node import Node, postorder, rewrite, var, variables
from .hoist import fold
from .patterns import factors, product
from .row_reduce import Apply, to_base_two


@dataclass(frozen=True)
class RowPull:
    """``slope`` reads s0, ``partial`` and ``map`` the operands ``own`` and ``other``; all may read ``numbers``.

    ``numbers`` are those of the program, then those that are the values of ``folded``.
    """

    own: str
    other: str
    map: Node
    partial: Node
    slope: Node
    numbers: tuple[str, ...]
    folded: tuple[Node, ...]


@lru_cache(maxsize=1024)
def row_pull(text: str, by_columns: bool) -> RowPull | None:
    """Return the derivative of an apply by its points over rows, or over columns; None where it is not of this form."""
    apply = Apply.parse(text)
    inner = apply.inner
    arrays = [operand for operand in inner.operands if not operand.number]
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
    numbers = tuple(operand.name for operand in inner.numbers)
    if set(variables([slope])) - {"s0", *numbers}:
        return None
    folded = fold(rewrite([slope], lambda leaf: leaf, to_base_two), numbers, letter="f")
    names = numbers + folded.names
    return RowPull(own, other, inner.map[0], partial, folded.outputs[0], names, folded.values)


def _alike(partial: Node, mapped: Node, own: str, other: str) -> Node:
    """Return a derivative whose difference of both operands is that of the map, so that it is taken once."""
    taken, negated = Node("sub", (var(other), var(own))), Node("sub", (var(own), var(other)))
    if taken not in postorder([mapped]) or negated not in postorder([partial]):
        return partial
    swapped = {negated: Node("neg", (taken,))}
    (found,) = rewrite([partial], lambda leaf: leaf, lambda old, args: swapped.get(old, Node(old.op, args)))
    return found
