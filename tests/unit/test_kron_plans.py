"""Passes of Kronecker products on a GPU: which factors have kernels, and what the axes around them change."""

from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron.cuda_plan import plan
from kernmantle.structured.kron.mma_plan import Tensor, takes
from kernmantle.structured.kron.modes import Mode

HOPPER = DeviceLimits("sm_90", 132, 232448, 233472, 65536, 2048)


def test_narrow_factors_have_kernels_where_the_other_side_fills_fragments():
    split, halves, doubles = Tensor("f16", 3), Tensor("bf16", 1), Tensor("f64", 1)
    assert takes(Mode(126, 2, 0), halves)
    assert takes(Mode(3, 30, 0), split)
    assert takes(Mode(8, 8, 0), doubles)
    assert not takes(Mode(30, 3, 0), doubles)
    assert not takes(Mode(4, 12, 0), halves)
    assert not takes(Mode(30, 1, 0), halves)
    assert takes(Mode(233, 233, 0), halves)
    assert takes(Mode(190, 190, 0), split)
    assert not takes(Mode(193, 193, 0), split)


def test_axes_without_a_factor_change_nothing_of_a_plan():
    """Passes beside such axes were taken for ones that the others follow: 25 x 4 and 8 x 2 took 685 us, not 117."""
    factors, kept = (Mode(2, 8, 0), Mode(4, 25, 1)), (Mode(45, 45), Mode(38, 38))
    alone = plan(factors, 1, "bf16", HOPPER, True, Tensor("bf16", 1), 392 * 45 * 38)
    among = plan((*kept, *factors), 1, "bf16", HOPPER, True, Tensor("bf16", 1), 392)
    assert among.seconds == alone.seconds
    assert [str(own) for own in among.passes] == [str(own) for own in alone.passes]
