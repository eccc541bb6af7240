"""Kernels of Kronecker-sparse products: what is planned, and that they compile everywhere with few spills."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.nvrtc import Cubin
from kernmantle.backends.cuda.tiles import RESERVED_SHARED
from kernmantle.compiler.nest import BYTES
from kernmantle.config import config
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.mode_product import bound_products, cuda, tiles, tuned, wide_sum_plan
from kernmantle.structured.mode_product.block_sum_plan import block_sum_plan
from kernmantle.structured.mode_product.cluster_plan import apart_plans, cluster_plan
from kernmantle.structured.mode_product.column_sum_plan import column_sum_choice, column_sum_seconds
from kernmantle.structured.mode_product.cost import gradient_seconds, quickest, quickest_gradient
from kernmantle.structured.mode_product.cuda_emit import (
    ENTRY,
    PREPARE,
    PREPARE_NEIGHBOURS,
    emit,
    emit_cluster,
    emit_narrow,
    emit_stream,
    emit_stream_mma,
    emit_transpose,
    emit_transpose_sums,
)
from kernmantle.structured.mode_product.fma_sum_plan import fma_sum_choice
from kernmantle.structured.mode_product.narrow_plan import narrow_plan
from kernmantle.structured.mode_product.plan import REGISTERS, KronSparsePlan, Problem, Tile, contiguous
from kernmantle.structured.mode_product.row_sum_plan import row_sum_choice
from kernmantle.structured.mode_product.stream_mma_plan import stream_mma_plan
from kernmantle.structured.mode_product.stream_plan import stream_plan
from kernmantle.structured.mode_product.sum_emit import (
    emit_column_sum,
    emit_fma_sum,
    emit_row_sum,
    emit_tile_sum,
)
from kernmantle.structured.mode_product.tile_cost import price_of, sharing_of
from kernmantle.structured.mode_product.tiles import expected_seconds
from kernmantle.structured.mode_product.transpose_plan import transpose_plan, transpose_sums_plan
from kernmantle.torch_ops.tuned_tiles import tuning

from ..cases import pairwise, sampled
from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

PATTERNS = ((6, 64, 64, 1), (1, 768, 192, 2), (1, 128, 128, 3), (1, 64, 64, 128), (3, 37, 45, 5))
INTERLEAVED = ((3, 80, 112, 5), (1, 96, 384, 12), (16, 16, 16, 16), (2, 33, 65, 9), (4, 64, 64, 6))
DTYPES = ("f32", "f16", "bf16")
MOST_SPILLED = 192  # bytes a thread, a few of thousands of accesses


def problem(pattern, batch=25088, dtype="f32", first=True, y_first=None) -> Problem:
    a, b, c, d = pattern
    size, sides = BYTES[dtype], ((c, first), (b, first if y_first is None else y_first))
    access = [math.gcd(16, size * (a * m * d if side else batch), size * m * d if side else 0) for m, side in sides]
    return Problem(pattern, 1, batch, dtype, first, sides[1][1], access[0], access[1] // size)


def planned(given: Problem, card: str) -> KronSparsePlan:
    found = tiles.plan(given, CARDS[card])
    assert found is not None
    return found


@cache
def compiled(source: str, card: str) -> Cubin:
    return compile_source(source, card, headers(), "kronsparse")


HEADLINE = list(itertools.product(PATTERNS, DTYPES, (True, False), CARDS))


@pytest.mark.parametrize(("pattern", "dtype", "first", "card"), sampled(11, HEADLINE), ids=str)
def test_compiles_within_its_registers(pattern, dtype, first, card) -> None:
    given = problem(pattern, dtype=dtype, first=first)
    chosen = planned(given, card)
    log = compiled(emit(chosen), card).log
    taken = [int(found) for found in re.findall(r"Used (\d+) registers", log)]
    spilled = [int(found) for found in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(taken) == len(spilled) == 2, log
    assert max(taken) <= chosen.registers
    assert max(spilled) <= MOST_SPILLED
    assert chosen.shared(given) <= CARDS[card].shared_per_block
    assert chosen.blocks_each(given, CARDS[card]) >= 1


@pytest.mark.parametrize("card", CARDS)
def test_passes_that_transpose_rows_compile(card) -> None:
    for size, high, l in ((4, 112, 5), (2, 33, 65), (2, 7, 3), (2, 301, 1), (2, 5819, 1)):
        for pads in (True, False):
            plan = transpose_plan(card, size, high, l, pads, True)
            resources = compiled(emit_transpose(plan), card).resources
            assert 0 < resources.registers <= 64
            assert resources.spill_stores <= MOST_SPILLED
    for size, high, l, lanes in ((4, 256, 64, 4), (2, 256, 64, 4), (2, 8, 256, 1)):
        plan = transpose_plan(card, size, high, l, True, True, True)
        assert plan.lanes == lanes
        assert compiled(emit_transpose(plan), card).resources.spill_stores == 0
    for dtype in ("bf16", "f16"):
        for extents in (
            (32, 128, False, True, True),
            (172, 64, False, True),
            (20, 16, False, True),
            (33, 300, False, False),
        ):
            plan = transpose_plan(card, 2, *extents, bias=dtype)
            resources = compiled(emit_transpose(plan), card).resources
            assert 0 < resources.registers <= 64
            assert resources.spill_stores == 0
        for high, l in ((128, 32), (64, 64), (344, 32), (8, 512), (1024, 64)):
            chosen = transpose_sums_plan(card, dtype, 1, high, l)
            resources = compiled(emit_transpose_sums(chosen), card).resources
            assert 0 < resources.registers * chosen.threads <= 1 << 16
            assert resources.spill_stores == 0


@pytest.mark.parametrize(
    ("pattern", "dtype", "card"),
    [
        *(((2, 33, 65, 9), dtype, "sm_90") for dtype in ("f32", "bf16")),
        ((3, 80, 112, 5), "bf16", "sm_90"), ((1, 40, 30, 12), "f32", "sm_90"),
        ((2, 33, 65, 9), "f32", "sm_80"), ((2, 33, 65, 9), "bf16", "sm_100"), ((2, 33, 65, 9), "f32", "sm_120"),
    ],
    ids=str,
)  # fmt: skip
def test_a_thread_takes_all_values_of_l_where_they_are_few_and_odd(pattern, dtype, card) -> None:
    given = problem(pattern, dtype=dtype)
    whole = [own for own in tiles.candidates(given, CARDS[card]) if own.tile.l == pattern[3]]
    assert whole or card != "sm_90"
    for own in whole[:: max(1, len(whole) // 2)][:2]:
        assert own.takes_neighbours
        log = compiled(emit(own), card).log
        assert max(int(spilled) for spilled in re.findall(r"(\d+) bytes spill stores", log)) <= MOST_SPILLED
        assert "serialized" not in log


def test_products_that_run_ahead_are_not_made_to_wait() -> None:
    for pattern, first, name in (
        ((1, 256, 256, 64), False, "1.1.2.128.32.4.8.1.1.1.1"), ((1, 64, 64, 128), True, "16.1.1.32.16.4.8.1.1.0.2"),
        ((6, 64, 64, 1), False, "1.1.2.64.32.4.12.1.1.1.1"),
    ):  # fmt: skip
        found = tiles.plan(problem(pattern, dtype="f16", first=first), CARDS["sm_90"], Tile.of(name))
        assert found is not None
        assert found.tile.name == name
        log = compiled(emit(found), "sm_90").log
        assert "serialized" not in log
        assert max(int(spilled) for spilled in re.findall(r"(\d+) bytes spill stores", log)) == 0


@pytest.mark.parametrize("name", ["4.4.1.64.16.4.8.1.0.0.1", "4.4.1.64.32.2.8.1.0.0.1", "4.4.1.48.48.2.8.1.0.0.1"])
def test_values_of_l_of_several_warps_are_written_together(name) -> None:
    c = 48 if "48" in name else 64
    for dtype in ("f16", "bf16"):
        given = problem((1, c, c, 32), dtype=dtype)
        found = tiles.plan(given, CARDS["sm_90"], Tile.of(name))
        assert found is not None
        assert found.spread
        assert found.sectors
        assert compiled(emit(found), "sm_90").resources.spill_stores == 0
    shifted = replace(problem((1, c, c, 32), dtype="f16"), y_run=4)
    found = tiles.plan(shifted, CARDS["sm_90"], Tile.of(name))
    assert found is not None
    assert not found.spread


@pytest.mark.parametrize(
    ("pattern", "batch", "dtype", "first"),
    [
        ((8, 59, 19, 23), 10149, "bf16", False), ((94, 9, 9, 1), 28983, "f16", False),
        ((2, 33, 65, 9), 300, "bf16", True), ((2, 37, 45, 1), 300, "f16", True),
    ],
    ids=str,
)  # fmt: skip
def test_rows_of_halves_that_begin_between_words_are_copied_in_words(pattern, batch, dtype, first) -> None:
    given = problem(pattern, batch, dtype, first)
    chosen = planned(given, "sm_90")
    assert given.x_bytes == chosen.x_bytes == BYTES[dtype]
    assert chosen.shifts
    found = re.findall(r"(\d+) bytes spill stores", compiled(emit(chosen), "sm_90").log)
    assert max(map(int, found)) <= MOST_SPILLED
    whole = tiles.plan(problem(pattern, 16 * batch, dtype, first), CARDS["sm_90"], chosen.tile)
    assert whole is None or first or not whole.shifts


@pytest.mark.parametrize(
    ("pattern", "dtype"),
    [((12, 685, 16, 2), "f32"), ((27, 213, 5, 4), "bf16"), ((95, 14, 94, 1), "f16"), ((2, 11, 50, 1), "f32")],
    ids=str,
)
def test_results_that_are_no_whole_vectors_leave_a_stage_in_runs(pattern, dtype) -> None:
    a, b, c, d = pattern
    chosen = planned(problem(pattern, dtype=dtype), "sm_90")
    assert chosen.full
    assert chosen.stores_runs
    found = re.findall(r"(\d+) bytes spill stores", compiled(emit(chosen), "sm_90").log)
    assert max(map(int, found)) <= MOST_SPILLED
    assert not planned(problem((a, 16 * b, c, d), dtype=dtype), "sm_90").stores_runs


@pytest.mark.parametrize(
    ("pattern", "dtype", "shape"),
    [
        ((1, 96, 384, 12), "f32", (4, 3, 1, 48)), ((3, 80, 112, 5), "bf16", (5, 1, 1, 40)),
        ((2, 33, 65, 9), "bf16", (9, 1, 2, 48)),
    ],
    ids=str,
)  # fmt: skip
def test_blocks_of_all_values_of_l_have_columns_that_fit(pattern, dtype, shape) -> None:
    chosen = planned(problem(pattern, dtype=dtype), "sm_90")
    assert (chosen.tile.l, chosen.tile.sharers, chosen.tile.sides, chosen.tile.columns) == shape
    found = re.findall(r"(\d+) bytes spill stores", compiled(emit(chosen), "sm_90").log)
    assert max(map(int, found)) <= MOST_SPILLED
    older = planned(problem(pattern, dtype=dtype), "sm_80").tile
    assert older.sides == 1
    assert older.columns % 16 == 0


def test_blocks_share_a_multiprocessor_with_fewer_registers() -> None:
    alone, shared = Tile.of("1.1.2.16.16.4.4.1.1.1.1"), Tile.of("1.1.2.16.16.4.4.1.1.1.1.4")
    assert (alone.each, shared.each) == (1, 4)
    assert [own.name for own in (alone, shared)] == ["1.1.2.16.16.4.4.1.1.1.1", "1.1.2.16.16.4.4.1.1.1.1.4"]
    given = problem((99, 14, 80, 45), 529, "bf16", False)
    found = tiles.plan(given, CARDS["sm_90"], shared)
    assert found is not None
    assert found.blocks_each(given, CARDS["sm_90"]) == 4
    assert compiled(emit(found), "sm_90").resources.spill_stores <= MOST_SPILLED
    assert planned(given, "sm_90").tile.each > 1
    assert planned(problem((99, 14, 80, 45), 528, "bf16", False), "sm_90").tile.each == 1


@pytest.mark.parametrize("batch", [1, 700, 25088])
@pytest.mark.parametrize("pattern", [(6, 512, 512, 4), (2, 192, 48, 64), (3, 96, 384, 16), (12, 768, 768, 4)], ids=str)
def test_waves_of_blocks_are_even(pattern, batch) -> None:
    for dtype, first in itertools.product(("f32", "f16"), (True, False)):
        given, own = problem(pattern, batch, dtype, first), CARDS["sm_90"]
        chosen = planned(given, "sm_90")
        slots, room = chosen.slots(given, own), own.sm_count * chosen.blocks_each(given, own)
        assert 1 <= slots <= chosen.tiles(given)
        if batch == 25088:
            blocks = chosen.groups(given) * slots
            assert blocks > 0.88 * room * -(-blocks // room)


@pytest.mark.parametrize(("card", "dtype", "first"), pairwise(CARDS, ("f32", "f16", "f64"), (True, False)))
def test_narrow_blocks_compile(card, dtype, first) -> None:
    for pattern in ((3, 2, 2, 1), (2, 4, 4, 8)):
        chosen = narrow_plan(problem(pattern, dtype=dtype, first=first), CARDS[card])
        assert chosen is not None
        resources = compiled(emit_narrow(chosen), card).resources
        assert 0 < resources.registers <= 255
        assert resources.spill_stores == 0


@pytest.mark.parametrize(
    ("card", "pattern", "dtype"),
    sampled(9, list(itertools.product(CARDS, INTERLEAVED, DTYPES))),
    ids=str,
)
def test_gradients_over_rows_compile_within_their_registers(card, pattern, dtype) -> None:
    _, b, c, d = pattern
    x_bytes, y_bytes = (math.gcd(16, BYTES[dtype] * m * d) for m in (c, b))
    chosen = row_sum_choice(pattern, 25088, dtype, x_bytes, y_bytes, 3, CARDS[card])[1]
    found = compiled(emit_row_sum(chosen), card).resources
    assert found.registers * chosen.threads <= 65536
    assert found.spill_stores <= MOST_SPILLED
    assert chosen.shared <= CARDS[card].shared_per_block
    assert 1 <= chosen.slots(pattern, 1, 25088, CARDS[card]) <= 25088 // 16


@pytest.mark.parametrize("access", [2, 8, 16])
@pytest.mark.parametrize(
    ("card", "pattern", "dtype"),
    sampled(9, list(itertools.product(CARDS, INTERLEAVED, DTYPES))),
    ids=str,
)
def test_gradients_over_columns_compile_within_their_registers(card, pattern, dtype, access) -> None:
    access = max(access, BYTES[dtype])
    chosen = column_sum_choice(pattern, 25088, dtype, access, access, 3, CARDS[card])[1]
    found = compiled(emit_column_sum(chosen), card).resources
    assert found.registers * chosen.threads <= 65536
    assert found.spill_stores <= MOST_SPILLED
    assert chosen.shared <= CARDS[card].shared_per_block
    assert 1 <= chosen.slots(pattern, 1, 25088, CARDS[card]) <= 25088 // chosen.depth


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("card", "pattern", "dtype"),
    sampled(9, list(itertools.product(CARDS, (*INTERLEAVED, (6, 302, 390, 42), (9, 12, 4, 118)), DTYPES))),
    ids=str,
)
def test_gradients_by_fma_compile_within_their_registers(card, pattern, dtype, first) -> None:
    for rows in (16, 25088):
        chosen = fma_sum_choice(pattern, rows, dtype, first, 16, CARDS[card])[1]
        assert chosen is not None
        found = compiled(emit_fma_sum(chosen), card).resources
        assert found.registers * chosen.threads * chosen.each <= 65536
        assert found.spill_stores <= MOST_SPILLED
        assert chosen.shared <= 48 << 10
        assert chosen.whole == (chosen.slots == 1)
        assert all(part <= extent for part, extent in zip(chosen.tile, pattern[1:], strict=True))


@pytest.mark.parametrize(
    ("pattern", "rows", "card"),
    [((82, 129, 173, 17), 18, "sm_90"), ((6, 302, 390, 42), 16, "sm_90"), ((1, 64, 64, 4), 256, "sm_100")],
    ids=str,
)
def test_gradients_over_transposed_rows_compile_within_their_registers(pattern, rows, card) -> None:
    chosen = block_sum_plan(pattern, rows, "bf16", CARDS[card])
    assert chosen is not None
    found = compiled(emit_tile_sum(chosen), card).resources
    assert found.registers * chosen.threads * chosen.blocks_each(CARDS[card]) <= REGISTERS
    assert found.spill_stores == 0


@pytest.mark.parametrize(("dtype", "shifted"), [("f32", False), ("bf16", False), ("f16", True)])
@pytest.mark.parametrize("first", [False, True])
def test_gradients_of_wide_blocks_compile_within_their_registers(dtype, first, shifted) -> None:
    card, pattern = CARDS["sm_90"], (1, 300, 250, 1)
    products = 3 if dtype == "f32" else 1
    every = list(wide_sum_plan.candidates(pattern, dtype, first, shifted, products, card))
    assert {plan.groups for plan in every} == {1, 2, 3}
    for plan in every:
        found = compiled(emit_tile_sum(plan), "sm_90").resources
        assert found.registers * plan.threads * plan.each <= REGISTERS
        assert found.spill_stores <= MOST_SPILLED
        assert plan.each * (plan.shared + RESERVED_SHARED) <= card.shared_per_sm
    assert not list(wide_sum_plan.candidates(pattern, dtype, first, shifted, products, CARDS["sm_100"]))
    if first:
        assert not list(wide_sum_plan.candidates((1, 300, 250, 2), dtype, first, shifted, products, card))


def test_gradients_over_columns_fit_narrow_blocks() -> None:
    card = CARDS["sm_90"]
    narrow = column_sum_choice((16, 16, 16, 16), 25088, "f32", 16, 16, 3, card)[1]
    assert narrow.extents[:2] == (16, 16)
    assert column_sum_seconds(narrow, (16, 16, 16, 16), 25088, card) < 4e-4
    wide = column_sum_choice((1, 128, 128, 8), 25088, "f32", 16, 16, 3, card)[1]
    assert min(wide.extents[:2]) > 16
    assert column_sum_seconds(wide, (1, 128, 128, 8), 25088, card) < math.inf
    wider = column_sum_choice((1, 1024, 256, 1), 25088, "f32", 16, 16, 3, card)[1]
    assert wider.extents[:2] == (128, 128)
    assert wider.resident == wider.warps


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_a_few_rows_take_features_that_begin_anywhere(dtype) -> None:
    pattern, card = (38, 927, 11, 40), CARDS["sm_90"]
    chosen = column_sum_choice(pattern, 59, dtype, BYTES[dtype], BYTES[dtype], 3, card)[1]
    assert (chosen.shifted, chosen.whole, chosen.alone) == (True, True, False)
    assert chosen.blocks(chosen.tiles(pattern, 1), card) == card.sm_count * chosen.blocks_each(card)
    longer = column_sum_choice(pattern, 5901, dtype, BYTES[dtype], BYTES[dtype], 3, card)[1]
    assert longer.alone
    assert longer.blocks(longer.tiles(pattern, 1), card) == longer.tiles(pattern, 1)


def test_runs_of_halves_that_begin_between_words_are_of_several_fragments() -> None:
    given = problem((4, 711, 11, 7), dtype="bf16")
    for columns, fragments in ((40, 1), (32, 2), (48, 3)):
        plan = tiles.plan(given, CARDS["sm_90"], Tile(7, 1, 1, columns, 16, 2, 4, True, True))
        assert plan is not None
        assert plan.run_fragments == fragments
        compiled(emit(plan) + f'static_assert(Tile::RUN_N == {fragments}, "fragments of a run");\n', "sm_90")
    assert planned(given, "sm_90").run_fragments >= 3


@pytest.mark.parametrize("pattern", [(1, 300, 30, 9), (1, 100, 200, 10), (2, 50, 40, 11), (1, 96, 384, 12)], ids=str)
def test_warps_share_rows_where_one_has_registers_for_few_columns(pattern) -> None:
    given = problem(pattern)
    chosen = planned(given, "sm_90")
    assert chosen.full
    assert chosen.tile.sharers * chosen.tile.sides > 1
    assert chosen.stores_runs
    found = re.findall(r"(\d+) bytes spill stores", compiled(emit(chosen), "sm_90").log)
    assert max(map(int, found)) <= MOST_SPILLED
    alone = tiles.plan(given, CARDS["sm_90"], replace(chosen.tile, l=pattern[3], sharers=1, sides=1, columns=16))
    seconds = [price_of(own, given, CARDS["sm_90"]).seconds(given, CARDS["sm_90"]) for own in (alone, chosen) if own]
    assert alone is None or seconds[0] > seconds[1]
    assert planned(problem((4, 64, 64, 6)), "sm_90").tile.sharers == 1


def test_gradients_over_rows_take_all_l_where_these_are_few() -> None:
    def extents(d: int, dtype: str) -> tuple[int, int, int]:
        return row_sum_choice((1, 64, 64, d), 4096, dtype, 16, 16, 3, CARDS["sm_90"])[1].extents

    assert [extents(d, "f32")[2] for d in (1, 5, 12, 16, 33)] == [1, 5, 12, 8, 8]
    assert [extents(d, "f16")[2] for d in (2, 11, 16, 13, 40)] == [2, 11, 16, 8, 16]


@pytest.mark.parametrize("card", CARDS)
def test_gradients_over_rows_that_begin_anywhere_have_plans(card) -> None:
    for d, dtype, x_bytes, y_bytes in itertools.product(range(1, 36), DTYPES, (2, 4, 8, 16), (2, 4, 8, 16)):
        if min(x_bytes, y_bytes) >= BYTES[dtype]:
            chosen = row_sum_choice((3, 5, 7, d), 127, dtype, x_bytes, y_bytes, 3, CARDS[card])[1]
            assert chosen.shared <= CARDS[card].shared_per_block


def test_gradients_share_the_batch_among_blocks() -> None:
    limits = CARDS["sm_90"]

    def of(pattern, batch) -> tuple[int, int]:
        chosen = row_sum_choice(pattern, batch, "f32", 16, 16, 3, limits)[1]
        slots = chosen.slots(pattern, 1, batch, limits)
        return chosen.tiles(pattern, 1) * slots / (limits.sm_count * chosen.blocks_each(limits)), slots

    rounds, slots = of((6, 64, 64, 1), 25088)
    assert 0.9 < rounds / math.ceil(rounds) <= 1
    assert slots > 1
    assert of((6, 64, 64, 1), 300)[1] == of((1, 4096, 4096, 1), 2**20)[1] == 1
    wide = (64, 1024, 1024, 1)
    assert of(wide, 2**20)[1] * 4 * math.prod(wide) <= max(4 * math.prod(wide), 2**26)


@pytest.mark.parametrize("card", ["sm_80", "sm_90"])
def test_every_pattern_has_a_tile(card) -> None:
    for b, c, d in itertools.product((1, 48, 1000), (1, 100, 768), (1, 2, 3, 9)):
        for dtype, first, batch in itertools.product(("f32", "f16"), (True, False), (1, 4096)):
            given = problem((2, b, c, d), batch, dtype, first)
            chosen = planned(given, card)
            assert chosen.shared(given) <= CARDS[card].shared_per_block
            assert chosen.tile.grouped == (card == "sm_90") or not chosen.tile.grouped


def test_sizes_reach_the_source_only_through_the_tile() -> None:
    given = problem((6, 64, 64, 1))
    larger = replace(given, batch=30016, groups=3)
    assert emit(planned(given, "sm_90")) == emit(planned(larger, "sm_90"))
    assert emit(planned(given, "sm_90")) != emit(planned(problem((6, 64, 64, 1), first=False), "sm_90"))
    source = emit(planned(given, "sm_90"))
    assert ENTRY in source
    assert PREPARE in source


def test_wide_blocks_are_not_narrow() -> None:
    assert narrow_plan(problem((1, 64, 64, 1)), CARDS["sm_90"]) is None
    assert narrow_plan(problem((1, 2, 2, 4), y_first=False), CARDS["sm_90"]) is None
    assert narrow_plan(problem((1, 2, 2, 4)), CARDS["sm_90"]) is not None


@pytest.mark.parametrize(
    ("pattern", "rows", "dtype", "first", "kernel"),
    [
        ((3, 6, 6, 23), 45067, "f32", False, "fma"),  # 57.9 us by that of narrow blocks, 47.6 (H200)
        ((26, 3, 3, 40), 9615, "bf16", False, "fma"),  # 61.9 us, 52.4
        ((2, 5, 3, 19), 13751, "f16", False, "narrow"),  # 6.3 us, 15.6 in tiles
        ((6, 7, 6, 11), 951, "f32", True, "narrow"),  # 5.9 us, 10.8
    ],
)
def test_narrow_blocks_take_the_kernel_of_least_price(pattern, rows, dtype, first, kernel) -> None:
    weight = torch.empty(1, *pattern, dtype={"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype])
    assert cuda.kernel_seconds(contiguous(pattern, rows, dtype, first), weight, CARDS["sm_90"], False)[0] == kernel


def test_a_plan_prints_what_it_does() -> None:
    assert "wgmma" in str(planned(problem((6, 64, 64, 1)), "sm_90"))
    assert "3 x f16 f32" in str(planned(problem((6, 64, 64, 1)), "sm_80"))
    assert "batch last to first" in str(planned(problem((6, 64, 64, 1), first=False, y_first=True), "sm_80"))
    assert "2x2" in str(narrow_plan(problem((1, 2, 2, 4)), CARDS["sm_80"]))


# Microseconds on an H200, batch 25088: pattern, type, is the batch in front; kernel, dense and batched products.
MEASURED = (
    ((6, 64, 64, 1), "f32", True, (24.9, 194.8, 100.2)), ((1, 768, 192, 2), "f32", False, (131.5, 628.6, 757.8)),
    ((16, 64, 64, 4), "f32", True, (226.5, 16169.2, 1308)), ((1, 64, 64, 128), "f32", False, (449.2, 64289.0, 5219.6)),
    ((1, 1024, 1024, 4), "bf16", True, (710.7, 951.0, 845.7)), ((512, 2, 2, 1), "f32", True, (57.2, 1055.2, 569.9)),
    ((1, 48, 48, 4), "f32", False, (16.4, 51.3, 76.6)), ((1, 2, 2, 512), "bf16", False, (30.4, 75.4, 928.3)),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "dtype", "first", "taken"), MEASURED, ids=str)
def test_the_model_of_cost_chooses_as_measurements_do(pattern, dtype, first, taken) -> None:
    expected = expected_seconds(problem(pattern, dtype=dtype, first=first), CARDS["sm_90"])
    assert taken[0] / 1.4 < 1e6 * expected < taken[0] * 1.4
    chosen, _ = quickest(pattern, 25088, dtype, "cuda", not first, expected)
    assert taken[("kernel", "dense", "bmm").index(chosen)] <= 1.1 * min(taken)


# The same with what is made of the weights kept.
KEPT = (
    ((6, 64, 64, 1), "bf16", False, (11.5, 15.3, 9.6)), ((6, 64, 64, 1), "bf16", True, (10.9, 15.2, 34.8)),
    ((1, 768, 192, 2), "bf16", True, (40.2, 52.1, 162.4)), ((1, 768, 192, 2), "bf16", False, (49.5, 52.6, 37.5)),
    ((1, 192, 48, 2), "f16", True, (9.7, 9.9, 35.4)), ((1, 128, 128, 3), "bf16", False, (17.7, 15.4, 15.3)),
    ((2, 48, 192, 1), "f32", True, (13.7, 67.8, 50.5)), ((1, 64, 64, 128), "f32", True, (658.1, 64128, 8636)),
    ((1, 256, 256, 64), "f16", False, (607.3, 15220, 479.0)), ((6, 96, 96, 16), "f16", False, (248.3, 2500, 287.1)),
    ((1, 128, 128, 3), "f32", True, (33.8, 194.9, 145.4)), ((24, 64, 64, 4), "bf16", False, (168.3, math.inf, 189.4)),
    ((24, 192, 48, 16), "bf16", False, (1365.5, math.inf, 1533.7)),
    ((6, 96, 96, 4), "bf16", False, (68.4, 310.7, 82.7)), ((4, 96, 96, 4), "f16", False, (48.6, 145.8, 58.8)),
    ((1, 768, 768, 16), "f16", False, (1325.0, math.inf, 752.4)),
)  # fmt: skip


def test_wide_blocks_of_halves_between_transposed_rows_are_batched_products() -> None:
    """Microseconds on an H200 of 25088 rows: what was left of whole products without the passes, and our kernel's."""
    for blocks, width, taken, kernel in ((16, 1024, 1047, 2078), (64, 768, 2440, 4970), (64, 192, 262, 377)):
        own = blocks, width, width, 1
        expected = expected_seconds(problem(own, dtype="bf16"), CARDS["sm_90"], True)
        chosen, seconds = quickest(own, 25088, "bf16", "cuda", False, expected, True)
        assert chosen == "bmm"
        assert taken / 1.15 < 1e6 * seconds < 1.15 * taken
        assert kernel / 1.25 < 1e6 * expected < 1.25 * kernel


