"""Passes of Kronecker products on a GPU: which factors have kernels, and what the axes around them change."""

import math
from dataclasses import replace

import pytest
import torch

from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import cuda, fma_plan
from kernmantle.structured.kron.arrays import arranged
from kernmantle.structured.kron.cost import SIZES, axis_seconds, fma_seconds
from kernmantle.structured.kron.cuda import eager_plan, planned_for, tensor_for
from kernmantle.structured.kron.cuda_plan import plan
from kernmantle.structured.kron.mma_choice import takes
from kernmantle.structured.kron.mma_plan import mma_candidates
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.passes import Pass, between, plain_pass
from kernmantle.structured.kron.run import SAVING
from kernmantle.structured.kron.tensor_plan import MmaLayout, Tensor

HOPPER = DeviceLimits("sm_90", 132, 232448, 233472, 65536, 2048)


def test_narrow_factors_have_kernels_where_the_other_side_fills_fragments():
    split, halves, doubles = Tensor("f16", 3), Tensor("bf16", 1), Tensor("f64", 1)
    assert takes(Mode(126, 2, 0), halves)
    assert takes(Mode(3, 30, 0), split)
    assert takes(Mode(8, 8, 0), doubles)
    assert not takes(Mode(30, 3, 0), doubles)
    assert takes(Mode(4, 12, 0), halves)
    assert takes(Mode(2, 2, 0), split)
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


def _with_eager(extents, rows, dtype):
    modes = tuple(Mode(extent, extent, index) for index, extent in enumerate(extents))
    tensor = tensor_for(dtype, "default", HOPPER.arch)

    def planned(host):
        return plan(modes, 1, dtype, HOPPER, True, tensor, rows, host=host)

    return eager_plan(planned(1.0), planned)


@pytest.mark.parametrize(("extents", "rows", "dtype"), [((64, 64), 10, "f32")])
def test_eager_calls_that_wait_for_the_host_take_one_launch(extents, rows, dtype):
    """Two products of the vendor's take the device 5 to 8 us and the host 85 to 107 us, one kernel 12 and 36 (H200)."""
    found = _with_eager(extents, rows, dtype)
    assert [run.kind for run in found.passes] == ["matmul", "matmul"]
    assert [run.kind for run in found.eager.passes] == ["mma"]
    assert str(found.eager).startswith(
        "3 products of scaled f16 halves, mma" if dtype == "f32" else "f64 tensor cores, mma"
    )


def test_eager_calls_that_wait_for_the_device_take_what_it_takes_least():
    assert _with_eager((64, 64, 64), 1024, "f32").eager is None
    assert _with_eager((256, 256), 1024, "f32").eager is None


def test_five_by_five_in_float64_is_one_pass_of_additions():
    """312 us on tensor cores, padded to 25 x 25, 117 by additions (1024 x 5^6, H200)."""
    (run,) = _with_eager((5,) * 6, 1024, "f64").passes
    assert run.kind == "fma"
    assert {run.kind for run in _with_eager((16,) * 4, 1024, "f64").passes} == {"mma"}
    assert [run.kind for run in _with_eager((31, 31), 1024, "f64").passes] == ["mma"]


def test_the_order_of_least_time_replaces_a_clearly_slower_one():
    """126 x 2 with 58 x 2 and then 5 x 10 take 76 us, 58 x 2 before the others 87, torch's matrix 82 (H200)."""
    factors = (Mode(5, 10, 0), Mode(126, 2, 1), Mode(58, 2, 2))
    found = plan(factors, 1, "f16", HOPPER, True, Tensor("f16", 1), 1836)
    assert [str(own) for own in found.passes] == ["mma 2x126*2x58", "fma 10x5"]


