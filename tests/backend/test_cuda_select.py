"""Nearest columns by score tiles: where they are planned, what their kernels take, what is launched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmantle.backends.cuda import select_plan
from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.gram_plan import Layout
from kernmantle.backends.cuda.row_reduce_emit import SELECT, SPLIT, emit_rows
from kernmantle.backends.cuda.row_reduce_plan import CudaRowPlan, is_worth_it, plan_rows
from kernmantle.backends.cuda.select_plan import LIST_BYTES, SIDES, band_rows, tiles_of
from kernmantle.compiler.nest import ROLES
from kernmantle.ir.program import Program
from kernmantle.torch_ops import cuda_row_reduce_forms

from ..cuda.row_nests import LAPLACE, NEAREST, PRODUCTS, ROOTS, SQUARES, TABLED, WEIGHTED, RowCase
from ..golden.compiled import compile_source
from .row_launches import noted, run, spills
from .test_cuda_compile import CARDS

HEADLINE = {
    "nearest_64": RowCase("nearest_64", ROOTS, "smallest", 20000, 100000, 64, 10),
    "nearest_128": RowCase("nearest_128", NEAREST, "smallest", 16384, 100000, 128, 32),
    "nearest_3": RowCase("nearest_3", NEAREST, "smallest", 100000, 100000, 3, 1),
    "weighted_50": RowCase("weighted_50", WEIGHTED, "largest", 20000, 100000, 50, 10),
    "nearest_256": RowCase("nearest_256", ROOTS, "smallest", 20000, 100000, 256, 10),
    "nearest_784": RowCase("nearest_784", NEAREST, "smallest", 20000, 100000, 784, 32),
}
SPILLED = {"nearest_128": 0, "weighted_50": 216, "nearest_256": 104, "nearest_784": 104}
"""Bytes that the kernel that selects may spill, 96 elsewhere, so that three blocks share a multiprocessor."""


def planned(case: RowCase, card: str = "sm_90", **changes: int) -> CudaRowPlan:
    sizes = case.sizes() | changes
    strides = []
    for port in case.rows.ports:
        steps = {
            role: sizes[port.roles[1]] if i == 0 and len(port.roles) == 2 else 1 for i, role in enumerate(port.roles)
        }
        strides.append(tuple(steps.get(role, 0) for role in ROLES))
    return plan_rows(case.rows, sizes, CARDS[card], Layout(tuple(strides), (16,) * len(strides)))


@pytest.mark.parametrize("name", HEADLINE)
def test_compiles_without_spilling_or_serialised_products(name: str) -> None:
    plan = planned(HEADLINE[name])
    assert plan.form == "select"
    kernels = spills(emit_rows(plan), name)
    assert set(kernels) == {"kernmantle_kernel", SELECT, SPLIT}
    assert kernels["kernmantle_kernel"] <= (8 if name == "nearest_784" else 0)
    assert kernels[SPLIT] <= 4
    assert kernels[SELECT] <= SPILLED.get(name, 96)


def test_the_fallback_compiles_with_its_gate() -> None:
    plan = planned(HEADLINE["nearest_64"]).fallback
    assert plan is not None
    assert plan.gated
    assert "selects_by_differences" in emit_rows(plan)
    assert compile_source(emit_rows(plan), "sm_90", headers(), "gated").binary[:4] == b"\x7fELF"
    assert "selects_by_differences" not in emit_rows(replace(plan, gated=False))


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({}, True),
        ({"k": 128}, True),
        ({"k": 2}, True),
        ({"k": 1}, False),
        ({"k": 129}, True),
        ({"k": 4096}, True),
        ({"k": 4097}, False),
        ({"l": 32}, True),
        ({"l": 33}, False),
        ({"a": 2}, False),
        ({"m": 16}, True),
        ({"m": 15}, False),
        ({"n": 2000}, False),
        ({"m": 200, "n": 2500}, False),
        ({"m": 210, "n": 2500}, True),
        ({"m": 64, "n": 1 << 31}, False),
    ],
)
def test_sizes_that_are_taken(changes: dict[str, int], there: bool) -> None:
    assert (planned(HEADLINE["nearest_64"], **changes).form == "select") is there


def test_points_of_many_numbers_are_worth_it_in_batches_too() -> None:
    case = HEADLINE["nearest_784"]
    assert is_worth_it(case.rows, case.sizes(), CARDS["sm_90"])
    assert is_worth_it(case.rows, case.sizes() | {"b": 3}, CARDS["sm_90"])
    assert not is_worth_it(case.rows, case.sizes(), CARDS["sm_80"])


@pytest.mark.parametrize("card", sorted(set(CARDS) - {"sm_90"}))
def test_other_cards_take_differences(card: str) -> None:
    assert planned(HEADLINE["nearest_64"], card).form != "select"


@pytest.mark.parametrize(
    ("program", "how", "dtype", "there"),
    [
        (NEAREST, "smallest", "f32", True),
        (NEAREST, "largest", "f32", False),
        (ROOTS, "smallest", "f32", True),
        (ROOTS, "largest", "f32", False),
        (SQUARES, "largest", "f32", True),
        (WEIGHTED, "largest", "f32", True),
        (NEAREST, "smallest", "f16", True),
        (NEAREST, "smallest", "f64", False),
        (LAPLACE, "largest", "f32", False),
        (PRODUCTS, "largest", "f32", False),
        (TABLED, "largest", "f32", False),
    ],
)
def test_programs_that_are_taken(program: Program, how: str, dtype: str, there: bool) -> None:
    case = RowCase("programs", program, how, 100, 100, 20, 5, dtype)
    assert (planned(case, m=40000, n=40000).form == "select") is there


def test_precise_entries_are_taken_as_they_are_written() -> None:
    case = HEADLINE["nearest_64"]
    rows = replace(case.rows, matrix=replace(case.rows.matrix, precision="ieee"))
    assert plan_rows(rows, case.sizes(), CARDS["sm_90"], Layout(((1,) * 7,) * 5, (16,) * 5)).form != "select"


def test_the_plan_says_what_it_does() -> None:
    assert "nearest by one product of f16 halves, exact by differences, tile where" in str(
        planned(HEADLINE["nearest_64"])
    )


@pytest.mark.parametrize("m", [264, 512, 257, 100000, 3000000])
@pytest.mark.parametrize("n", [2048, 100001, 5000000])
@pytest.mark.parametrize("k", [2, 64, 128, 129, 384, 1000])
def test_memory_holds_every_tile_that_is_read(m: int, n: int, k: int) -> None:
    case = HEADLINE["nearest_64"]
    tile = planned(case, k=k).tile
    sizes = case.sizes() | {"m": m, "n": n, "k": k}
    layout, (down, across), band = select_plan.memory(tile, sizes), tiles_of(tile, sizes), band_rows(tile, sizes)
    deep = k > 128
    stored = -(-k // 64) * 64 if deep else tile.depth
    assert down * 128 == -(-m // tile.m) * tile.m
    assert 0 <= across * 128 - n < tile.n
    assert band % tile.m == 0
    assert band * across * 32 <= select_plan.BAND_BYTES or band == tile.m
    ends = [*layout.offsets[1:], layout.size]
    wanted = [LIST_BYTES, down * 256 * stored, across * 256 * stored, down * 128 * 16]
    wanted += [across * 4 * 132, across * 8 * 8, band * across * 8 * 4]
    for first, end, size in zip(layout.offsets, ends, wanted, strict=True):
        assert first % 128 == 0
        assert end - first >= size
    assert deep or k <= 16 * tile.unroll <= max(tile.depth, 16)
    staged = tile.stages * 256 * tile.depth + SIDES * 528
    if deep:  # rows that stay, or travel with two tiles of columns
        staged = 256 * 64 * (tile.unroll + tile.stages * (2 if tile.unroll else 3)) + 4 * 528
        assert tile.unroll in (0, -(-k // 64))
    assert CARDS["sm_90"].shared_per_block >= select_plan.shared_bytes(tile) >= staged


def test_launches_bands_and_the_fallback_with_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch, cuda_row_reduce_forms, ("split", "minima", "select"))
    monkeypatch.setattr(select_plan, "BAND_BYTES", 1)
    case = RowCase("launches", NEAREST, "smallest", 3000, 8000, 20, 4)
    run(case)
    assert [kernel for kernel, _, _ in made] == ["split", *["minima", "select"] * 12, "main", "join"]
    split, minima, select = made[:3]
    assert split[1] == 24 + 63
    assert (minima[1], select[1]) == (63, 32)
    assert [given[-2:] for _, _, given in made[1:-2:2]] == [(i, min(256, 3000 - i)) for i in range(0, 3000, 256)]
    assert split[2][:-2] == minima[2][:-2] == select[2][:-2]
    assert made[-2][2][-1] == split[2][-8]


def test_launches_each_entry_of_a_batch_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch, cuda_row_reduce_forms, ("split", "minima", "select"))
    case = RowCase("entries", NEAREST, "smallest", 3000, 8000, 20, 4)
    run(case, batch=3)
    assert [kernel for kernel, _, _ in made] == ["split", "minima", "select", "main", "join"] * 3
    steps = [3000 * 20 * 4, 0, 3000 * 4 * 4, 3000 * 4 * 8]
    for entry in range(3):
        wanted = tuple((i + 1 << 40) + entry * step for i, step in enumerate(steps))
        assert all(given[:4] == wanted for _, _, given in made[5 * entry : 5 * entry + 5])


def test_small_entries_of_a_batch_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch, cuda_row_reduce_forms, ("split", "minima", "select"))
    case = RowCase("together", NEAREST, "smallest", 300, 800, 20, 4)
    run(case, batch=300)
    assert [kernel for kernel, _, _ in made] == ["main", "join"]
