"""Matrix products and sums of squared differences are recognised on the canonical expression, and nothing else is."""

from __future__ import annotations

import pytest

from kernmantle.compiler.lower import lower
from kernmantle.compiler.patterns import SCALED, is_proportional, matmul, squared_differences
from kernmantle.ir.definition import bind, define
from kernmantle.ir.node import Node, var

PRODUCTS = [
    ("mk,nk->mn", lambda a, b: a * b, None),
    ("mk,nk->nm", lambda a, b: b * a, None),
    ("km,kn->mn", lambda a, b: a * b, None),
    ("mk,kn->mn", lambda a, b: a * b + 0, lambda s: s * 2 + 1),
    ("mk,k->m", lambda a, b: a * b, None),
    ("k,kn->n", lambda a, b: a * b, None),
    ("k,k->", lambda a, b: a * b, None),
    ("mk,nk->mn", lambda a, b: -(-a * b), None),
    ("mk,nk,mn->mn", lambda a, b, c: a * b, None),
]
OTHERS = [
    ("mk,nk->mn", lambda a, b: a + b, "sum"),
    ("mk,nk->mn", lambda a, b: a * b, "max"),
    ("mk,nk->mn", lambda a, b: 2 * a * b, "sum"),
    ("mk,nk->mn", lambda a, b: a * b * b, "sum"),
    ("mk,nk->mn", lambda a, b: (a * b, a), "sum"),
    ("mk->m", lambda a: a * a, "sum"),
    ("mk,mk->m", lambda a, b: a * b, "sum"),
    ("mk,nk->m", lambda a, b: a * b, "sum"),
    ("mk,nk->", lambda a, b: a * b, "sum"),
    ("mkl,nkl->mn", lambda a, b: a * b, "sum"),
    ("mk,n->mn", lambda a, b: a * b, "sum"),
    ("mk,nk,k->mn", lambda a, b, w: a * w, "sum"),
    ("mok,nk->mon", lambda a, b: a * b, "sum"),
    ("mk,->m", lambda a, c: a * c, "sum"),
    ("mn,mn->mn", lambda a, b: a * b, "sum"),
]


@pytest.mark.parametrize(("equation", "function", "epilogue"), PRODUCTS)
def test_products(equation, function, epilogue):
    found = matmul(bind(define(equation, function, "sum", epilogue), frozenset()).program)
    assert found is not None
    assert {found.left, found.right} == {"x0", "x1"}
    assert found.reduced == "k"


@pytest.mark.parametrize(("equation", "function", "reduce"), OTHERS)
def test_no_products(equation, function, reduce):
    assert matmul(bind(define(equation, function, reduce), frozenset()).program) is None


def test_a_number_is_no_matrix():
    definition = define("mk,k->m", lambda a, b, c: a * c)
    assert matmul(bind(definition, frozenset()).program) is None
    assert matmul(bind(definition, frozenset({"c"})).program) is None


SQUARES = [
    ("mk,nk->mn", lambda a, b: (a - b) ** 2, False),
    ("mk,nk->mn", lambda a, b: (b - a) * (b - a), False),
    ("km,kn->mn", lambda a, b: (a - b) ** 2, False),
    ("mk,nk->nm", lambda a, b: (a - b) ** 2, False),
    ("mk,nk,k->mn", lambda a, b, w: w * (a - b) ** 2, True),
    ("mk,nk,k->mn", lambda a, b, w: ((a - b) / w) ** 2, True),
    ("mk,nk->mn", lambda a, b, h: ((a - b) / h) ** 2, True),
]
NOT_SQUARES = [
    ("mk,nk->mn", lambda a, b: abs(a - b), "sum"),
    ("mk,nk->mn", lambda a, b: (a - b) ** 3, "sum"),
    ("mk,nk->mn", lambda a, b: (a - b) ** 4, "sum"),
    ("mk,nk->mn", lambda a, b: (a + b) ** 2, "sum"),
    ("mk,nk->mn", lambda a, b: (a - 2 * b) ** 2, "sum"),
    ("mk,nk->mn", lambda a, b: -((a - b) ** 2), "sum"),
    ("mk,nk->mn", lambda a, b: (a - b) ** 2, "max"),
    ("mk,nk->mn", lambda a, b: ((a - b) ** 2, a), "sum"),
    ("mk,nk,mk->mn", lambda a, b, w: w * (a - b) ** 2, "sum"),
    ("mk,nk,mn->mn", lambda a, b, g: g * (a - b) ** 2, "sum"),
    ("mkl,nkl->mn", lambda a, b: (a - b) ** 2, "sum"),
    ("mk,k->m", lambda a, b: (a - b) ** 2, "sum"),
    ("mk,nk->m", lambda a, b: (a - b) ** 2, "sum"),
]


def _nest(equation, function, reduce, compute="f32"):
    program = bind(define(equation, function, reduce), frozenset()).program
    sizes = dict.fromkeys(program.axes, 8)
    dtypes = [compute] * sum(not operand.number for operand in program.operands)
    return lower(program, sizes, dtypes, [compute] * len(program.outputs), compute).nest


@pytest.mark.parametrize(("equation", "function", "weighted"), SQUARES)
def test_squares(equation, function, weighted):
    nest = _nest(equation, function, "sum")
    found = squared_differences(nest)
    assert found is not None
    roles = {buffer.name: buffer.roles for buffer in nest.operands}
    assert (roles[found.row], roles[found.column]) == ("mk", "nk")
    assert (found.weight is not None) == weighted


@pytest.mark.parametrize(("equation", "function", "reduce"), NOT_SQUARES)
def test_no_squares(equation, function, reduce):
    assert squared_differences(_nest(equation, function, reduce)) is None


def test_squares_in_float64_are_left_as_they_are():
    assert squared_differences(_nest(*SQUARES[0][:2], "sum", "f64")) is None


EXPONENTIAL = Node("exp2", (Node("neg", (var(SCALED),)),))


@pytest.mark.parametrize(
    ("output", "there"),
    [
        (EXPONENTIAL, True),
        (Node("neg", (Node("mul", (var("f0"), EXPONENTIAL)),)), True),
        (Node("mul", (Node("mul", (EXPONENTIAL, var("u"))), var("f0"))), True),
        (Node("mul", (EXPONENTIAL, EXPONENTIAL)), False),
        (Node("add", (EXPONENTIAL, var("u"))), False),
        (Node("mul", (EXPONENTIAL, Node("exp2", (var("u"),)))), False),
        (Node("rcp", (EXPONENTIAL,)), False),
    ],
)
def test_entries_proportional_to_one_exponential_are_found(output: Node, there: bool) -> None:
    assert is_proportional(output) is there
