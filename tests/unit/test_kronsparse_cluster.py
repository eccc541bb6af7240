"""When two factors of a chain take one launch, and what it should take."""

from __future__ import annotations

import pytest

from kernmantle.structured.mode_product.cluster_plan import CLUSTER, cluster_plan, cluster_seconds
from tests.backend.test_cuda_compile import CARDS

MONARCH = ((32, 128, 128, 1), (1, 128, 128, 32))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_monarch_matrices_of_single_tokens_fill_a_card(dtype) -> None:
    for rows in (1, 3, 16):
        plan = cluster_plan(*MONARCH, rows, dtype, True, "", CARDS["sm_90"])
        assert plan is not None
        assert plan.rows in (rows, rows + 1)
        assert plan.blocks % CLUSTER == 0
        assert 64 <= plan.blocks <= 132
        assert cluster_seconds(plan, 1) < cluster_seconds(plan, 16)


def test_what_takes_another_way() -> None:
    card = CARDS["sm_90"]

    def found(first=MONARCH[0], second=MONARCH[1], rows=1, dtype="bf16", own=card):
        return cluster_plan(first, second, rows, dtype, False, "", own)

    assert found() is not None
    assert found(rows=17) is None
    assert found(dtype="f64") is None
    assert found(own=CARDS["sm_80"]) is None
    assert found(first=(1, 128, 128, 32)) is None  # entries along k lie apart
    assert found(first=(32, 128, 126, 1)) is None  # rows of weights are no whole vectors
    assert found(first=(6, 64, 64, 1), second=(1, 768, 192, 2)) is None  # l are no whole vectors
    assert found(second=(1, 128, 64, 32)) is None  # the factors do not meet in as many numbers
