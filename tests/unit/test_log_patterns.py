"""Which log-sum-exps are logarithms of products, and what both operands add to the exponent."""

from dataclasses import replace

import pytest

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.compiler.patterns import is_by_products, log_product

from ..backend.test_cuda_squares import chosen
from ..cuda.log_products import PLUS, logarithms
from ..cuda.nests import P, W, X, Y, gram, op

BIG = {"m": 8192, "n": 8192, "k": 1024}


@pytest.mark.parametrize(
    ("mapped", "row", "column"),
    [
        (PLUS, X, Y),
        (op("sub", X, Y), X, op("neg", Y)),
        (op("sub", Y, op("abs", X)), op("neg", op("abs", X)), Y),
        (op("mul", P, op("add", X, Y)), op("mul", P, X), op("mul", P, Y)),
        (op("div", op("sub", X, Y), P), op("div", X, P), op("div", op("neg", Y), P)),
        (op("neg", PLUS), op("neg", X), op("neg", Y)),
    ],
)
def test_parts_of_the_exponent(mapped, row, column):
    found = log_product(logarithms(mapped, numbers=("p",)))
    assert (found.row, found.column) == ("x0", "x1")
    assert (found.row_part, found.column_part) == (row, column)


def test_weights_go_with_the_rows():
    found = log_product(logarithms(op("add", op("mul", W, Y), op("add", X, W)), w="k"))
    assert found.row_part == op("add", X, W)
    assert found.column_part == op("mul", W, Y)


@pytest.mark.parametrize(
    "nest",
    [
        logarithms(op("mul", X, Y)),
        logarithms(op("add", X, op("abs", op("sub", X, Y)))),
        logarithms(op("add", X, W), w="k"),
        logarithms(op("add", PLUS, W), w="mk"),
        logarithms(op("add", PLUS, W), w="mn"),
        logarithms(op("sub", X, Y), symmetric=True),
        replace(gram(PLUS, "logsumexp"), compute="i32"),
        gram(PLUS, "max"),
        gram((PLUS, PLUS), ("logsumexp", "sum")),
    ],
)
def test_others_are_as_they_are_written(nest):
    assert log_product(nest) is None
    assert not is_by_products(nest)


def test_one_set_of_points_is_a_product_where_both_parts_are_alike():
    assert log_product(logarithms(symmetric=True)) is not None


@pytest.mark.parametrize("card", CARDS)
def test_every_card_multiplies_large_ones(card):
    assert chosen(logarithms(), CARDS[card], BIG) is not None
    assert chosen(replace(logarithms(), precision="ieee"), CARDS[card], BIG) is None
    assert chosen(logarithms(compute="f64", dtype="f64"), CARDS[card], BIG) is None
    assert chosen(logarithms(), CARDS[card], {"m": 64, "n": 64, "k": 64}) is None
    found = chosen(logarithms(), CARDS[card], BIG)
    assert found.main.tile.n <= 128
    assert found.direct.tile.n == found.main.tile.n
    assert "logarithms of products" in str(found)
