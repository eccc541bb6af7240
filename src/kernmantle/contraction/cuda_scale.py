"""Sums that entries of a matrix read times one factor alone: it can then be taken into the rows beforehand.

Where the map is homogeneous, f(a x, a y) = a^degree f(x, y), a multiplication a pair becomes one a row. Rows that are
multiplied round, so that a kernel only does so where it sees that they are small against the unit of the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..expr.node import Node, postorder, rewrite, var, variables
from .nest import Nest

SCALED = "t0"


@dataclass(frozen=True)
class Scale:
    """``output`` reads ``SCALED``, the sum of rows times |factor|^(1 / degree), of a factor below 0."""

    factor: Node
    degree: int
    output: Node


def _degree(node: Node, degrees: Mapping[Node, float | None]) -> float | None:
    """Power of a with which an operation grows, if one; constants have power 0."""
    parts = [degrees[arg] for arg in node.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if node.op in ("add", "sub", "min", "max"):
        return known[0] if known[0] == known[1] else None
    if node.op in ("neg", "abs"):
        return known[0]
    if node.op == "mul":
        return known[0] + known[1]
    exponent = node.args[1].number if node.op == "pow" else None
    return known[0] * exponent if exponent is not None else None


def degree(nest: Nest) -> int | None:
    """1 or 2 if the only map is homogeneous of that degree in the rows of both arrays and has no other operand."""
    if len(nest.map) != 1 or nest.reductions[0].name != "sum" or nest.compute != "f32" or nest.reproducible:
        return None
    rows = {port.name for port in nest.operands if set(port.roles) in ({"m", "k"}, {"n", "k"})}
    degrees: dict[Node, float | None] = {}
    for node in postorder(nest.map):
        if node.op == "var":
            degrees[node] = 1 if node.name in rows else None
        else:
            degrees[node] = _degree(node, degrees) if node.args else 0
    found = degrees[nest.map[0]]
    return int(found) if found in (1, 2) else None


def scale(nest: Nest, output: Node, uniform: Collection[str]) -> Scale | None:
    """How an entry reads its sum times a factor of ``uniform`` variables, if that is all it reads of it."""
    power, total = degree(nest), var("s0")
    users = [node for node in postorder([output]) if total in node.args]
    if power is None or len(users) != 1 or users[0].op != "mul" or output is total:
        return None
    (product,) = users
    factor = product.args[1] if product.args[0] is total else product.args[0]
    if factor.op != "var" or factor.name not in uniform:
        return None
    readers = [node for node in postorder([output]) if product in node.args]
    if not readers or any(node.op not in ("exp", "exp2") for node in readers):
        return None

    def replaced(node: Node, args: tuple[Node, ...]) -> Node:
        return Node("neg", (var(SCALED),)) if node is product else Node(node.op, args)

    (root,) = rewrite([output], lambda leaf: leaf, replaced)
    return None if "s0" in variables([root]) else Scale(factor, power, root)
