"""Gradients of the weights of Kronecker-sparse products over a batch that lies together, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernmantle.structured.mode_product import column_sum_plan, cuda
from kernmantle.structured.mode_product.plan_table import rows_of

from .kronsparse_sums import DTYPES, check, check_what_is_no_number

pytestmark = pytest.mark.cuda

PATTERNS = ((3, 80, 112, 5), (2, 33, 65, 9), (16, 16, 16, 16), (2, 17, 40, 1), (1, 3, 7, 20), (1, 140, 20, 2))


def operands(pattern, entries, dtype, gap=0, groups=1):
    a, b, c, d = pattern
    torch.manual_seed(0)
    sides = [torch.randn(groups, a * m * d, entries + gap, device="cuda").to(DTYPES[dtype]) for m in (c, b)]
    return [side[..., gap:].mT for side in sides]


def plans(pattern, entries, dtype):
    """A tile of every kind."""
    shifted = DTYPES[dtype].itemsize * entries % column_sum_plan.ALIGNED != 0
    products = 3 if dtype == "f32" else 1
    own = rows_of(column_sum_plan.candidates(pattern, entries, dtype, shifted, products, cuda.limits(0)))
    return {
        (plan.m, plan.n, plan.warps_j > 1, plan.warps_k > 1, plan.warps_l > 1, plan.piece, whole): replace(
            plan, whole=whole
        )
        for plan in own
        for whole in (False, True)
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("entries", [200, 203])
def test_every_kind_of_tile(entries, pattern, dtype, monkeypatch) -> None:
    every = list(plans(pattern, entries, dtype).values())
    check(monkeypatch, "column", *operands(pattern, entries, dtype), pattern, every[:: -(-len(every) // 4) | 1])


@pytest.mark.parametrize(
    ("pattern", "entries"), [((40, 70, 11, 40), 59), ((6, 33, 390, 42), 16), ((82, 29, 17, 17), 18)], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_that_take_many_tiles(pattern, entries, dtype, monkeypatch) -> None:
    check(monkeypatch, "column", *operands(pattern, entries, dtype), pattern)


@pytest.mark.parametrize("gap", [0, 1, 2, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("entries", [2, 15, 65, 5000])
def test_any_batch_strides_and_groups(entries, dtype, gap, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    check(monkeypatch, "column", *operands(pattern, entries, dtype, gap, 2), pattern)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_stays_where_it_is(dtype, monkeypatch) -> None:
    pattern = (2, 18, 10, 5)
    check_what_is_no_number(monkeypatch, "column", *operands(pattern, 100, dtype), pattern)
