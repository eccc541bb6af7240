"""Rules preserve values; what means the same gets one text; literals become parameters."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernmantle.ir import functions as km
from kernmantle.ir.node import const, var, variables
from kernmantle.ir.ops import evaluate
from kernmantle.ir.pattern import fill, read
from kernmantle.ir.rules import POWERS, RULES, Rule, apply
from kernmantle.ir.show import from_ssa, pretty, to_ssa
from kernmantle.ir.simplify import POWER_CLASSES, exponents, lift, simplify
from kernmantle.ir.trace import trace
from kernmantle.testing import assert_close
from kernmantle.testing.strategies import VARIABLE, expressions

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 2.0, -3.5, 0.3, 5e-324, -1e-310, 1e-160, 1e160, -1e200, 20.0, -650.0, 1.7976931348623157e308,
    math.inf, -math.inf, math.nan,
]  # fmt: skip
LITERALS = [3.0, -3.5, 0.3, 0.0, -1.0]
MODERATE = [0.0, 1.0, -1.0, 2.0, -3.5, 0.3, 1e-3, 40.0, -7.25]
CHOICES = {"q": [True, False], "c": LITERALS, "d": LITERALS}
MOST = 4000
ROWS = RULES + POWERS


def places(rule):
    names = sorted(set(variables([rule.before, rule.after])))
    ordinary = MODERATE if rule.finite else SPECIAL
    lists = [CHOICES.get(name, ordinary) for name in names]
    every = list(itertools.product(*lists))
    chosen = every if len(every) <= MOST else random.Random(rule.left).sample(every, MOST)
    return [dict(zip(names, values, strict=True)) for values in chosen]


def check(rule):
    """Compare both sides on every place where the rule claims to hold; returns how many there were."""
    checked = 0
    for place in places(rule):
        before, after, holds = evaluate([rule.before, rule.after, read(rule.holds)], place)
        if holds:
            checked += 1
            assert_close(float(after), float(before), magnitude=0)
    return checked


@pytest.mark.parametrize("rule", ROWS, ids=lambda rule: f"{rule.left} -> {rule.right}")
def test_a_rule_preserves_the_value(rule):
    assert check(rule) > 0


@pytest.mark.parametrize("rule", ROWS, ids=lambda rule: f"{rule.left} -> {rule.right}")
def test_a_rule_is_applied(rule):
    stand_ins = {"c": const(3.5), "d": const(5.5), "q": read("lt(u,v)")}
    names = {name: stand_ins.get(name, var(name)) for name in variables([rule.before])}
    before, after = fill(rule.before, names), fill(rule.after, names)
    assert apply(rule, before) is after
    assert simplify([before], finite=True) == simplify([after], finite=True)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("mul(x,0)", "0"),
        Rule("sub(x,x)", "0"),
        Rule("div(x,x)", "1"),
        Rule("not(lt(x,y))", "le(y,x)"),
        Rule("eq(x,x)", "true"),
        Rule("pow(x,0.5)", "sqrt(x)"),
        Rule("sqrt(mul(x,x))", "x"),
        Rule("exp(log(x))", "x"),
        Rule("pow(x,3)", "mul(x,x)"),
    ],
    ids=lambda rule: rule.left,
)
def test_a_wrong_rule_is_found(rule):
    with pytest.raises(AssertionError):
        check(rule)


def traced(function):
    return trace(function, [var("a"), var("b")]).roots


def canonical(function):
    return to_ssa(simplify(traced(function)))


@pytest.mark.parametrize(
    "functions",
    [
        [lambda a, b: abs(a - b) ** 2, lambda a, b: (b - a) * (b - a), lambda a, b: km.square(a - b),
         lambda a, b: (a - b) ** 2.0, lambda a, b: (a - b) * -(b - a), lambda a, b: abs((b - a) * (a - b)),
         lambda a, b: -(a - b) * (b - a), lambda a, b: abs(a - b) * abs(b - a)],
        [lambda a, b: abs(a - b), lambda a, b: abs(b - a), lambda a, b: abs(-(a - b)),
         lambda a, b: km.sqrt((a - b) ** 2),
         lambda a, b: abs(a - b) ** 1, lambda a, b: (a - b) * km.sign(a - b), lambda a, b: ((a - b) ** 2) ** 0.5],
        [lambda a, b: a * b, lambda a, b: b * a, lambda a, b: -a * -b, lambda a, b: 1 * (b * a), lambda a, b: a * b + 0,
         lambda a, b: a * b / 1, lambda a, b: km.fma(b, a, 0)],
        [lambda a, b: abs(a - b) ** 3, lambda a, b: abs(b - a) * (a - b) ** 2],
        [lambda a, b: (a * b) ** 4, lambda a, b: ((b * a) ** 2) ** 2,
         lambda a, b: (a * b) * (a * b) * (a * b) * (b * a)],
        [lambda a, b: a > b, lambda a, b: b < a],
        [lambda a, b: ~(a == b), lambda a, b: b != a],
        [lambda a, b: a - 1.5, lambda a, b: a + -1.5, lambda a, b: -(1.5 - a), lambda a, b: -1.5 + a],
        [lambda a, b: a / 2, lambda a, b: 0.5 * a, lambda a, b: a * 2**-1],
        [lambda a, b: 1 / km.sqrt(a), lambda a, b: a**-0.5, lambda a, b: km.rsqrt(a), lambda a, b: km.rcp(a**0.5)],
        [lambda a, b: km.where(a < b, a, b), lambda a, b: km.where(~(b > a), b, a)],
        [lambda a, b: a + a, lambda a, b: 2 * a],
        [lambda a, b: km.minimum(km.minimum(a, 1.5), b), lambda a, b: km.minimum(b, km.minimum(a, km.minimum(1.5, b)))],
        [lambda a, b: (a > 1) | (b > 1) | (a != b), lambda a, b: (b != a) | (b > 1) | (a > 1)],
        [lambda a, b: a - 3 * b, lambda a, b: b * -3 + a],
        [lambda a, b: km.exp(-abs(a - b) / 10), lambda a, b: km.exp(abs(b - a) / -10)],
        [lambda a, b: km.cos(a - b), lambda a, b: km.cos(b - a)],
    ],
    ids=lambda functions: pretty(simplify(traced(functions[0]))[0]),
)  # fmt: skip
def test_one_meaning_has_one_text(functions):
    assert {canonical(function) for function in functions} == {canonical(functions[0])}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda a, b: abs(a - b), lambda a, b: a - b),
        (lambda a, b: a / b, lambda a, b: b / a),
        (lambda a, b: a * 0, lambda a, b: 0),
        (lambda a, b: a - a, lambda a, b: 0),
        (lambda a, b: a == a, lambda a, b: True),
        (lambda a, b: (a * b) * a, lambda a, b: a * a + b),
        (lambda a, b: ~(a < b), lambda a, b: b <= a),
    ],
)
def test_different_meanings_keep_different_texts(left, right):
    assert canonical(left) != canonical(right)


@pytest.mark.parametrize("exponent", [*range(-4, 9), -1.5, -0.5, *POWER_CLASSES])
def test_power_classes_need_no_general_power(exponent):
    (node,) = simplify(traced(lambda a, b: abs(a - b) ** exponent))
    assert "pow" not in to_ssa([node])
    for a, b in [(3.25, 1.0), (-0.5, 0.75)]:
        assert_close(float(evaluate([node], {"a": a, "b": b})[0]), abs(a - b) ** exponent, magnitude=0)


@pytest.mark.parametrize("exponent", [1.5, 2.5, 0.5, -0.5, -1.5])
def test_powers_of_negative_numbers_are_nan(exponent):
    (node,) = simplify(traced(lambda a, b: a**exponent))
    assert math.isnan(evaluate([node], {"a": -2.0})[0])


def test_constants_are_folded_as_ieee_arithmetic():
    folded = {
        "exp(1000)": math.inf, "div(1,0)": math.inf, "div(0,0)": math.nan, "log(-1)": math.nan, "sqrt(16)": 4,
        "mul(inf,0)": math.nan, "lt(2,3)": True, "floor(2.5)": 2, "pow(10,400)": math.inf,
    }  # fmt: skip
    for text, value in folded.items():
        assert simplify([read(text)]) == (const(value),)


@given(expressions(["a", "b"], depth=5, kind="any"), st.lists(st.floats(*VARIABLE), min_size=2, max_size=2))
def test_simplification_preserves_values_and_is_idempotent(node, values):
    place = dict(zip("ab", values, strict=True))
    (simple,) = simplify([node])
    assert simplify([simple]) == (simple,)
    assert set(variables([simple])) <= set(variables([node]))
    assert_close(float(evaluate([simple], place)[0]), float(evaluate([node], place)[0]))


@given(expressions(["a", "b"], depth=5, kind="any"), st.lists(st.floats(*VARIABLE), min_size=2, max_size=2))
def test_lifting_keeps_the_value(node, values):
    (lifted,), numbers = lift(simplify([node]))
    place = dict(zip("ab", values, strict=True))
    assert_close(float(evaluate([lifted], place | numbers)[0]), float(evaluate([node], place)[0]))


def test_literals_are_lifted():
    roots, values = lift(
        simplify(traced(lambda a, b: (a * 3.5 + 7) * b + km.exp(7 * a) - 2 * a + km.where(a > 0, 1, b)))
    )
    assert sorted(values.values()) == [-2, 3.5, 7]
    assert list(values) == ["c0", "c1", "c2"]
    assert set(variables(roots)) == {"a", "b", "c0", "c1", "c2"}


@pytest.mark.parametrize("value", [0, 1, 2, -1, math.inf, -math.inf, math.nan, True])
def test_some_literals_stay(value):
    assert lift([read("max(a,b)"), const(value)]) == ((read("max(a,b)"), const(value)), {})


def test_values_of_literals_do_not_change_the_text():
    def lifted(first, second):
        return to_ssa(
            lift(simplify(traced(lambda a, b: km.sin(first * a) + km.sin(second * b) - first * b / second)))[0]
        )

    assert len({lifted(x, y) for x, y in [(3.5, 0.7), (0.7, 3.5), (-4, 1e9), (5, 0.25)]}) == 1


def test_captured_numbers_share_one_text():
    def kernel(bandwidth):
        return to_ssa(lift(simplify(traced(lambda a, b: km.exp(-abs(a - b) / bandwidth))))[0])

    assert len({kernel(3 + step / 7) for step in range(50)}) == 1


def test_new_names_avoid_old_ones():
    _, values = lift(from_ssa("mul c0 3.5;add %0 c2;add %1 4.5;> %2"))
    assert values == {"c1": 3.5, "c3": 4.5}


def test_class_exponents_stay_literal_and_others_are_lifted():
    roots, values = lift([read("pow(a,2.5)"), read("mul(2.5,pow(a,1.3))")])
    assert roots[0] is read("pow(a,2.5)")
    assert sorted(values.values()) == [1.3, 2.5]


def test_exponents():
    roots = [read("mul(pow(abs(a),p),c0)"), read("pow(s,div(1,r))"), read("pow(q,2)")]
    assert exponents(roots) == {"p", "r"}


EVEN = [
    "mul(sin(mul(sub(u,v),w)),sin(mul(sub(u,v),w)))", "abs(tanh(div(sub(u,v),w)))", "cos(mul(w,sub(u,v)))",
    "mul(mul(w,sub(u,v)),mul(w,sub(u,v)))", "abs(erf(mul(sub(u,v),mul(w,w))))",
]  # fmt: skip
ODD = [
    "sin(mul(sub(u,v),w))",
    "mul(sin(sub(u,v)),cos(sub(u,v)))",
    "abs(add(sub(u,v),w))",
    "abs(mul(sub(u,v),sub(u,w)))",
]


def turned(text):
    node = read(text)
    return simplify([node]), simplify([fill(node, {"u": var("v"), "v": var("u"), "w": var("w")})])


@pytest.mark.parametrize("text", EVEN)
def test_even_functions_of_a_difference_do_not_know_its_direction(text):
    one, other = turned(text)
    assert one == other
    for place in ({"u": 0.3, "v": 1.7, "w": 0.6}, {"u": 2.0, "v": -0.4, "w": -1.1}):
        assert_close(*(float(evaluate([node], place)[0]) for node in (one[0], read(text))), magnitude=0)


@pytest.mark.parametrize("text", ODD)
def test_other_functions_of_a_difference_keep_it(text):
    one, other = turned(text)
    assert one != other
