"""Sums of weights by FMA instructions: tiles, parts, and when they are chosen."""

from __future__ import annotations

import math

import pytest

from kernmantle.structured.mode_product.cost import gradient_seconds
from kernmantle.structured.mode_product.fma_sum_plan import candidates, fma_seconds, fma_sum_choice, rows_seconds
from kernmantle.structured.mode_product.plan_table import rows_of
from tests.backend.test_cuda_compile import CARDS

CARD = CARDS["sm_90"]
PATTERNS = ((6, 302, 390, 42), (83, 926, 68, 1), (1, 2, 700, 300), (3, 1, 1, 5), (1, 128, 128, 32), (2, 33, 65, 256))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_tiles_are_whole_and_have_every_weight(pattern, first) -> None:
    a, *extents = pattern
    for batch in (1, 9, 4096):
        for plan in rows_of(candidates(pattern, batch, "bf16", first, 16, CARD)):
            assert all(size <= extent for size, extent in zip(plan.tile, extents, strict=True))
            assert plan.tiles == a * math.prod(-(-n // size) for n, size in zip(extents, plan.tile, strict=True))
            assert plan.threads <= 256
            assert pattern[3] % plan.vector == 0 if first else batch % plan.vector == 0
        chosen = fma_sum_choice(pattern, batch, "bf16", first, 16, CARD)[1]
        assert chosen is not None
        assert 1 <= chosen.slots <= batch


# Microseconds on an H200: pattern, rows, type, whether the batch is last; the least of what was measured.
MEASURED = (
    ((9, 12, 4, 118), 546, "f32", False, 12.6), ((36, 12, 25, 41), 4915, "f32", False, 393),
    ((56, 4, 30, 65), 2169, "f16", False, 214), ((1, 768, 192, 2), 4096, "f32", False, 132),
    ((6, 64, 64, 1), 4096, "f32", False, 14.7), ((10, 18, 3, 4), 23424, "bf16", False, 15.9),
    ((116, 2, 7, 2), 21880, "f32", True, 44.6), ((39, 3, 2, 48), 3857, "bf16", True, 25.3),
    ((6, 302, 390, 42), 16, "bf16", True, 72.3), ((124, 3, 233, 53), 11, "bf16", True, 42.7),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "batch", "dtype", "last", "taken"), MEASURED, ids=str)
def test_the_model_is_near_what_was_measured(pattern, batch, dtype, last, taken) -> None:
    assert taken / 1.6 < 1e6 * fma_seconds(pattern, batch, dtype, last, CARD) < 1.6 * taken


def test_long_batches_are_not_transposed_before() -> None:
    assert rows_seconds((2, 3, 5, 7), 513, "f32") == math.inf
    assert rows_seconds((2, 3, 5, 7), 512, "f32") < 1e-4


def test_wide_blocks_go_by_tensor_cores() -> None:
    wide = (1, 512, 512, 1)
    expected = gradient_seconds(wide, 65536, "bf16", "cuda")["kernel"]
    assert fma_seconds(wide, 65536, "bf16", False, CARD) > 2 * expected
