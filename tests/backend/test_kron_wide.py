"""Kronecker passes over one wide factor by wgmma: where they are planned, that they fit and compile without spills."""

import random
from dataclasses import replace

import pytest

from kernmantle.structured.kron import tensor_emit
from kernmantle.structured.kron.cost import wide_seconds
from kernmantle.structured.kron.cuda_plan import plan as plan_product
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import Pass, plain_pass
from kernmantle.structured.kron.tensor_plan import MmaLayout
from kernmantle.structured.kron.wide_plan import POSITIONS, WidePlan, wide, wide_part, wide_passes

from .test_cuda_compile import CARDS
from .test_cuda_kron import TENSORS, compiled, modes

# Rows and columns of the factors of a pass, columns to their right, storage.
WIDE = {
    "95 bf16": ([(95, 95)], 1, "bf16"),
    "190 f32": ([(190, 190)], 1, "f32"),
    "256 f32": ([(256, 256)], 1, "f32"),
    "167x160 few f32": ([(167, 160)], 24, "f32"),
    "215 few f16": ([(215, 215)], 33, "f16"),
    "239 and 2 bf16": ([(239, 239), (2, 2)], 1, "bf16"),
    "89 and 16 f32": ([(89, 89), (16, 16)], 1, "f32"),
    "8 and 73 f32": ([(8, 8), (73, 73)], 1, "f32"),
    "12 and 13x17, 11 f16": ([(12, 12), (13, 17), (11, 11)], 1, "f16"),
}  # fmt: skip


def found(sizes: list[tuple[int, int]], right: int = 1, stored: str = "f32") -> list[Pass]:
    """Return the passes over factors of so many columns and rows."""
    return wide_passes(plain_pass("fma", modes(sizes), 0, len(sizes)), right, stored)


def by_wide(name: str) -> WidePlan:
    """Return the plan of a pass over a wide factor, with a small one if there are several."""
    sizes, right, stored = WIDE[name]
    run = found(sizes, right, stored)[-1]
    shapes = tuple((rows, columns) for columns, rows in sizes)
    return wide(run, shapes, stored, TENSORS[stored], MmaLayout(2, 1, False, True), right, CARDS["sm_90"])


@pytest.mark.parametrize("name", WIDE)
def test_passes_over_a_wide_factor_compile_without_spills(name: str) -> None:
    plan = by_wide(name)
    taken = compiled(tensor_emit.emit_wide(plan), "sm_90").resources
    assert taken.spill_stores == 0
    assert taken.registers * plan.threads <= CARDS["sm_90"].registers_per_sm
    assert taken.shared <= plan.static
    assert plan.has_small == (len(WIDE[name][0]) > 1)


def test_every_extent_fits_a_block() -> None:
    source, card = random.Random(0), CARDS["sm_90"]
    for _ in range(400):
        stored, beside = source.choice(["f32", "f16", "bf16"]), source.randint(1, POSITIONS)
        mode = Mode(source.randint(16, 256), source.randint(16, 256), 0)
        run = plain_pass("wide", [mode], 0, 1)
        layout = MmaLayout(2, 1, False)
        plan = wide(run, ((mode.rows, mode.columns),), stored, TENSORS[stored], layout, beside, card)
        assert plan.shared + plan.static <= card.shared_per_block
        assert 0 < plan.items * plan.span <= POSITIONS


def test_a_small_factor_at_either_end_shares_the_pass() -> None:
    assert [str(run) for run in found([(4, 4), (100, 90)])] == ["wide 4x4*90x100"]
    assert [str(run) for run in found([(100, 90), (4, 4)])] == ["wide 90x100*4x4"]
    assert [str(run) for run in found([(2, 2), (120, 120)])] == ["wide 240x240", "wide 2x2*120x120"]
    first, last = (run for run in found([(3, 3), (12, 12), (5, 5)]) if len(run.modes) > 1)
    assert (wide_part(first), first.parts, wide_part(last), last.parts) == (1, ((0,), (1, 2)), 0, ((0, 1), (2,)))
    # with something to their right; a small one that is not square
    assert not found([(4, 4), (100, 90)], 2)
    assert not found([(4, 5), (100, 90)])
    # too many columns to the right for a tile
    assert found([(100, 100)], POSITIONS)
    assert not found([(100, 100)], POSITIONS + 1)


def test_tiles_are_counted_to_the_edges() -> None:
    assert by_wide("95 bf16").count(65, 1) == 2
    assert by_wide("190 f32").count(65, 1) == 2 * 2  # each half of the rows in blocks of its own
    assert by_wide("215 few f16").count(65, 33) == 65
    assert by_wide("239 and 2 bf16").count(65, 1) == 3


def test_products_in_float16_are_scaled() -> None:
    assert by_wide("12 and 13x17, 11 f16").is_scaled
    assert not by_wide("215 few f16").is_scaled
    assert by_wide("190 f32").is_scaled
    assert not by_wide("95 bf16").is_scaled


@pytest.mark.parametrize(
    ("sizes", "right", "stored", "entries", "measured"),
    [
        ([190], 1, "f32", 353204, 293), ([119], 1, "f32", 563940, 157), ([167], 24, "f32", 16743, 274),
        ([89, 5], 1, "f32", 150806, 216), ([8, 73], 1, "f32", 114912, 213), ([198], 5, "f16", 67786, 90),
        ([185], 4, "bf16", 90687, 82), ([198, 5], 1, "f16", 67786, 152), ([190], 1, "f32", 22075, 36),
        ([198], 5, "f16", 4236, 14.5), ([239, 2], 1, "bf16", 140395, 251),
    ],
)  # fmt: skip
def test_passes_are_expected_to_take_what_was_measured(sizes, right, stored, entries, measured):
    """Microseconds of one H200, decision 0143."""
    run = found([(size, size) for size in sizes], right, stored)[-1]
    plan = wide(run, (), stored, TENSORS[stored], MmaLayout(2, 1, False), right, CARDS["sm_90"])
    assert wide_seconds(plan, entries, CARDS["sm_90"]) * 1e6 == pytest.approx(measured, rel=0.15)


def test_products_with_an_odd_wide_factor_take_such_passes() -> None:
    card, half = CARDS["sm_90"], replace(TENSORS["f32"], has_wgmma=True)
    one = plan_product(modes([(49, 49), (190, 190)]), 1, "f32", card, True, half, 14416)
    assert [str(run) for run in one.passes] == ["wide 190x190", "axis 49x49"]
    # 99 us by the vendor's products, 112 with one group of warps in a block
    two = plan_product(modes([(256, 256), (256, 256)]), 1, "f32", card, True, half, 64)
    assert {run.kind for run in two.passes} == {"matmul"}
