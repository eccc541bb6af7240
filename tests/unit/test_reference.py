"""The reference evaluator against plain numpy, in any namespace, in bounded memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernmantle.backends.reference import evaluate
from kernmantle.ir.definition import Fold, bind, define
from kernmantle.ir.node import Node, var
from kernmantle.ir.program import Operand, Program
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.testing import CASES, assert_close
from kernmantle.torch_ops.namespaces import numpy_namespace, torch_namespace

from ..oracle import oracle

SIZES = {"m": 6, "n": 5, "k": 7}


def run(program, arrays, ns, limit=1 << 20, **numbers):
    named = dict(zip([op.name for op in program.tensors], arrays, strict=True))
    sizes: dict[str, int] = {}
    for operand in program.tensors:
        shape = named[operand.name].shape
        sizes.update(zip(operand.axes, shape[len(shape) - len(operand.axes) :], strict=True))
    named |= {name: ns.full((), value, "value") for name, value in numbers.items()}
    return gathered(program, evaluate.run(program, named, sizes, ns, limit), sizes)


def gathered(program, blocks, sizes):
    """Outputs put together from their blocks, of which none may be missing or come twice."""
    results, written = [], np.zeros([sizes[axis] for axis in program.out], int)
    for place, values in blocks:
        written[place] += 1
        for i, value in enumerate(map(np.asarray, values)):
            if len(results) <= i:
                lead = value.shape[: value.ndim - len(program.out)]
                results.append(np.zeros((*lead, *written.shape), value.dtype))
            results[i][(..., *place)] = value
    assert (written == 1).all()
    return results


def bound(case):
    binding = bind(define(case.equation, case.map, case.reduce, case.epilogue), frozenset())
    names = [op.name for op in binding.program.numbers]
    values = [case.params[entry] if isinstance(entry, str) else entry for entry in binding.numbers]
    return binding.program, dict(zip(names, values, strict=True))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("limit", [1 << 20, 40, 1])
def test_two_namespaces_and_any_limit_agree(name, limit):
    case = CASES[name]
    program, numbers = bound(case)
    arrays = case.operands(SIZES)
    (wanted,) = run(program, arrays, numpy_namespace(), **numbers)
    tensors = [torch.from_numpy(array) for array in arrays]
    (found,) = run(program, tensors, torch_namespace(torch.float64, torch.device("cpu")), limit, **numbers)
    assert_close(found, wanted, depth=64)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("limit", [1 << 20, 10])
@pytest.mark.parametrize("ns", [numpy_namespace(), torch_namespace(torch.float64, torch.device("cpu"))])
def test_every_reduction(reduce, limit, ns):
    random = np.random.default_rng(0)
    arrays = [random.standard_normal((3, 6, 7)), random.standard_normal((5, 7))]
    function = (lambda a, b: a > b) if reduce in ("any", "all") else lambda a, b: a * b + b
    program = bind(define("mk,nk->mn", function, reduce), frozenset()).program
    given = arrays if ns is numpy_namespace() else [torch.from_numpy(array) for array in arrays]
    (found,) = run(program, given, ns, limit)
    assert_close(np.asarray(found), oracle("mk,nk->mn", function, arrays, reduce), depth=7)


class Watch:
    """A namespace that remembers the largest array that an operation made."""

    def __init__(self, ns):
        self.largest = 0
        self.ns = replace(ns, function=self.watched(ns.function), broadcast=ns.broadcast)

    def watched(self, function):
        def of(name):
            plain = function(name)

            def call(*args):
                result = plain(*args)
                self.largest = max(self.largest, result.size)
                return result

            return call

        return of


@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,nk->m", "mk,nk->"])
def test_memory_is_bounded(equation):
    program = bind(define(equation, lambda a, b: abs(a - b)), frozenset()).program
    arrays = [np.ones((40, 50)), np.ones((30, 50))]
    watch = Watch(numpy_namespace())
    (found,) = run(program, arrays, watch.ns, limit=500)
    assert watch.largest <= 2 * 500
    assert (np.asarray(found) == 0).all()
    unbounded = Watch(numpy_namespace())
    run(program, arrays, unbounded.ns, limit=1 << 30)
    assert unbounded.largest == 40 * 30 * 50


def test_rounding_grows_with_the_logarithm_of_the_depth():
    ones = np.full(1 << 16, 0.1, np.float32)
    program = bind(define("k->", lambda a: a), frozenset()).program
    (found,) = run(program, [ones], numpy_namespace("float32"))
    assert abs(float(found) / (float(np.float32(0.1)) * (1 << 16)) - 1) < 16 * 2.0**-24


def test_a_fold_runs_in_order():
    program = bind(define("mk,nk->mn", None, Fold(lambda s, a, b: s * b + a, 1.0)), frozenset()).program
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(4, 3) / 10]
    (found,) = run(program, arrays, numpy_namespace(), limit=2)
    state = np.ones((2, 4))
    for k in range(3):
        state = state * arrays[1][:, k] + arrays[0][:, None, k]
    assert_close(found, state, depth=3)


def test_integers_keep_their_type_and_extremes():
    program = bind(define("mk->m", lambda a: a, "min"), frozenset()).program
    ns = torch_namespace(torch.int32, torch.device("cpu"))
    (found,) = run(program, [torch.tensor([[2**31 - 1, 5], [-3, 4]], dtype=torch.int32)], ns)
    assert (found.dtype, found.tolist()) == (np.int32, [5, -3])
    (empty,) = run(program, [torch.zeros(2, 0, dtype=torch.int32)], ns)
    assert empty.tolist() == [2**31 - 1] * 2
    (empty,) = run(program, [np.zeros((2, 0), np.int64)], numpy_namespace("int64"))
    assert empty.tolist() == [2**63 - 1] * 2


def test_an_inner_program():
    """Σ_n exp(-Σ_k |x_mk - y_nk|) v_n, in one run."""
    x0, x1, s0 = map(var, ("x0", "x1", "s0"))
    distance = Node("abs", (Node("sub", (x0, x1)),))
    inner = Program((Operand("x0", "mk"), Operand("x1", "nk")), "mn", (distance,), (REDUCTIONS["sum"],), (s0,))
    weighted = Node("mul", (Node("exp", (Node("neg", (var("g"),)),)), var("v")))
    outer = Program((Operand("g", "mn", inner=inner), Operand("v", "n")), "m", (weighted,), (REDUCTIONS["sum"],), (s0,))
    x, y, v = (
        np.random.default_rng(0).standard_normal((3, 4, 5)),
        np.random.default_rng(1).standard_normal((6, 5)),
        np.arange(6.0),
    )
    ns = numpy_namespace()
    wanted = np.exp(-abs(x[:, :, None] - y).sum(-1)) @ v
    for limit in (1 << 20, 50):
        sizes = {"m": 4, "n": 6, "k": 5}
        blocks = evaluate.run(outer, {"x0": x, "x1": y, "v": v}, sizes, ns, limit)
        (found,) = gathered(outer, blocks, sizes)
        assert_close(found, wanted, depth=30)


def test_merging_an_axis_keeps_its_order():
    row = REDUCTIONS["argmin"]
    ns = numpy_namespace()
    values = np.array([3.0, 1.0, 1.0, 2.0, 1.0])
    state = evaluate.merge_axis(row, [values, np.arange(5)], -1, ns)
    assert (state[0].tolist(), state[1].tolist()) == ([1.0], [1])


def test_functions_that_a_namespace_lacks_are_composed():
    ns = numpy_namespace()
    x = np.array([0.25, 4.0])
    (found,) = evaluate.evaluate([Node("rsqrt", (var("x"),))], {"x": x}, ns)
    assert found.tolist() == [2.0, 0.5]
    (found,) = evaluate.evaluate([Node("sigmoid", (var("x"),))], {"x": np.array([0.0])}, ns)
    assert found.tolist() == [0.5]


def test_conditions_and_numbers_mix():
    ns = torch_namespace(torch.float32, torch.device("cpu"))
    x = torch.tensor([-1.0, 0.0, 2.0])
    both = Node("and", (Node("lt", (var("x"), Node("const", (), 1))), var("x")))
    (found,) = evaluate.evaluate([both], {"x": x}, ns)
    assert found.tolist() == [True, False, False]
    total = Node("add", (both, Node("const", (), True)))
    (found,) = evaluate.evaluate([total], {"x": x}, ns)
    assert found.tolist() == [2.0, 1.0, 1.0]
