"""Nearest columns by score tiles: where they are planned, what their kernels take, what is launched."""

from __future__ import annotations

import pytest

from kernmantle.backends.cuda import select_plan
from kernmantle.backends.cuda.row_reduce_plan import is_worth_it
from kernmantle.backends.cuda.select_plan import LIST_BYTES, SIDES, band_rows, tiles_of
from kernmantle.torch_ops import cuda_row_reduce_forms

from ..cuda.row_nests import NEAREST, RowCase
from .row_launches import check_memory, noted, planned, run
from .test_cuda_compile import CARDS
from .test_cuda_row_forms import CASES


def test_points_of_many_numbers_are_worth_it_in_batches_too() -> None:
    case = CASES["nearest_784"]
    assert is_worth_it(case.rows, case.sizes(), CARDS["sm_90"])
    assert is_worth_it(case.rows, case.sizes() | {"b": 3}, CARDS["sm_90"])
    assert not is_worth_it(case.rows, case.sizes(), CARDS["sm_80"])


@pytest.mark.parametrize("m", [264, 512, 257, 100000, 3000000])
@pytest.mark.parametrize("n", [2048, 100001, 5000000])
@pytest.mark.parametrize("k", [2, 64, 128, 129, 384, 1000])
def test_memory_holds_every_tile_that_is_read(m: int, n: int, k: int) -> None:
    case = CASES["nearest_64"]
    tile = planned(case, k=k).tile
    sizes = case.sizes() | {"m": m, "n": n, "k": k}
    layout, (down, across), band = select_plan.memory(tile, sizes), tiles_of(tile, sizes), band_rows(tile, sizes)
    deep = k > 128
    stored = -(-k // 64) * 64 if deep else tile.depth
    assert down * 128 == -(-m // tile.m) * tile.m
    assert 0 <= across * 128 - n < tile.n
    assert band % tile.m == 0
    assert band * across * 32 <= select_plan.BAND_BYTES or band == tile.m
    wanted = [LIST_BYTES, down * 256 * stored, across * 256 * stored, down * 128 * 16]
    wanted += [across * 4 * 132, across * 8 * 8, band * across * 8 * 4]
    check_memory(layout, wanted)
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