def test_another_order_than_that_of_fewest_multiplications_where_it_is_much_quicker():
    """98 us, and 135 with the other pass first (H200)."""
    factors = (Mode(2, 13, 0), Mode(2, 24, 1), Mode(5, 56, 2))
    found = plan(factors, 1, "bf16", HOPPER, True, Tensor("bf16", 1, has_wgmma=True), 7681)
    assert [str(own) for own in found.passes] == ["mma 13x2", "two_axis 24x2*56x5"]


@pytest.mark.parametrize(
    ("rows", "extents", "stored", "passes"),
    [
        (17, (163, 51, 52), "f16", ["two_axis 51x51*52x52", "axis 163x163"]),  # 44.6 us, by the vendor's product 60
        (19, (177, 16, 64), "f16", ["mma 16x16*64x64", "axis 177x177"]),  # 20.8 us, 36.4
        (871, (20, 105), "bf16", ["two_axis 20x20*105x105"]),  # 10.1 us, by mma.sync 12.0
        (512, (67, 6), "bf16", ["two_axis 67x67*6x6"]),  # 5.3 us, by mma.sync 6.2, by the matrix of both 9.9
        (64, (256, 256), "f32", ["matmul 256x256", "matmul 256x256"]),  # 100 us, over one axis each 159
        (2000, (10,) * 4, "f32", ["fma 10x10*10x10*10x10*10x10"]),  # 87 us, over 100 x 100 twice 159
        (1024, (60, 60), "f32", ["mma 60x60*60x60"]),  # 23.2 us, over two axes 25.8
    ],
)
def test_products_that_were_timed_by_several_plans_take_the_quickest(rows, extents, stored, passes):
    """Times of one H200."""
    half = Tensor("f16", 3, has_wgmma=True) if stored == "f32" else Tensor(stored, 1, has_wgmma=True)
    aligned = replace(half, is_aligned=math.prod(extents) * (4 if stored == "f32" else 2) % 16 == 0)
    modes = tuple(Mode(extent, extent, index) for index, extent in enumerate(extents))
    assert [str(own) for own in plan(modes, 1, stored, HOPPER, True, aligned, rows).passes] == passes


@pytest.mark.parametrize(("extent", "right", "warps"), [(72, 9504, 8), (96, 1960, 8), (69, 1, 12), (32, 9504, 16)])
def test_eight_warps_have_a_wide_factor_of_halves_alone(extent, right, warps):
    run = plain_pass("mma", [Mode(extent, extent, 0)], 0, 1)
    layout = MmaLayout(16 if right > 1 else 2, 4 if right > 1 else 1, False)
    found = mma_candidates(run, ((extent, extent),), "bf16", Tensor("bf16", 1), layout, right, HOPPER)
    assert found[0].warps == warps


@pytest.mark.parametrize("extents", [(8,) * 6, (64,) * 3])
def test_large_powers_of_eight_are_those_of_sixty_four(extents):
    """1.25 ms on tensor cores, 2.0 by additions three at a time (1024 rows, H200)."""
    found = _with_eager(extents, 1024, "f32")
    assert [str(own) for own in found.passes] == ["mma 64x64*64x64", "mma 64x64"]
    assert [run.kind for run in _with_eager((8,) * 5, 1024, "f32").passes] == ["fma"]
    # 4.2 ms where both passes are additions
    assert "mma" in {run.kind for run in _with_eager((4,) * 9, 1024, "f32").passes}


@pytest.mark.parametrize(
    ("extent", "count", "stored", "tensor", "passes"),
    [(4, 9, "f32", Tensor("f16", 3), [9]), (32, 4, "bf16", Tensor("bf16", 1), [2, 2])],
)
def test_powers_take_the_passes_that_were_measured_to_be_quicker(extent, count, stored, tensor, passes):
    """32 x 32 four times take 2.34 ms, in three and one 2.60; 4 x 4 nine times in one pass 0.84 (H200)."""
    modes = tuple(Mode(extent, extent, index) for index in range(count))
    aligned = replace(tensor, has_wgmma=True, is_aligned=True)
    found = plan(modes, 1, stored, HOPPER, True, aligned, 1024)
    assert [run.stop - run.first for run in found.passes] == passes


