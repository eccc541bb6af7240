"""Score tiles times many columns of v: where they are planned, what their kernels take, what is launched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernmantle.backends.cuda.columns_plan import columns_of, columns_tiles, list_bytes, registers, splitters
from kernmantle.backends.cuda.gram_plan import Layout
from kernmantle.backends.cuda.row_reduce_emit import SCALE, SPLIT, emit_rows
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, plan_rows
from kernmantle.backends.cuda.score_plan import SAMPLERS, blocks_of
from kernmantle.compiler.row_reduce import PRODUCT
from kernmantle.ir.program import Program
from kernmantle.torch_ops import cuda_row_reduce, cuda_row_reduce_forms

from ..cuda.row_nests import LAPLACE, PRODUCTS, SQUARES, SUM, TABLED, WEIGHTED, RowCase
from .row_launches import noted, run, spills
from .test_cuda_compile import CARDS
from .test_cuda_select import planned

HEADLINE = {
    "gauss_64_64": RowCase("gauss_64_64", SQUARES, PRODUCT, 100000, 100000, 64, 64),
    "gauss_20_16": RowCase("gauss_20_16", SQUARES, PRODUCT, 100000, 100000, 20, 16),
    "gauss_64_128": RowCase("gauss_64_128", SQUARES, PRODUCT, 100000, 100000, 64, 128),
    "products_100_32": RowCase("products_100_32", PRODUCTS, PRODUCT, 100000, 100000, 100, 32),
}
SPILLED = {"gauss_64_64": 72, "gauss_64_128": 0}
"""Bytes that the main kernel may spill, nearly all outside of its loop over tiles; 64 elsewhere."""


DEEP = {
    "gauss_1024_16": RowCase("gauss_1024_16", SQUARES, PRODUCT, 30000, 30000, 1024, 16),
    "products_300_96": RowCase("products_300_96", PRODUCTS, PRODUCT, 30000, 30000, 300, 96),
}


def planned_deep(name: str, **changes: int) -> CudaRowPlan:
    return planned(DEEP[name], "sm_90", **changes)


@pytest.mark.parametrize("name", DEEP)
def test_deep_points_compile_without_serialised_products(name: str) -> None:
    plan = planned_deep(name)
    assert plan.form == "deep"
    kernels = spills(emit_rows(plan), name)
    assert kernels.pop("kernmantle_kernel") <= {"products_300_96": 256}.get(name, 0)
    assert set(kernels.values()) == {0}


@pytest.mark.parametrize("k", [129, 192, 1000, 4096])
@pytest.mark.parametrize("width", [1, 16, 64, 200])
def test_memory_holds_every_stage_of_deep_points(k: int, width: int) -> None:
    plan = planned_deep("gauss_1024_16", k=k, l=width)
    sizes = DEEP["gauss_1024_16"].sizes() | {"k": k, "l": width}
    layout, stages, tiles = plan.memory(sizes), -(-k // 64), -(-30000 // 128)
    ends = [*layout.offsets[1:], layout.size]
    split = tiles * stages * 128 * 64 * 4
    wanted = [list_bytes(width), split, split, tiles * 1024, tiles * 4 * (128 + 4)]
    wanted.append(-(-width // plan.group) * tiles * 512 * plan.group)
    for first, end, size in zip(layout.offsets, ends, wanted, strict=True):
        assert first % 128 == 0
        assert end - first >= size
    assert plan.tile.stages >= 2
    assert plan.shared <= CARDS["sm_90"].shared_per_block
    assert plan.blocks(sizes, CARDS["sm_90"], width) == CARDS["sm_90"].sm_count


@pytest.mark.parametrize("name", HEADLINE)
def test_compiles_without_serialised_products(name: str) -> None:
    plan = planned(HEADLINE[name])
    assert plan.form == "columns"
    kernels = spills(emit_rows(plan), name)
    assert set(kernels) == {"kernmantle_kernel", "kernmantle_join", SCALE, SPLIT}
    assert kernels["kernmantle_kernel"] <= SPILLED.get(name, 64)
    assert kernels[SPLIT] <= 128
    assert kernels[SCALE] == kernels["kernmantle_join"] == 0


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({}, True),
        ({"k": 16}, True),
        ({"k": 15}, False),
        ({"k": 128}, True),
        ({"k": 4096}, True),
        ({"k": 4097}, False),
        ({"l": 4}, False),
        ({"l": 5}, True),
        ({"l": 256}, True),
        ({"l": 257}, False),
        ({"a": 2}, False),
        ({"m": 100}, False),
        ({"m": 2000, "n": 2000}, False),
        ({"m": 1000, "n": 100000}, True),
    ],
)
def test_sizes_that_are_taken(changes: dict[str, int], there: bool) -> None:
    assert (planned(HEADLINE["gauss_64_64"], "sm_90", **changes).form in ("columns", "deep")) is there


@pytest.mark.parametrize("card", sorted(set(CARDS) - {"sm_90"}))
def test_other_cards_take_differences(card: str) -> None:
    assert planned(HEADLINE["gauss_64_64"], card).form not in ("columns", "score")


@pytest.mark.parametrize(
    ("program", "how", "dtype", "there"),
    [
        (PRODUCTS, PRODUCT, "f32", True),
        (WEIGHTED, PRODUCT, "f32", True),
        (LAPLACE, PRODUCT, "f32", False),
        (SUM, PRODUCT, "f32", False),
        (TABLED, PRODUCT, "f32", False),
        (SQUARES, PRODUCT, "f16", False),
        (SQUARES, PRODUCT, "f64", False),
        (SQUARES, "sum", "f32", False),
    ],
)
def test_programs_that_are_taken(program: Program, how: str, dtype: str, there: bool) -> None:
    case = RowCase("programs", program, how, 100, 100, 40, 20, dtype)
    assert (planned(case, m=40000, n=40000).form == "columns") is there


def test_precise_entries_are_taken_as_they_are_written() -> None:
    case = HEADLINE["gauss_64_64"]
    rows = replace(case.rows, matrix=replace(case.rows.matrix, precision="ieee"))
    assert plan_rows(rows, case.sizes(), CARDS["sm_90"], Layout(((1,) * 7,) * 5, (16,) * 5)).form != "columns"


def test_the_plan_says_what_it_does() -> None:
    text = str(planned(HEADLINE["gauss_64_64"]))
    wanted = "3 products of f16 halves, close pairs by differences, times v by 3 more, pipelined where these do not"
    assert wanted in text
    assert "close pairs" not in str(planned(HEADLINE["products_100_32"]))


@pytest.mark.parametrize("width", [9, 16, 33, 64, 100, 128, 200, 256])
@pytest.mark.parametrize("k", [16, 33, 64, 96, 128])
def test_every_tile_has_what_it_needs(k: int, width: int) -> None:
    case, own = HEADLINE["gauss_64_64"], CARDS["sm_90"]
    sizes = case.sizes() | {"k": k, "l": width}
    found = columns_tiles(case.rows, sizes, own)
    assert found
    for tile, columns in found:
        assert columns <= columns_of(width)
        assert tile.stages >= 2
        assert tile.depth >= k
        packed = 16 * tile.unroll > tile.depth
        assert 2 * tile.depth >= 16 * tile.unroll >= 3 * k if packed else 16 * tile.unroll >= k
        assert packed is (k == 33)
        groups = tile.threads // 128
        assert registers(tile, columns) + 24 <= {2: 232, 3: 160}[groups]
        assert tile.m == 64 * groups


@pytest.mark.parametrize("width", [9, 64, 130])
@pytest.mark.parametrize(("m", "k"), [(192, 16), (1001, 100)])
def test_memory_holds_every_tile_that_is_read(m: int, k: int, width: int) -> None:
    case, n = HEADLINE["gauss_64_64"], 100001
    plan, sizes = planned(case, m=m, n=n, k=k, l=width), case.sizes() | {"m": m, "n": n, "k": k, "l": width}
    layout, (down, across) = plan.memory(sizes), blocks_of(plan.tile, sizes)
    passes = -(-width // plan.group)
    ends = [*layout.offsets[1:], layout.size]
    wanted = [list_bytes(width), down * 512 * plan.tile.depth, across * 512 * plan.tile.depth, down * 1024]
    wanted += [across * 4 * (128 + 4), passes * across * 512 * plan.group]
    for first, end, size in zip(layout.offsets, ends, wanted, strict=True):
        assert first % 128 == 0
        assert end - first >= size
    assert list_bytes(width) >= 4 * (256 + width) >= 4 * (4 + SAMPLERS)
    assert splitters(plan.tile, plan.group, sizes) == SAMPLERS + down + (1 + passes) * across
    assert plan.shared <= CARDS["sm_90"].shared_per_block


def test_blocks_fill_the_card_with_as_many_columns_as_there_may_be() -> None:
    plan: CudaRowPlan = planned(HEADLINE["gauss_64_64"], l=256)
    sizes = HEADLINE["gauss_64_64"].sizes() | {"l": 256}
    assert plan.blocks(sizes, CARDS["sm_90"], 256) == CARDS["sm_90"].sm_count


def test_launches_what_splits_before_what_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch, cuda_row_reduce_forms, ("scale", "split", "products", "join products"))
    case = RowCase("launches", SQUARES, PRODUCT, 30000, 20000, 64, 130)
    assert cuda_row_reduce.TARGET().takes(case.rows, case.sizes(), torch.device("cuda"))
    run(case, (7.0, -0.02))
    plan = planned(case)
    assert [kernel for kernel, _, _ in made] == ["scale", "split", "products", "join products", "main", "join"]
    assert [blocks for _, blocks, _ in made[:4]] == [264, splitters(plan.tile, plan.group, case.sizes()), 132, 131]
    assert made[0][2] == made[1][2] == made[2][2] == made[3][2][:-3]
    assert made[4][2][-1] == made[0][2][-6]
