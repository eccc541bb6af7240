"""Derivatives of every operation against differences, at singular points, and what symmetry is proven."""

import itertools
import math
import random

import pytest
from hypothesis import given

from kernmantle.ir import functions as km
from kernmantle.ir.differentiate import differentiate, is_symmetric
from kernmantle.ir.node import Node, const, postorder, var
from kernmantle.ir.ops import OPS, evaluate
from kernmantle.ir.pattern import read
from kernmantle.ir.simplify import simplify
from kernmantle.ir.trace import trace
from kernmantle.testing import assert_close
from kernmantle.testing.differences import assert_slope, slope
from kernmantle.testing.strategies import expressions

NAMES = ("a", "b", "c")
MARGIN = 0.0625
DIFFERENTIABLE = [row for row in OPS.values() if row.slopes]
SINGULAR = {
    "div": [(1.5, 0.0), (0.0, 0.0), (-2.0, -0.0)],
    "fmod": [(1.5, 0.0), (0.0, 0.0), (-2.0, -0.0)],
    "pow": [(0.0, p) for p in (0.25, 0.5, 1, 1.5, 2, 2.5, 0, -1.5)],
    "abs": [(0.0,), (-0.0,)],
    "copysign": [(0.0, 1.0), (-0.0, -1.0), (0.0, 0.0), (2.0, -0.0)],
    "min": [(1.0, 1.0), (0.0, -0.0)],
    "max": [(1.0, 1.0), (0.0, -0.0)],
    "sqrt": [(0.0,), (-0.0,)],
    "rsqrt": [(0.0,), (-0.0,)],
    "rcp": [(0.0,), (-0.0,)],
    "log": [(0.0,), (-0.0,)],
    "log2": [(0.0,), (-0.0,)],
    "log1p": [(-1.0,)],
    "acos": [(1.0,), (-1.0,)],
}


def applied(row):
    names = NAMES[: row.arity]
    return Node(row.name, tuple(map(var, names))), names


def places(row, count=12):
    """Random places away from the kinks of the row."""
    random_ = random.Random(row.name)
    found = []
    while len(found) < count:
        place = [random_.uniform(low + MARGIN, high - MARGIN) for low, high in row.domains]
        far = all(abs(x) > MARGIN and abs(x % 1 - 0.5) < 0.5 - MARGIN for x in place)
        if far and all(abs(x - y) > MARGIN for x, y in itertools.combinations(place, 2)):
            found.append(place)
    return found


def check(node, names, place):
    """Compare each partial with differences of the expression."""
    values = dict(zip(names, place, strict=True))
    for name, partial in zip(names, differentiate(node, names), strict=True):
        exact = float(evaluate([partial], values)[0])
        assert_slope(exact, lambda x, name=name: float(evaluate([node], values | {name: x})[0]), values[name])


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_first_derivatives(row):
    node, names = applied(row)
    for place in places(row):
        check(node, names, place)


@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=lambda row: row.name)
def test_second_derivatives(row):
    node, names = applied(row)
    for partial in differentiate(node, names):
        for place in places(row):
            check(partial, names, place)


def test_a_wrong_derivative_is_found():
    with pytest.raises(AssertionError, match="differences give"):
        assert_slope(math.cos(1.0) * (1 + 1e-9), math.sin, 1.0)


def test_differences_know_their_error():
    for function, derivative, place in [(math.exp, math.exp, 2.0), (math.sin, math.cos, 0.3), (math.erf, None, 0.0)]:
        exact = derivative(place) if derivative else 2 / math.sqrt(math.pi)
        estimate, error = slope(function, place)
        assert abs(estimate - exact) <= error <= 1e-9


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_a_singular_row_is_tested(row):
    assert (row.name in SINGULAR) == (row.singular != "none"), (
        f"{row.name!r} is singular at {row.singular}: its points go into SINGULAR of tests/unit/test_differentiate.py"
    )


@pytest.mark.parametrize("name", SINGULAR)
def test_singular_points_have_finite_slopes(name):
    node, names = applied(OPS[name])
    firsts = differentiate(node, names)
    seconds = [second for first in firsts for second in differentiate(first, names)]
    for place in SINGULAR[name]:
        values = evaluate([*firsts, *seconds], dict(zip(names, place, strict=True)))
        assert all(map(math.isfinite, values)), place


@pytest.mark.parametrize("p", [0.25, 0.5, 0.75, 1, 1.3, 1.5, 2, 2.5, 3, 4])
@pytest.mark.parametrize("literal", [True, False])
def test_power_of_a_zero_difference_has_slope_zero(p, literal):
    (root,) = simplify([read("pow(abs(sub(a,b)),p)")])
    if literal:
        (root,) = simplify(trace(lambda a, b: abs(a - b) ** p, [var("a"), var("b")]).roots)
    partials = differentiate(root, ["a", "b", "p"])
    assert evaluate(partials, {"a": 0.75, "b": 0.75, "p": p}) == (0, 0, 0)
    (second,) = differentiate(partials[0], ["b"])
    assert math.isfinite(evaluate([second], {"a": 0.75, "b": 0.75, "p": p})[0])


