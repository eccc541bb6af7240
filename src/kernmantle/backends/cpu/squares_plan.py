"""Sums of squared differences on the CPU as one matrix product and the squares of rows, where that keeps the digits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...compiler.nest import Nest
from ...compiler.patterns import squared_differences
from ...ir.node import Node, const, substitute, var
from ...ir.program import Operand, Program, elementwise
from ...ir.reductions import REDUCTIONS

PROMISE = 1e-5
"""Largest relative error of a sum of squares."""
SMALLEST = 1e-30  # sum of squares, in float32, below which entries are computed as written
# A product in float32 over k numbers is off by up to sqrt(k) 2^-24 of the rows' norms; measured, a third of that.
_SMALL, _NEAREST = 1 / 128, 1 / 16
# The product takes half the time of the differences, what is done to its entries as long as 100 numbers of them.
_LEAST, _LEAST_DEPTH, _DEEPEST, _FEWEST = 1 << 28, 128, 4096, 256


@dataclass(frozen=True)
class CpuSquaresPlan:
    """Operands by name, and how small against the squares of its rows an entry is that is computed from differences."""

    row: str
    column: str
    small: float

    def __str__(self) -> str:
        return f"product of rows, entries below {self.small:.3g} of their squares by differences"


def squares_plan(program: Program, nest: Nest, sizes: Mapping[str, int]) -> CpuSquaresPlan | None:
    """Plan of a program whose nest is this; None if it is something else, must be as written or is quicker so."""
    found = squared_differences(nest)
    if found is None or found.weight is not None or nest.precision == "ieee" or program.symmetric:
        return None
    axes = {name: program.operand(name).axes for name in (found.row, found.column)}
    depth, others = program.reduced, {name: own.replace(program.reduced, "") for name, own in axes.items()}
    by_axis = {axis: name for name, axis in others.items()}
    if len(depth) != 1 or len(program.outputs) != 1 or len(program.out) != 2 or set(by_axis) != set(program.out):
        return None
    large = math.prod(sizes[axis] for axis in program.axes) >= _LEAST and _LEAST_DEPTH <= sizes[depth] <= _DEEPEST
    if not large or min(sizes[axis] for axis in program.out) < _FEWEST or any(len(own) != 2 for own in axes.values()):
        return None
    row, column = (by_axis[axis] for axis in program.out)
    return CpuSquaresPlan(row, column, max(_NEAREST, _SMALL * math.sqrt(sizes[depth])))


def _operands(program: Program) -> list[Operand]:
    """Return the product, and the squares of rows and of columns."""
    return [Operand("a0", program.out), Operand("a1", program.out[0]), Operand("a2", program.out[1])]


def _excess(plan: CpuSquaresPlan) -> Node:
    """Return the excess of twice the product over the largest value at which an entry keeps its digits."""
    bound = Node("mul", (const(1 - plan.small), Node("add", (var("a1"), var("a2")))))
    return Node("sub", (Node("mul", (const(2), var("a0"))), bound))


def column_max_cancellation(plan: CpuSquaresPlan, program: Program) -> Program:
    """The largest excess of each column: vectors along the columns take half the time of those along the rows."""
    return Program(tuple(_operands(program)), program.out[1], (_excess(plan),), (REDUCTIONS["max"],), (var("s0"),))


def cancellation_mask(plan: CpuSquaresPlan, program: Program) -> Program:
    """Return which entries lose digits, those that are not finite among them."""
    keeps = Node("lt", (_excess(plan), const(-SMALLEST)))
    return elementwise(_operands(program), program.out, [Node("not", (keeps,))])


def norm_correction(program: Program) -> Program:
    """Return the product that sums of squares would have if rows had none of their own."""
    return elementwise(_operands(program), program.out, [Node("mul", (const(-0.5), _sum()))])


def epilogue(program: Program) -> Program:
    """Return the program's output from the product."""
    operands = [op for op in program.operands if set(op.axes) <= set(program.out)]
    outputs = substitute(program.outputs, {"s0": _sum()})
    return elementwise([*operands, *_operands(program)], program.out, outputs).pruned()


def _sum() -> Node:
    squares = Node("sub", (Node("add", (var("a1"), var("a2"))), Node("mul", (const(2), var("a0")))))
    return Node("max", (squares, const(0)))
