"""Order and cost of the factors of a Kronecker product."""

from itertools import permutations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kernmantle.structured.kron.modes import cheapest, columns, contracted, parse, products, rows, steps, text_of


def _modes(shapes, kept=()):
    entries = [f"i{shape[0]}" if place in kept else place for place, shape in enumerate(shapes)]
    return parse(text_of(entries), tuple(shapes))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_no_order_is_cheaper(shapes):
    modes = _modes(shapes)
    found = products(modes, cheapest(modes))
    assert found == min(products(modes, order) for order in permutations(range(len(shapes))))


def test_square_factors_are_applied_from_the_last():
    assert cheapest(_modes([(3, 3), (7, 7), (3, 3)])) == (2, 1, 0)


def test_a_contracting_factor_comes_before_an_expanding_one():
    modes = _modes([(9, 2), (2, 9), (4, 4)])
    assert cheapest(modes) == (1, 2, 0)
    assert products(modes, (1, 2, 0)) < products(modes, (2, 1, 0))


def test_steps_see_the_extents_at_their_time():
    first, second = steps(_modes([(2, 3), (5, 7)]), (1, 0), 4)
    assert (first.left, first.mode.columns, first.mode.rows, first.right) == (3, 7, 5, 4)
    assert (second.left, second.mode.columns, second.mode.rows, second.right) == (1, 3, 2, 20)
    assert second.products == 3 * 2 * 20


def test_identities_are_kept_and_repeated_factors_are_one():
    modes = parse("0 i5 0", ((2, 3),))
    assert (rows(modes), columns(modes), contracted(modes)) == (20, 45, (0, 2))
    assert [str(mode) for mode in modes] == ["2x3", "i5", "2x3"]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_empty_factors_have_an_order(shape):
    assert cheapest(_modes([shape, (2, 2)])) == (1, 0)