@pytest.mark.parametrize(("pattern", "dtype", "first", "taken"), KEPT, ids=str)
def test_the_model_of_cost_chooses_for_kept_weights_as_measurements_do(pattern, dtype, first, taken) -> None:
    expected = expected_seconds(problem(pattern, dtype=dtype, first=first), CARDS["sm_90"], True)
    assert taken[0] / 1.5 < 1e6 * expected < taken[0] * 1.5
    chosen, _ = quickest(pattern, 25088, dtype, "cuda", not first, expected, True)
    assert taken[("kernel", "dense", "bmm").index(chosen)] <= 1.1 * min(taken)


def test_gradients_of_weights_go_the_quickest_way() -> None:
    wide = (1, 768, 192, 2), 25088
    assert quickest_gradient(*wide, "f32", "cuda")[0] == "kernel"  # 583 us against 587 through the dense one
    assert quickest_gradient(*wide, "f16", "cuda")[0] == "dense"  # 52 against 336 as batched products, 369
    assert quickest_gradient((6, 64, 64, 1), 25088, "f32", "cuda")[0] == "kernel"  # 54 against 156
    assert quickest_gradient((6, 64, 64, 1), 256, "f32", "cuda")[0] == "kernel"  # 6 against 8 as batched products
    assert quickest_gradient((6, 64, 64, 1), 1024, "bf16", "cuda")[0] == "bmm"  # 5 against 10
    assert quickest_gradient((9, 12, 4, 118), 546, "f32", "cuda")[0] == "kernel"  # 13 against 132
    assert quickest_gradient((1, 64, 64, 128), 25088, "f16", "cuda", True)[0] == "bmm"  # 199 against 766
    assert quickest_gradient((1, 64, 64, 128), 25088, "f16", "cuda", False)[0] == "transposed"  # 646 against 911
    assert set(gradient_seconds(*wide, "f16", "cpu")) == {"kernel"}  # torch's take 10 to 40 times as long there
    assert set(gradient_seconds(*wide, "bf16", "cpu")) == {"kernel", "bmm", "dense"}
    assert quickest_gradient((6, 64, 64, 1), 256, "f32", "cpu")[0] == "kernel"  # 149 against 166
    assert quickest_gradient((1, 768, 192, 2), 256, "f32", "cpu")[0] == "kernel"  # 1471 against 2591
    assert quickest_gradient((25, 2, 5, 1), 2593, "f32", "cpu")[0] == "bmm"  # 265 against 758
    assert quickest_gradient((1, 1, 2, 55), 297, "f32", "cpu")[0] == "entries"  # 35 against 92


