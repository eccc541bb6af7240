"""Nodes, their text, and the values of every operation of the table."""

import itertools
import math
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
import scipy.special
from hypothesis import given

from kernmantle.backends.reference import evaluate
from kernmantle.ir.differentiate import differentiate
from kernmantle.ir.node import Node, const, postorder, rewrite, substitute, var, variables
from kernmantle.ir.ops import OPS
from kernmantle.ir.show import from_ssa, pretty, to_ssa
from kernmantle.ir.simplify import lift, simplify
from kernmantle.ir.trace import trace
from kernmantle.testing import assert_close
from kernmantle.testing.strategies import as_lambda, expressions

DEPTH = 4000
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 5e-324, -5e-324, 1e-310, 1e-200, 1e200, -1e200, 709.0, -746.0,
    1.7976931348623157e308, -1.7976931348623157e308, math.inf, -math.inf, math.nan,
]  # fmt: skip
ORACLES = {
    "rsqrt": lambda x: 1 / np.sqrt(x), "erf": scipy.special.erf, "sigmoid": scipy.special.expit,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
}  # fmt: skip
A, B = var("a"), var("b")


def chain(levels=DEPTH):
    node = A
    for level in range(levels):
        node = Node("sin", (Node("add", (node, B if level % 2 else const(1.5))),))
    return node


def doubling(levels=200):
    node = A
    for _ in range(levels):
        node = Node("mul", (node, Node("add", (node, B))))
    return node


def test_equal_expressions_are_one_object():
    assert Node("add", (A, const(2.0))) is Node("add", (var("a"), const(2)))
    assert const(1) is const(1.0)
    assert const(True) is not const(1)
    assert const(math.nan) is const(float("nan"))
    assert const(-0.0) is not const(0.0)
    assert const(10**400).number == math.inf


def test_a_node_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        A.op = "const"


def test_threads_build_the_same_nodes():
    built, start = [], threading.Barrier(8)

    def build():
        start.wait()
        node = A
        for level in range(300):
            node = Node("mul", (node, const(level + 0.25)))
        built.append(node)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, built))) == 1


def test_the_order_of_arguments_is_the_same_in_every_process():
    code = (
        "from kernmantle.ir.show import *; from kernmantle.ir.simplify import *;"
        "print(to_ssa(simplify(from_ssa('sin b;mul a b;add %0 %1;mul 2.5 %2;mul %3 a;> %4'))))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.strip() == to_ssa(simplify(from_ssa("sin b;mul b a;add %1 %0;mul %2 2.5;mul a %3;> %4")))


@given(expressions(["a", "b"], kind="any"), expressions(["a", "true"], kind="any"))
def test_canonical_text_round_trip(first, second):
    assert from_ssa(to_ssa([first, second])) == (first, second)


@pytest.mark.parametrize("name", ["inf", "nan", "true", "false", "info", "nanometre", "x1", "π"])
def test_any_identifier_is_a_name(name):
    assert from_ssa(to_ssa([Node("neg", (var(name),))])) == (Node("neg", (var(name),)),)


@pytest.mark.parametrize(
    "value", [0, 1, -7, 0.1, -0.0, 1e300, 2**60, 1e-300, math.inf, -math.inf, math.nan, True, False]
)
def test_any_number_survives_its_text(value):
    assert from_ssa(to_ssa([const(value)])) == (const(value),)


@given(expressions(["a", "b"], kind="any"))
def test_readable_text_is_python(node):
    again = trace(as_lambda(node, ["a", "b"]), [A, B]).roots
    assert simplify(again) == simplify([node])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sub a b;abs %0;pow %1 1.5;> %2", "abs(a - b) ** 1.5"),
        ("add a b;mul %0 c;> %1", "(a + b) * c"),
        ("add b c;sub a %0;> %1", "a - (b + c)"),
        ("pow a b;pow %0 c;> %1", "(a ** b) ** c"),
        ("pow b c;pow a %0;> %1", "a ** b ** c"),
        ("neg a;pow %0 2;> %1", "(-a) ** 2"),
        ("pow a 2;neg %0;> %1", "-a ** 2"),
        ("add a -1.5;> %0", "a - 1.5"),
        ("pow -2 a;> %0", "(-2) ** a"),
        ("lt a b;eq a 0;and %0 %1;not %2;> %3", "~((a < b) & (a == 0))"),
        ("max a -inf;> %0", "max(a, -inf)"),
    ],
)
def test_readable_text(text, shown):
    assert pretty(*from_ssa(text)) == shown


