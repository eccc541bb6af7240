"""Factors that are the same for all pairs: gathered and folded, the value stays."""

import random

import pytest

from kernmantle.compiler.hoist import by_reciprocals, fold
from kernmantle.ir.node import Node, const, postorder, var
from kernmantle.ir.ops import evaluate
from kernmantle.pairwise import KERNELS
from kernmantle.pairwise.constructors import CONSTRUCTORS
from kernmantle.pairwise.kernel_form import gram

S, A, B = map(var, "sab")


def op(name, *args):
    return Node(name, tuple(arg if isinstance(arg, Node) else const(arg) for arg in args))


def test_a_division_by_a_number_becomes_a_factor():
    folded = fold([op("exp", op("neg", op("div", S, op("mul", A, 2))))], ["a"])
    assert folded.outputs == (op("exp", op("mul", S, var("u0"))),)
    assert evaluate(folded.values, {"a": 0.25}) == (-2.0,)


def test_factors_of_several_kinds_meet():
    folded = fold([op("div", op("mul", A, op("neg", op("mul", S, B))), op("mul", A, A))], ["a"], ["b"])
    (root,) = folded.outputs
    assert root.op == "mul"
    assert root.args[0] is S
    values = {"a": 2.0, "b": 3.0, "s": 5.0}
    further = dict(zip(folded.names, evaluate(folded.values, values), strict=True))
    assert evaluate(folded.outputs, {**values, **further}) == (-7.5,)


def test_what_is_not_uniform_stays():
    root = op("add", op("mul", S, S), op("div", A, S))
    assert fold([root], ["a"]).outputs == (root,)
    assert fold([op("neg", S)], ["a"]).outputs == (op("neg", S),)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_kernel_keeps_its_value(name):
    random.seed(name)
    program = gram(CONSTRUCTORS[name]().form).program
    numbers = [operand.name for operand in program.numbers]
    folded = fold(program.outputs, numbers)
    assert not any(node.op == "div" and node.args[1].op == "var" and node.args[1].name in numbers
                   for node in postorder(folded.outputs))  # fmt: skip
    known = {operand: random.uniform(0.5, 2.0) for operand in numbers}
    known |= {operand.name: 1.0 for operand in program.operands if operand.name not in numbers}
    further = dict(zip(folded.names, evaluate(folded.values, known), strict=True))
    for s in (0.0, 0.1, 1.7):
        values = {**known, **further, "s0": s}
        (want,), (got,) = (evaluate(roots, values) for roots in (program.outputs, folded.outputs))
        assert got == pytest.approx(want, rel=1e-13, abs=1e-15)


def test_what_varies_along_one_axis_is_inverted_once():
    x, y, length, other = (var(name) for name in ("x", "y", "length", "other"))
    gap = Node("sub", (x, y))
    scaled = Node("div", (gap, Node("mul", (length, other))))
    (found,) = by_reciprocals([Node("mul", (scaled, scaled))], ["length", "other"])
    once = Node("mul", (gap, Node("rcp", (Node("mul", (length, other)),))))
    assert found == Node("mul", (once, once))
    for same in (scaled, Node("div", (gap, const(3))), Node("div", (x, y))):
        assert by_reciprocals([same], ["length"]) == (same,)