def as_on(monkeypatch, card: str = "sm_90") -> None:
    monkeypatch.setattr(cuda, "limits", lambda index: CARDS[card])
    monkeypatch.setattr(cuda, "index_of", lambda device: 0)
    monkeypatch.setattr(cuda, "gpu", lambda index: SimpleNamespace(name=card))


def test_what_the_kernels_do_not_take_is_left_to_others(monkeypatch) -> None:
    as_on(monkeypatch)
    x, weight = torch.empty(1, 300, 2 * 40 * 3), torch.empty(1, 2, 24, 40, 3)
    out = torch.empty(1, 300, 2 * 24 * 3)
    assert cuda._taken(x, weight, None, "", "", out) is not None
    assert cuda._taken(x, weight, None, "", "ieee", out) is None
    assert cuda._taken(x.double(), weight.double(), None, "", "", out.double()) is None
    scattered = torch.empty(1, 300, 2 * 240)[..., ::2]
    assert cuda._taken(scattered, weight, None, "", "", out) is None


def test_weights_of_transposed_matrices_take_longer_to_rearrange(monkeypatch, tmp_path) -> None:
    as_on(monkeypatch)
    PLANS.clear()
    x, out = torch.empty(1, 256, 1536), torch.empty(1, 256, 384)
    weight = torch.empty(1, 1, 192, 768, 2)
    turned = torch.empty(1, 1, 768, 192, 2).transpose(2, 3)
    with config(cache_dir=tmp_path):
        assert cuda.choose_algorithm(x, turned, None, "", "", out, False) in ("bmm", "dense")  # 27 and 23 against 43 us
        more, result = torch.empty(1, 1024, 1536), torch.empty(1, 1024, 384)
        assert cuda.choose_algorithm(more, weight, None, "", "", result, True) == "kernel"
        assert cuda.choose_algorithm(torch.empty(1, 25088, 1536), turned, None, "", "", out, False) == "kernel"


