"""Kronecker passes over two axes: where they are planned, that they fit and compile without spills."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kernmantle.structured.kron import cuda, tensor_emit
from kernmantle.structured.kron.arrays import arranged
from kernmantle.structured.kron.cuda_plan import plan
from kernmantle.structured.kron.mma_plan import SIZES
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import Pass, between, plain_pass
from kernmantle.structured.kron.run import prepare
from kernmantle.structured.kron.tensor_plan import MmaLayout, Tensor
from kernmantle.structured.kron.two_axis_plan import (
    TwoAxisPlan,
    two_axis_candidates,
    two_axis_passes,
    two_axis_plans,
    units_of,
)

from .test_cuda_compile import CARDS
from .test_cuda_kron import TENSORS, compiled, modes

# Columns and rows of the factors, storage.
PASSES = {
    "55 29 bf16": ([(55, 55), (29, 29)], "bf16"),
    "55x40 32 f16": ([(55, 40), (32, 32)], "f16"),
    "84 69 bf16": ([(84, 84), (69, 69)], "bf16"),
    "10 11 9 f16": ([(10, 10), (11, 11), (9, 9)], "f16"),
    "45 27 f32": ([(45, 45), (27, 27)], "f32"),
    "12x20 40 f32": ([(12, 20), (40, 40)], "f32"),
    "109 63 f32": ([(109, 109), (63, 63)], "f32"),
}


def joined(sizes: list[tuple[int, int]], stored: str = "bf16") -> Pass | None:
    """Return the last pass over these factors as two axes, None where there is none."""
    return next(reversed(two_axis_passes(plain_pass("fma", modes(sizes), 0, len(sizes)), stored)), None)


def candidates(
    sizes: list[tuple[int, int]], stored: str, entries: int = 1 << 30, saves: bool = False
) -> tuple[TwoAxisPlan, ...]:
    """Return the plans of a pass over two axes of arrays that lie in one piece."""
    run, each = joined(sizes, stored), 16 // SIZES[stored]
    assert run is not None
    load, store = math.gcd(run.modes[1].columns, each), math.gcd(run.modes[1].rows, each)
    layout = MmaLayout(load * SIZES[stored], store, False, True)
    shapes = tuple((rows, columns) for columns, rows in sizes)
    return two_axis_plans(replace(run, saves=saves), entries, shapes, stored, TENSORS[stored], layout, CARDS["sm_90"])


def by_two_axes(name: str) -> TwoAxisPlan:
    """Return the preferred plan of a pass."""
    return candidates(*PASSES[name])[0]


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("rows", [10, 1 << 30])
@pytest.mark.parametrize("name", PASSES)
def test_passes_over_two_axes_compile_without_spills(name: str, rows: int, saves: bool) -> None:
    plans = candidates(*PASSES[name], rows, saves)
    if not plans:  # what is saved leaves a block no room for tiles
        assert saves
        assert name == "109 63 f32"
        return
    found = plans[0]
    taken = compiled(tensor_emit.emit_two_axes(found), "sm_90").resources
    assert taken.spill_stores == 0
    assert taken.registers * found.threads <= CARDS["sm_90"].registers_per_sm


def test_every_plan_fits_a_block() -> None:
    source, card = random.Random(0), CARDS["sm_90"]
    count = 0
    for _ in range(60):
        stored = source.choice(["f32", "f16", "bf16"])
        sizes = [(source.randint(2, 100), source.randint(2, 100)) for _ in range(2)]
        rows = source.choice([1, 100, 1 << 30])
        saves = source.random() < 0.5
        for found in candidates(sizes, stored, rows, saves) if joined(sizes, stored) else ():
            count += 1
            assert found.shared + found.static <= card.shared_per_block
            assert found.warps % found.group == 0
            assert found.items % found.together == 0
            assert found.stage % found.each == found.out_stage % found.each == found.saved_stage % found.each == 0
            assert (found.saved_stage > 0) == saves
    assert count > 200


@pytest.mark.parametrize(
    ("sizes", "stored"),
    [([(2, 100), (27, 103)], "f16"), ([(176, 89), (10, 103)], "bf16"), ([(40, 40), (9, 70)], "f32")],
)
def test_few_tiles_are_shared_among_warps(sizes, stored):
    """Of so few rows each is a tile, which no warp takes alone; of many it is as where nothing is said of them."""
    most = CARDS["sm_90"].sm_count
    few, many = candidates(sizes, stored, most // 2)[0], candidates(sizes, stored)[0]
    assert (few.items, few.together) == (1, 1)
    assert few.group > many.group
    assert few.group >= units_of(few)
    assert candidates(sizes, stored, most * many.groups * many.items)[0] == many


@pytest.mark.parametrize(("rows", "blocks"), [(25, 25), (300, 132)])
def test_few_tiles_go_to_as_many_blocks(monkeypatch, rows, blocks):
    launched = []
    monkeypatch.setattr(cuda, "_kernel", lambda *_: SimpleNamespace(overlapped=False))
    monkeypatch.setattr(cuda, "resident", lambda *_: 1)
    monkeypatch.setattr(cuda, "limits", lambda _: CARDS["sm_90"])
    monkeypatch.setattr(cuda, "numbered", lambda index, count, described, signed: launched.append(count))
    sizes = [(10, 10), (103, 103)]
    (chosen, *_), run = candidates(sizes, "bf16", rows), joined(sizes)
    x, *factors = (torch.empty(*size, dtype=torch.bfloat16) for size in ((rows, 1030, 1), *sizes))
    prepare([run], modes(sizes), arranged(x, factors, None, x), lambda launch: cuda._starting(launch, 0, chosen))
    assert (chosen.items, launched) == (1, [blocks])


@pytest.mark.parametrize("step", [1, 2])
def test_what_is_saved_lies_in_one_piece(step: int) -> None:
    """A pass is given its memory where another one is given what it adds, where rows of x follow each other alone."""
    sizes, given = [(6, 6), (10, 12), (9, 11)], list[list[int]]()
    both = Pass("two_axis", 1, 3, (Mode(10, 12, 0), Mode(9, 11, 1)), ((1,), (2,)), saves=True)
    passes = [both, plain_pass("fma", modes(sizes), 0, 1)]
    assert between(passes) == ((2,), (1, 2))
    x = torch.empty(4 * step, 540, 1)[::step]
    out, factors = torch.empty(4, 6 * 12 * 11, 1), [torch.empty(q, p) for p, q in sizes]
    found = prepare(passes, modes(sizes), arranged(x, factors, None, out), lambda _: lambda at, _: given.append([*at]))
    if step > 1:
        assert found is None
        return
    assert found is not None
    saved = list[torch.Tensor]()
    found(x, factors, None, out, (1.0, 0.0), saved)
    assert [own.shape for own in saved] == [(4, 6 * 10 * 11, 1), (4, 6 * 12 * 11, 1)]
    assert found.entries_between == sum(own.numel() for own in saved)
    at = [own.data_ptr() for own in (*saved, out)]
    assert [own[:3] for own in given] == [[x.data_ptr(), *at[:2]], [at[1], at[2], at[2]]]


def test_rows_that_lie_apart_come_one_by_one() -> None:
    run = joined([(34, 34), (21, 21)])
    assert run is not None
    layout = MmaLayout(2, 1, False, False)
    shapes = ((34, 34), (21, 21))
    found = two_axis_candidates(run, shapes, "bf16", TENSORS["bf16"], layout, CARDS["sm_90"])
    assert found
    assert {(own.items, own.together) for own in found} == {(1, 1)}


def test_tiles_are_counted_to_the_edges() -> None:
    found = by_two_axes("55 29 bf16")
    assert found.count(10 * found.items + 1, 1) == 11


def test_factors_are_brought_together_as_two() -> None:
    found = two_axis_passes(plain_pass("fma", modes([(10, 10), (11, 11), (9, 9)]), 0, 3), "bf16")
    assert [str(run) for run in found] == ["two_axis 10x10*99x99", "two_axis 110x110*9x9"]
    assert [run.parts for run in found] == [((0,), (1, 2)), ((0, 1), (2,))]
    assert joined([(16, 16)]) is None
    assert joined([(200, 200), (200, 200)]) is None
    assert joined([(16, 16), (16, 16)], "f64") is None
    between = plain_pass("fma", (*modes([(8, 8)]), Mode(3, 3), *modes([(8, 8)])), 0, 3)
    assert two_axis_passes(between, "bf16") == []


def test_large_arrays_take_passes_over_two_axes() -> None:
    card, sizes = CARDS["sm_90"], modes([(34, 34), (21, 21)])
    found = plan(sizes, 1, "bf16", card, True, Tensor("bf16", 1, has_wgmma=True), 100000)
    assert [run.kind for run in found.passes] == ["two_axis"]
    # where something is added, or on other cards; by additions alone
    for tensor in (Tensor("bf16", 1), None):
        other = plan(sizes, 1, "bf16", card, True, tensor, 100000)
        assert "two_axis" not in {run.kind for run in other.passes}


@pytest.mark.parametrize(
    ("sizes", "rows", "stored", "passes"),
    [
        ((32, 32), 8192, "f32", ["mma"]), ((31, 31), 8192, "f32", ["two_axis"]), ((50, 50), 256, "bf16", ["two_axis"]),
        ((50, 50), 8192, "bf16", ["two_axis"]), ((30, 2, 12, 7, 69), 385, "bf16", ["two_axis", "axis"]),
    ],
)  # fmt: skip
def test_passes_over_two_axes_are_taken_where_they_are_quicker(sizes, rows, stored, passes):
    """Not of whole vectors of 16 in both axes; 50 x 50 with 256 rows takes 8.5 us, by mma.sync 9.5 (H200)."""
    tensor = replace(TENSORS[stored], has_wgmma=True)
    found = plan(modes([(size, size) for size in sizes]), 1, stored, CARDS["sm_90"], True, tensor, rows)
    assert [run.kind for run in found.passes] == passes
