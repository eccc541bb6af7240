"""Products of small batches that read the weights where they lie: threads, blocks, and when they are chosen."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from kernmantle.structured.mode_product import rearrange
from kernmantle.structured.mode_product.plan import REGISTERS, contiguous
from kernmantle.structured.mode_product.stream_plan import (
    candidates,
    copy_seconds,
    plan_seconds,
    stream_plan,
    stream_seconds,
    streams,
)
from tests.backend.test_cuda_compile import CARDS

CARD = CARDS["sm_90"]
PATTERNS = ((6, 302, 390, 42), (83, 926, 68, 1), (1, 2, 700, 300), (3, 1, 1, 5), (1, 128, 128, 32), (2, 33, 65, 256))
BATCHES = (1, 3, 8, 9, 33, 200)


def starts(extent: int, size: int) -> set[int]:
    """Outputs of tiles of a size, the last of which begins early enough to be whole."""
    return {
        at
        for first in range(0, extent, size)
        for at in range(min(first, extent - size), min(first, extent - size) + size)
    }


@pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_whole_tiles_have_every_output(pattern, along) -> None:
    a, b, c, d = pattern
    for batch, groups, dtype in itertools.product(BATCHES, (1, 3), ("f32", "bf16")):
        given = replace(contiguous(pattern, batch, dtype, True), groups=groups)
        plans = list(candidates(given, along, CARD))
        assert stream_plan(given, along, CARD) in plans
        for plan in plans:
            assert plan.wide * plan.columns * plan.depth <= plan.threads
            assert plan.sharing <= c
            assert plan.outputs <= b
            assert plan.rows <= batch
            assert plan.wide <= d // plan.vector
            assert starts(b, plan.outputs) == set(range(b))
            assert starts(batch, plan.rows) == set(range(batch))
            assert starts(d // plan.vector, plan.wide) == set(range(d // plan.vector))
            blocks = groups * a * -(-b // plan.outputs) * -(-batch // plan.rows) * -(-(d // plan.vector) // plan.wide)
            assert plan.blocks(given) == blocks
            assert plan.registers <= 255
            assert plan.each * plan.threads * plan.registers <= REGISTERS


def test_neighbouring_l_are_read_together_where_everything_is_aligned() -> None:
    pattern = (6, 302, 390, 42)
    given = contiguous(pattern, 16, "bf16", True)
    assert {plan.vector for plan in candidates(given, True, CARD)} == {1, 2}
    for odd in (replace(given, x_bytes=2), replace(given, y_run=1), contiguous((6, 302, 390, 41), 16, "bf16", True)):
        assert {plan.vector for plan in candidates(odd, True, CARD)} == {1}
    assert {plan.vector for plan in candidates(given, True, CARD, 2)} == {1}


def test_larger_batches_and_other_types_are_not_streamed() -> None:
    pattern = (6, 302, 390, 42)
    assert stream_plan(contiguous(pattern, 257, "bf16", True), True, CARD) is None
    assert stream_plan(contiguous(pattern, 0, "bf16", True), True, CARD) is None
    assert stream_plan(contiguous(pattern, 4, "f64", True), True, CARD) is None
    assert stream_seconds(contiguous(pattern, 257, "bf16", True), CARD) == math.inf


def test_strides_of_weights_and_their_transposes_are_streamed() -> None:
    given = contiguous((2, 3, 5, 7), 4, "f32", True)
    assert streams(given, (210, 105, 35, 7, 1))
    assert streams(given, (210, 105, 7, 21, 1))
    assert streams(given, (0, 999, 35, 7, 1))
    assert not streams(given, (210, 105, 35, 7, 2))
    assert not streams(given, (210, 105, 70, 14, 1))
    assert not streams(given, (210, 105, 70, 7, 1))
    assert not streams(given, (210, 105, 7, 42, 1))
    assert streams(contiguous((2, 3, 1, 1), 4, "f32", True), (6, 3, 1, 99, 5))


def test_features_of_a_batch_that_is_last_are_brought_together_before() -> None:
    first, last = (contiguous((6, 302, 390, 42), 16, "bf16", features) for features in (True, False))
    assert copy_seconds(first) == 0.0 == copy_seconds(replace(last, batch=1))
    plan = stream_plan(last, True, CARD)
    assert plan is not None
    assert plan.last
    taken = stream_seconds(last, CARD)
    assert (
        plan_seconds(plan, last, CARD) + copy_seconds(last)
        < taken
        < 1.2 * plan_seconds(plan, last, CARD) + copy_seconds(last)
    )


def test_weights_that_are_large_beside_the_batch_are_read_at_the_rate_of_memory() -> None:
    pattern = (64, 512, 512, 1)
    for dtype, size in (("f32", 4), ("bf16", 2)):
        bound = size * math.prod(pattern) / 4.8e12
        assert bound < stream_seconds(contiguous(pattern, 1, dtype, True), CARD) < 5 * bound


@pytest.mark.parametrize(
    ("count", "apart", "step"), [(1, 793, 2), (1, 40, 7), (5, 1, 5), (5, 1, 9), (3, 2, 50), (1, 1, 1)]
)
def test_features_are_brought_together_from_any_steps(count, apart, step, monkeypatch):
    seen = []
    monkeypatch.setattr(rearrange, "transpose_rows", lambda source, *_: seen.append(source))
    rows = torch.arange(5000.0).as_strided((2, count, 20), (2000, apart, step))
    rearrange.features_together(rows)
    (source,) = seen
    assert source.stride(1) == 1
    assert torch.equal(source.view(2, 20, count), rows.mT)
