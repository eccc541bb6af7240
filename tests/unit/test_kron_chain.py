"""All gradients of a chain of factors in one pass: which there are, and what their phases do with shared memory."""

import math
import re

import numpy as np
import pytest

from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.structured.kron import chain_gradient_plan
from kernmantle.structured.kron.chain_gradient_plan import ChainPlan, chain, grouped
from kernmantle.structured.kron.gradient_emit import emit
from kernmantle.testing import assert_close

HOPPER = CARDS["sm_90"]
SIZES = [
    ((8, 8), (8, 8), (8, 8)), ((10, 10), (11, 11), (12, 12)), ((9, 9), (2, 2), (2, 2), (16, 16)), ((34, 34), (10, 10)),
    ((3, 5), (4, 2), (7, 9)), ((6, 20), (14, 10), (5, 5), (10, 2)), ((7, 7),),
]  # fmt: skip

APPLIED = re.compile(r" +Chain::apply<(\d+), (\w+), (\w+)>\((\S+(?: \+ \d+)?), values \+ (\d+), tables \+ (\d+)")


def _square(*extents):
    return tuple((extent, extent) for extent in extents)


def _value(memory, plan, stage, at):
    """A value of a stage in shared memory from a place on: entries before the axes, the axes, columns."""
    shape = (plan.items, *plan.extents(stage), plan.across)
    steps = [plan.pitches[stage][0] * shape[1], *plan.pitches[stage], 1]
    end = at + sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
    assert end < len(memory)
    return np.lib.stride_tricks.as_strided(memory[at:], shape, [8 * step for step in steps])


def _along(value, matrix, axis):
    return np.moveaxis(np.tensordot(matrix, value, axes=(1, axis + 1)), 0, axis + 1)


def _followed(plan, x, v, factors):
    """What leaves a tile and the sums of each axis, by the emitted lines."""
    memory, found, out = np.full(plan.slots[-1], np.nan), {}, None
    text = emit(plan)
    copies, phases = text.partition("const auto fetch")[2].split("};")[0], text.partition("for (long")[2]
    for line in [*copies.splitlines(), *phases.splitlines()]:
        if copy := re.match(r" +Chain::fetch<(\d+)>\(values \+ (\d+), g\.(\w),", line):
            stage, at = int(copy[1]), int(copy[2])
            _value(memory, plan, stage, at)[:] = x if copy[3] == "x" else v
        elif own := re.match(r" +sum(\d+)\.add\(values \+ (\d+), values \+ (\d+),", line):
            axis, of_v, of_x = map(int, own.groups())
            left, right = (_value(memory, plan, axis + 1 - side, at) for side, at in ((0, of_v), (1, of_x)))
            sides = [np.moveaxis(value, axis + 1, 0).reshape(value.shape[axis + 1], -1) for value in (left, right)]
            found[axis] = sides[0] @ sides[1].T
        elif own := APPLIED.match(line):
            axis, back = int(own[1]), own[2] == "true"
            assert int(own[6]) == plan.tables[axis][back]
            source = _value(memory, plan, axis + back, int(own[5]))
            value = _along(source, factors[axis].T if back else factors[axis], axis).copy()
            if own[3] == "true":
                out = value
            else:
                _value(memory, plan, axis + 1 - back, int(own[4].split()[-1]))[:] = value
    return out, [found[axis] for axis in range(len(plan.axes))]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("items", "across"), [(3, 1), (2, 5)])
def test_phases_find_all_gradients(sizes, items, across):
    plan = ChainPlan(grouped(sizes), "f32", "sm_90", items, across, across > 1, 1)
    random = np.random.default_rng(0)
    factors = [random.standard_normal(axis) for axis in plan.axes]
    v, x = (random.standard_normal((items, *(size[side] for size in plan.axes), across)) for side in (0, 1))
    out, sums = _followed(plan, x, v, factors)
    left, right = [v], [x]
    for axis, factor in enumerate(factors[:-1]):
        right.append(_along(right[-1], factor, axis))
    for axis in reversed(range(len(factors))):
        sides = [
            np.moveaxis(value, axis + 1, 0).reshape(value.shape[axis + 1], -1) for value in (left[-1], right[axis])
        ]
        assert_close(sums[axis], sides[0] @ sides[1].T, depth=v.size)
        left.append(_along(left[-1], factors[axis].T, axis))
    assert_close(out, left[-1], depth=sum(map(max, plan.axes)))


def test_small_neighbours_are_one_axis():
    assert grouped(_square(5, 5, 5, 5, 5, 5)) == (_square(5, 5),) * 3
    assert grouped(_square(2, 5, 3, 27, 2, 7)) == (_square(2, 5, 3), _square(27), _square(2, 7))
    assert grouped(_square(10, 10)) == (_square(10), _square(10))
    assert grouped(_square(4, 4), 8) == (_square(4), _square(4))
    assert grouped(_square(4, 49)) == ()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("extents", "across"), [((8,) * 4, 1), ((16,) * 3, 1), ((12,) * 4, 1), ((8, 8), 32), ((16, 16), 16)]
)
def test_few_accesses_of_a_warp_meet_in_a_bank(extents, across, size):
    found = chain_gradient_plan._pitches(extents, across, size)
    plain = [across * math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
    assert all(own >= least for own, least in zip(found, plain, strict=True))
    assert found[0] * extents[0] <= 1.3 * plain[0] * extents[0]
    waits = [chain_gradient_plan._waits(extents, own, across, size) for own in (found, plain)]
    assert waits[0] <= min(1.8, waits[1])


def test_tiles_that_have_a_multiprocessor_each_have_more_threads():
    for sizes, rows in (((3, 24, 4, 13), 10), ((12, 11, 13), 130)):
        few, many = (chain(_square(*sizes), count, 1, "f32", HOPPER) for count in (rows, 100 * rows))
        assert few is not None
        assert many is not None
        assert (few.threads, many.threads) == (512, 256)


def test_what_does_not_fit_has_no_pass():
    assert chain(_square(32, 32, 32, 32), 10, 1, "f32", HOPPER) is None
    assert chain(_square(64, 8), 10, 1, "f32", HOPPER) is None
    assert chain(_square(8, 8), 10, 1, "f64", HOPPER) is None
    assert chain(_square(*[2] * 13), 10, 1, "f32", HOPPER) is None
    for sizes, right in ((_square(12, 12, 12), 1), (_square(8, 8), 1000), (((6, 20), (14, 10)), 1)):
        plan = chain(sizes, 500, right, "f32", HOPPER)
        assert plan is not None
        assert plan.shared <= HOPPER.shared_per_block
        assert plan.blocks * (plan.shared + 1024) <= HOPPER.shared_per_sm
        assert plan.tiles(500, right) * plan.items * plan.across >= 500 * right
