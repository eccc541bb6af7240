"""Gradients of the weights of Kronecker-sparse products by FMA instructions, against float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernmantle.structured.mode_product import cuda, fma_sum_plan, weight_gradient
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PATTERNS = ((2, 33, 65, 9), (1, 96, 50, 12), (2, 17, 4, 130), (1, 1, 1, 1), (2, 11, 29, 1), (40, 3, 2, 48))


def operands(pattern, rows, dtype, first, gap=0, groups=1):
    """x and the gradient of the result; their features, or the batch, lie together ``gap`` numbers behind an edge."""
    a, b, c, d = pattern
    torch.manual_seed(0)
    found = []
    for features in (a * c * d, a * b * d):
        shape = (groups, rows, features + gap) if first else (groups, features, rows + gap)
        made = torch.randn(shape, device="cuda").to(DTYPES[dtype])[..., gap:]
        found.append(made if first else made.mT)
    return found


def terms(x, grad, pattern):
    """The gradient of the weights in the type of its operands."""
    a, b, c, d = pattern
    return torch.einsum("gnikl,gnijl->gijkl", x.unflatten(2, (a, c, d)), grad.unflatten(2, (a, b, d)))


def bound(monkeypatch, x, grad, pattern, plan=None):
    """The sums by a plan; by that which should be quickest without one."""
    monkeypatch.setattr(weight_gradient, "fma_sum_seconds", lambda *_: 0.0)
    if plan is not None:
        monkeypatch.setattr(weight_gradient, "fma_sum_plan", lambda *_: plan)
    found = weight_gradient.bind_gradient(x, grad, pattern, "")
    assert found is not None
    return found


def plans(pattern, rows, dtype, first, access):
    """A plan of every kind, each with several parts of the batch."""
    own = fma_sum_plan.candidates(pattern, rows, dtype, first, access, cuda.limits(0))
    kinds = {(plan.share > 1, plan.vector, plan.tile[2] < pattern[3]): plan for plan in own}
    return [replace(plan, slots=3) for plan in kinds.values()]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_kind_of_tile(pattern, dtype, first, monkeypatch) -> None:
    rows = 1000
    x, grad = operands(pattern, rows, dtype, first)
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    for plan in plans(pattern, rows, dtype, first, 16):
        assert_close(bound(monkeypatch, x, grad, pattern, plan)(x, grad), exact, depth=rows, magnitude=size)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("gap", [0, 1, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 17, 5000])
def test_any_rows_strides_and_groups(rows, dtype, gap, first, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    x, grad = operands(pattern, rows, dtype, first, gap, 2)
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    assert_close(bound(monkeypatch, x, grad, pattern)(x, grad), exact, depth=rows, magnitude=size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_that_is_last_is_transposed_where_that_is_quicker(dtype, monkeypatch) -> None:
    pattern, rows = (2, 18, 10, 6), 21
    x, grad = operands(pattern, rows, dtype, False, 3)
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    monkeypatch.setattr(weight_gradient, "rows_seconds", lambda *_: -1.0)
    assert_close(bound(monkeypatch, x, grad, pattern)(x, grad), exact, depth=rows, magnitude=size)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_where_it_is(dtype, first, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    x, grad = operands(pattern, 100, dtype, first)
    x[0, 7, 0], grad[0, 99, -1] = math.nan, math.nan
    lost = bound(monkeypatch, x, grad, pattern)(x, grad)[0].isnan()
    wanted = torch.zeros_like(lost)
    wanted[0, :, 0, 0] = wanted[1, -1, :, -1] = True
    assert torch.equal(lost, wanted)
