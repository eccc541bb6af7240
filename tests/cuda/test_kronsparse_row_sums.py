"""Gradients of the weights of Kronecker-sparse products over rows as they lie, against float64."""

from __future__ import annotations

import math

import pytest
import torch

from kernmantle.structured.mode_product import cuda, row_sum_plan
from kernmantle.structured.mode_product.plan_table import rows_of
from kernmantle.structured.mode_product.tiled_sum import LONG

from .kronsparse_sums import DTYPES, check, check_what_is_no_number

pytestmark = pytest.mark.cuda

PATTERNS = (
    (3, 80, 112, 5), (2, 33, 65, 9), (1, 96, 50, 12), (2, 17, 40, 6), (1, 64, 64, 4), (3, 9, 7, 16), (1, 20, 30, 33),
    (2, 11, 29, 1),
)  # fmt: skip


def operands(pattern, rows, dtype, gap=0, groups=1):
    a, b, c, d = pattern
    torch.manual_seed(0)
    return [torch.randn(groups, rows, a * m * d + gap, device="cuda").to(DTYPES[dtype])[..., gap:] for m in (c, b)]


def plans(pattern, rows, dtype):
    """A tile of every kind of fragments."""
    size = DTYPES[dtype].itemsize
    x_bytes, y_bytes = (math.gcd(16, size * m * pattern[3]) for m in (pattern[2], pattern[1]))
    products = 3 if dtype == "f32" else 1
    own = rows_of(row_sum_plan.candidates(pattern[3], rows >= LONG, dtype, x_bytes, y_bytes, products, cuda.limits(0)))
    return {(plan.m, plan.n, plan.warps_j > 1, plan.warps_k > 1): plan for plan in own}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_kind_of_tile(pattern, dtype, monkeypatch) -> None:
    every = list(plans(pattern, 200, dtype).values())[::4]
    check(monkeypatch, "row", *operands(pattern, 200, dtype), pattern, every)


@pytest.mark.parametrize("gap", [1, 2, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 15, 17, 5000])
def test_any_rows_strides_and_groups(rows, dtype, gap, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    check(monkeypatch, "row", *operands(pattern, rows, dtype, gap, 2), pattern)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_where_it_is(dtype, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    check_what_is_no_number(monkeypatch, "row", *operands(pattern, 100, dtype), pattern)


def layouts(rows, features, dtype):
    """Arrays (2, rows, features) whose batch lies together, with gaps between features, and of one row."""
    made = torch.randn(2, rows, 2 * features, device="cuda").to(DTYPES[dtype])
    yield made[..., :features].mT.contiguous().mT
    yield made[..., ::2]
    yield made[:, :1, :features].expand(2, rows, features)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_strides_are_brought_together(dtype, monkeypatch) -> None:
    pattern = a, b, c, d = (2, 18, 10, 5)
    x, grad = operands(pattern, 40, dtype, groups=2)
    for other in layouts(40, a * c * d, dtype):
        check(monkeypatch, "row", other, grad, pattern)
    for other in layouts(40, a * b * d, dtype):
        check(monkeypatch, "row", x, other, pattern)
