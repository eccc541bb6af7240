"""Matrix products are recognised on the canonical expression, and nothing else is."""

from __future__ import annotations

import pytest

from kernmantle.contraction.definition import bind, define
from kernmantle.contraction.recognise import matmul

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