def test_ties_share_equally():
    for name in ("min", "max"):
        node, names = applied(OPS[name])
        assert evaluate(differentiate(node, names), {"a": 1.5, "b": 1.5}) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("function", "place", "expected"),
    [
        (lambda a, b: km.where(a > 0, km.log(a), 3 * a), -2.0, 3.0),
        (lambda a, b: km.where(a > 0, km.sqrt(a), b), -2.0, 0.0),
        (lambda a, b: km.sqrt(km.where(a > 0, a, 1)), -2.0, 0.0),
        (lambda a, b: b * km.where(a == 0, 0, km.sin(a) / a), 0.0, 0.0),
        (lambda a, b: km.clamp(km.log(a), min=-1), 0.0, 0.0),
        (lambda a, b: km.where(a < 1, a, km.exp(a * 1000)), 0.5, 1.0),
        (lambda a, b: km.xlogy(a - a, a), 0.0, 0.0),
        (lambda a, b: km.sqrt(km.sqrt(a)), 0.0, 0.0),
        (lambda a, b: km.sqrt(a * a * a), 0.0, 0.0),
        (lambda a, b: km.exp(-km.sqrt((a - b) ** 2)), 0.5, 0.0),
        (lambda a, b: km.sqrt(a) * km.log(a), 0.0, 0.0),
    ],
)
def test_nothing_leaks_from_what_is_not_selected(function, place, expected):
    (root,) = simplify(trace(function, [var("a"), var("b")]).roots)
    (partial,) = differentiate(root, ["a"])
    assert evaluate([partial], {"a": place, "b": 0.5}) == (expected,)


def test_nan_in_nan_out():
    for row in DIFFERENTIABLE:
        if row.name not in ("floor", "sign", "where", "min", "max", "add", "sub", "neg", "copysign", "fmod"):
            node, names = applied(row)
            values = evaluate(differentiate(node, names), dict.fromkeys(names, math.nan))
            assert all(map(math.isnan, values)), row.name


def test_a_variable_that_is_not_there_has_slope_zero():
    assert differentiate(read("mul(a,b)"), ["c"]) == (const(0),)
    assert differentiate(const(3.5), ["a"]) == (const(0),)
    assert differentiate(read("lt(a,b)"), ["a"]) == (const(0),)
    assert differentiate(read("floor(a)"), ["a"]) == (const(0),)


@pytest.mark.parametrize(
    ("text", "slope_text"),
    [
        ("mul(a,b)", "b"),
        ("mul(sub(a,b),sub(a,b))", "mul(sub(a,b),2)"),
        ("abs(sub(a,b))", "sign(sub(a,b))"),
        ("mul(abs(sub(a,b)),sqrt(abs(sub(a,b))))", "mul(mul(sign(sub(a,b)),sqrt(abs(sub(a,b)))),1.5)"),
        ("mul(mul(a,a),mul(a,a))", "mul(mul(a,mul(a,a)),4)"),
        ("exp(mul(a,b))", "mul(b,exp(mul(a,b)))"),
    ],
)
def test_slopes_are_short(text, slope_text):
    (root,) = simplify([read(text)])
    assert differentiate(root, ["a"]) == simplify([read(slope_text)])


def test_compared_values_round_as_where_they_were_computed():
    (root,) = simplify([read("max(mul(mul(a,3.5),1.3),b)")])
    (partial,) = differentiate(root, ["a"])
    value = evaluate([read("mul(mul(a,3.5),1.3)")], {"a": 0.1})[0]
    assert value != 0.1 * (3.5 * 1.3)
    assert_close(float(evaluate([partial], {"a": 0.1, "b": value})[0]), 0.5 * 3.5 * 1.3, magnitude=0)


def test_size_is_linear():
    sizes = []
    for levels in (50, 100, 200):
        node = var("a")
        for _ in range(levels):
            node = Node("sqrt", (Node("add", (Node("mul", (node, node)), const(1.5))),))
        sizes.append(len(postorder(differentiate(node, ["a"]))))
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


@given(expressions(["a", "b"], depth=3, kind="smooth"))
def test_random_derivatives(node):
    check(node, ("a", "b"), (0.40625, -1.15625))


@given(expressions(["a", "b"], depth=3, kind="any"))
def test_derivatives_are_canonical_and_finite(node):
    partials = differentiate(node, ["a", "b"])
    assert simplify(partials, finite=True) == partials
    assert all(map(math.isfinite, evaluate(partials, {"a": 0.0, "b": 0.0})))


@given(expressions(["a", "b"], depth=4, kind="any"))
def test_finite_rules_preserve_finite_values(node):
    (simple,) = simplify([node], finite=True)
    for place in ({"a": 0.40625, "b": -1.15625}, {"a": 1.71875, "b": 0.28125}):
        assert_close(float(evaluate([simple], place)[0]), float(evaluate([node], place)[0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: abs(a - b) ** 1.3,
        lambda a, b: (a - b) ** 2,
        lambda a, b: a * b,
        lambda a, b: abs(a - b) / (abs(a) + abs(b)),
        lambda a, b: km.maximum(a, b) - km.minimum(a, b),
        lambda a, b: (km.sqrt(b) - km.sqrt(a)) ** 2,
        lambda a, b: km.where(a == b, 0, abs(b - a) ** 0.5),
        lambda a, b: (a != b) | (a > 1) | (b > 1),
    ],
)
def test_symmetry_is_proven(function):
    assert is_symmetric(trace(function, [var("a"), var("b")]).roots, "a", "b")


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a - b,
        lambda a, b: a / b,
        lambda a, b: abs(a - 2 * b),
        lambda a, b: (a + b, a),
        lambda a, b: km.where(a > b, a, 0),
    ],
)
def test_symmetry_is_not_claimed(function):
    assert not is_symmetric(trace(function, [var("a"), var("b")]).roots, "a", "b")
