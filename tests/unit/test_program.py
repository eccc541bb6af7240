"""Programs: axes, texts and their inverse, pruning, renaming, reductions as documents."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernmantle.ir.definition import Fold, Semiring, bind, define
from kernmantle.ir.node import Node, const, var
from kernmantle.ir.program import Operand, Program, elementwise, reduction_document, reduction_of
from kernmantle.ir.reductions import REDUCTIONS, fold, semiring
from kernmantle.testing import CASES

X, Y, P, S, T = map(var, ("x0", "x1", "p0", "s0", "t"))


def gram(**changes):
    operands = Operand("x0", "mk"), Operand("x1", "nk"), Operand("p0", "", number=True)
    program = Program(operands, "mn", (Node("mul", (X, Node("mul", (Y, P)))),), (REDUCTIONS["sum"],), (S,))
    return replace(program, **changes)


def test_axes():
    program = gram()
    assert (program.axes, program.reduced, program.equation) == ("mnk", "k", "mk,nk->mn")
    assert [op.name for op in program.tensors] == ["x0", "x1"]
    assert [op.name for op in program.numbers] == ["p0"]
    assert program.operand("x1").axes == "nk"
    assert [op.name for op in gram(symmetric=True).tensors] == ["x0"]


@pytest.mark.parametrize("name", CASES)
def test_the_text_has_an_inverse(name):
    case = CASES[name]
    program = bind(define(case.equation, case.map, case.reduce, case.epilogue), frozenset()).program
    assert Program.parse(program.text) == program
    assert Program.parse(program.text).text == program.text


def test_texts_of_the_rest():
    inner = replace(gram(), operands=gram().operands[:2], map=(Node("mul", (X, Y)),))
    nested = Program(
        (Operand("x0", "mn", inner=inner), Operand("x1", "no"), Operand("p0", "", number=True)), "mo",
        (Node("mul", (X, Node("exp", (Node("mul", (Y, P)),)))),), (REDUCTIONS["sum"],), (S,),
    )  # fmt: skip
    for program in (gram(symmetric=True), nested):
        assert Program.parse(program.text) == program
    texts = {gram().text, gram(symmetric=True).text, gram(reductions=(REDUCTIONS["max"],)).text, nested.text}
    assert len(texts) == 4


@pytest.mark.parametrize("zero", [0, 1, -1, 0.5, 2**60 + 1, math.inf, -math.inf, True, False, -0.0, 1e-300])
@pytest.mark.parametrize("make", [semiring, fold])
def test_a_users_reduction_keeps_its_start_exactly(zero, make):
    reduction = make(Node("add", (S, T)), zero)
    found = reduction_of(reduction_document(reduction))
    assert found == reduction
    assert repr(found.init[0]) == repr(zero)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_the_table_are_their_names(name):
    assert reduction_document(REDUCTIONS[name]) == name
    assert reduction_of(name) is REDUCTIONS[name]


def test_pruning_drops_what_nothing_mentions_unless_an_axis_is_lost():
    def pruned(*axes):
        operands = tuple(Operand(f"x{i}", own) for i, own in enumerate(axes))
        program = Program(operands, "mn", (Node("mul", (X, Y)),), (REDUCTIONS["sum"],), (S,))
        return [op.name for op in program.pruned().operands]

    assert pruned("mk", "nk", "k", "mn") == ["x0", "x1"]
    assert pruned("mk", "nk", "l") == ["x0", "x1", "x2"]
    assert pruned("mk", "nk", "kl", "l") == ["x0", "x1", "x2"]
    assert pruned("k", "k", "mk", "nk", "mn") == ["x0", "x1", "x2", "x3"]


def test_pruning_keeps_what_a_fold_reads():
    step = Node("add", (S, Node("mul", (X, Y))))
    program = Program((Operand("x0", "k"), Operand("x1", "k")), "", (const(0),), (fold(step, 0),), (S,))
    assert program.pruned() == program


def test_renaming():
    operands = Operand("g0", "mn"), Operand("c0", "", number=True), Operand("x1", "nk"), Operand("x0", "mk")
    maps = (Node("mul", (var("g0"), Node("sub", (X, Node("mul", (Y, var("c0"))))))),)
    found = Program(operands, "mk", maps, (REDUCTIONS["sum"],), (S,)).renamed()
    assert [op.name for op in found.operands] == ["x0", "p0", "x1", "x2"]
    x0, x1, x2 = map(var, ("x0", "x1", "x2"))
    assert found.map[0] is Node("mul", (x0, Node("sub", (x2, Node("mul", (x1, P))))))


def test_elementwise_programs_reduce_nothing():
    program = elementwise([Operand("x0", "mn"), Operand("x1", "n")], "mn", [Node("add", (X, Y)), X])
    assert program.reduced == ""
    assert program.outputs == (S, var("s1"))


def test_for_people():
    definition = define("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p: s ** (1 / p))
    assert str(bind(definition, frozenset()).program) == "mk,nk->mn: sum abs(x0 - x1) ** p0 -> s0 ** rcp(p0)"
    assert str(bind(definition, frozenset({"p"})).program).startswith("mk,nk,->mn")
    several = define("mk,nk->mn", lambda a, b: (a, b), ("min", Semiring(lambda a, b: a * b, 1)))
    assert str(bind(several, frozenset()).program) == "mk,nk->mn: min x0, semiring x1 -> s0, s1"
    folded = define("mk,nk->mn", None, Fold(lambda acc, a, b: acc * a + b, 0))
    assert str(bind(folded, frozenset()).program) == "mk,nk->mn: fold x1 + s0 * x0"
