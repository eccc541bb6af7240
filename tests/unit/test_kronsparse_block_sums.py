"""Plans of gradients of weights over transposed rows: what they take, and where they are chosen."""

from __future__ import annotations

import math

import pytest
import torch

from kernmantle.structured.mode_product import weight_gradient
from kernmantle.structured.mode_product.block_sum_plan import (
    block_sum_plan,
    block_sum_seconds,
    block_sums_seconds,
    candidates,
)
from kernmantle.structured.mode_product.column_sum_plan import columns_seconds
from kernmantle.structured.mode_product.fma_sum_plan import fma_seconds
from kernmantle.structured.mode_product.plan_table import rows_of
from kernmantle.structured.mode_product.sum_emit import emit_tile_sum
from tests.backend.test_cuda_compile import CARDS

CARD = CARDS["sm_90"]
MANY = ((82, 129, 173, 17), 18), ((6, 302, 390, 42), 16), ((31, 147, 10, 37), 137), ((9, 374, 263, 14), 67)


@pytest.mark.parametrize(("pattern", "rows"), MANY, ids=str)
def test_plans_fit_a_block_and_take_all_l(pattern, rows) -> None:
    every = list(rows_of(candidates(pattern[3], rows, "f16", CARD)))
    assert every
    for plan in every:
        assert plan.shared <= CARD.shared_per_block
        assert pattern[3] % plan.warp_l == 0
        assert plan.extents[2] == pattern[3]
        assert 4 <= plan.warps <= 12
    chosen = block_sum_plan(pattern, rows, "f16", CARD)
    assert chosen is not None
    assert block_sums_seconds(pattern, rows, "f16", CARD) > block_sum_seconds(chosen, pattern, rows, CARD)
    assert "typedef km::f16 OUT" in emit_tile_sum(chosen)


def test_few_rows_and_many_weights_are_summed_so() -> None:
    for pattern, rows in MANY[:2]:
        assert block_sums_seconds(pattern, rows, "f16", CARD) < fma_seconds(pattern, rows, "f16", True, CARD)
        assert block_sums_seconds(pattern, rows, "f16", CARD) < columns_seconds(pattern, rows, "f16", CARD)
    assert block_sums_seconds((1, 31, 39, 49), 200, "f16", CARD) > columns_seconds((1, 31, 39, 49), 200, "f16", CARD)
    assert block_sums_seconds((82, 129, 173, 17), 257, "f16", CARD) == math.inf


def test_only_halves_of_several_l_are_taken_where_engines_copy() -> None:
    assert candidates(17, 18, "f32", CARD) is None
    assert candidates(1, 18, "f16", CARD) is None
    assert candidates(17, 18, "f16", CARDS["sm_80"]) is None
    assert block_sums_seconds((2, 8, 8, 300), 18, "f16", CARD) == math.inf


@pytest.mark.parametrize(("count", "step"), [(1, 3), (1, 1), (5, 5), (5, 9)])
def test_rows_are_transposed_from_any_steps(count, step, monkeypatch) -> None:
    """Of a single row whose features lie apart, neighbours in memory were summed."""
    pattern = (2, 3, 5, 4)
    seen = []
    monkeypatch.setattr(weight_gradient, "transpose_rows", lambda source, *_: seen.append(source))
    monkeypatch.setattr(weight_gradient, "_bind_tiles", lambda *_: lambda x, grad: torch.empty(0))
    x, grad = (torch.arange(9999.0).as_strided((1, count, size), (0, 1, step)) for size in (40, 24))
    chosen = block_sum_plan(pattern, count, "f16", CARD)
    assert chosen is not None
    weight_gradient._bind_blocks(x, pattern, chosen, CARD)(x, grad)
    for source, side in zip(seen, (x, x, grad), strict=True):
        assert source.stride(1) == 1
        assert torch.equal(source.view(1, -1, count), side.mT)
