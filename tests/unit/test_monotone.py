"""Orders of entries by the sums that they are made of."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from kernmantle.compiler.monotone import Order, order
from kernmantle.ir.node import Node, const, var
from kernmantle.ir.ops import evaluate

S, F, G = var("s0"), var("f"), var("g")
ROOT = Node("sqrt", (S,))


def times(a: Node, b: Node) -> Node:
    return Node("mul", (a, b))


KNOWN = [
    (S, Order(1)),
    (ROOT, Order(1)),
    (Node("pow", (S, const(0.75))), Order(1)),
    (Node("pow", (ROOT, const(3))), Order(1)),
    (Node("neg", (ROOT,)), Order(-1)),
    (times(S, const(-0.5)), Order(-1)),
    (times(const(2.5), ROOT), Order(1)),
    (Node("exp2", (times(ROOT, F),)), Order(1, F)),
    (Node("exp", (Node("neg", (times(F, S),)),)), Order(-1, F)),
    (Node("neg", (times(times(S, const(-3)), F),)), Order(1, F)),
]


@pytest.mark.parametrize(("output", "wanted"), KNOWN, ids=[str(output) for output, _ in KNOWN])
def test_orders_that_are_known(output: Node, wanted: Order) -> None:
    assert order(output, {"f", "g"}) == wanted
    sums = [0.0, 1e-30, 0.3, 1.0, 7.5, 200.0]
    for factor in (0.25, -0.25):
        (values,) = zip(*(evaluate([output], {"s0": s, "f": factor}) for s in sums), strict=True)
        sign = wanted.sign if wanted.factor is None else math.copysign(wanted.sign, wanted.sign * factor)
        assert all(sign * (float(b) - float(a)) >= 0 for a, b in pairwise(values))
        assert len(set(values)) > 2


@pytest.mark.parametrize(
    "output",
    [
        Node("pow", (S, const(-1.0))),
        Node("pow", (S, F)),
        Node("sqrt", (Node("neg", (S,)),)),
        Node("sqrt", (times(S, F),)),
        Node("log", (S,)),
        Node("sin", (S,)),
        Node("add", (S, F)),
        times(S, S),
        times(S, const(0)),
        times(times(S, F), G),
        times(S, var("t0")),
        const(3.0),
        F,
    ],
    ids=str,
)
def test_orders_that_are_not_known(output: Node) -> None:
    assert order(output, {"f", "g"}) is None
