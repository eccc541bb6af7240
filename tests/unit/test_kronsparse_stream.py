"""Products of small batches that read the weights where they lie: threads, blocks, and when they are chosen."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.structured.mode_product.stream_plan import (
    THREADS,
    stream_plan,
    stream_seconds,
    stream_sum_plan,
    stream_sum_seconds,
    streams,
)
from kernmantle.structured.mode_product.tiles import expected_seconds
from kernmantle.structured.mode_product.weight_gradient_plan import sum_plan, sum_seconds
from tests.backend.test_cuda_compile import CARDS

CARD = CARDS["sm_90"]
PATTERNS = ((6, 302, 390, 42), (83, 926, 68, 1), (1, 2, 700, 300), (3, 1, 1, 5), (1, 128, 128, 32), (2, 33, 65, 256))
BATCHES = (1, 3, 8, 9, 33, 64)


def wide(d: int) -> int:
    """Values of l of a block."""
    return math.ceil(d / math.ceil(d / THREADS))


@pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_blocks_have_every_output_once(pattern, along) -> None:
    a, b, c, d = pattern
    for batch, groups in itertools.product(BATCHES, (1, 3)):
        given = replace(contiguous(pattern, batch, "f32", True), groups=groups)
        plan = stream_plan(given, along, CARD)
        assert plan is not None
        assert plan.columns * plan.depth * wide(d) <= THREADS
        assert plan.columns <= (c if along else b)
        each = (plan.depth if along else plan.columns) * plan.own
        blocks = plan.blocks(given)
        outputs = blocks * each * plan.rows * wide(d)
        assert outputs >= groups * a * b * d * batch
        # A block fewer along any of the axes leaves outputs out.
        assert (-(-b // each) - 1) * each < b
        assert (-(-batch // plan.rows) - 1) * plan.rows < batch
        assert blocks == groups * a * -(-b // each) * -(-batch // plan.rows) * math.ceil(d / THREADS)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_blocks_have_every_weight_once(pattern) -> None:
    a, b, c, d = pattern
    for batch in BATCHES:
        plan = stream_sum_plan(pattern, batch, 2, "bf16", CARD)
        assert plan is not None
        assert plan.columns * plan.depth * wide(d) <= THREADS
        high, span = plan.depth * plan.own_j, plan.columns * plan.own_k
        assert plan.blocks(pattern, 2) == 2 * a * -(-b // high) * -(-c // span) * math.ceil(d / THREADS)
        assert plan.own_j < 2 * b
        assert plan.own_k < 2 * c


def test_larger_batches_and_other_types_are_not_streamed() -> None:
    pattern = (6, 302, 390, 42)
    assert stream_plan(contiguous(pattern, 65, "bf16", True), True, CARD) is None
    assert stream_plan(contiguous(pattern, 0, "bf16", True), True, CARD) is None
    assert stream_plan(contiguous(pattern, 4, "f64", True), True, CARD) is None
    assert stream_seconds(contiguous(pattern, 65, "bf16", True), CARD) == math.inf
    assert stream_sum_plan(pattern, 65, 1, "bf16", CARD) is None
    assert stream_sum_seconds(pattern, 65, "bf16", CARD) == math.inf


def test_strides_of_weights_and_their_transposes_are_streamed() -> None:
    given = contiguous((2, 3, 5, 7), 4, "f32", True)
    assert streams(given, (210, 105, 35, 7, 1))
    assert streams(given, (210, 105, 7, 21, 1))
    assert not streams(given, (210, 105, 35, 7, 2))
    assert not streams(given, (210, 105, 70, 14, 1))
    assert not streams(given, (210, 105, 2**31, 7, 1))


@pytest.mark.parametrize(
    ("pattern", "batch", "dtype"),
    [((6, 302, 390, 42), 16, "bf16"), ((4, 182, 342, 31), 1, "f32"), ((72, 162, 504, 3), 3, "f16")],
    ids=str,
)
def test_many_weights_and_a_small_batch_cost_little_more_than_the_weights_bytes(pattern, batch, dtype) -> None:
    given, size = contiguous(pattern, batch, dtype, True), 4 if dtype == "f32" else 2
    bound = size * math.prod(pattern) / 3e12
    assert bound < stream_seconds(given, CARD) < 3 * bound
    assert stream_seconds(given, CARD) < expected_seconds(given, CARD)
    sums = sum_plan("sm_90", pattern[3], dtype, True, True)
    assert bound < stream_sum_seconds(pattern, batch, dtype, CARD) < sum_seconds(sums, pattern, batch, CARD)
