"""Gradients of two short axes in registers: which passes there are, and where a matrix has its numbers."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.structured.kron.back_registers_plan import (
    COPY,
    SIDE,
    VECTOR,
    WARP,
    BackRegistersPlan,
    back_registers,
    back_registers_candidates,
    back_registers_seconds,
)
from kernmantle.structured.kron.gradient_cost import pass_over
from kernmantle.structured.kron.gradient_emit import emit
from kernmantle.testing import assert_close

HOPPER = replace(CARDS["sm_90"], sm_count=132, shared_per_block=227 << 10)
SIZES = [
    ((16, 16), (16, 16)), ((10, 10), (10, 10)), ((5, 3), (8, 12)), ((5, 5), (5, 5)), ((2, 2), (3, 3), (7, 7)),
    ((1, 3), (16, 2)), ((2, 3), (2, 5)),
]  # fmt: skip


def _square(*extents):
    return tuple((extent, extent) for extent in extents)


def _spots(plan, side):
    """Rows and columns of the numbers of each item in a matrix."""
    down, across = (axis[side] for axis in plan.axes)
    for item in range(plan.items):
        row, column = item // plan.grid[1] * plan.slots[0], item % plan.grid[1] * plan.slots[1]
        yield slice(row, row + down), slice(column, column + across)


def _matrix(plan, value, side):
    found = np.zeros((SIDE, SIDE))
    for own, spot in zip(value, _spots(plan, side), strict=True):
        found[spot] += own
    return found


def _repeated(factor, slot, count):
    found = np.zeros((SIDE, SIDE))
    for n in range(count):
        found[n * slot : n * slot + factor.shape[0], n * slot : n * slot + factor.shape[1]] = factor
    return found


def _joined(sums, size, slot, count):
    return sum(sums[n * slot : n * slot + size[0], n * slot : n * slot + size[1]] for n in range(count))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("before", "width"), [(1, 1), (7, 1), (12, 1), (3, 100), (1, 24)])
def test_products_of_matrices_are_the_gradients(sizes, before, width):
    plans = list(back_registers_candidates(sizes, before, width, "f32", "sm_90"))
    assert plans
    for plan in plans:
        assert all(slot * count <= SIDE for slot, count in zip(plan.slots, plan.grid, strict=True))
        assert plan.items <= math.prod(plan.grid)
        assert width > 1 or plan.before == before * (before % plan.items > 0)  # a matrix is of one row of x
        random, ((q0, p0), (q1, p1)) = np.random.default_rng(0), plan.axes
        x, v = random.standard_normal((plan.items, p0, p1)), random.standard_normal((plan.items, q0, q1))
        first, second = random.standard_normal((q0, p0)), random.standard_normal((q1, p1))
        layouts = list(zip(plan.slots, plan.grid, strict=True))
        a, b = (_repeated(factor, *layout) for factor, layout in zip((first, second), layouts, strict=True))
        left, right = _matrix(plan, v, 0), _matrix(plan, x, 1)
        u = left @ b
        assert_close(a.T @ u, _matrix(plan, first.T @ v @ second, 1), depth=SIDE)
        exact = np.einsum("nqj,ji,npi->qp", v, second, x), np.einsum("nqj,qp,npi->ji", v, first, x)
        for sums, wanted, layout in zip((u @ right.T, left.T @ a @ right), exact, layouts, strict=True):
            assert_close(_joined(sums, wanted.shape, *layout), wanted, depth=SIDE * plan.items)


@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("width", [1, 8, 36, 100, 625, 4096])
def test_accesses_are_of_whole_vectors(sizes, width, stored):
    size = 4 if stored == "f32" else 2
    for plan in back_registers_candidates(sizes, 12, width, stored, "sm_90"):
        assert plan.shared <= HOPPER.shared_per_block // plan.blocks
        assert re.search(
            rf"ITEMS = {plan.items}, VECTOR = {plan.vector}, .*ACROSS = {plan.across}, BEFORE = {plan.before}\b",
            emit(plan),
        )
        if width == 1:
            assert plan.slots[1] % plan.vector == 0
            assert all(columns % plan.vector == 0 for columns in plan.axes[1])
            continue
        assert width * size % COPY == 0 == plan.across * size % COPY
        assert plan.across % (VECTOR * plan.items) == 0


def test_there_are_none_for_other_axes():
    assert back_registers(_square(17, 2), (1024, 1, 1), "f32", HOPPER) is None
    assert back_registers(_square(16), (1024, 1, 1), "f32", HOPPER) is None
    assert back_registers(_square(8, 8), (1024, 1, 1), "f64", HOPPER) is None
    assert (
        back_registers(_square(8, 8), (1024, 1, 36), "f16", HOPPER) is None
    )  # rows that begin in the middle of a copy
    assert back_registers(_square(8, 8), (1024, 1, 36), "f32", HOPPER) is not None
    small = replace(HOPPER, shared_per_block=99 << 10)
    assert back_registers(_square(16, 16), (1024, 1, 256), "f32", small) is None
    assert back_registers(_square(16, 16), (1024, 256, 1), "f32", small) is not None


def test_short_axes_take_it():
    for sizes, before in ((_square(16, 16), 256), (_square(12, 12), 144), (_square(4, 4, 4, 4), 64)):
        plan = back_registers(sizes, (1024, before, 1), "f32", HOPPER)
        assert plan is not None
        chosen, seconds = pass_over(sizes, (1024, before, 1, 1), "f32", HOPPER)
        assert chosen == plan
        assert seconds == back_registers_seconds(plan, 1024 * before, 1, HOPPER)
    beside, _ = pass_over(_square(8, 8), (1024, 1, 64, 64), "f32", HOPPER)  # a matrix would have several rows of x
    assert beside != back_registers(_square(8, 8), (1024, 1, 4096), "f32", HOPPER)


def test_a_block_shares_tiles_of_long_rows():
    """By a block 286 us in float32 and 110 in bfloat16, by warps alone 384 and 148; before, 369 and 265 (H200)."""
    for stored in ("f32", "bf16"):
        plan, _ = pass_over(_square(16, 16), (1024, 1, 256, 1), stored, HOPPER)
        assert isinstance(plan, BackRegistersPlan)
        assert plan.team > WARP
