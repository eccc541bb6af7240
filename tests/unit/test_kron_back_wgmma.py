"""Gradients of two axes by wgmma: which passes there are, and where a tile has its numbers."""

import math
import re

import numpy as np
import pytest

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.structured.kron.back_wgmma_plan import (
    EXTENT,
    back_wgmma,
    back_wgmma_candidates,
    back_wgmma_seconds,
)
from kernmantle.structured.kron.gradient_cost import pass_over
from kernmantle.structured.kron.gradient_emit import emit
from kernmantle.testing import assert_close

HOPPER = CARDS["sm_90"]
SIZES = [
    ((64, 64), (64, 64)), ((8, 8), (8, 8), (8, 8), (8, 8)), ((16, 16), (16, 16)), ((5, 7), (9, 9)),
    ((20, 31), (24, 10)), ((2, 2), (23, 23), (6, 6)), ((1, 3), (64, 2)), ((10, 10), (10, 10)),
]  # fmt: skip


def _square(*extents):
    return tuple((extent, extent) for extent in extents)


def _matrix(plan, value, side):
    """A tile of items as the matrix that is multiplied."""
    down, across = (axis[side] for axis in plan.axes)
    found = np.zeros((EXTENT, EXTENT))
    for item in range(plan.items):
        row, column = item // plan.grid[1] * plan.slots[0], item % plan.grid[1] * plan.slots[1]
        found[row : row + down, column : column + across] += value[item]
    return found


def _blocks(matrix, size, slot, count):
    """What stands on the diagonal for each item."""
    return [matrix[n * slot : n * slot + size[0], n * slot : n * slot + size[1]] for n in range(count)]


def _repeated(factor, slot, count):
    found = np.zeros((EXTENT, EXTENT))
    for block in _blocks(found, factor.shape, slot, count):
        block[:] = factor
    return found


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("before", [1, 7, 12])
def test_products_of_tiles_are_the_gradients(sizes, before):
    for plan in back_wgmma_candidates(sizes, before, "f32", "sm_90"):
        assert all(slot * count <= EXTENT for slot, count in zip(plan.slots, plan.grid, strict=True))
        assert plan.items <= math.prod(plan.grid)
        assert before % plan.items == 0  # a tile is of one row of x
        random, ((q0, p0), (q1, p1)) = np.random.default_rng(0), plan.axes
        x, v = random.standard_normal((plan.items, p0, p1)), random.standard_normal((plan.items, q0, q1))
        first, second = random.standard_normal((q0, p0)), random.standard_normal((q1, p1))
        layouts = list(zip(plan.slots, plan.grid, strict=True))
        a, b = (_repeated(own, *layout) for own, layout in zip((first, second), layouts, strict=True))
        tile_x, tile_v = _matrix(plan, x, 1), _matrix(plan, v, 0)
        assert_close(a.T @ tile_v @ b, _matrix(plan, first.T @ v @ second, 1), depth=64)
        sums = tile_v @ b @ tile_x.T, (tile_v.T @ a) @ tile_x
        exact = np.einsum("nqj,ji,npi->qp", v, second, x), np.einsum("nqj,qp,npi->ji", v, first, x)
        for own, wanted, layout in zip(sums, exact, layouts, strict=True):
            assert_close(sum(_blocks(own, wanted.shape, *layout)), wanted, depth=64 * plan.items)


@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("before", [1, 12, 37])
def test_loads_are_of_whole_vectors(sizes, before, stored):
    for plan in back_wgmma_candidates(sizes, before, stored, "sm_90"):
        size = 4 if stored == "f32" else 2
        for side in (0, 1):
            down, across = (axis[side] for axis in plan.axes)
            assert plan.items * down * across % plan.vector == 0
            assert across % plan.pack == 0
            assert plan.copies == 0 or plan.items * down * across * size % 16 == 0
        assert plan.shared <= HOPPER.shared_per_block
        assert re.search(rf"ITEMS = {plan.items}, VECTOR = {plan.vector}, PACK = {plan.pack}\b", emit(plan))


def test_axes_are_split_where_tiles_are_full():
    plan = back_wgmma(_square(4, 4, 4, 4, 4), 4, "f32", HOPPER)
    assert plan is not None
    assert [len(group) for group in plan.groups] == [2, 3]
    assert plan.items == 4
    assert back_wgmma(_square(65, 2), 1, "f32", HOPPER) is None
    assert back_wgmma(_square(8), 1, "f32", HOPPER) is None
    assert back_wgmma(_square(8, 8), 1, "f64", HOPPER) is None
    assert back_wgmma(_square(8, 8), 1, "f32", CARDS["sm_80"]) is None


def test_what_fills_tiles_takes_them():
    chosen, seconds = pass_over(_square(64, 64), (1024, 64, 1, 1), "f32", HOPPER)
    plan = back_wgmma(_square(64, 64), 64, "f32", HOPPER)
    assert plan is not None
    assert chosen == plan
    assert seconds == back_wgmma_seconds(plan, 1024 * 64, HOPPER)
    alone, _ = pass_over(_square(8, 8), (1024, 1, 1, 1), "f32", HOPPER)  # a tile would have one row of x
    assert alone != back_wgmma(_square(8, 8), 1, "f32", HOPPER)
    others, _ = pass_over(_square(64, 64), (1024, 64, 2, 1), "f32", HOPPER)  # columns that lie behind the axes
    assert others != plan
