"""What the table of operations says of one reaches every part that asks: a made-up row is all there is to write."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from kernmantle.backends.cpu.gram_plan import plan
from kernmantle.backends.cuda.gram_plan import is_heavy
from kernmantle.backends.cuda.spelling import SPELLINGS, ExpressionEmitter
from kernmantle.compiler.patterns import never_negative
from kernmantle.ir.node import Node, const, var
from kernmantle.ir.ops import COSTS, OPS, Op, is_transcendental
from kernmantle.ir.simplify import simplify
from kernmantle.torch_ops.namespaces import numpy_namespace, torch_namespace

from ..cuda.nests import L1, gram

X, Y, Z = map(var, "xyz")
BACKWARDS = Node("sub", (Y, X))
_COUNT = count()
MADEUP = Op("madeup", 1, lambda a: a, ("1",))
SIZES = dict.fromkeys("abc", 1) | {"m": 512, "n": 512, "k": 64, "l": 1, "splits": 1}


@pytest.fixture
def row(monkeypatch):
    """Put a row into the table for the length of a test."""

    def put(**facts):
        name = f"madeup{next(_COUNT)}"  # what was simplified is remembered by its name
        monkeypatch.setitem(OPS, name, replace(MADEUP, name=name, **facts))
        monkeypatch.setitem(SPELLINGS, name, "madeup")
        return lambda *args: Node(name, args)

    return put


@pytest.mark.parametrize("cost", COSTS)
def test_cost_chooses_tiles_and_calls(row, cost):
    madeup = row(cost=cost)
    nest = gram(madeup(L1))
    dear = cost != "instruction"
    assert is_transcendental(madeup(X)) == dear
    assert is_heavy(nest) == dear
    assert plan(nest, 32, 16, SIZES).cost == plan(gram(L1), 32, 16, SIZES).cost + (16 if dear else 1)
    emitter = ExpressionEmitter({"x": ("x", "value")}, True, apart=True)
    emitter.expressions([madeup(X)])
    assert ("km::apart::madeup" in emitter.code[0]) == (cost == "long")


@pytest.mark.parametrize(("parity", "turns"), [("odd", True), ("", False)])
def test_parity_orders_differences_below_even_functions(row, parity, turns):
    madeup = row(parity=parity)
    (root,) = simplify([Node("abs", (madeup(BACKWARDS),))])
    assert (root is Node("abs", (madeup(Node("sub", (X, Y))),))) == turns


@pytest.mark.parametrize(("parity", "turns"), [("even", True), ("", False)])
def test_even_functions_order_their_differences(row, parity, turns):
    madeup = row(parity=parity)
    (root,) = simplify([madeup(BACKWARDS)])
    assert (root is madeup(Node("sub", (X, Y)))) == turns


@pytest.mark.parametrize("associative", [True, False])
def test_chains_are_ordered(row, associative):
    madeup = row(arity=2, slopes=("1", "1"), commutative=True, associative=associative)
    one, other = simplify([madeup(madeup(Z, X), Y), madeup(X, madeup(Y, Z))])
    assert (one is other) == associative


@pytest.mark.parametrize("sign", [True, False])
def test_bases_that_are_never_negative(row, sign):
    madeup = row(never_negative=sign)
    assert never_negative(madeup(X)) == sign
    emitter = ExpressionEmitter({"x": ("x", "value"), "p": ("p", "value")}, True, approximate=True)
    emitter.expressions([Node("pow", (madeup(X), var("p")))])
    assert ("power_fast" in emitter.code[-1]) == sign


@pytest.mark.parametrize("conditions", [(0,), ()])
def test_conditions_are_made_truths(row, conditions):
    madeup = row(conditions=conditions)
    emitter = ExpressionEmitter({"x": ("x", "value")}, True)
    emitter.expressions([madeup(X)])
    assert ("x != C(0)" in emitter.code[0]) == bool(conditions)


@pytest.mark.parametrize("comparison", [True, False])
def test_what_is_compared_keeps_its_rounding(row, comparison):
    madeup = row(comparison=comparison)
    inner = Node("mul", (Node("mul", (X, Node("const", (), 3))), Node("const", (), 5)))
    (root,) = simplify([madeup(inner)], finite=True)
    assert (root is madeup(inner)) == comparison


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if op.boolean])
def test_comparisons_are_of_elements_in_every_namespace(name):
    arrays = (np.array([1.0, 0.0]), np.array([1.0, 1.0]))[: OPS[name].arity]
    arrays = [array != 0 for array in arrays] if OPS[name].conditions else arrays
    expected = [bool(OPS[name].value(*(array[i].item() for array in arrays))) for i in range(2)]
    device = torch_namespace(torch.float64, torch.device("cpu"))
    assert numpy_namespace().function(name)(*arrays).tolist() == expected
    assert device.function(name)(*map(torch.from_numpy, arrays)).tolist() == expected


I = var("i")
MIXED = {
    "a number": (Node("add", (I, X)), "value", "C(i) + x"),
    "a literal": (Node("mul", (I, const(0.5))), "value", "C(i) * C(0.5"),
    "a quotient": (Node("div", (I, const(2))), "value", "C(i) / C(2"),
    "a whole literal": (Node("add", (I, const(2))), "index", "i + km::i64(2"),
    "a choice": (Node("where", (Node("gt", (X, const(0))), I, X)), "value", "? C(i) : x"),
    "a choice of indices": (Node("where", (Node("gt", (X, const(0))), I, const(7))), "index", "? i : km::i64(7"),
    "a comparison": (Node("lt", (I, X)), "bool", "C(i) < x"),
}


@pytest.mark.parametrize(("node", "kind", "text"), MIXED.values(), ids=MIXED)
def test_indices_are_whole_among_whole_numbers_only(node, kind, text):
    emitter = ExpressionEmitter({"i": ("i", "index"), "x": ("x", "value")}, True)
    (found,) = emitter.expressions([node])
    assert found[1] == kind
    assert text in emitter.code[-1], emitter.code
