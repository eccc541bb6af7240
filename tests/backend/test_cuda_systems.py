"""Kernels for small systems compile for every generation without spilling; plans fit the order and the batch."""

import itertools

import pytest

from kernmantle.backends.cuda.emit import headers
from kernmantle.backends.cuda.system_plan import MOST, THREADS, SystemPlan, emit, width_for

from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

STEPS = [(False, False, True, True), (True, False, True, True), (True, True, False, True), (True, False, True, False)]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("steps", STEPS)
def test_kernels_compile_without_spilling(card, steps):
    taken = compile_source(emit(SystemPlan("f64", MOST, *steps, card)), card, headers(), "system").resources
    assert taken.spill_stores == taken.stack == 0
    assert taken.registers <= 128
    assert taken.shared <= 48 << 10


def test_every_plan_has_a_text_of_its_own():
    plans = [
        SystemPlan(compute, width, *steps, "sm_90")
        for compute, width, steps in itertools.product(("f32", "f64"), (4, 8, 16, 32), STEPS)
    ]
    assert len({emit(plan) for plan in plans}) == len(plans)
    assert len({str(plan) for plan in plans}) == len(plans)


def test_lanes_hold_every_row_and_blocks_every_system():
    for order in range(1, MOST + 1):
        width = width_for(order)
        assert order <= width <= max(4, 2 * order - 1)
        assert 32 % width == 0
        plan = SystemPlan("f32", width, True, False, True, True, "sm_90")
        for count in (1, 31, 32, 33, 10**6):
            blocks = plan.blocks(count, 132)
            assert blocks == 16 * 132 or (blocks - 1) * (THREADS // width) < count <= blocks * (THREADS // width)