def test_what_was_measured_is_kept_for_batches_alike(monkeypatch, tmp_path) -> None:
    as_on(monkeypatch)
    x, weight, out = torch.empty(1, 300, 6 * 64), torch.empty(1, 6, 64, 64, 1), torch.empty(1, 300, 6 * 64)
    given = weight, None, "", ""
    slow = {"bmm": 1.0, "kernel": 2.0}

    def timed(found, default, *_):
        for each in found.values():
            each.run((), ())
        return {name: slow.get(name, 3.0) for name in found}

    monkeypatch.setattr(tuned, "measured", timed)
    with config(cache_dir=tmp_path):
        before = cuda.choose_algorithm(x, *given, out, False)
        called = []
        assert cuda.tune(called.append, before, x, *given, out, False) == before
        assert called == []
        with tuning() as found:
            assert cuda.tune(called.append, before, x, *given, out, False) == "bmm"
        assert found[0].best == "bmm"
        assert found[0].default == before
        assert {"kernel", "dense", "bmm"} <= set(called)
        assert all(tuned.tile_of(way).name in way for way in called if way.startswith("kernel "))
        assert len(called) > 6
        assert cuda.choose_algorithm(x, *given, out, False) == "bmm"
        assert cuda.choose_algorithm(x, *given, out, True) != "bmm"
        more, less = torch.empty(1, 512, 384), torch.empty(1, 256, 384)
        assert cuda.choose_algorithm(more, *given, more, False) == "bmm"
        assert cuda.choose_algorithm(less, *given, less, False) == before
        slow["kernel"] = 0.5
        with tuning():
            assert cuda.tune(called.append, before, x, *given, out, False) == "kernel"
        assert cuda.choose_algorithm(x, *given, out, False) == "kernel"