@given(expressions(["a", "b"], kind="any"))
def test_pickles_are_the_same_object(node):
    assert pickle.loads(pickle.dumps(node)) is node


def longest(levels=DEPTH):
    node = A
    for level in range(levels):
        node = Node("min", (node, Node("mul", (var(f"b{level % 50}"), const(1.5)))))
    return node


@pytest.mark.parametrize("build", [chain, doubling, longest])
def test_size_and_depth_are_no_limit(build):
    node = build()
    assert len(repr(node)) < 2000
    assert len(pretty(node)) < 2000
    assert from_ssa(to_ssa([node])) == (node,)
    assert pickle.loads(pickle.dumps(node)) is node
    (simple,) = simplify([node])
    lifted, values = lift([simple])
    assert set(values.values()) <= {1.5}
    assert len(postorder(differentiate(lifted[0], ["a"]))) < 12 * len(postorder([node]))


def test_variables_in_order_of_use():
    assert variables(from_ssa("sub b a;mul %0 b;> %1 c")) == ["b", "a", "c"]


def test_substitute_and_rewrite():
    (node,) = from_ssa("sub a b;mul %0 a;> %1")
    assert substitute([node], {"a": B, "b": A}) == list(from_ssa("sub b a;mul %0 b;> %1"))
    assert rewrite([node], lambda leaf: leaf, lambda old, args: Node(old.op, args)) == [node]


def points(row):
    return itertools.product(SPECIAL if row.arity < 3 else SPECIAL[::3], repeat=row.arity)


@pytest.mark.parametrize("row", OPS.values(), ids=list(OPS))
def test_values_are_those_of_ieee_arithmetic(row):
    oracle = ORACLES.get(row.name) or getattr(np, row.numpy, None)
    assert oracle, f"NumPy has no function for {row.name!r}: write its definition into ORACLES of this file"
    places = list(points(row))
    with np.errstate(all="ignore"):
        columns = [np.array(column) for column in zip(*places, strict=True)]
        columns[0] = columns[0].astype(bool) if row.name == "where" else columns[0]
        expected = np.asarray(oracle(*columns))
    actual = np.array([row.value(*place) for place in places])
    assert_close(actual.astype(float), expected.astype(float), magnitude=0)


@pytest.mark.parametrize("row", [row for row in OPS.values() if row.integer], ids=lambda row: row.name)
def test_values_of_integers_are_integers(row):
    result = row.value(*(3, 2, 5)[: row.arity])
    assert isinstance(result, int)


@pytest.mark.parametrize("name", [name for name, row in OPS.items() if row.commutative])
def test_commutative_rows_commute(name):
    for a, b in itertools.product(SPECIAL, repeat=2):
        assert_close(float(OPS[name].value(a, b)), float(OPS[name].value(b, a)))


def test_integer_powers_are_exact_until_they_are_large():
    power = OPS["pow"].value
    assert power(3, 40) == 3**40
    assert power(10, 10**9) == math.inf
    assert power(-10, 10**9 + 1) == -math.inf
    assert power(2, -1) == 0.5


@pytest.mark.parametrize("row", OPS.values(), ids=list(OPS))
def test_a_row_is_complete(row):
    assert len(row.domains) == row.arity
    assert len(row.slopes) in (0, row.arity)
    assert bool(row.slopes) != row.boolean
    assert row.numpy or row.torch or row.name in evaluate._COMPOSED
