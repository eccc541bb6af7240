"""The public testing tools reject what they must reject."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given

from kernmantle.ir.node import postorder, var, variables
from kernmantle.ir.ops import evaluate
from kernmantle.ir.trace import trace
from kernmantle.testing import CASES, assert_close, tolerance
from kernmantle.testing.strategies import JUMPS, KINKS, VARIABLE, edges, expressions, lambdas, shapes
from kernmantle.testing.tolerances import FORMATS

WIDTHS = ["float16", "bfloat16", "float32", "float64"]


def test_tolerance_grows_with_depth_and_width():
    for dtype in WIDTHS:
        assert tolerance(dtype, 1) < tolerance(dtype, 100) < tolerance(dtype, 10000)
    assert tolerance("float64") < tolerance("float32") < tolerance("float16") < tolerance("bfloat16")
    assert tolerance("float32", 1000) < 2e-5
    assert tolerance("int64") == tolerance("bool") == tolerance(torch.int32, 1000) == 0


@pytest.mark.parametrize(("name", "torch_type"), [(name, getattr(torch, name)) for name in WIDTHS])
def test_formats_are_those_of_torch(name, torch_type):
    limits = torch.finfo(torch_type)
    assert FORMATS[name].roundoff * 2 == limits.eps
    assert FORMATS[name].largest == limits.max
    assert tolerance(torch_type, 7) == tolerance(name, 7)
    if name != "bfloat16":
        assert tolerance(getattr(np, name), 7) == tolerance(np.dtype(name), 7) == tolerance(name, 7)


@pytest.mark.parametrize("depth", [1, 100, 10000])
def test_sums_are_within_tolerance_and_near_it(depth):
    terms = np.random.default_rng(depth).uniform(0.1, 1, (200, depth))
    found = np.cumsum(terms.astype(np.float32), axis=1, dtype=np.float32)[:, -1]
    assert_close(found, terms.sum(1), depth=depth, magnitude=0)
    assert tolerance("float32", depth) < 200 * max(np.abs(found / terms.sum(1) - 1).max(), 2**-24)


def test_equal_things_are_close():
    values = np.array([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e-300])
    assert_close(values, values.copy())
    assert_close(torch.tensor([1.0, math.nan]), np.array([1.0, math.nan]))
    assert_close(torch.tensor([1, 2]), torch.tensor([1, 2]))
    assert_close(np.array([True, False]), [True, False])
    assert_close(np.zeros((0, 3)), np.zeros((0, 3)))
    assert_close(torch.tensor(math.inf, dtype=torch.float16), 70000.0)
    for near in (65490.0, 65519.0, 65531.6):
        assert_close(torch.tensor(math.inf, dtype=torch.float16), near)
    assert_close(torch.tensor(65504.0, dtype=torch.float16), 65531.6)
    assert_close(torch.tensor(0.1, dtype=torch.bfloat16), 0.1)
    assert_close(torch.tensor([2.0], requires_grad=True), [2.0])
    assert_close(np.float32([1e8, 1e-3]), np.array([1e8, 0.0]))
    assert_close(np.float32([1e-45]), np.array([0.0]), magnitude=0)


@pytest.mark.parametrize(
    ("actual", "expected", "options"),
    [
        ([1.0], [1.0 + 1e-12], {}),
        ([math.nan], [1.0], {}),
        ([1.0], [math.nan], {}),
        ([math.inf], [-math.inf], {}),
        ([math.inf], [1e308], {}),
        ([1e308], [math.inf], {}),
        ([math.nan], [math.inf], {}),
        ([0.0], [1e-6], {}),
        (np.float32([1.0]), [1.0001], {}),
        (np.float32([1.0]), [1.0 + 1e-5], {"depth": 64}),
        (np.float32([1e8, 1e-3]), [1e8, 0.0], {"magnitude": 0}),
        (torch.tensor([1.0], dtype=torch.float16), [1.01], {}),
        (torch.tensor([1.0], dtype=torch.bfloat16), [1.02], {}),
        (torch.tensor([65504.0], dtype=torch.float16), [70000.0], {}),
        (torch.tensor([65504.0], dtype=torch.float16), [65600.0], {}),
        (torch.tensor([math.inf], dtype=torch.float16), [65000.0], {}),
        (torch.tensor([-math.inf], dtype=torch.float16), [65531.6], {}),
        (np.array([3]), [4], {}),
        (np.array([True]), [False], {}),
        (np.zeros(3), np.zeros(4), {}),
        (np.zeros((1, 3)), np.zeros(3), {}),
        (np.float64([1.0 + 1e-9]), [1.0], {}),
        (np.float64([-1.0]), [1.0], {"dtype": "float16"}),
    ],
)
def test_different_things_are_rejected(actual, expected, options):
    with pytest.raises(AssertionError):
        assert_close(np.asarray(actual) if isinstance(actual, list) else actual, expected, **options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numbers_of_numpy_at_the_end_of_their_range_are_compared(dtype):
    largest = np.finfo(dtype).max
    assert_close(np.array([largest, 1.0], dtype), np.array([largest, 1.0], dtype), depth=8)
    assert_close(np.array([np.inf, 1.0], dtype), np.array([largest, 1.0], dtype), depth=8)
    with pytest.raises(AssertionError):
        assert_close(np.array([np.inf, 1.0], dtype), np.array([largest / 2, 1.0], dtype), depth=8)


def test_the_worst_entry_is_named():
    with pytest.raises(AssertionError, match=r"2 of 6 entries differ; worst is \[1, 2\]: 9\.0 where 1\.0"):
        assert_close(np.array([[1.0, 1, 1], [1, 2, 9]]), np.ones((2, 3)))


@pytest.mark.parametrize("kind", ["smooth", "continuous", "any"])
def test_random_expressions_are_finite(kind):
    seen = set()

    @given(expressions(["a", "b"], depth=4, kind=kind))
    def run(node):
        assert set(variables([node])) <= {"a", "b"}
        assert variables([node])
        seen.update(part.op for part in postorder([node]))
        for a in (VARIABLE[0], -0.5, 0.0, VARIABLE[1]):
            for b in (VARIABLE[0], 0.0, 0.75, VARIABLE[1]):
                assert math.isfinite(evaluate([node], {"a": a, "b": b})[0])

    run()
    assert len(seen) > 20
    assert bool(seen & JUMPS) == (kind == "any")
    assert bool(seen & KINKS) == (kind != "smooth")


@given(lambdas(["x", "y"], depth=3))
def test_random_lambdas_are_lambdas(function):
    assert len(trace(function, [var("x"), var("y")]).roots) == 1


def test_edges():
    assert edges(8) == (0, 1, 7, 8, 9)
    assert edges(1) == (0, 1, 2)


@given(shapes(4, 16))
def test_shapes(shape):
    assert shape[0] in edges(4)
    assert shape[1] in edges(16)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_case_is_complete(case):
    sizes = {"m": 3, "n": 4, "k": 5}
    operands = case.operands(sizes)
    axes = case.equation.partition("->")[0].split(",")
    assert [operand.shape for operand in operands] == [tuple(sizes[axis] for axis in labels) for labels in axes]
    for operand, again, other in zip(operands, case.operands(sizes), case.operands(sizes, seed=1), strict=True):
        assert np.array_equal(operand, again)
        assert not np.array_equal(operand, other)
        assert np.array_equal(operand, operand.astype(np.float16))
    names = {name: var(name) for name in case.params}
    mapped = trace(case.map, [var(f"x{place}") for place in range(len(axes))], names)
    if case.epilogue is not None:
        trace(case.epilogue, [var(f"s{place}") for place in range(len(mapped.roots))], names)


def test_zeros_that_torch_does_not_store_are_compared():
    zero = torch._efficientzerotensor((3,), dtype=torch.float64)
    assert_close(zero, torch.zeros(3, dtype=torch.float64), depth=1)
    with pytest.raises(AssertionError):
        assert_close(zero, torch.ones(3, dtype=torch.float64), depth=1)