def test_neighbours_are_one_factor_of_tensor_cores_where_two_phases_take_longer():
    """12 x 12 beside 8 x 8 takes 430 us for 134 million numbers of float16, the 96 x 96 of both some 200 (H200)."""
    modes = tuple(Mode(extent, extent, index) for index, extent in enumerate((3, 4, 4, 2)))
    found = plan(modes, 1, "f16", HOPPER, True, Tensor("f16", 1), 1 << 20, ("mma", "fma"))
    assert [str(run) for run in found.passes] == ["mma 96x96"]
    assert found.passes[0].parts == ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("rows", "sizes", "dtype", "kinds"),
    [
        (3, ((46, 46), (54, 54)), torch.float32, ["matmul", "matmul"]),  # 10.0 us, in one pass 10.6 (H200)
        (1, ((29, 29), (8, 8)), torch.float16, ["fma"]),  # 4.0 us, 5.4
    ],
)
def test_small_captured_products_take_the_vendors_where_these_are_quicker(rows, sizes, dtype, kinds):
    x, out = (
        torch.empty(rows, math.prod(size[side] for size in sizes), 1, dtype=dtype, device="meta") for side in (0, 1)
    )
    factors = [torch.empty(q, p, dtype=dtype, device="meta") for p, q in sizes]
    modes = tuple(Mode(p, q, index) for index, (p, q) in enumerate(sizes))
    found, _ = planned_for(HOPPER, modes, arranged(x, factors, None, out), "default fuse")
    assert [run.kind for run in found.passes] == kinds


@pytest.mark.parametrize(
    ("extent", "count", "wanted", "alone", "saved"),
    [
        (16, 4, "11111", 1, ((2, 3),)),  # all gradients take 834 us without it, 678 with it; one pass saves 110 of 303
        (8, 5, "111111", 1, ((1, 2, 3, 4),)), (64, 2, "111", 1, ()), (8, 3, "1111", 1, ()),
        (16, 4, "01000", 1, ((1, 2, 3),)),
        (32, 3, "1111", 1, ((1, 2),)),  # 278 us and 352, with the product 436 and 443, by a pass that is slower alone
    ],
)  # fmt: skip
def test_a_product_leaves_what_pays_for_its_gradients(extent, count, wanted, alone, saved):
    """1024 rows, H200."""
    x = torch.empty(1024, extent**count, 1, device="meta")
    arrays = arranged(x, [torch.empty(extent, extent, device="meta") for _ in range(count)], None, torch.empty_like(x))
    modes = tuple(Mode(extent, extent, index) for index in range(count))
    assert len(planned_for(HOPPER, modes, arrays, "default fuse")[0].passes) == alone
    found, _ = planned_for(HOPPER, modes, arrays, f"default {SAVING} {wanted} fuse")
    assert between(found.passes) == saved


@pytest.mark.parametrize(
    ("extents", "rows", "dtype", "saved"),
    [
        ((30, 2, 12, 7, 69), 385, torch.bfloat16, ((4,), (2, 3, 4))), ((45, 9, 2), 579, torch.bfloat16, ((1, 2),)),
        ((9, 2, 15, 2, 15, 3, 27), 204, torch.float32, ((6,), (4, 5, 6))),
    ],
)  # fmt: skip
def test_a_pass_over_two_axes_saves_what_comes_between_its_products(extents, rows, dtype, saved):
    """Where gradients find it, of rows that follow each other, alone."""
    x = torch.empty(rows, math.prod(extents), 1, dtype=dtype, device="meta")
    factors = [torch.empty(extent, extent, dtype=dtype, device="meta") for extent in extents]
    modes = tuple(Mode(extent, extent, index) for index, extent in enumerate(extents))
    options = f"default {SAVING} {'1' * (1 + len(extents))} fuse"

    def found(x, options):
        return planned_for(HOPPER, modes, arranged(x, factors, None, torch.empty_like(x)), options)[0]

    saving = found(x, options)
    assert between(saving.passes) == saved
    assert [run.saves for run in saving.passes] == [run.kind == "two_axis" for run in saving.passes]
    apart = torch.empty(rows, 2 * math.prod(extents), 1, dtype=dtype, device="meta")[:, ::2]
    for plain in (found(x, "default fuse"), found(apart, options)):
        assert not any(run.saves for run in plain.passes)