@pytest.mark.parametrize("pattern", [(1, 48, 64, 1), (1, 2, 2, 8)], ids=["wide", "narrow"])
def test_a_bias_of_any_strides_reaches_the_kernel_in_one_piece(pattern, monkeypatch):
    a, b, c, d = pattern
    wide, read = torch.arange(2.0 * a * b * d), []

    def launch(addresses):
        if len(addresses) == 6:
            memory = (ctypes.c_float * (a * b * d)).from_address(addresses[3])
            read.append(torch.frombuffer(memory, dtype=torch.float32).clone())

    as_on(monkeypatch)
    monkeypatch.setattr(cuda, "load_kernels", lambda *named: (None, None))
    monkeypatch.setattr(cuda, "load_kernel", lambda *named: object())
    monkeypatch.setattr(bound_products, "bind_launch", lambda *bound: launch)
    PLANS.clear()
    x, weight = torch.zeros(1, 64, a * c * d), torch.zeros(1, *pattern)
    for bias in (wide[::2], torch.ones(()).expand(a * b * d)):
        assert cuda.product(x, weight, bias[None], "", "", torch.zeros(1, 64, a * b * d))
        assert torch.equal(read[-1], bias)
    PLANS.clear()


@pytest.mark.parametrize(("dtype", "card"), [("bf16", "sm_90"), ("f32", "sm_80"), ("f16", "sm_120")])
def test_products_that_stream_their_weights_compile(dtype, card) -> None:
    for pattern, rows, along in (((6, 302, 390, 42), 16, True), ((1, 128, 128, 32), 3, False)):
        plan = stream_plan(problem(pattern, rows, dtype), along, CARDS[card])
        assert plan is not None
        resources = compiled(emit_stream(replace(plan, bias=True, activation="gelu")), card).resources
        assert 0 < plan.each * plan.threads * resources.registers <= REGISTERS
        assert resources.spill_stores == 0


