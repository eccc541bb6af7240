"""Kernels for eigenvalues of small matrices compile for every generation; plans fit order and batch."""

import itertools

import pytest

from kernmantle.backends.cuda.eigen_plan import BY_LANES, BY_THREAD, MOST, THREADS, EigenPlan, emit, width_for
from kernmantle.backends.cuda.emit import headers

from ..golden.compiled import compile_source
from .test_cuda_compile import CARDS

# 255 registers are all there are; what is stored are loads of the Rayleigh quotients, after the sweeps.
SPILLS = {("sm_100", "f64", 32): 64}
OTHERS = {
    "sm_80": (("f32", 64), ("f64", 48)), "sm_86": (("f32", 8), ("f64", 32)),
    "sm_100": (("f32", 64), ("f64", 32)), "sm_120": (("f32", 8), ("f64", 48)),
}  # fmt: skip
"""Each kind of kernel on two more generations, each generation with two kinds."""
WIDTHS = (1, 2, 3, 4, 8, 16, 32, 40, 48, 56, 64)


@pytest.mark.parametrize(
    ("card", "compute", "width"),
    [
        *itertools.product(["sm_90"], ["f32", "f64"], [3, 8, 32, 40, 48, 56, 64]),
        *((card, *each) for card, cases in OTHERS.items() for each in cases),
    ],
)
def test_kernels_compile_without_spilling(card, compute, width):
    taken = compile_source(emit(EigenPlan(compute, width, True, card)), card, headers(), "eigen").resources
    assert max(taken.spill_stores, taken.stack) <= SPILLS.get((card, compute, width), 0)
    assert taken.shared <= (48 << 10 if width > BY_LANES else 0)
    assert taken.registers <= 255


def test_every_generation_is_compiled():
    assert {"sm_90", *OTHERS} == set(CARDS)


def test_every_plan_has_a_text_of_its_own():
    plans = [EigenPlan(*each, "sm_90") for each in itertools.product(("f32", "f64"), WIDTHS, (True, False))]
    assert len({emit(plan) for plan in plans}) == len(plans)
    assert len({str(plan) for plan in plans}) == len(plans)


def test_lanes_and_blocks_have_every_matrix():
    for order in range(1, MOST + 1):
        width = width_for(order)
        assert width in WIDTHS
        assert order <= width <= max(4, 2 * order - 1 if order <= BY_LANES else order + 7)
        assert width == order or order > BY_THREAD
        plan = EigenPlan("f32", width, True, "sm_90")
        per_block = THREADS if width <= BY_THREAD else THREADS // width if width <= BY_LANES else 1
        for count in (1, 31, 32, 33, 10**6):
            blocks = plan.blocks(count, 132)
            assert blocks == 16 * 132 or (blocks - 1) * per_block < count <= blocks * per_block
