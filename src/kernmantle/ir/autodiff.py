"""Derivatives of programs, as programs.

For ``out = u(s, x)`` with accumulators ``s_i = ⊕_reduced f_i(x)`` and cotangents g, the chain rule splits in two:

* the cotangent of an accumulator, ``h_i = Σ_o g_o ∂u_o/∂s_i``, a program without reduction (``cotangent``);
* the gradient of an operand over axes A, ``Σ_(axes − A) Σ_i h_i w_i ∂f_i/∂x``, a sum over the other axes
  (``vjp``), plus ``Σ_(out − A) Σ_o g_o ∂u_o/∂x`` where the outputs read x themselves (``direct``).

The weight ``w_i = ∂s_i/∂f_i`` of one term stands in the reduction's row: 1 for a sum, the share of the
ties for min and max, the softmax weight for logsumexp, the product of the other factors for prod. It is a
function of the mapped value, of the accumulator (operand ``a{i}``) and of statistics of the terms (operands
``b{i}``, ``z{i}``, ``y{i}``, ``q{i}``) which ``statistics`` computes with one more program. Each result is
differentiable again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import GradientError
from .differentiate import differentiate
from .node import Node, const, substitute, var, variables
from .program import Operand, Program, elementwise
from .reductions import REDUCTIONS, STATISTICS, Reduction
from .simplify import simplify

SUM = REDUCTIONS["sum"]
HIGHEST_PRODUCT_ORDER = 3  # derivative of a product


def _op(name: str, *args: Node) -> Node:
    return Node(name, args)


def _weight(program: Program, accumulator: int, value: Node) -> Node:
    """Return the slope of an accumulator by one mapped value, over operands a{i}, b{i}, ..."""
    names = {letter: var(f"{letter}{accumulator}") for letter in "a" + STATISTICS}
    return program.reductions[accumulator].slope({"t": value} | names)


def _descended(derived: Program, program: Program) -> Program:
    """Return a derivative with what it inherits of the program that it is one of."""
    order = program.product_order
    if order == HIGHEST_PRODUCT_ORDER:
        raise GradientError(
            f"a reduction by prod has derivatives up to order {order}: beyond, factors of zero would lose terms; "
            "multiply with torch.prod where higher ones are needed"
        )
    multiplies = order > 0 or any(reduction.name == "prod" for reduction in program.reductions)
    return replace(derived, reproducible=program.rounds_alike, product_order=order + multiplies)


def undifferentiable(program: Program) -> Reduction | None:
    """Return the first reduction that has no gradient, if any."""
    return next((red for red in program.reductions if not red.differentiable), None)


def with_accumulators(program: Program) -> Program:
    """Return the program with its raw accumulators as further outputs."""
    return replace(program, outputs=program.outputs + tuple(_accumulators(program)))


def _accumulators(program: Program) -> list[Node]:
    return [var(f"s{i}") for i in range(len(program.reductions))]


def accumulator_is_output(program: Program) -> bool:
    """Return whether every accumulator is an output as it is, in order: nothing more needs to be saved."""
    return list(program.outputs) == _accumulators(program)


def weights_read_accumulators(program: Program) -> bool:
    """Return whether the slope of some reduction depends on its accumulator."""
    return any(reduction.reads_accumulator for reduction in program.reductions)


def reads_accumulators(program: Program) -> bool:
    """Return whether some derivative depends on an accumulator, so that it must be saved."""
    names = [node.name for node in _accumulators(program)]
    names += [operand.name for operand in _output_operands(program)]
    slopes = [slope for output in program.outputs for slope in differentiate(output, names)]
    read = set(variables(slopes)) & {node.name for node in _accumulators(program)}
    return bool(read) or weights_read_accumulators(program)


def _output_operands(program: Program) -> list[Operand]:
    return [op for op in program.operands if set(op.axes) <= set(program.out)]


def _saved(roots: Sequence[Node], count: int) -> list[Node]:
    """Return the accumulators s_i read as the saved operands a_i."""
    return substitute(roots, {f"s{i}": var(f"a{i}") for i in range(count)})


def _weighted_outputs(program: Program, name: str, present: Sequence[bool]) -> Node:
    total: Node = const(0)
    for o, (output, is_present) in enumerate(zip(program.outputs, present, strict=True)):
        if is_present:
            (slope,) = differentiate(output, [name])
            total = _op("add", total, _op("mul", var(f"g{o}"), slope))
    (total,) = _saved([total], len(program.reductions))
    return simplify([total], finite=True)[0]


def _cotangent_operands(program: Program, present: Sequence[bool]) -> list[Operand]:
    gradients = [Operand(f"g{o}", program.out) for o, is_present in enumerate(present) if is_present]
    saved = [Operand(f"a{i}", program.out) for i in range(len(program.reductions))]
    return [*_output_operands(program), *gradients, *saved]


def cotangent(program: Program, accumulator: int, present: Sequence[bool]) -> Program | None:
    """Return the program of h_i from the cotangents g_o of the outputs that are ``present``; None if it is zero."""
    total = _weighted_outputs(program, f"s{accumulator}", present)
    if total.number == 0:
        return None
    return elementwise(_cotangent_operands(program, present), program.out, [total]).pruned()


def direct(program: Program, name: str, present: Sequence[bool]) -> Program | None:
    """Return the gradient of an operand that the outputs read, through the outputs alone; None if there is none."""
    operand = program.operand(name)
    if not set(operand.axes) <= set(program.out):
        return None
    total = _weighted_outputs(program, name, present)
    if total.number == 0:
        return None
    operands = _cotangent_operands(program, present)
    return Program(tuple(operands), operand.axes, (total,), (SUM,), (var("s0"),)).pruned()


def statistics(program: Program, accumulator: int) -> Program | None:
    """Return the program of the statistics b_i, z_i, ... that the slope of a reduction needs; None if it needs none."""
    value = program.map[accumulator]
    reduction = program.reductions[accumulator]
    if not reduction.statistics:
        return None
    saved = var(f"a{accumulator}")
    maps = reduction.statistic_maps(value, saved)
    reductions = tuple(REDUCTIONS[name] for name, _ in reduction.statistics)
    operands = (*program.operands, Operand(saved.name, program.out))
    outputs = tuple(var(f"s{i}") for i in range(len(maps)))
    derived = Program(operands, program.out, simplify(maps), reductions, outputs).pruned()
    return _descended(derived, program)


def vjp(program: Program, name: str, present: Sequence[bool]) -> Program | None:
    """Return the gradient of an operand from the cotangents h_i that are ``present``; None if it is zero.

    Its operands are the program's, h_i, and where the slope reads them a_i, b_i, z_i, y_i, q_i.
    """
    total: Node = const(0)
    operands = list(program.operands)
    for i, (value, is_present) in enumerate(zip(program.map, present, strict=True)):
        if not is_present:
            continue
        names = [f"{letter}{i}" for letter in "ha" + STATISTICS]
        (slope,) = differentiate(value, [name])
        weighted = _op("mul", _weight(program, i, value), slope)
        total = _op("add", total, _op("mul", var(names[0]), weighted))
        operands += [Operand(extra, program.out) for extra in names]
    (total,) = simplify([total], finite=True)
    if total.number == 0:
        return None
    derived = Program(tuple(operands), program.operand(name).axes, (total,), (SUM,), (var("s0"),)).pruned()
    return _descended(derived, program)


def VJPs(program: Program, names: Sequence[str], present: Sequence[bool]) -> Program:
    """Return one program of the gradients of operands with equal axes, none of which is zero."""
    parts = [part for part in (vjp(program, name, present) for name in names) if part is not None]
    read = {operand.name: operand for part in parts for operand in part.operands}
    own = {operand.name: operand for operand in program.operands if operand.name in read}
    maps = tuple(part.map[0] for part in parts)
    outputs = tuple(var(f"s{index}") for index in range(len(parts)))
    joined = replace(parts[0], operands=tuple((own | read).values()), map=maps, reductions=(SUM,) * len(parts))
    return replace(joined, outputs=outputs).pruned()


def tangent(program: Program, accumulator: int, moving: Sequence[str]) -> Program | None:
    """Return the directional derivative of an accumulator along tangents t_<name> of the operands in ``moving``."""
    value = program.map[accumulator]
    names = [f"{letter}{accumulator}" for letter in "a" + STATISTICS]
    slopes = differentiate(value, list(moving))
    total: Node = const(0)
    for name, slope in zip(moving, slopes, strict=True):
        total = _op("add", total, _op("mul", slope, var(f"t_{name}")))
    (total,) = simplify([_op("mul", _weight(program, accumulator, value), total)], finite=True)
    if total.number == 0:
        return None
    extra = [Operand(f"t_{name}", program.operand(name).axes) for name in moving]
    operands = (*program.operands, *extra, *(Operand(saved, program.out) for saved in names))
    derived = Program(operands, program.out, (total,), (SUM,), (var("s0"),)).pruned()
    return _descended(derived, program)


def output_tangent(program: Program, moving: Sequence[str], present: Sequence[bool]) -> Program:
    """Return the directional derivatives of the outputs, from tangents u_i of the accumulators that are ``present``."""
    names = [name for name in moving if set(program.operand(name).axes) <= set(program.out)]
    roots: list[Node] = []
    for output in program.outputs:
        total: Node = const(0)
        for i, is_present in enumerate(present):
            if is_present:
                total = _op("add", total, _op("mul", differentiate(output, [f"s{i}"])[0], var(f"u{i}")))
        for name, slope in zip(names, differentiate(output, names), strict=True):
            total = _op("add", total, _op("mul", slope, var(f"t_{name}")))
        roots.append(total)
    roots = list(simplify(_saved(roots, len(program.reductions)), finite=True))
    extra = [Operand(f"u{i}", program.out) for i, is_present in enumerate(present) if is_present]
    extra += [Operand(f"t_{name}", program.operand(name).axes) for name in names]
    extra += [Operand(f"a{i}", program.out) for i in range(len(program.reductions))]
    return elementwise([*_output_operands(program), *extra], program.out, roots).pruned()
