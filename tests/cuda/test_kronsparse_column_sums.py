"""Gradients of the weights of Kronecker-sparse products over a batch that lies together, against float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernmantle.structured.mode_product import column_sum_plan, cuda, weight_gradient
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PATTERNS = ((3, 80, 112, 5), (2, 33, 65, 9), (16, 16, 16, 16), (2, 17, 40, 1), (1, 3, 7, 20), (1, 140, 20, 2))


def operands(pattern, entries, dtype, gap=0, groups=1):
    a, b, c, d = pattern
    torch.manual_seed(0)
    sides = [torch.randn(groups, a * m * d, entries + gap, device="cuda").to(DTYPES[dtype]) for m in (c, b)]
    return [side[..., gap:].mT for side in sides]


def terms(x, grad, pattern):
    """The gradient of the weights in the type of its operands."""
    a, b, c, d = pattern
    return torch.einsum("gnikl,gnijl->gijkl", x.unflatten(2, (a, c, d)), grad.unflatten(2, (a, b, d)))


def bound(monkeypatch, x, grad, pattern, plan=None):
    """The sums by a plan; by that which should be quickest without one."""
    monkeypatch.setattr(weight_gradient, "_by_fma", lambda *_: [])
    monkeypatch.setattr(weight_gradient, "column_sum_seconds", lambda *_: 0.0)
    if plan is not None:
        monkeypatch.setattr(weight_gradient, "column_sum_plan", lambda *_: plan)
    found = weight_gradient.bind_gradient(x, grad, pattern, "")
    assert found is not None
    return found


def plans(pattern, entries, dtype):
    """A tile of every kind."""
    shifted = DTYPES[dtype].itemsize * entries % column_sum_plan.ALIGNED != 0
    products = 3 if dtype == "f32" else 1
    own = column_sum_plan.candidates(pattern, entries, dtype, shifted, products, cuda.limits(0))
    return {
        (plan.m, plan.n, plan.warps_j > 1, plan.warps_k > 1, plan.tile_l > 1, plan.piece, whole): replace(
            plan, whole=whole
        )
        for plan in own
        for whole in (False, True)
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("entries", [200, 203])
def test_every_kind_of_tile(entries, pattern, dtype, monkeypatch) -> None:
    x, grad = operands(pattern, entries, dtype)
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    every = list(plans(pattern, entries, dtype).values())
    for plan in every[:: -(-len(every) // 4) | 1]:
        assert_close(bound(monkeypatch, x, grad, pattern, plan)(x, grad), exact, depth=entries, magnitude=size)


@pytest.mark.parametrize(
    ("pattern", "entries"), [((40, 70, 11, 40), 59), ((6, 33, 390, 42), 16), ((82, 29, 17, 17), 18)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_that_take_many_tiles(pattern, entries, dtype, monkeypatch) -> None:
    x, grad = operands(pattern, entries, dtype)
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    assert_close(bound(monkeypatch, x, grad, pattern)(x, grad), exact, depth=entries, magnitude=size)


@pytest.mark.parametrize("gap", [0, 1, 2, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("entries", [2, 15, 65, 5000])
def test_any_batch_strides_and_groups(entries, dtype, gap, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    x, grad = operands(pattern, entries, dtype, gap, 2)
    exact, size = terms(x.double(), grad.double(), pattern), terms(x.double().abs(), grad.double().abs(), pattern)
    assert_close(bound(monkeypatch, x, grad, pattern)(x, grad), exact, depth=entries, magnitude=size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_where_it_is(dtype, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    x, grad = operands(pattern, 100, dtype)
    x[0, 7, 0], grad[0, 99, -1] = math.nan, math.nan
    lost = bound(monkeypatch, x, grad, pattern)(x, grad)[0].isnan()
    wanted = torch.zeros_like(lost)
    wanted[0, :, 0, 0] = wanted[1, -1, :, -1] = True
    assert torch.equal(lost, wanted)
