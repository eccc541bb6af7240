"""Products of small batches that read the weights where they lie: threads, blocks, and when they are chosen."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from kernmantle.structured.mode_product.cost import rearranging_seconds
from kernmantle.structured.mode_product.plan import contiguous
from kernmantle.structured.mode_product.stream_plan import (
    THREADS,
    stream_plan,
    stream_seconds,
    streams,
)
from kernmantle.structured.mode_product.tiles import expected_seconds
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


def test_larger_batches_and_other_types_are_not_streamed() -> None:
    pattern = (6, 302, 390, 42)
    assert stream_plan(contiguous(pattern, 65, "bf16", True), True, CARD) is None
    assert stream_plan(contiguous(pattern, 0, "bf16", True), True, CARD) is None
    assert stream_plan(contiguous(pattern, 4, "f64", True), True, CARD) is None
    assert stream_seconds(contiguous(pattern, 65, "bf16", True), CARD) == math.inf


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


# Microseconds on an H200, features together: pattern, rows, type; the product with transposed weights, and the other
# kernels for it.
MEASURED = (
    ((6, 302, 390, 42), 16, "bf16", 106, 236), ((72, 162, 504, 3), 3, "f16", 16.9, 78),
    ((55, 217, 17, 124), 1, "f16", 26.6, 251), ((71, 12, 954, 2), 3, "f32", 5.8, 40),
    ((15, 18, 419, 97), 11, "f16", 33, 271), ((22, 14, 152, 9), 33, "bf16", 11, 11.5),
    ((18, 6, 307, 70), 22, "bf16", 18.8, 150),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "batch", "dtype", "of_x", "other"), MEASURED, ids=str)
def test_the_model_is_near_what_was_measured(pattern, batch, dtype, of_x, other) -> None:
    a, b, c, d = pattern
    transposed = contiguous((a, c, b, d), batch, dtype, True)
    seconds = stream_seconds(transposed, CARD, False)
    assert of_x / 1.6 < 1e6 * seconds < of_x * 1.6
    kernel = expected_seconds(transposed, CARD) + rearranging_seconds((a, c, b, d), dtype, True)
    assert other < 1.5 * of_x or seconds < kernel


def test_weights_that_are_large_beside_the_batch_are_read_at_the_rate_of_memory() -> None:
    pattern = (64, 512, 512, 1)
    for dtype, size in (("f32", 4), ("bf16", 2)):
        bound = size * math.prod(pattern) / 3.35e12
        assert bound < stream_seconds(contiguous(pattern, 1, dtype, True), CARD) < 5 * bound
