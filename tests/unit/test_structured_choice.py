"""What the host does to choose among plans of structured products: tables of plans, and new numbers of rows."""

from __future__ import annotations

import hashlib
import math
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernmantle.structured.kron import cuda as kron_cuda
from kernmantle.structured.kron.arrays import arranged
from kernmantle.structured.kron.modes import parse
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import (
    block_sum_plan,
    column_sum_plan,
    cuda,
    cuda_emit,
    fma_sum_plan,
    row_sum_plan,
    stream_mma_plan,
    stream_plan,
    sum_emit,
    tile_cost,
    tiles,
)
from kernmantle.structured.mode_product.grouped_plan import factor, plan_grouped, sums
from kernmantle.structured.mode_product.plan import contiguous, slots_of
from kernmantle.structured.mode_product.plan_table import rows_of
from kernmantle.structured.mode_product.tiled_sum import LONG
from kernmantle.structured.mode_product.torch_op import Options
from tests.backend.test_cuda_compile import CARDS

CARD = CARDS["sm_90"]
KINDS = ("tile", "stream", "mma", "row", "column", "block", "fma")
DEVICE = torch.device("cuda:0")


def choice(kind, pattern, batch, dtype, first):
    """Plans of a kind of kernel, the price of one of them, and the plan that is chosen."""
    given, sizes = contiguous(pattern, batch, dtype, first), (pattern, batch, CARD)
    if kind == "tile":
        found = tiles.candidates(given, CARD), lambda own: tile_cost.price_of(own, given, CARD).seconds(given, CARD)
        return *found, tiles.plan(given, CARD)
    if kind in ("stream", "mma"):
        module = stream_plan if kind == "stream" else stream_mma_plan
        chosen = getattr(module, f"stream_{kind}_plan" if kind == "mma" else "stream_plan")(given, first, CARD)
        return module.candidates(given, first, CARD), lambda own: module.plan_seconds(own, given, CARD), chosen
    if kind == "row":
        found = rows_of(row_sum_plan.candidates(pattern[3], batch >= LONG, dtype, 16, 4, 3, CARD))
        chosen = row_sum_plan.row_sum_choice(pattern, batch, dtype, 16, 4, 3, CARD)[1]
        return found, lambda own: row_sum_plan.row_sum_seconds(own, *sizes), replace(chosen, whole=False)
    if kind == "column":
        found = rows_of(column_sum_plan.candidates(pattern, batch, dtype, True, 3, CARD))
        chosen = column_sum_plan.column_sum_choice(pattern, batch, dtype, 4, 4, 3, CARD)[1]
        return found, lambda own: column_sum_plan.column_sum_seconds(own, *sizes), replace(chosen, whole=False)
    if kind == "block":
        found = rows_of(block_sum_plan.candidates(pattern[3], batch, dtype, CARD))
        chosen = block_sum_plan.block_sum_plan(pattern, batch, dtype, CARD)
        return found, lambda own: block_sum_plan.block_sum_seconds(own, *sizes), chosen
    chosen = fma_sum_plan.fma_sum_choice(pattern, batch, dtype, first, 16, CARD)[1]
    every = rows_of(fma_sum_plan.candidates(pattern, batch, dtype, first, 16, CARD))
    found = (replace(own, slots=slots) for own in every for slots in (1, chosen.slots))
    return found, lambda own: fma_sum_plan.fma_sum_seconds(own, batch, CARD), replace(chosen, whole=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_chosen_of_a_table_is_the_quickest_of_single_plans(kind) -> None:
    rng, several = random.Random(kind), 0
    for _ in range(6):
        pattern = rng.randint(1, 12), rng.randint(1, 300), rng.randint(1, 300), rng.choice([2, 3, 9, 16, 32])
        rows = rng.choice([7, 64, 250, 1000] if kind in ("tile", "row", "column", "fma") else [7, 64, 250])
        found, price, chosen = choice(kind, pattern, rows, rng.choice(["f16", "bf16"]), rng.random() < 0.6)
        prices = [(float(price(own)), own) for own in found]
        assert (chosen is None) == (not prices)
        if prices:
            several += len(prices) > 20
            least, best = min(prices, key=lambda one: one[0])
            assert chosen == best or math.isclose(price(chosen), least, rel_tol=1e-14)
            numbers = [*vars(chosen).values(), *vars(chosen.tile if kind == "tile" else chosen).values()]
            assert not any(isinstance(value, np.generic | np.ndarray) for value in numbers)
    assert several


def test_blocks_are_shared_out_in_the_fewest_rounds() -> None:
    rng = np.random.default_rng(0)
    groups, resident, tiles_ = (rng.integers(1, most, 200) for most in (300, 1000, 4000))
    found = slots_of(groups, resident, tiles_)
    for own, blocks, rows, slots in zip(groups, resident, tiles_, found, strict=True):
        single = slots_of(int(own), int(blocks), int(rows))
        assert type(single) is int
        assert single == slots
        most = max(1, blocks // own)
        if not 0.9 * blocks < own * most <= blocks:
            rounds = [-(-own * parts // blocks) * (-(-rows // parts) + 1) for parts in range(1, 17)]
            assert single == min(rows, 1 + rounds.index(min(rounds)))


def test_parts_of_sums_are_the_best_of_all() -> None:
    rng = random.Random(0)
    for _ in range(60):
        pattern = rng.randint(1, 40), rng.randint(1, 300), rng.randint(1, 300), rng.choice([1, 2, 9, 16])
        rows, groups = rng.choice([100, 4096, 60000]), rng.choice([1, 3])
        plan = column_sum_plan.column_sum_choice(pattern, rows, "f32", 16, 16, 3, CARD)[1]
        blocks, resident = plan.tiles(pattern, groups), CARD.sm_count * plan.blocks_each(CARD)
        most = min(2**26 // (4 * groups * math.prod(pattern)), rows // plan.least_part)
        several = range(1, max(1, min(most, 2 * -(-resident // blocks))) + 1)
        best = min(several, key=lambda parts: (-(-blocks * parts // resident) / parts, parts))
        assert plan.slots(pattern, groups, rows, CARD) == best


def calls(function) -> int:
    """Python functions that are called."""
    count = 0

    def noted(_frame, event, _argument) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(noted)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "patterns", [((1, 90, 48, 16),), ((31, 32, 32, 1), (1, 32, 32, 31)), ((7, 28, 112, 1), (1, 900, 196, 1))], ids=str
)
def test_a_new_number_of_rows_prices_no_plan_by_itself(patterns, dtype, monkeypatch) -> None:
    """300 000 to 700 000 calls before plans were priced as tables."""
    monkeypatch.setattr(cuda, "limits", lambda _: CARD)

    def chosen(rows: int) -> None:
        chain_training.kind_for(patterns, rows, dtype, False, Options(False, "auto", ""), DEVICE)

    assert calls(lambda: chosen(300)) < 20_000
    for rows in (301, 77, 4097):
        assert calls(lambda rows=rows: chosen(rows)) < 9_000
    assert calls(lambda: chosen(4097)) < 40


@pytest.mark.parametrize(("options", "most"), [("default fuse", 10_000), ("default saving 1111 fuse", 45_000)])
def test_a_new_number_of_rows_of_a_kronecker_product_finds_what_does_not_depend_on_it(options, most) -> None:
    """The first number of rows of a process takes 161 000 calls where gradients are priced."""
    shapes, dtype = ((18, 16), (15, 17), (16, 16)), torch.bfloat16

    def planned(rows: int) -> None:
        x, out = (
            torch.empty(rows, math.prod(each[side] for each in shapes), 1, dtype=dtype, device="meta")
            for side in (1, 0)
        )
        factors = [torch.empty(each, dtype=dtype, device="meta") for each in shapes]
        kron_cuda.planned_for(CARD, parse("0 1 2", shapes), arranged(x, factors, None, out), options)

    planned(500)
    for rows in (501, 3000):
        assert calls(lambda rows=rows: planned(rows)) < most


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("pattern", [(1, 96, 48, 16), (6, 64, 64, 1), (1, 50, 70, 9)], ids=str)
def test_few_texts_serve_all_numbers_of_rows(pattern, dtype) -> None:
    """Equal plans have equal texts, and 120 numbers of rows have few plans."""
    rng = random.Random(0)
    a, b, c, d = pattern
    texts: dict[str, dict[object, str]] = {}
    for rows in [rng.randint(9, 4000) for _ in range(120)]:
        given, own = (
            contiguous(pattern, rows, dtype, True),
            factor(pattern, rows, *((a * m * d, 1, 16) for m in (c, b))),
        )
        back = [own.of_x(), own.of_weight(), sums(a * b * d, rows, (a * b * d, 1, 16))]
        for name, plan, emit in (
            ("tile", tiles.plan(given, CARD), cuda_emit.emit),
            ("stream", stream_plan.stream_plan(given, True, CARD), cuda_emit.emit_stream),
            ("mma", stream_mma_plan.stream_mma_plan(given, True, CARD), cuda_emit.emit_stream_mma),
            ("fma", fma_sum_plan.fma_sum_choice(pattern, rows, dtype, True, 16, CARD)[1], sum_emit.emit_fma_sum),
            ("row", row_sum_plan.row_sum_choice(pattern, rows, dtype, 16, 16, 3, CARD)[1], sum_emit.emit_tile_sum),
            ("grouped", plan_grouped(CARD, dtype, [own.forward()]), cuda_emit.emit_grouped),
            ("grouped back", plan_grouped(CARD, dtype, back), cuda_emit.emit_grouped),
        ):  # fmt: skip
            if plan is not None:
                found = texts.setdefault(name, {})
                text = hashlib.sha256(emit(plan).encode()).hexdigest()
                assert found.setdefault(plan, text) == text
    for name, found in texts.items():
        assert len(found) <= 16, name
