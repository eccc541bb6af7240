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
    assert read_cycles(2, 0, 0, 2, True)[0, 0] == 1  # one word or its neighbours
    assert read_cycles(128, 0, 0, 4, False)[0, 0] == 8  # positions of rows in one bank
    assert read_cycles(4, 0, 0, 4, True)[0, 1] == 1  # 8 rows of four words
    for pattern in PATTERNS:
        for along in (True, False):
            plan = stream_mma_plan(contiguous(pattern, 18, "f16", True), along, CARD)
            assert plan is not None
            assert max(plan.w_cycles, plan.x_cycles) <= 4


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
