"""Plans of Kronecker products on the CPU."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from kernmantle.structured.kron import cpu, run
from kernmantle.structured.kron.arrays import arranged
from kernmantle.structured.kron.cpu_emit import emit
from kernmantle.structured.kron.cpu_plan import BUFFER_BYTES, chunking, plan, plans, run_steps, scratch, width
from kernmantle.structured.kron.modes import Mode, parse, text_of
from kernmantle.structured.kron.passes import views


def _modes(*shapes):
    return parse(text_of(range(len(shapes))), shapes)


@pytest.mark.parametrize(
    ("shapes", "right", "expected"),
    [
        ([(8, 8)] * 5, 1, "f32, cache 8x8*8x8*8x8*8x8*8x8"),
        ([(32, 32)] * 3, 1, "f32, cache 32x32*32x32*32x32"),
        ([(2, 2)] * 10, 1, "f32, cache 2x2*8x8*8x8*8x8"),
        ([(4, 4)] * 7, 1, "f32, cache 4x4*4x4*4x4*4x4*4x4*16x16"),
        ([(8, 8)] * 7, 1, "f32, cache 8x8*8x8*8x8*8x8*8x8 then cache 8x8*8x8"),
        ([(512, 512)] * 2, 1, "f32, cache 512x512 then cache 512x512"),
        ([(64, 64)] * 2, 1, "f32, cache 64x64*64x64"),
        ([(65, 65)] * 2, 1, "f32, cache 65x65*65x65"),
        ([(57, 57)] * 2, 1, "f32, cache 57x57*57x57"),
        ([(55, 56), (8, 8)], 1, "f32, cache 55x56*8x8"),
        ([(8, 8)] * 2, 100, "f32, cache 8x8*8x8"),
    ],
)
def test_passes(shapes, right, expected):
    assert str(plan(_modes(*shapes), right, "f32", True)) == expected


def test_any_of_the_largest_factors_is_the_vendors():
    modes = _modes((300, 200), (4, 4), (64, 64))
    found = [str(own) for own in plans(modes, 1, "f32", True)]
    assert found == [
        "f32, cache 4x4*64x64 then cache 300x200",
        "f32, cache 4x4*64x64 then matmul 300x200",
        "f32, matmul 64x64 then cache 300x200*4x4",
        "f32, matmul 64x64 then cache 4x4 then matmul 300x200",
    ]


@pytest.mark.parametrize(
    ("rows", "shapes", "columns", "kinds"),
    [
        (206, [(48, 120), (3, 3)], 1, {"along", "cache"}),  # 51 us, 193 in one pass
        (243, [(28, 28), (3, 3)], 243, {"cache"}),  # 18 with the rows as columns, 54 along rows
        (49, [(300, 333)], 1, {"along"}),  # 50, 64 through the cache
        (11, [(119, 119), (251, 251), (3, 3)], 1, {"along", "cache"}),  # 4000 and 15800
        (1686, [(5, 19), (15, 4)], 1, {"cache"}),  # 65, 129 with the rows as columns, although 75 are expected
        (2, [(5, 5), (5, 5), (5, 5)], 1, {"cache"}),
    ],
)
def test_what_takes_least(rows, shapes, columns, kinds):
    modes = _modes(*shapes)
    x = torch.empty(rows, math.prod(mode.columns for mode in modes), device="meta")
    out = torch.empty(rows, math.prod(mode.rows for mode in modes), device="meta")
    whole = arranged(x.mT, [torch.empty(shape, device="meta") for shape in shapes], None, out.mT)
    arrays = cpu.arranged(modes, whole, "default fuse")
    assert arrays.x.shape[-1] == columns
    chosen, _ = cpu.planned(modes, arrays, "default fuse")
    assert {own.kind for own in chosen.passes} == kinds


def test_one_pass_per_factor_when_nothing_is_fused():
    chosen = plan(_modes((4, 4), (2, 3), (4, 4)), 1, "f64", False)
    assert [len(own.parts) for own in chosen.passes] == [1, 1, 1]
    assert all(len(part) == 1 for own in chosen.passes for part in own.parts)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([1, 3, 64, 1000]),
    st.sampled_from(["f32", "f64"]),
)
def test_every_factor_is_applied_once_and_blocks_fit(entries, right, compute):
    shapes = tuple((rows, columns) for rows, columns, _ in entries)
    names = [f"i{columns}" if kept else place for place, (_, columns, kept) in enumerate(entries)]
    modes = parse(text_of(names), shapes)
    wanted = [place for place, mode in enumerate(modes) if mode.factor is not None]
    chosen = plan(modes, right, compute, True)
    assert sorted(place for own in chosen.passes for part in own.parts for place in part) == wanted
    size = math.prod(mode.columns for mode in modes)
    for own, view in zip(chosen.passes, views(modes, chosen.passes), strict=True):
        assert view.left * own.columns * view.right == size
        size = view.left * own.rows * view.right
        block = width(own, view.right * right, compute)
        memory = scratch(own, block, compute)
        inner = chunking(own, block, compute)
        assert inner.count * inner.before == own.columns * block
        if len(own.parts) > 1:
            assert own.most * (4 if compute == "f32" else 8) <= BUFFER_BYTES
        for step in run_steps(own, block):
            length = step.left * step.right * max(step.mode.rows, step.mode.columns)
            assert length + inner.padding <= memory.buffer
    assert size == math.prod(mode.rows for mode in modes)


def test_chunks_stay_in_the_first_cache_and_are_apart():
    (own,) = plan(_modes(*[(8, 8)] * 5), 1, "f32", True).passes
    inner = chunking(own, 1, "f32")
    assert (inner.steps, inner.count, inner.before, inner.after) == (4, 8, 4096, 4096)
    assert inner.pitch > inner.after


def test_a_single_step_is_not_cut_and_chunks_of_several_have_rows_for_tiles():
    (own,) = plan(_modes((36, 36), (140, 140)), 1, "f64", True).passes
    assert chunking(own, 1, "f64").count == 1
    (own,) = plan(_modes((60, 60), (3, 3), (100, 100)), 1, "f32", True).passes
    inner = chunking(own, 1, "f32")
    assert (inner.steps, inner.count, inner.before, inner.most) == (2, 20, 3 * 300, 3 * 300)
    (own,) = plan(_modes((60, 60), (30, 30), (10, 10)), 1, "f32", True).passes
    assert chunking(own, 1, "f32").count == 60


def test_text_is_the_same_every_time_and_follows_the_machine():
    assert emit("f32", "f32", 32, 16) == emit("f32", "f32", 32, 16)
    assert "<16 x float>" in emit("bf16", "f32", 64, 32)
    assert "<16 x float>" not in emit("f32", "f32", 32, 16)
    assert "<4 x double>" in emit("f64", "f64", 16, 16)


def test_modes_print_as_they_act_from_the_left():
    assert str(Mode(3, 2, 0)) == "2x3"


def _launch(rows, shapes, wide):
    modes = _modes(*shapes)
    x, out = (
        torch.empty(rows, math.prod(own), device="meta") for own in zip(*[shape[::-1] for shape in shapes], strict=True)
    )
    arrays = arranged(x.mT, [torch.empty(shape, device="meta") for shape in shapes], None, out.mT)
    found = []

    def noted(launch):
        found.append(launch)

    run.prepare(plan(modes, 1, "f32", not wide).passes, modes, arrays, noted)
    return found


def test_rows_of_x_are_blocks_together_and_those_left_over_one_of_their_own():
    (launch,) = _launch(45, [(3, 5), (4, 7)], False)
    ((own, begin),) = cpu.blocks(launch, "f32")
    assert (own.run.columns, begin) == (45 * 35, (0, 0, 0))
    (launch,) = _launch(1003, [(30, 35)], False)
    (first, _), (rest, after) = cpu.blocks(launch, "f32")
    assert first.dims[-1][0] * first.run.modes[0].columns + rest.run.modes[0].columns == 1003
    assert first.run.modes[0].columns % 8 == 0
    begun = first.dims[-1][0] * first.run.modes[0].columns
    assert after == (4 * begun * 35, 4 * begun * 30, 4 * begun * 30)


def test_what_lies_behind_an_axis_without_gaps_is_an_axis_of_the_block():
    found = [cpu.blocks(launch, "f32")[0][0] for launch in _launch(6, [(3, 5), (4, 7)], True)]
    assert [(own.right, own.run.columns) for own in found] == [(1, 6 * 5 * 7), (1, 6 * 3 * 7)]