@pytest.mark.parametrize(("dtype", "card"), [("bf16", "sm_90"), ("f16", "sm_100"), ("f16", "sm_120")])
def test_products_by_tensor_cores_that_stream_their_weights_compile(dtype, card) -> None:
    for pattern, rows, first in (
        ((82, 129, 173, 17), 18, False),
        ((6, 302, 390, 42), 16, True),
        ((15, 18, 419, 97), 11, True),
    ):
        for along in (True, False):
            plan = stream_mma_plan(problem(pattern, rows, dtype, first), along, CARDS[card])
            assert plan is not None
            resources = compiled(emit_stream_mma(replace(plan, bias=True, activation="gelu")), card).resources
            assert 0 < plan.each(CARDS[card]) * plan.threads * resources.registers <= REGISTERS
            assert resources.spill_stores == 0


@pytest.mark.parametrize(("dtype", "card"), [("bf16", "sm_90"), ("f32", "sm_100"), ("f16", "sm_120")])
def test_chains_in_clusters_compile(dtype, card) -> None:
    for chain in (((32, 128, 128, 1), (1, 344, 128, 32)), ((6, 16, 304, 1), (1, 9, 12, 8))):
        for rows in (1, 4, 16) if dtype == "f32" else (1, 4, 16, 64):
            plan = cluster_plan(*chain, rows, dtype, True, "gelu", CARDS[card])
            assert plan is not None
            resources = compiled(emit_cluster(plan), card).resources
            assert 0 < resources.registers <= 168
            assert resources.spill_stores <= 8


