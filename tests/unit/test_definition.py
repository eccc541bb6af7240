"""Definitions: what a lambda becomes, what is shared between lambdas, how parameters are bound, symmetry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernmantle.errors import EquationError, ParameterError, TraceError
from kernmantle.ir.autodiff import undifferentiable
from kernmantle.ir.definition import Definition, Fold, Semiring, bind, define, of_expressions, symmetric
from kernmantle.ir.node import Node, var
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.testing import CASES


def power(a, b, p):
    return abs(a - b) ** p


def test_parameters_are_what_the_lambdas_declare():
    found = define(
        "mk,nk,w:k->mn", lambda a, b, w, p, q=2.5: w * abs(a - b) ** p * q, epilogue=lambda s, h, p: s / h + p
    )
    assert found.parameters == ("p", "q", "h")
    assert found.defaults == (("q", 2.5),)
    assert found.operand_names == {"w": "x2"}
    assert found.exponents == {"p"}
    assert found.single


@pytest.mark.parametrize("default", [np.float64(1.5), np.int64(2), True, 3, 0.5, math.inf])
def test_defaults_are_numbers_of_python(default):
    found = define("mk,nk->mn", lambda a, b, c=default: a * b * c)
    ((name, value),) = found.defaults
    assert (name, value) == ("c", default)
    assert type(value) in (int, float)
    assert Definition.parse(found.text).defaults == ((name, float(value)),)


@pytest.mark.parametrize("name", CASES)
def test_the_text_has_an_inverse(name):
    case = CASES[name]
    definition = define(case.equation, case.map, case.reduce, case.epilogue)
    again = Definition.parse(definition.text)
    assert again.text == definition.text
    assert bind(again, frozenset()).program == bind(definition, frozenset()).program


def test_the_text_of_users_reductions():
    for reduce in (Semiring(lambda a, b: a * b, 1), (Semiring(lambda a, b: a + b, 0.0), "max")):
        maps = (lambda a, b: (a, b)) if isinstance(reduce, tuple) else lambda a, b: a * b
        definition = define("mk,nk->mn", maps, reduce)
        assert Definition.parse(definition.text).reductions == definition.reductions
    fold = define("mk,nk->mn", None, Fold(lambda s, a, b, r: s * r + a * b, 2))
    assert Definition.parse(fold.text) == fold
    assert fold.parameters == ("r",)


def text(function, equation="mk,nk->mn", **options):
    return bind(define(equation, function, **options), frozenset()).program.text


def test_one_meaning_one_text():
    assert len({text(f) for f in (power, lambda u, v, q: abs(v - u) ** q, lambda a, b, z9: abs(-a + b) ** z9)}) == 1
    assert text(power, "ik,jk->ij") == text(power, "ac,bc->ab") == text(power)
    assert text(power, "ki,kj->ij") != text(power)
    assert text(power, reduce="max") != text(power)


def test_literals_are_numbers_of_the_call():
    programs = [bind(define("mk,nk->mn", lambda a, b, c=c: c * abs(a - b) + 0.1), frozenset()) for c in (0.3, 0.7)]
    one, two = (bind(define("mk,nk->mn", lambda a, b: v * abs(a - b) + 0.1), frozenset()) for v in (0.3, 0.7))  # noqa: B023
    assert one.program.text == two.program.text
    assert set(one.numbers) == {0.3, 0.1}
    assert set(two.numbers) == {0.7, 0.1}
    assert programs[0].program.text == programs[1].program.text


def test_equal_literals_share_a_number():
    (number,) = bind(define("mk,nk->mn", lambda a, b: 0.3 * a + 0.3 * b), frozenset()).numbers
    assert number == 0.3


def test_classes_of_powers_are_part_of_the_program():
    definition = define("mk,nk->mn", power, epilogue=lambda s, p: s ** (1 / p))
    texts = {p: bind(definition, frozenset(), (("p", p),)).program.text for p in (1, 2, 0.5, 3)}
    assert len(set(texts.values())) == 4
    assert str(bind(definition, frozenset(), (("p", 2),)).program) == "mk,nk->mn: sum (x0 - x1) * (x0 - x1) -> sqrt(s0)"
    assert bind(definition, frozenset(), (("p", 2.0),)) == bind(definition, frozenset(), (("p", 2),))


def test_binding_tensors_and_numbers():
    definition = define("mk,nk->mn", lambda a, b, p, w, h: w * abs(a - b) ** p + h + 0.3)
    binding = bind(definition, frozenset({"w"}))
    assert binding.tensor_parameters == ("w",)
    assert sorted(map(str, binding.numbers)) == ["0.3", "h", "p"]
    assert [op.axes for op in binding.program.tensors] == ["mk", "nk", ""]
    assert len(binding.program.numbers) == len(binding.numbers)


def test_parameters_that_simplification_removes_are_not_bound():
    binding = bind(define("mk,nk->mn", lambda a, b, p: abs(a - b) ** p), frozenset(), (("p", 0),))
    assert binding.numbers == ()


def test_people_read_names_and_values():
    definition = define("mk,nk,w:k->mn", lambda a, b, w, p: w * abs(a - b) ** p * 0.3, epilogue=lambda s, h: s / h)
    text = bind(definition, frozenset()).described({"x2": "w"})
    assert text == "mk,nk,k->mn: sum 0.3 * (w * abs(x0 - x1) ** p) -> s0 / h"


SYMMETRIC = [
    ("mk,nk->mn", lambda a, b: abs(a - b)),
    ("km,kn->mn", lambda a, b: (a - b) ** 2),
    ("mk,nk,k->mn", lambda a, b, w: w * (a * b)),
    ("mk,nk,->mn", lambda a, b, c: c * (a * b)),
    ("mkl,nkl->mn", lambda a, b: a * b),
    ("mk,nk->mn", lambda a, b: (abs(a - b), a + b)),
]
ASYMMETRIC = [
    ("mk,nk->mn", lambda a, b: a - b),
    ("mk,nk->mn", lambda a, b: a * 2 + b),
    ("mk,nk->mn", lambda a, b: (a * b, a)),
    ("mk,nk->nm", lambda a, b: a * b),
    ("mk,kn->mn", lambda a, b: a * b),
    ("mk,nk->m", lambda a, b: a * b),
    ("mk,nk->mnk", lambda a, b: a * b),
    ("mk,nk,m->mn", lambda a, b, c: a * b * c),
    ("mk,nk,mn->mn", lambda a, b, c: a * b * c),
    ("mk->m", lambda a: a),
    ("mk,nk,k->mn", lambda a, b, w: w * a * b),
    ("mkl,nlk->mn", lambda a, b: a * b),
]


@pytest.mark.parametrize(("equation", "function"), SYMMETRIC)
def test_proven_symmetry(equation, function):
    assert symmetric(define(equation, function))


@pytest.mark.parametrize(("equation", "function"), ASYMMETRIC)
def test_no_symmetry(equation, function):
    assert not symmetric(define(equation, function))


def test_a_fold_is_never_symmetric():
    assert not symmetric(define("mk,nk->mn", None, Fold(lambda s, a, b: s + a * b, 0.0)))


def test_three_operands_of_which_one_is_named():
    found = define("row:m,mk,nk->mn", lambda a, b: a * b, epilogue=lambda s, row: s + row)
    assert found.map[0].args == (var("x1"), var("x2"))
    assert found.operand_names == {"row": "x0"}


def test_refusals():
    with pytest.raises(ParameterError, match="did you mean 'logsumexp'"):
        define("mk,nk->mn", lambda a, b: a, "logsumexpo")
    with pytest.raises(TraceError, match="takes 1 positional argument but there are 2"):
        define("mk,nk->mn", lambda a: a)
    with pytest.raises(TraceError, match="the epilogue"):
        define("mk,nk->mn", lambda a, b: (a, b), epilogue=lambda s: s)
    with pytest.raises(EquationError, match="axis 'k' is reduced before the epilogue runs"):
        define("mk,nk,w:mk->mn", lambda a, b, w: a, epilogue=lambda s, w: s * w)
    with pytest.raises(EquationError, match="argmax needs exactly one reduced axis, 'mk,nk->mnk' reduces 0"):
        define("mk,nk->mnk", lambda a, b: a, "argmax")


def test_what_has_a_gradient():
    differentiable = {name for name, row in REDUCTIONS.items() if row.differentiable}
    assert differentiable == {"sum", "prod", "min", "max", "logsumexp"}
    for name in REDUCTIONS:
        program = bind(define("mk,nk->mn", lambda a, b: (a * b, a), ("sum", name)), frozenset()).program
        assert (undifferentiable(program) is None) == (name in differentiable)


def test_of_expressions_is_what_tracing_gives():
    traced = define("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, scale: s * scale)
    gap = Node("sub", (var("x0"), var("x1")))
    made = of_expressions(
        "mk,nk->mn", [Node("pow", (Node("abs", (gap,)), var("p")))], [REDUCTIONS["sum"]],
        [Node("mul", (var("s0"), var("scale")))],
    )  # fmt: skip
    assert made == traced
    assert made.parameters == ("p", "scale")


def test_of_expressions_checks_the_equation():
    with pytest.raises(EquationError, match="reduced before the epilogue"):
        of_expressions("mk,nk->mn", [var("x0")], [REDUCTIONS["sum"]], [var("x0")])