@pytest.mark.parametrize(("most", "saved"), [(3.5, 3), (2.5, 2), (1.5, 1)])
def test_no_more_is_saved_than_may_be(monkeypatch, most, saved):
    """In units of x: [65 11 41 16 2] of float32 saves three where it may; with none its gradients took 3488 us."""
    extents = (65, 11, 41, 16, 2)
    x = torch.empty(143, math.prod(extents), 1, device="meta")
    factors = [torch.empty(extent, extent, device="meta") for extent in extents]
    modes = tuple(Mode(extent, extent, index) for index, extent in enumerate(extents))
    monkeypatch.setattr(cuda, "most_saved", lambda device: most * 4 * x.numel())
    arrays = arranged(x, factors, None, torch.empty_like(x))
    found, _ = planned_for(HOPPER, modes, arrays, f"default {SAVING} 111111 fuse")
    assert len(between(found.passes)) == saved


@pytest.mark.parametrize("wanted", [((0,),), ((2,), (1, 2)), ((0,), (0, 1)), ((1, 2),), ((0, 1),)])
def test_passes_are_cut_and_ordered_for_what_follows_them(wanted):
    """Whatever of it would make what follows free is saved, though all passes over 40 x 40 take about as long."""
    modes, tensor = tuple(Mode(40, 40, index) for index in range(3)), Tensor("bf16", 1)

    def after(saved):
        return 0.0 if set(saved) >= set(wanted) else 1.0

    found = plan(modes, 1, "bf16", HOPPER, True, tensor, 4096, after=after)
    assert set(between(found.passes)) >= set(wanted)
    assert found.seconds < 2 * plan(modes, 1, "bf16", HOPPER, True, tensor, 4096).seconds
    alone = plan(modes, 1, "bf16", HOPPER, True, tensor, 4096, after=lambda saved: 0.0)
    assert alone.seconds <= found.seconds


def test_passes_that_should_take_less_alone_limit_no_cuts():
    """What passes over 5 x 10 and 126 x 2 should take before and after each other adds up to less than both take."""
    modes = Mode(5, 10, 0), Mode(126, 2, 1), Mode(58, 2, 2)
    saved: list[tuple[tuple[int, ...], ...]] = []

    def after(own):
        saved.append(own)
        return 0.0

    plan(modes, 1, "f16", HOPPER, True, Tensor("f16", 1), 1836, after=after)
    assert {((1, 2),), ((0, 1),), ((2,), (1, 2)), ((1,), (1, 2))} <= set(saved)


@pytest.mark.parametrize(
    ("extents", "rows", "passes"),
    [((8,) * 8, 16, [6, 2]), ((128, 64, 64, 64), 16, [3, 1]), ((32,) * 4, 32, [3, 1]), ((3, *(16,) * 4), 64, [2, 3])],
)
def test_the_last_axes_of_a_product_are_whole_rows_of_one_pass(extents, rows, passes):
    """Three of 64 or 32, not four of 16, beside which an axis more takes other kernels longer than one pass saves."""
    modes = tuple(Mode(extent, extent, index) for index, extent in enumerate(extents))
    tensor = Tensor("f16", 3, has_wgmma=True, is_aligned=True)
    found = plan(modes, 1, "f32", HOPPER, True, tensor, rows)
    assert [run.stop - run.first for run in found.passes] == passes
    unaligned = plan(modes, 1, "f32", HOPPER, True, replace(tensor, is_aligned=False), rows)
    assert max(len(run.modes) for run in unaligned.passes) < 3 or extents[0] == 3


