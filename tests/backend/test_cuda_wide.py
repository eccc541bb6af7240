"""Products with many columns of v by entries in registers: where they are planned, what their kernels take."""

from __future__ import annotations

import pytest

from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan
from kernmantle.backends.cuda.wide_plan import LIST_BYTES
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.torch_ops import cuda_row_reduce_forms

from ..cuda.row_nests import SQUARES, RowCase
from .row_launches import check_memory, noted, planned, run
from .test_cuda_compile import CARDS
from .test_cuda_row_forms import CASES


@pytest.mark.parametrize("width", [16, 17, 40, 64])
@pytest.mark.parametrize(("n", "k"), [(192, 1), (100001, 8)])
def test_memory_holds_every_tile_that_is_read(n: int, k: int, width: int) -> None:
    case = CASES["gauss_3_64"]
    plan: CudaRowPlan = planned(case, k=k, l=width)
    layout, across = plan.memory(case.sizes() | {"n": n, "k": k, "l": width}), -(-n // 128)
    assert plan.group >= width
    side = 512 * (k + 1) + 16  # with the levels of powers of 2, and whether these are small
    check_memory(layout, [LIST_BYTES, across * 512 * plan.group, across * side])
    assert plan.tile.stages >= 3
    assert plan.shared == plan.tile.stages * (512 * plan.group + side + 16) <= CARDS["sm_90"].shared_per_block


def test_launches_what_splits_before_what_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch, cuda_row_reduce_forms, ("scale", "split", "products", "join products"))
    case = RowCase("launches", SQUARES, PRODUCT, 30000, 20000, 3, 20)
    run(case, (7.0, -0.02))
    assert [kernel for kernel, _, _ in made] == ["scale", "split", "products", "join products", "main", "join"]
    assert [blocks for _, blocks, _ in made[:4]] == [264, 157, 132, 131]
    assert made[0][2] == made[1][2] == made[2][2] == made[3][2][:-3]
    assert made[4][2][-1] == made[0][2][-3]
