"""Counts of operations of programs, for torch's ``FlopCounterMode``: each operation of an expression counts as one.

As torch counts a product of matrices, a multiplication and an addition are two operations; a function such as ``exp``
is one, whatever it costs. Expressions of numbers alone are not counted: they are computed once a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from ..compiler.row_reduce import Apply
from ..ir import autodiff
from ..ir.node import Node, postorder
from ..ir.pattern import read
from ..ir.program import Program
from .layout import Geometry, geometry

Shapes = Sequence[Sequence[int]]
Formula = Callable[..., int]
FORMULAS: dict[str, Formula] = {}
"""The operations of every operator, entered beside its definition."""


def counted(name: str) -> Callable[[Formula], Formula]:
    """Enter a formula of the shapes of an operator's tensors, and of its other arguments, in the table."""

    def enter(formula: Formula) -> Formula:
        FORMULAS[name] = formula
        return formula

    return enter


def count_by_formula(name: str) -> None:
    """Let torch count an operator by its row of the table, which may be entered later."""

    @register_flop_formula(getattr(torch.ops.kernmantle, name))
    def count(*args: Any, **kwargs: Any) -> int:
        return FORMULAS[name](*args, **kwargs)


def operations(expressions: Iterable[Node], numbers: Iterable[str] = ()) -> int:
    """Return the operations of expressions for one element, without those that ``numbers`` alone decide."""
    fixed, constant, count = set(numbers), set[int](), 0
    for node in postorder(expressions):
        if node.args:
            varies = any(id(arg) not in constant for arg in node.args)
            count += varies
        else:
            varies = node.op == "var" and node.name not in fixed
        if not varies:
            constant.add(id(node))
    return count


def program_flops(program: Program, geo: Geometry) -> int:
    """Return the operations of a program: its map and reduction for each element, its outputs for each result.

    Those of a symmetric one are of half its entries and the diagonal.
    """
    numbers = [operand.name for operand in program.numbers]
    steps = [node for reduction in program.reductions if program.reduced for node in reduction.step]
    finish = [reduction.finish for reduction in program.reductions]
    each = operations(program.map, numbers) + operations(steps)
    results = math.prod(geo.out_shape(program.out))
    if program.symmetric:
        rows = math.prod(geo.sizes[axis] for axis in program.operand("x0").axes if axis in program.out)
        results = results * (rows + 1) // (2 * rows) if rows else 0
    return results * (
        each * math.prod(geo.sizes[axis] for axis in program.reduced) + operations([*finish, *program.outputs], numbers)
    )


def flops_of(call: Callable[[], object]) -> int:
    """Return the operations of what a call runs, on tensors without memory."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def on_meta(shapes: Shapes) -> list[torch.Tensor]:
    """Return tensors of these shapes without memory."""
    return [torch.empty(tuple(shape), device="meta") for shape in shapes]


def rows_flops(apply: Apply, shapes: Shapes) -> int:
    """Return the operations of a product with a matrix that is not stored, or of a reduction of its rows."""
    inner = geometry(apply.inner, [tuple(shape) for shape in shapes[: len(apply.inner.tensors)]])
    entries = math.prod(inner.out_shape(apply.inner.out))
    if apply.weighted:
        batch = math.prod(torch.broadcast_shapes(inner.batch, tuple(shapes[-1][:-2])))
        each = 2 * shapes[-1][-1] * batch // math.prod(inner.batch)
    else:
        each = 1 if apply.selects else operations([*apply.reduction.step, apply.reduction.finish])
    return program_flops(apply.inner, inner) + entries * each


def rows_backward_flops(apply: Apply, shapes: Shapes, needed: Sequence[bool]) -> int:
    """Return the operations of the gradients that are ``needed``: entries are recomputed, then their VJP is taken."""
    inner = apply.inner
    geo = geometry(inner, [tuple(shape) for shape in shapes[: len(inner.tensors)]])
    entries = math.prod(geo.out_shape(inner.out))
    total = program_flops(inner, geo)
    if apply.weighted:
        products = rows_flops(apply, shapes) - total
        total += products * any(needed[:-1]) + (total + products) * needed[-1]
    else:
        total += entries * (1 + operations([read(apply.reduction.weight)]))
    through = tuple(True for _ in inner.reductions)
    rules = [autodiff.cotangent(inner, index, (True,)) for index in range(len(inner.reductions))]
    rules += [
        autodiff.vjp(inner, operand.name, through)
        for operand, wanted in zip(inner.tensors, needed, strict=False)
        if wanted
    ]
    return total + sum(program_flops(rule, geo) for rule in rules if rule is not None)
