"""Plans and prices of sums of wide blocks by wgmma, which are the gradients of Kronecker-sparse weights."""

from __future__ import annotations

import math

import pytest

from kernmantle.structured.mode_product.column_sum_plan import columns_seconds
from kernmantle.structured.mode_product.cost import gradient_seconds, quickest_gradient
from kernmantle.structured.mode_product.row_sum_plan import row_sum_choice
from kernmantle.structured.mode_product.wide_sum_plan import wide_sum_choice, wide_sums_seconds
from tests.backend.test_cuda_compile import CARDS

CARD = CARDS["sm_90"]


@pytest.mark.parametrize(
    ("pattern", "batch", "dtype"), [((22, 141, 152, 31), 1343, "f32"), ((44, 100, 267, 1), 10742, "f16")], ids=str
)
def test_wide_blocks_take_wgmma(pattern, batch, dtype) -> None:
    wide = wide_sums_seconds(pattern, batch, dtype, False, CARD)
    assert wide < columns_seconds(pattern, batch, dtype, CARD)
    assert quickest_gradient(pattern, batch, dtype, "cuda", True) == ("kernel", wide)
    assert gradient_seconds(pattern, batch, dtype, "cuda", True)["kernel"] == wide


def test_wide_blocks_whose_features_lie_together_take_it_too() -> None:
    pattern, batch = (4, 768, 768, 1), 4096
    wide = wide_sums_seconds(pattern, batch, "f32", True, CARD)
    assert wide < row_sum_choice(pattern, batch, "f32", 16, 16, 3, CARD)[0]
    assert quickest_gradient(pattern, batch, "f32", "cuda") == ("kernel", wide)


@pytest.mark.parametrize(("pattern", "dtype"), [((16, 16, 16, 16), "f32"), ((17, 15, 146, 4), "f32")], ids=str)
def test_narrow_blocks_do_not(pattern, dtype) -> None:
    assert wide_sums_seconds(pattern, 9277, dtype, False, CARD) > columns_seconds(pattern, 9277, dtype, CARD)


def test_what_has_no_plan_takes_forever() -> None:
    for card, pattern in ((CARDS["sm_100"], (4, 768, 768, 1)), (CARD, (4, 768, 768, 2)), (CARD, (400, 768, 1, 1))):
        assert wide_sum_choice(pattern, 4096, "f32", True, 16, 16, 3, card) == (math.inf, None)


def test_sums_of_one_part_are_of_the_type_of_the_weights() -> None:
    for pattern, batch, whole in (((79, 256, 384, 3), 2400, True), ((1, 1024, 256, 1), 25088, False)):
        plan = wide_sum_choice(pattern, batch, "bf16", False, 16, 16, 3, CARD)[1]
        assert plan is not None
        assert plan.whole == whole == (plan.slots(pattern, 1, batch, CARD) == 1)