# Rows, size, factors, type and microseconds of additions in one pass on an H200, where tensor cores took up to 3.7
# times as long (decision 0095).
ALIKE = (
    (1024, 5, 6, "f32", 73), (300, 5, 6, "f32", 24), (1024, 7, 5, "f32", 77), (500, 3, 9, "f32", 45),
    (4000, 5, 5, "f32", 63), (1024, 4, 7, "f64", 95), (2967, 4, 7, "f64", 259), (500, 4, 7, "f64", 51),
)  # fmt: skip


@pytest.mark.parametrize(("rows", "size", "count", "dtype", "taken"), ALIKE)
def test_many_factors_of_one_size_are_additions_in_one_pass(rows, size, count, dtype, taken):
    modes = tuple(Mode(size, size, index) for index in range(count))
    found = plan(modes, 1, dtype, HOPPER, True, tensor_for(dtype, "default", HOPPER.arch), rows)
    assert [run.kind for run in found.passes] == ["fma"]
    assert 0.6 < taken / (1e6 * found.seconds) < 1.4


@pytest.mark.parametrize(
    ("rows", "size", "count", "dtype"), [(1024, 8, 6, "f64"), (1024, 2, 12, "f64"), (256, 8, 7, "f64")]
)
def test_other_sizes_stay_on_tensor_cores(rows, size, count, dtype):
    modes = tuple(Mode(size, size, index) for index in range(count))
    found = plan(modes, 1, dtype, HOPPER, True, tensor_for(dtype, "default", HOPPER.arch), rows)
    assert {run.kind for run in found.passes} == {"mma"}


# Rows, extents, columns to their right, type and microseconds of passes of additions on an H200 (decision 0118).
ADDITIONS = (
    (19, (20, 2), 1, "bf16", 2.6), (605, (3, 2, 28), 1, "f16", 10.3), (1815, (2, 28), 1, "f16", 14.5),
    (11, (2, 19), 1, "f32", 2.4), (1, (4, 14), 169, "f32", 8.9), (9864, (10, 4, 2, 17, 2, 5), 1, "f32", 665),
    (366540, (6,), 1, "bf16", 16.7), (466004, (3, 2, 8, 3, 2), 1, "f32", 773),
)  # fmt: skip


@pytest.mark.parametrize(("rows", "extents", "right", "stored", "taken"), ADDITIONS)
def test_additions_take_what_their_instructions_do(rows, extents, right, stored, taken):
    """Few threads that multiply one after the other, and many accesses, take long: both are counted."""
    run = plain_pass("fma", [Mode(extent, extent, index) for index, extent in enumerate(extents)], 0, len(extents))
    chosen = fma_plan.plan_of(run, stored, rows, right, HOPPER)
    moved = 2.0 * SIZES[stored] * rows * right * math.prod(extents)
    assert 0.6 < taken / (1e6 * fma_seconds(chosen, chosen.count(rows, right), moved, HOPPER)) < 1.7


@pytest.mark.parametrize(
    ("right", "count", "sizes", "measured"),
    [(7, 25740, (55, 219), 128.0), (6, 10664, (14, 227), 35.7), (238, 3749, (9, 63), 78.1), (680, 143, (5, 200), 16.2)],
)
def test_halves_along_an_axis_that_grows_take_what_their_results_do(right, count, sizes, measured):
    """By their columns alone they were expected at 62, 15, 41 and 14 us (H200)."""
    mode = Mode(*sizes, 0)
    one = Pass("axis", 0, 1, (mode,), ((0,),))
    assert 0.7 < 1e6 * axis_seconds(one, count, right, "bf16", HOPPER) / measured < 1.3
