"""The laws of every reduction, on Python numbers: identity, association, commutation, order, NaN, infinities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from kernmantle.ir.node import Node, var
from kernmantle.ir.ops import evaluate
from kernmantle.ir.reductions import REDUCTIONS, Reduction, fold, semiring

from ..oracle import over_nothing, reduction

FEWER = settings(max_examples=40)
INF, NAN = math.inf, math.nan
NUMBERS = st.floats(-50, 50).map(lambda number: round(number, 2))
WILD = st.one_of(NUMBERS, st.sampled_from([0.0, -0.0, INF, -INF, NAN]))
TRUTHS = st.booleans()
MAXIMUM = semiring(Node("max", (var("s0"), var("t"))), -INF)
ROWS = {**REDUCTIONS, "user's maximum": MAXIMUM}


def values(row: Reduction, wild: bool = False):
    return TRUTHS if row.kinds == ("bool",) else WILD if wild else NUMBERS


def fed(row: Reduction, terms, start=0):
    """Registers after some terms, the first at position ``start``."""
    state = row.init
    for index, term in enumerate(terms, start):
        names = {f"s{i}": value for i, value in enumerate(state)}
        state = evaluate(row.step, {**names, "t": term, "index": index})
    return state


def joined(row: Reduction, left, right):
    assert row.merge is not None
    names = {f"s{i}": value for i, value in enumerate(left)} | {f"r{i}": value for i, value in enumerate(right)}
    return evaluate(row.merge, names)


def finished(row: Reduction, state):
    return evaluate([row.finish], {f"s{i}": value for i, value in enumerate(state)})[0]


def same(one, two):
    return one == two or (one != one and two != two) or math.isclose(one, two, rel_tol=1e-12, abs_tol=1e-12)


def direct(name, terms):
    """The result written out plainly."""
    with np.errstate(all="ignore"):
        return reduction("max" if ROWS[name] is MAXIMUM else name)(np.array(terms), axis=(0,)).item()


@pytest.mark.parametrize("name", ROWS)
@FEWER
@given(data=st.data())
def test_the_result_is_what_the_name_says(name, data):
    row = ROWS[name]
    terms = data.draw(st.lists(values(row, wild=True), min_size=1, max_size=8))
    with_identity = finished(row, fed(row, terms))
    if name == "prod":
        assume(not any(abs(term) == INF for term in terms) or 0 not in terms)
    assert same(with_identity, direct(name, terms)), terms


@pytest.mark.parametrize("name", ROWS)
@FEWER
@given(data=st.data())
def test_the_start_is_an_identity_on_both_sides(name, data):
    row = ROWS[name]
    state = fed(row, data.draw(st.lists(values(row, wild=True), min_size=1, max_size=4)))
    for found in (joined(row, row.init, state), joined(row, state, row.init)):
        assert same(finished(row, found), finished(row, state))


@pytest.mark.parametrize("name", ROWS)
@FEWER
@given(data=st.data())
def test_ranges_may_be_cut_anywhere(name, data):
    row = ROWS[name]
    terms = data.draw(st.lists(values(row, wild=True), min_size=1, max_size=9))
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(terms))] * 2)))
    if name in ("sum", "prod"):
        assume(not {INF, -INF} & set(terms))
    parts = fed(row, terms[:first]), fed(row, terms[first:second], first), fed(row, terms[second:], second)
    whole = finished(row, fed(row, terms))
    assert same(finished(row, joined(row, joined(row, parts[0], parts[1]), parts[2])), whole)
    assert same(finished(row, joined(row, parts[0], joined(row, parts[1], parts[2]))), whole)


COMMUTATIVE = [name for name, row in ROWS.items() if row.result != "index"]


@pytest.mark.parametrize("name", COMMUTATIVE)
@FEWER
@given(data=st.data())
def test_order_does_not_matter_but_to_positions(name, data):
    row = ROWS[name]
    terms = data.draw(st.lists(values(row), min_size=2, max_size=6))
    shuffled = data.draw(st.permutations(terms))
    assert same(finished(row, fed(row, terms)), finished(row, fed(row, shuffled)))
    one, two = fed(row, terms[:1]), fed(row, terms[1:])
    assert same(finished(row, joined(row, one, two)), finished(row, joined(row, two, one)))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.result == "value"])
@FEWER
@given(data=st.data())
def test_nan_in_nan_out(name, data):
    row = ROWS[name]
    terms = data.draw(st.lists(WILD, min_size=1, max_size=6))
    terms.insert(data.draw(st.integers(0, len(terms))), NAN)
    assert math.isnan(finished(row, fed(row, terms)))


@pytest.mark.parametrize("name", [name for name, row in REDUCTIONS.items() if row.result != "index"])
def test_over_nothing(name):
    assert finished(REDUCTIONS[name], REDUCTIONS[name].init) == over_nothing(name)


@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_the_first_of_equals_also_across_ranges(name):
    row = REDUCTIONS[name]
    worst = INF if name == "argmin" else -INF
    for terms in ([2.0, 1.0, 1.0, 2.0, 2.0, 1.0], [worst] * 6, [NAN, 0.0, NAN], [0.0, NAN, NAN, -5.0], [0.0, -0.0]):
        for cut in range(len(terms) + 1):
            state = joined(row, fed(row, terms[:cut]), fed(row, terms[cut:], cut))
            assert finished(row, state) == direct(name, terms), (terms, cut)


def test_logsumexp_neither_overflows_nor_underflows():
    row = REDUCTIONS["logsumexp"]
    for terms in (
        [1000.0, 1000.0],
        [-1000.0] * 3,
        [-INF, -INF],
        [INF, INF],
        [INF, -INF],
        [-INF, 3.0, -INF],
        [700.0, -700.0],
    ):
        assert same(finished(row, fed(row, terms)), float(logsumexp(terms)))


def test_rows_describe_themselves():
    for name, row in REDUCTIONS.items():
        assert row.name == name
        assert len(row.init) == len(row.step) == len(row.kinds)
        assert row.merge is not None
        assert len(row.merge) == len(row.kinds)
        assert row.meaning
        assert not row.is_fold
    assert fold(Node("add", (var("s0"), var("x0"))), 0).is_fold


def test_a_broken_law_is_found():
    """A difference is no semiring: cutting changes it."""
    broken = semiring(Node("sub", (var("s0"), var("t"))), 0)
    whole = fed(broken, [1.0, 2.0, 3.0])
    assert joined(broken, fed(broken, [1.0]), fed(broken, [2.0, 3.0])) != whole
