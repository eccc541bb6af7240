"""Gradients of one axis by wgmma: which passes there are, and where a tile has its numbers."""

import re

import numpy as np
import pytest

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.structured.kron.back_axis_plan import back_axis, back_axis_seconds
from kernmantle.structured.kron.back_wgmma_plan import EXTENT
from kernmantle.structured.kron.gradient_cost import pass_over
from kernmantle.structured.kron.gradient_emit import emit
from kernmantle.testing import assert_close

HOPPER = CARDS["sm_90"]
SIZES = [((64, 64),), ((32, 32),), ((20, 31),), ((21, 21),), ((8, 8), (8, 8)), ((5, 9), (7, 3)), ((48, 33),)]


def _runs(plan, value, first):
    """Runs of 64 columns of a matrix below each other, zeros behind its last column."""
    found = np.zeros((EXTENT, EXTENT))
    for run in range(plan.items):
        own = value[:, first + run * EXTENT : first + (run + 1) * EXTENT]
        found[run * plan.slots[0] : run * plan.slots[0] + len(own), : own.shape[1]] = own
    return found


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("width", [64, 72, 200, 576])
def test_products_of_tiles_are_the_gradients(sizes, width):
    plan = back_axis(sizes, width, "f32", HOPPER)
    assert plan is not None
    assert plan.slots[0] * plan.grid[0] <= EXTENT
    (q, p), random = plan.axes[0], np.random.default_rng(0)
    x, v, factor = (random.standard_normal(shape) for shape in ((p, width), (q, width), (q, p)))
    repeated, total, out = np.zeros((EXTENT, EXTENT)), np.zeros((q, p)), np.zeros((p, width))
    for run in range(plan.items):
        at = run * plan.slots[0]
        repeated[at : at + q, at : at + p] = factor
    for tile in range(plan.tiles(1, width)):
        first = tile * plan.items * EXTENT
        tile_x, tile_v = _runs(plan, x, first), _runs(plan, v, first)
        sums, applied = tile_v @ tile_x.T, repeated.T @ tile_v
        for run in range(plan.items):
            at, column = run * plan.slots[0], first + run * EXTENT
            total += sums[at : at + q, at : at + p]
            own = out[:, column : column + EXTENT]
            own[:] = applied[at : at + p, : own.shape[1]]
    assert_close(total, v @ x.T, depth=width)
    assert_close(out, factor.T @ v, depth=q)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_tiles_fit_into_shared_memory(sizes):
    plan = back_axis(sizes, 264, "f32", HOPPER)
    assert plan is not None
    assert plan.shared <= HOPPER.shared_per_block
    assert re.search(rf"ROWS = {plan.items}, COLUMNS = 1, SLOT0 = {plan.slots[0]}\b", emit(plan))


def test_there_are_none_for_other_arrays():
    assert back_axis(((64, 64),), 260, "f32", HOPPER) is not None
    assert back_axis(((64, 64),), 262, "f32", HOPPER) is None  # rows that begin in the middle of a vector
    assert back_axis(((64, 64),), 60, "f32", HOPPER) is None
    assert back_axis(((65, 2),), 256, "f32", HOPPER) is None
    assert back_axis(((16, 16),), 256, "f32", HOPPER) is None
    assert back_axis(((64, 64),), 256, "f16", HOPPER) is None
    assert back_axis(((64, 64),), 256, "f32", CARDS["sm_80"]) is None


def test_the_first_axis_of_large_powers_takes_it():
    for extent, width in ((64, 4096), (32, 1024)):
        plan = back_axis(((extent, extent),), width, "f32", HOPPER)
        assert plan is not None
        chosen, seconds = pass_over(((extent, extent),), (1024, 1, width, 1), "f32", HOPPER)
        assert chosen == plan
        assert seconds == back_axis_seconds(plan, 1024, width, HOPPER)
    beside, _ = pass_over(((64, 64),), (1024, 1, 64, 64), "f32", HOPPER)  # a tile would have several rows of x
    assert beside != back_axis(((64, 64),), 4096, "f32", HOPPER)