@pytest.mark.parametrize(("dtype", "card"), [("bf16", "sm_90"), ("f16", "sm_100")])
@pytest.mark.parametrize("rows", [5, 64, 256])
def test_chains_in_two_launches_compile(dtype, card, rows) -> None:
    for chain in (
        ((32, 128, 128, 1), (1, 344, 128, 32)),
        ((64, 64, 64, 1), (1, 64, 64, 64)),
        ((6, 16, 304, 1), (1, 9, 12, 8)),
    ):
        plans = apart_plans(*chain, rows, dtype, True, "gelu", CARDS[card])
        assert plans is not None
        for plan in plans:
            resources = compiled(emit_cluster(plan), card).resources
            assert 0 < 2 * plan.threads * resources.registers <= REGISTERS
            assert resources.spill_stores == 0


def test_two_warps_share_rows_of_float32_for_columns() -> None:
    """x is read once by 64 columns: 244 us where two blocks of 32 take 268 (decision 0106)."""
    given = problem((7, 60, 60, 7))
    chosen = tiles.plan(given, CARDS["sm_90"])
    assert chosen is not None
    assert (chosen.tile.sides, chosen.tile.columns, chosen.tile.chunk) == (2, 64, 16)
    assert compiled(emit(chosen), "sm_90").resources.spill_stores == 0


