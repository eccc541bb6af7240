"""Products of a few rows by tensor cores that read the weights where they lie: tiles, and when they are chosen."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from kernmantle.structured.mode_product.plan import REGISTERS, contiguous
from kernmantle.structured.mode_product.stream_mma_plan import (
    StreamMmaPlan,
    candidates,
    plan_seconds,
    read_cycles,
    stream_choice,
    stream_mma_plan,
)
from kernmantle.structured.mode_product.stream_plan import stream_plan, stream_seconds
from tests.backend.test_cuda_compile import CARDS
from tests.cuda import kronsparse_stream_harness as harness

CARD = CARDS["sm_90"]
PATTERNS = ((6, 302, 390, 42), (82, 129, 173, 17), (1, 20, 700, 126), (3, 50, 7, 5), (2, 33, 65, 24))


@pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_tiles_have_every_output_and_fit(pattern, along) -> None:
    a, b, _, d = pattern
    for batch, groups, dtype in itertools.product((5, 18, 200), (1, 3), ("f16", "bf16")):
        given = replace(contiguous(pattern, batch, dtype, True), groups=groups)
        plans = list(candidates(given, along, CARD))
        assert stream_mma_plan(given, along, CARD) in plans
        for plan in plans:
            assert plan.own_l * plan.warps_l * plan.warp_l >= plan.tile_l
            assert (plan.own_l - 1) * plan.warps_l * plan.warp_l < plan.tile_l
            assert d % plan.warp_l == 0 == plan.tile_l % plan.warp_l
            assert plan.stages * plan.stage <= plan.shared <= CARD.shared_per_block
            assert plan.cluster <= plan.chunks
            assert not plan.bulk or (plan.full and plan.cluster == 1)
            tiles = groups * a * -(-b // plan.tile_j) * -(-batch // plan.rows) * -(-d // plan.tile_l)
            assert plan.blocks(given) == plan.cluster * tiles
            assert plan.each(CARD) * plan.threads * plan.registers <= REGISTERS


def test_a_lane_reads_as_many_neighbours_as_alignment_and_l_allow() -> None:
    given = contiguous((6, 302, 390, 24), 16, "bf16", True)
    assert {plan.warp_l for plan in candidates(given, True, CARD)} == {1, 2, 4, 8}
    assert {plan.warp_l for plan in candidates(given, True, CARD, 4)} == {1, 2}
    assert {plan.warp_l for plan in candidates(replace(given, x_bytes=2), True, CARD)} == {1}
    assert {plan.warp_l for plan in candidates(contiguous((6, 302, 390, 17), 16, "bf16", True), True, CARD)} == {1}


def test_lanes_of_a_fragment_meet_in_few_banks() -> None:
    assert read_cycles(2, 0, 0, 2, True)[0, :2].tolist() == [8, 1]  # rows of two words, in the same banks or in others
    assert read_cycles(128, 0, 0, 4, True)[0, 0] == 32  # all lanes in one bank
    assert read_cycles(4, 0, 0, 4, True)[0, 1] == 1  # 8 rows of four words
    for pattern in PATTERNS:
        for along in (True, False):
            plan = stream_mma_plan(contiguous(pattern, 18, "f16", True), along, CARD)
            assert plan is not None
            assert max(plan.w_cycles, plan.x_cycles) <= 4


def banks(plan, row_bytes, of_x):
    """The cycles in which a warp reads a fragment, by the addresses of its lanes in the kernel."""
    pitch, worst, size = plan.pitches[of_x], 0, 2
    access, along = plan.warp_l * size, plan.along or of_x
    for e in (0, 1):
        taken = 0
        for first in range(0, 32, lanes := min(32, 128 // access)):
            words = set()
            for lane in range(first, first + lanes):
                own, quad = lane // 4, lane % 4
                k = {1: quad + 4 * e, 4: 4 * quad + e, 2: 2 * quad + e}[plan.order]
                row, position = (own, k) if along else (k, own)
                apart = 0 if plan.full else plan.pattern[3] * size
                at = row * pitch + position * plan.step + (row * row_bytes + position * apart) % 16
                words |= {at // 4, (at + access - 1) // 4}
            taken += max(np.bincount([word % 32 for word in words]))
        worst = max(worst, taken)
    return worst


@pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_no_other_skew_reads_in_fewer_banks(pattern, along) -> None:
    _, b, c, d = pattern
    plan = stream_mma_plan(contiguous(pattern, 18, "f16", True), along, CARD)
    assert plan is not None
    for of_x, row in ((False, 2 * (c if along else b) * d), (True, 2 * c * d)):
        name = "x_skew" if of_x else "w_skew"
        others = [banks(replace(plan, **{name: skew}), row, of_x) for skew in range(0, 128, 16)]
        assert banks(plan, row, of_x) == min(others)
        assert banks(plan, row, of_x) <= 4


def test_what_is_not_streamed_by_tensor_cores() -> None:
    pattern = (6, 302, 390, 42)
    for given in (
        contiguous(pattern, 257, "bf16", True), contiguous(pattern, 0, "bf16", True),
        contiguous(pattern, 16, "f64", True), contiguous((6, 302, 390, 1), 16, "bf16", True),
    ):  # fmt: skip
        assert stream_mma_plan(given, True, CARD) is None
    assert stream_mma_plan(contiguous(pattern, 16, "bf16", True), True, CARDS["sm_80"]) is None


def test_the_quicker_of_both_ways_is_chosen() -> None:
    for pattern, batch, dtype in (((82, 129, 173, 17), 18, "f16"), ((6, 302, 390, 42), 16, "bf16")):
        for along in (True, False):
            given = contiguous(pattern, batch, dtype, True)
            found, mma = stream_choice(given, along, CARD), stream_mma_plan(given, along, CARD)
            assert found is not None
            assert mma is not None
            assert isinstance(found[1], StreamMmaPlan)
            assert plan_seconds(mma, given, CARD) < found[0] < stream_seconds(given, CARD, along)
    few = contiguous((6, 302, 390, 42), 1, "bf16", True)
    assert stream_choice(few, True, CARD) == (stream_seconds(few, CARD), stream_plan(few, True, CARD))
    assert stream_choice(contiguous((6, 302, 390, 42), 257, "bf16", True), True, CARD) is None


def test_cases_without_torch_have_every_kind_of_plan() -> None:
    plans = [case.plan(CARD) for case in harness.cases()]
    assert {plan.cluster for plan in plans} == {1, 2, 4, 8}
    assert {plan.warp_l for plan in plans} == {1, 2, 4, 8}
    for kind in ("bulk", "full", "along", "last"):
        assert {getattr(plan, kind) for plan in plans} == {False, True}


def test_a_case_that_disagrees_is_found() -> None:
    case = next(harness.cases())
    _, _, c, d = case.pattern
    x, weight, bias = (array.astype(np.float64) for array in case.arrays())
    value = np.einsum("nkl,jkl->njl", x.reshape(-1, c, d), weight.reshape(-1, c, d)).reshape(1, case.batch, -1)
    right = np.maximum(value + bias, 0).astype(np.float16)
    harness.check(case, right)
    right[0, -1, -1] += 1
    with pytest.raises(AssertionError):
        harness.check(case, right)
