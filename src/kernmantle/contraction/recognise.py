"""Known algebra, recognised on the canonical expression and never by a name."""

from __future__ import annotations

from dataclasses import dataclass

from ..expr.node import Node, variables
from .nest import Nest
from .program import Program
from .pullback import factors, product


@dataclass(frozen=True)
class Matmul:
    """``Σ_k left · right``: which operands multiply and their axes; the outputs still follow."""

    left: str
    right: str
    reduced: str


def matmul(program: Program) -> Matmul | None:
    """The program as a matrix product, if its only accumulator is a sum of products of two tensors."""
    if len(program.map) != 1 or program.reductions[0].name != "sum" or len(program.reduced) != 1:
        return None
    product = program.map[0]
    if product.op != "mul" or any(arg.op != "var" for arg in product.args):
        return None
    left, right = (program.operand(arg.name) for arg in product.args)
    axis = program.reduced
    if left.number or right.number or axis not in left.axes or axis not in right.axes:
        return None
    kept = left.axes.replace(axis, "") + right.axes.replace(axis, "")
    if len(kept) > 2 or sorted(kept) != sorted(program.out):
        return None
    return Matmul(left.name, right.name, axis)


@dataclass(frozen=True)
class Squares:
    """``Σ_k weight · (row − column)²``, the weight over k and numbers, or None."""

    row: str
    column: str
    weight: Node | None


def _parts(node: Node) -> list[Node]:
    """Factors, those of a square twice."""
    return [
        part
        for factor in factors(node)
        for part in (2 * _parts(factor.args[0]) if factor.op == "pow" and factor.args[1].number == 2 else [factor])
    ]


def squared_differences(nest: Nest) -> Squares | None:
    """The nest as a sum of squared differences of one operand over (m, k) and one over (n, k)."""
    roles = {port.name: port.roles for port in nest.operands}
    looped = any("l" in port.roles for port in nest.ports)
    if nest.compute != "f32" or nest.partial or looped or [red.name for red in nest.reductions] != ["sum"]:
        return None
    parts = _parts(nest.map[0])
    gaps = [part for part in parts if part.op == "sub" and all(arg.op == "var" for arg in part.args)]
    if len(gaps) != 2 or gaps[0] is not gaps[1]:
        return None
    names = sorted((arg.name for arg in gaps[0].args), key=lambda name: roles.get(name, ""))
    rest = [part for part in parts if part is not gaps[0]]
    weight = product(rest) if rest else None
    others = set(variables(rest)) - set(nest.numbers)
    plain = all(set(roles[name]) <= {"k"} for name in others)
    positive = weight is None or weight.number is None or weight.number > 0
    if [roles.get(name) for name in names] != ["mk", "nk"] or not plain or not positive:
        return None
    return Squares(names[0], names[1], weight)


def inner_product(nest: Nest) -> bool:
    """Whether the nest is a sum over k of an operand over (m, k) times one over (n, k)."""
    roles = {port.name: port.roles for port in nest.operands}
    if nest.compute != "f32" or nest.partial or [red.name for red in nest.reductions] != ["sum"]:
        return False
    parts = factors(nest.map[0])
    return sorted(roles.get(part.name, "") if part.op == "var" else "" for part in parts) == ["mk", "nk"]
