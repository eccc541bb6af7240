"""Maps as products for operands that are tame: differences finite, and 0 or normal.

Gradients of distances are products of a cotangent over rows, numbers, a sign and a power of one difference. There
the sign is a bit of the difference wherever another factor vanishes with it, a mask of the singular point changes
nothing, and factors that are one number a row are multiplied once a row. A sign alone is exact in two operations:
with s = saturate(2^126 d + 1/2), which is 0, 1/2 or 1, the sum of g sign(d) is twice the sum of g s less the sum of g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..expr.node import Node, const, postorder, variables
from .nest import Nest

ROW, PAIR = "row", "pair"


@dataclass(frozen=True)
class Tame:
    """The product ``prefix`` times ``rest``, times the sign of ``difference`` in the way that ``sign`` says.

    ``sign`` is "bit" (the bit of the difference, where the rest vanishes at 0), "half" (s instead, corrected by the
    sum of the prefixes) or "" (there is none). With ``positive`` the exponent of the power must be positive.
    """

    prefix: Node
    rest: tuple[Node, ...]
    difference: Node | None
    sign: str
    positive: bool


def is_difference(node: Node) -> bool:
    """Whether it is a - b of two operands."""
    return node.op == "sub" and all(arg.op == "var" for arg in node.args)


def is_gap(node: Node) -> bool:
    """Whether it is |a - b| of two operands, which is finite where they are small enough."""
    return node.op == "abs" and is_difference(node.args[0])


def _mask(node: Node) -> Node | None:
    """The difference whose zero a condition asks for, among others."""
    if node.op == "and":
        return next((found for found in map(_mask, node.args) if found is not None), None)
    zero = node.op == "eq" and any(arg.number == 0 and not isinstance(arg.number, bool) for arg in node.args)
    return next((arg for arg in node.args if is_difference(arg)), None) if zero else None


def unmasked_factors(node: Node, masks: list[Node], numbers: Sequence[str]) -> list[Node]:
    """Factors of a product, masks of a difference left out and noted where they cover nothing but its functions."""
    if node.op == "mul":
        return [factor for arg in node.args for factor in unmasked_factors(arg, masks, numbers)]
    if node.op == "neg":
        return [const(-1), *unmasked_factors(node.args[0], masks, numbers)]
    if node.op == "where" and node.args[1].number == 0:
        masked = _mask(node.args[0])
        if masked is not None and set(variables([node.args[2]])) <= {*variables([masked]), *numbers}:
            masks.append(masked)
            return unmasked_factors(node.args[2], masks, numbers)
    return [node]


def product(factors: Sequence[Node]) -> Node:
    """Factors multiplied in order, literals and signs first."""
    literal, total = 1.0, None
    for factor in factors:
        if factor.number is not None:
            literal *= factor.number
        else:
            total = factor if total is None else Node("mul", (total, factor))
    if total is None:
        return const(literal)
    if abs(literal) != 1:
        total = Node("mul", (const(abs(literal)), total))
    return Node("neg", (total,)) if literal < 0 else total


def _of_one_row(factor: Node, nest: Nest) -> bool:
    """Whether a factor is the same for all cells of a row, or for all cells."""
    columns = {port.name for port in nest.operands if "n" in port.roles}
    return not columns & set(variables([factor])) and "index" not in variables([factor])


def _vanishes(factor: Node, difference: Node) -> bool:
    """Whether a factor is 0 where the difference is, at least with a positive exponent."""
    if factor.op in ("pow", "sqrt"):
        factor = factor.args[0]
    return factor.op == "abs" and factor.args[0] is difference


def tame(nest: Nest) -> Tame | None:
    """The map of a nest as such a product, if it is one and if that is right and of use."""
    if nest.compute != "f32" or nest.reproducible or len(nest.map) != 1 or nest.reductions[0].name != "sum":
        return None
    if not is_watched(nest):
        return None
    masks: list[Node] = []
    factors = unmasked_factors(nest.map[0], masks, nest.numbers)
    signs = [f.args[0] for f in factors if f.op == "sign" and is_difference(f.args[0])]
    if len(signs) > 1 or len({*masks, *signs}) > 1:
        return None
    rest = [f for f in factors if f.op != "sign" or f.args[0] not in signs]
    prefix = [f for f in rest if _of_one_row(f, nest)]
    rest = [f for f in rest if f not in prefix]
    difference = next(iter([*masks, *signs]), None)
    if difference is None:
        return Tame(product(prefix), tuple(rest), None, "", False) if len(factors) > 2 and prefix and rest else None
    vanishing = [f for f in rest if _vanishes(f, difference)]
    if vanishing:
        positive = all(f.op == "pow" for f in vanishing)
        return Tame(product(prefix), tuple(rest), difference if signs else None, "bit" if signs else "", positive)
    named = set(variables(prefix))
    if masks or rest or not named or named & set(nest.numbers):
        return None
    return Tame(product(prefix), (), difference, "half", False)


def differing(nest: Nest) -> frozenset[str]:
    """Names of the operands that differences of the map are made of."""
    differences = [node for node in postorder(nest.map) if is_difference(node)]
    return frozenset(variables(differences))


def is_watched(nest: Nest) -> bool:
    """Whether a kernel sees these operands before it reduces them: not those that vary with the cell at every step."""
    varying = {port.name for port in nest.operands if {"m", "n"} < set(port.roles)}
    return not varying & differing(nest)