def test_blocks_rearrange_the_weights_of_32_neighbours_where_these_lie_together() -> None:
    a, b, c, d = 40, 989, 38, 21
    given, own = problem((a, b, c, d), 311, "f16", False), CARDS["sm_90"]
    chosen = planned(given, "sm_90")
    columns = -(-b // chosen.tile.columns) * chosen.tile.columns // 8
    assert chosen.tile.grouped
    assert sharing_of(chosen, given, b * c * d, 1, own) == 1  # 21 values of l
    assert sharing_of(chosen, given, b * c * d, b * c, own) == 0  # which lie apart
    assert chosen.preparing_blocks(given, 0) == a * d * columns
    assert chosen.preparing_blocks(given, 2) == 2 * a * columns
    few = problem((1, 8, 1024, 32), 64, "f32", False)  # to find the largest weight of a column takes long in few blocks
    assert sharing_of(planned(few, "sm_90"), few, 8 * 1024 * 32, 1, own) == 0


# Microseconds on an H200 in which weights are rearranged in blocks of one l each, and by neighbours at best.
@pytest.mark.parametrize(
    ("pattern", "batch", "dtype", "first", "one", "together"),
    [
        ((35, 122, 281, 40), 512, "f32", True, 1073, 233), ((31, 925, 5, 82), 128, "bf16", False, 786, 68),
        ((1, 256, 256, 64), 64, "f32", False, 59.8, 31.2), ((51, 10, 14, 61), 64, "f16", False, 9.6, 4.1),
        ((2, 739, 34, 14), 21, "f32", False, 8.0, 9.9), ((1, 27, 410, 50), 64, "f32", False, 13.4, 22),
        ((2, 47, 12, 92), 64, "f16", False, 3.3, 3.3),
    ],
    ids=str,
)  # fmt: skip
def test_the_quicker_way_rearranges_weights(pattern, batch, dtype, first, one, together) -> None:
    given, (_, b, c, d) = problem(pattern, batch, dtype, first), pattern
    taken = sharing_of(planned(given, "sm_90"), given, b * c * d, 1, CARDS["sm_90"])
    assert (taken > 0) == (together < one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("card", ["sm_80", "sm_90"])
def test_weights_of_neighbours_are_rearranged_without_spills(dtype: str, card: str) -> None:
    source = emit(planned(problem((4, 90, 100, 34), 109, dtype, False), card), True)
    log = compiled(source, card).log
    own = log[log.index(PREPARE_NEIGHBOURS) :]
    assert re.search(r"(\d+) bytes spill stores", own).group(1) == "0"  # pyright: ignore
