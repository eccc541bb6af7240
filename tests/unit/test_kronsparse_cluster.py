"""When two factors of a chain take one launch, and what it should take."""

from __future__ import annotations

import pytest

from kernmantle.structured.mode_product.cluster_plan import (
    CLUSTER,
    apart_plans,
    cluster_plan,
    cluster_seconds,
    plans_seconds,
    quickest_plans,
)
from tests.backend.test_cuda_compile import CARDS

MONARCH = ((32, 128, 128, 1), (1, 128, 128, 32))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_monarch_matrices_of_single_tokens_fill_a_card(dtype) -> None:
    for rows in (1, 3, 16):
        plan = cluster_plan(*MONARCH, rows, dtype, True, "", CARDS["sm_90"])
        assert plan is not None
        assert plan.mma is (dtype != "f32")
        assert plan.rows in ((8, 16) if plan.mma else (rows, rows + 1))
        assert plan.rows >= rows
        assert plan.blocks % CLUSTER == 0
        assert 64 <= plan.blocks <= 132
        assert cluster_seconds(plan, 1) < cluster_seconds(plan, 16)


@pytest.mark.parametrize("rows", [17, 32, 64])
def test_more_rows_take_more_clusters(rows) -> None:
    plan = cluster_plan(*MONARCH, rows, "bf16", True, "", CARDS["sm_90"])
    assert plan is not None
    assert plan.tiles * plan.rows >= rows
    assert plan.blocks <= 132
    few = cluster_plan(*MONARCH, 16, "bf16", True, "", CARDS["sm_90"])
    assert few is not None
    assert cluster_seconds(few, 16) <= cluster_seconds(plan, rows)


def test_what_lies_between_the_factors_fits_into_shared_memory() -> None:
    long = (8, 288, 16, 1), (1, 3, 288, 8)
    for card, by_mma in (("sm_90", True), ("sm_120", False)):
        plan = cluster_plan(*long, 16, "bf16", False, "", CARDS[card])
        assert plan is not None
        assert plan.mma is by_mma
        assert plan.shared <= CARDS[card].shared_per_block
    assert cluster_plan((8, 1024, 16, 1), (1, 3, 1024, 8), 16, "bf16", False, "", CARDS["sm_90"]) is None


def test_what_takes_another_way() -> None:
    card = CARDS["sm_90"]

    def found(first=MONARCH[0], second=MONARCH[1], rows=1, dtype="bf16", own=card):
        return cluster_plan(first, second, rows, dtype, False, "", own)

    assert found() is not None
    assert found(rows=65) is None
    assert found(rows=17, dtype="f32") is None
    assert found(dtype="f64") is None
    assert found(own=CARDS["sm_80"]) is None
    assert found(first=(1, 128, 128, 32)) is None  # entries along k lie apart
    assert found(first=(32, 128, 126, 1)) is None  # rows of weights are no whole vectors
    assert found(first=(6, 64, 64, 1), second=(1, 768, 192, 2)) is None  # l are no whole vectors
    assert found(second=(1, 128, 64, 32)) is None  # the factors do not meet in as many numbers


@pytest.mark.parametrize("rows", [5, 17, 64, 200, 256])
def test_two_launches_cover_all_rows_k_and_j(rows) -> None:
    for chain in (MONARCH, ((16, 40, 72, 1), (4, 33, 20, 8)), ((64, 64, 64, 1), (1, 172, 64, 64))):
        plans = apart_plans(*chain, rows, "bf16", True, "relu", CARDS["sm_90"])
        assert plans is not None
        first, second = plans
        assert (first.part, second.part) == ("first", "second")
        assert (first.bias, first.activation, second.bias, second.activation) == (False, "", True, "relu")
        assert first.tiles == second.tiles
        assert first.tiles * first.rows >= rows
        assert first.ranks <= chain[1][2]
        assert first.shared == 0
        assert plans_seconds(plans, rows) > 0


def test_more_rows_take_two_launches() -> None:
    card = CARDS["sm_90"]
    one, two = (quickest_plans(*MONARCH, rows, "bf16", False, "", card) for rows in (1, 64))
    assert one is not None
    assert two is not None
    assert [plan.part for plan in one] == [""]
    assert [plan.part for plan in two] == ["first", "second"]
    assert quickest_plans(*MONARCH, 257, "bf16", False, "", card) is None
    assert quickest_plans(*MONARCH, 17, "f32", False, "", card) is None
    assert apart_plans(*MONARCH, 64, "f32", False, "", card) is None
    assert apart_plans(*MONARCH, 64, "bf16", False, "", CARDS["sm_80"]) is None


def test_an_eager_call_takes_one_launch_where_the_host_would_wait_for_two() -> None:
    card = CARDS["sm_90"]

    def launches(chain, rows, of_host):
        found = quickest_plans(chain[0], chain[1], rows, "bf16", False, "", card, of_host)
        assert found is not None
        return len(found)

    wide = (32, 256, 256, 1), (1, 256, 256, 32)
    assert [launches(MONARCH, 32, of_host) for of_host in (0.0, 1.8e-5)] == [2, 1]
    assert [launches(wide, 64, of_host) for of_host in (0.0, 1.8e-5)] == [2, 2]
    assert [launches(MONARCH, 128, of_host) for of_host in (0.0, 1.8e-5)] == [2, 2]
