"""Products with many columns of v by entries in registers: where they are planned, what their kernels take."""

from __future__ import annotations

import pytest

from kernmantle.backends.cuda.row_reduce_emit import SCALE, SPLIT, emit_rows
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan
from kernmantle.backends.cuda.wide_plan import LIST_BYTES
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.ir.program import Program
from kernmantle.torch_ops import cuda_row_reduce_forms

from ..cuda.row_nests import LAPLACE, PRODUCTS, SQUARES, TABLED, WEIGHTED, RowCase
from .row_launches import noted, run, spills
from .test_cuda_compile import CARDS
from .test_cuda_select import planned

HEADLINE = {
    "gauss_3_64": RowCase("gauss_3_64", SQUARES, PRODUCT, 100000, 100000, 3, 64),
    "laplace_8_16": RowCase("laplace_8_16", LAPLACE, PRODUCT, 100000, 100000, 8, 16),
}


@pytest.mark.parametrize("name", HEADLINE)
def test_compiles_without_serialised_products(name: str) -> None:
    plan = planned(HEADLINE[name])
    assert plan.form == "wide"
    kernels = spills(emit_rows(plan), name)
    assert set(kernels) == {"kernmantle_kernel", "kernmantle_join", SCALE, SPLIT}
    assert set(kernels.values()) == {0}


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({}, True),
        ({"k": 1}, True),
        ({"k": 8}, True),
        ({"k": 9}, False),
        ({"l": 9}, True),
        ({"l": 8}, False),
        ({"l": 65}, False),
        ({"a": 2}, False),
        ({"m": 100}, False),
        ({"m": 4096, "n": 4096}, False),
        ({"m": 7000, "n": 7000}, True),
        ({"m": 20000, "n": 20000, "l": 12}, False),
        ({"m": 30000, "n": 30000, "l": 12}, True),
    ],
)
def test_sizes_that_are_taken(changes: dict[str, int], there: bool) -> None:
    assert (planned(HEADLINE["gauss_3_64"], **changes).form == "wide") is there


@pytest.mark.parametrize("card", sorted(set(CARDS) - {"sm_90"}))
def test_other_cards_take_no_such_kernel(card: str) -> None:
    assert planned(HEADLINE["gauss_3_64"], card).form != "wide"


@pytest.mark.parametrize(
    ("program", "how", "dtype", "there"),
    [
        (LAPLACE, PRODUCT, "f32", True),
        (PRODUCTS, PRODUCT, "f32", True),
        (SQUARES, PRODUCT, "f16", True),
        (SQUARES, PRODUCT, "f64", False),
        (SQUARES, "sum", "f32", False),
        (WEIGHTED, PRODUCT, "f32", False),
        (TABLED, PRODUCT, "f32", False),
    ],
)
def test_programs_that_are_taken(program: Program, how: str, dtype: str, there: bool) -> None:
    case = RowCase("programs", program, how, 100, 100, 3, 20, dtype)
    assert (planned(case, m=40000, n=40000).form == "wide") is there


@pytest.mark.parametrize("width", [16, 17, 40, 64])
@pytest.mark.parametrize(("n", "k"), [(192, 1), (100001, 8)])
def test_memory_holds_every_tile_that_is_read(n: int, k: int, width: int) -> None:
    case = HEADLINE["gauss_3_64"]
    plan: CudaRowPlan = planned(case, k=k, l=width)
    layout, across = plan.memory(case.sizes() | {"n": n, "k": k, "l": width}), -(-n // 128)
    assert plan.group >= width
    side = 512 * (k + 1) + 16  # with the levels of powers of 2, and whether these are small
    ends = [*layout.offsets[1:], layout.size]
    for first, end, size in zip(
        layout.offsets, ends, [LIST_BYTES, across * 512 * plan.group, across * side], strict=True
    ):
        assert first % 128 == 0
        assert end - first >= size
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
