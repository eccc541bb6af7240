"""Kronecker passes over one factor of any size by wgmma: where they are planned, that they compile without spills."""

import random
from dataclasses import replace

import pytest

from kernmantle.structured.kron import tensor_emit
from kernmantle.structured.kron.axis_plan import LEAST_TILES, AxisPlan, axis, axis_pass
from kernmantle.structured.kron.cuda_plan import plan
from kernmantle.structured.kron.mma_plan import SIZES
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import Pass, plain_pass
from kernmantle.structured.kron.tensor_plan import MmaLayout, Tensor

from ..cuda.kron_harness import branches, cases, few
from .test_cuda_compile import CARDS
from .test_cuda_kron import TENSORS, compiled, modes

# Columns and rows of the factor, columns to its right, storage, numbers of a load and of a store.
AXES = {
    "57 f32": (57, 57, 301, "f32", 1, 1),
    "115 f32": (115, 115, 3872, "f32", 4, 4),
    "30x100 bf16": (30, 100, 1000, "bf16", 8, 8),
    "17 f16": (17, 17, 15950, "f16", 2, 2),
    "60 of several entries f32": (60, 60, 186, "f32", 2, 2),
    "100 f32": (100, 100, 1000, "f32", 4, 4),
    "27 f32": (27, 27, 30615, "f32", 1, 1),
    "216x193 f32": (216, 193, 4000, "f32", 4, 4),
    "218 few f32": (218, 218, 14, "f32", 2, 2),
    "230 bf16": (230, 230, 1008, "bf16", 8, 8),
    "57 few f16": (57, 57, 5, "f16", 1, 1),
    "118x40 few bf16": (118, 40, 30, "bf16", 2, 2),
}


def joined(sizes: list[tuple[int, int]], right: int = 64, stored: str = "f32", entries: int = 1 << 20) -> Pass | None:
    """Return the pass over these factors multiplied out, None where there is none."""
    return axis_pass(plain_pass("fma", modes(sizes), 0, len(sizes)), entries, right, stored, CARDS["sm_90"])


def by_axis(name: str) -> AxisPlan:
    """Return the plan of a pass over one factor."""
    columns, rows, right, stored, load, store = AXES[name]
    run = joined([(columns, rows)], right, stored)
    assert run is not None
    layout = MmaLayout(load * SIZES[stored], store, False)
    return axis(run, ((rows, columns),), stored, TENSORS[stored], layout, right, CARDS["sm_90"])


@pytest.mark.parametrize("name", AXES)
def test_passes_over_one_axis_compile_without_spills(name: str) -> None:
    found = by_axis(name)
    taken = compiled(tensor_emit.emit_axis(found), "sm_90").resources
    assert taken.spill_stores == 0
    assert taken.registers * found.threads <= CARDS["sm_90"].registers_per_sm
    assert found.shared <= CARDS["sm_90"].shared_per_block
    assert found.stages >= 2
    assert found.stages % found.sets == 0


def test_every_extent_fits_a_block() -> None:
    source, card = random.Random(0), CARDS["sm_90"]
    for _ in range(400):
        stored = source.choice(["f32", "f16", "bf16"])
        mode = Mode(source.randint(2, 256), source.randint(8, 256), 0)
        run = plain_pass("axis", [mode], 0, 1)
        layout = MmaLayout(SIZES[stored] * source.choice([1, 2, 4]), 1, False)
        found = axis(
            run, ((mode.rows, mode.columns),), stored, TENSORS[stored], layout, source.choice([4, 7, 40, 300]), card
        )
        assert found.shared <= card.shared_per_block
        assert found.stages >= 2
        assert found.stages % found.sets == 0


def test_tiles_are_counted_to_the_edges() -> None:
    assert by_axis("57 f32").count(10, 301) == 24  # columns of all entries one after another, 128 to a tile
    assert by_axis("115 f32").count(10, 3872) == 10 * 61
    assert by_axis("57 few f16").count(1000, 5) == 40
    assert by_axis("216x193 f32").count(10, 4000) == 2 * 10 * 63  # each half of the rows in blocks of its own


def test_large_arrays_take_passes_over_one_axis() -> None:
    card, tensor = CARDS["sm_90"], Tensor("f16", 3, has_wgmma=True)
    (one,) = plan((*modes([(57, 57)]), Mode(2809, 2809)), 1, "f32", card, True, tensor, 500).passes
    assert (one.kind, str(one.modes[0])) == ("axis", "57x57")
    # without wgmma, or with something to be added; few tiles; only additions
    for other, rows in ((replace(tensor, has_wgmma=False), 500), (tensor, 1)):
        found = plan((*modes([(57, 57)]), Mode(301, 301)), 1, "f32", card, True, other, rows)
        assert "axis" not in {run.kind for run in found.passes}
    assert "axis" not in {run.kind for run in plan(modes([(57, 57)]), 1, "f32", card, True, None, 1 << 20).passes}


def test_neighbours_are_multiplied_out_up_to_the_widest_axis() -> None:
    run = joined([(4, 3), (8, 9), (2, 2)])
    assert run is not None
    assert (run.modes[0].columns, run.modes[0].rows, run.parts) == (64, 54, ((0, 1, 2),))
    assert joined([(16, 16), (17, 17)]) is None
    assert joined([(2, 2)] * 5) is None
    assert joined([(3, 3)]) is None
    between = plain_pass("fma", (*modes([(8, 8)]), Mode(3, 3), *modes([(8, 8)])), 0, 3)
    assert axis_pass(between, 1 << 20, 64, "f32", CARDS["sm_90"]) is None


def test_products_in_float16_are_scaled() -> None:
    found = by_axis("17 f16")
    assert not found.is_scaled
    assert replace(found, shapes=((17, 17), (2, 2))).is_scaled
    assert by_axis("57 f32").is_scaled
    assert not replace(by_axis("30x100 bf16"), shapes=((30, 100), (2, 2))).is_scaled


def test_few_tiles_do_not_prepare_a_factor() -> None:
    least = LEAST_TILES * CARDS["sm_90"].sm_count
    assert joined([(57, 57)], 128, entries=least)
    assert joined([(57, 57)], 128, entries=least - 1) is None
    assert joined([(57, 57)], 32, entries=4 * least)  # entries share tiles
    assert joined([(57, 57)], 1, entries=1 << 24) is None  # along rows of memory


def test_few_cases_of_the_harness_take_every_branch_of_such_passes() -> None:
    own, every = CARDS["sm_90"], [case for case in cases() if case.aligned == "one_axis"]
    found = few(every, own)
    assert 0 < len(found) < len(every)
    taken, wanted = (set().union(*(branches(case, own) for case in some)) for some in (found, every))
    assert taken == wanted
