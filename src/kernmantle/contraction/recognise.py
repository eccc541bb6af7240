"""Known algebra, recognised on the canonical expression and never by a name."""

from __future__ import annotations

from dataclasses import dataclass

from .program import Program


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
