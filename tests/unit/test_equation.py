"""Equations: what parses, what is refused and where the caret points, letters, broadcasting, extents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernmantle.errors import EquationError, ShapeError
from kernmantle.ir.equation import broadcast, extents, parse


def test_parts():
    equation = parse(" mk, nk ,w : k, row:m -> mn ")
    assert equation.text == "mk,nk,w:k,row:m->mn"
    assert equation.operands == ("mk", "nk", "k", "m")
    assert equation.names == (None, None, "w", "row")
    assert equation.positional == ("mk", "nk")
    assert equation.named == {"w": "k", "row": "m"}
    assert equation.out == "mn"
    assert parse("mk,nk->mn\n") is parse("mk, nk -> mn")


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("mk,nk->mn", {"m": "m", "n": "n", "k": "k"}),
        ("ij,kj->ki", {"k": "m", "i": "n", "j": "k"}),
        ("ok,km,nm,nk->onm", {"o": "m", "n": "n", "m": "o", "k": "k"}),
        ("ab,cd->", {"a": "k", "b": "l", "c": "i", "d": "j"}),
        ("->", {}),
        ("m->m", {"m": "m"}),
        ("αβ,γβ->αγ", {"α": "m", "γ": "n", "β": "k"}),
    ],
)
def test_letters_are_canonical(text, letters):
    assert parse(text).letters == letters


@pytest.mark.parametrize(
    ("text", "problem", "caret"),
    [
        ("mk,nk", "an equation names its output after '->', for example 'mk,nk->mn'", 5),
        ("", "an equation names its output", 0),
        ("mk,nkk->mn", "axis 'k' appears twice in operand 1", 5),
        ("mk,nk->mm", "axis 'm' appears twice in the output", 8),
        ("mk,nk->mq", "output axis 'q' is in no operand", 8),
        ("mk,n1->mn", "axis names are letters, found '1' in operand 1", 4),
        ("m*,nk->mn", "axis names are letters, found '*' in operand 0", 1),
        ("...mk,nk->mn", "found '.' in operand 0; batch axes are implicit, leave '...' out", 0),
        ("mk,nk->...mn", "found '.' in the output; batch axes are implicit", 7),
        ("mk,nk->m->n", "axis names are letters, found '-' in the output", 8),
        ("mk,2w:k->m", "an operand's name is an identifier, found '2w'", 3),
        ("mk,:k->m", "an operand's name is an identifier, found ''", 3),
        ("w:mk,w:k->m", "operand 'w' is named twice", 5),
        ("w:mk,v:kk->m", "axis 'k' appears twice in operand 1", 8),
        ("->m", "output axis 'm' is in no operand", 2),
        ("abcdefghijk,lmn->abcdefghijk", "at most 10 axes in the output and 12 reduced", 0),
        ("abcdefghijklm->", "at most 10 axes in the output and 12 reduced", 0),
        ("batch state, state next -> batch nxt", "output axis 'nxt' is in no operand", 33),
        ("batch batch, state -> batch", "axis 'batch' appears twice in operand 0", 6),
        ("batch 2d, state -> batch", "axis names are identifiers, found '2d' in operand 0", 6),
        ("... batch, batch state -> state", "batch axes are implicit", 0),
        ("a bb, v w: bb c -> a", "an operand's name is an identifier, found 'v w'", 6),
        ("row one, one -> mn", "output axis 'mn' is in no operand; axes named by words have spaces between them", 16),
    ],
)
def test_errors_point_at_the_place(text, problem, caret):
    with pytest.raises(EquationError) as caught:
        parse(text)
    message, quoted, marker = str(caught.value).split("\n")
    assert problem in message
    assert quoted == "  " + text
    assert marker == "  " + " " * caret + "^"


def test_axes_named_by_words():
    equation = parse(" batch state,  state next -> batch  next ")
    assert equation.text == "batch state, state next -> batch next"
    assert parse(equation.text) is equation
    first, second = equation.operands
    assert len(set(first + second)) == 3
    assert first[1] == second[0]
    assert equation.out == first[0] + second[1]
    assert equation.written(equation.out) == "batch next"
    assert equation.letters == {first[0]: "m", second[1]: "n", first[1]: "k"}


def test_words_may_stand_beside_letters_and_names():
    equation = parse("b i, weight: i j_2 -> b j_2")
    assert equation.names == (None, "weight")
    assert equation.written(equation.operands[1]) == "i j_2"
    assert parse("m k, n k -> m n") is parse("mk,nk->mn")


def test_a_word_where_letters_are_read_says_how_words_are_written():
    with pytest.raises(EquationError, match="axis 't' appears twice in operand 0; axes named by words have spaces"):
        parse("state, next -> state")


@pytest.mark.parametrize("value", [None, 3, ["mk"], b"mk->m"])
def test_what_is_no_string(value):
    with pytest.raises(EquationError, match="the equation is a string such as 'mk,nk->mn' and comes first"):
        parse(value)


SHAPES = st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3).map(tuple), max_size=4)


@given(SHAPES)
def test_broadcasting_is_numpys(shapes):
    try:
        wanted = np.broadcast_shapes(*shapes)
    except ValueError:
        wanted = None
    assert broadcast(shapes) == wanted


def test_extents():
    found = extents(["a", "b", "p"], ["mk", "nk", ""], [(4, 1, 2, 3), (5, 5, 3), (4, 1)], "mk,nk->mn")
    assert dict(found.axes) == {"m": 2, "k": 3, "n": 5}
    assert found.batch == (4, 5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3), (3,)], r"b has 1 axes, equation 'mk,nk->mn' wants at least 2 \('nk'\); got a: \(2, 3\), b: \(3,\)"),
        ([(2, 3), (5, 4)], r"axis 'k' of 'mk,nk->mn' has size 3 in a but 4 in b; got a: \(2, 3\), b: \(5, 4\)"),
        ([(2, 1), (5, 3)], "axis 'k' of 'mk,nk->mn' has size 1 in a but 3 in b"),
        ([(4, 2, 3), (5, 5, 3)], r"batch axes do not broadcast in 'mk,nk->mn'; got a: \(4, 2, 3\), b: \(5, 5, 3\)"),
    ],
)
def test_extents_that_do_not_fit(shapes, message):
    with pytest.raises(ShapeError, match=message):
        extents(["a", "b"], ["mk", "nk"], shapes, "mk,nk->mn")
