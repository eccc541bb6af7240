"""All gradients of a Kronecker product in a few passes: which there are, and what is made of the blocks' shares."""

import ctypes
import math

import numpy as np
import pytest
import torch

from kernmantle import kron_matmul
from kernmantle.contraction.cuda_tiles import DeviceLimits
from kernmantle.contraction.kron_back import BackPlan, back, grouped
from kernmantle.contraction.kron_modes import parse, text_of
from kernmantle.ops import kron_back
from kernmantle.testing import assert_close

HOPPER = DeviceLimits("sm_90", 132, 232448, 233472, 65536, 2048)


def _array(address, shape, strides=None):
    flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (math.prod(shape),))
    if strides is None:
        return flat.reshape(shape)
    return np.lib.stride_tricks.as_strided(flat, shape, [4 * step for step in strides])


def _step(plan, arguments):
    """What leaves a pass and the gradients of its factors, by torch in float64."""
    v, x, out, _, *rest = arguments
    pointers, strides, (lines, width, slope) = rest[:4], rest[4:12], rest[12:]
    used = [*range(len(plan.first)), *range(2, 2 + len(plan.last))]
    factors = [
        torch.tensor(_array(pointers[n], (size, size), strides[2 * n : 2 * n + 2])).double().requires_grad_()
        for n, size in zip(used, plan.sizes, strict=True)
    ]
    shape = (-1, *plan.first, *plan.last, width if plan.beside else 1)
    wide = torch.tensor(_array(x, (lines, width))).double().reshape(shape).requires_grad_()
    value = wide
    for place, factor in enumerate(factors):
        value = torch.tensordot(value, factor, dims=([place + 1], [1])).movedim(-1, place + 1)
    above = torch.tensor(_array(v, (lines, width))).double().reshape(shape)
    found, *grads = torch.autograd.grad(value, (wide, *factors), above)
    assert [type(value) for value in arguments] == [int] * 18 + [float]
    _array(out, (lines, width))[:] = slope * found.reshape(lines, width).numpy()
    return torch.cat([grad.flatten() for grad in grads]).numpy()


@pytest.fixture
def started(monkeypatch):
    """A pass by torch; the plans that were started."""
    starts = []

    def start(plan, index, blocks, arguments):
        whole = _step(plan, arguments)
        shares = np.random.default_rng(0).random((blocks, 1))
        _array(arguments[3], (blocks, plan.parts))[:] = shares / shares.sum() * whole
        starts.append(plan)

    monkeypatch.setattr(kron_back, "_LOADED", {})
    monkeypatch.setattr(kron_back, "index_of", lambda device: 0)
    monkeypatch.setattr(kron_back, "limits", lambda index: HOPPER)
    monkeypatch.setattr(kron_back, "fetch", lambda job: b"")
    monkeypatch.setattr(kron_back, "resident", lambda kernel, index: 2)
    monkeypatch.setattr(kron_back, "start", start)
    return starts


def _plan_of(monkeypatch, extents, right):
    """Kernels that are their plans."""
    titles = {str(plan): plan for plan, _ in back(extents, right, "f32", "sm_90", HOPPER.shared_per_block)}
    monkeypatch.setattr(kron_back, "Kernel", lambda *_, title, **__: titles[title])


@pytest.mark.parametrize(
    ("extents", "right"),
    [((8,) * 5, 1), ((16,) * 4, 1), ((32,) * 3, 1), ((8, 8, 8), 1), ((4, 4, 2, 8), 1), ((16, 16), 12), ((8,), 4)],
)
def test_passes_give_every_gradient(started, monkeypatch, extents, right):
    _plan_of(monkeypatch, extents, right)
    torch.manual_seed(1)
    count, width = 3, math.prod(extents)
    x, grad = torch.randn(count, width, right), torch.randn(count, width, right)
    factors = [
        torch.randn(size, size).mT if place % 2 else torch.randn(size, size) for place, size in enumerate(extents)
    ]
    modes = parse(text_of(range(len(extents))), tuple((size, size) for size in extents))
    chosen = kron_back.plans(modes, factors, x)
    assert chosen

    def apply(value, places):
        return kron_matmul(value, [math.prod(extents[: places[0]]), *(factors[place] for place in places)], side="left")

    dx, found = kron_back.gradients(chosen, modes, factors, x, grad, 0.5, apply)
    exact = [tensor.double().requires_grad_() for tensor in (x, *factors)]
    product = kron_matmul(exact[0], exact[1:], side="left")
    wanted = torch.autograd.grad(product, exact, grad.double())
    assert_close(dx, 0.5 * wanted[0], depth=sum(extents), magnitude=wanted[0].abs().max())
    for place in range(len(extents)):
        assert_close(found[place], wanted[place + 1], depth=x.numel(), magnitude=wanted[place + 1].abs().max())
    assert [str(plan) for plan in started] == [str(plan) for plan, _ in chosen]


@pytest.mark.parametrize(
    ("text", "extents", "right"),
    [("i3 0 1 i4", (16, 16), 4), ("i3 0 1", (16, 64), 1), ("0 i8", (8,), 8), ("0 i4", (16,), 12)],
)
def test_identities_stand_before_and_behind(started, monkeypatch, text, extents, right):
    before, columns = 3 if text.startswith("i3") else 1, 3 if right == 12 else 1
    titles = [*back(extents, right, "f32", "sm_90", HOPPER.shared_per_block, before, columns)]
    monkeypatch.setattr(kron_back, "Kernel", lambda *_, title, **__: {str(plan): plan for plan, _ in titles}[title])
    modes = parse(text, tuple((size, size) for size in extents))
    entries = math.prod(mode.columns for mode in modes)
    x, grad = torch.randn(2, entries, columns), torch.randn(2, entries, columns)
    factors = [torch.randn(size, size) for size in extents]
    given = [int(entry[1:]) if entry.startswith("i") else factors[int(entry)] for entry in text.split()]

    def apply(value, places):
        own = [modes[place].columns if place not in places else given[place] for place in range(len(given))]
        return kron_matmul(value, own, side="left")

    dx, found = kron_back.gradients(kron_back.plans(modes, factors, x), modes, factors, x, grad, 1.0, apply)
    exact = [tensor.double().requires_grad_() for tensor in (x, *factors)]
    wide = [
        entry if isinstance(entry, int) else exact[1 + int(name)]
        for entry, name in zip(given, text.split(), strict=True)
    ]
    wanted = torch.autograd.grad(kron_matmul(exact[0], wide, side="left"), exact, grad.double())
    assert_close(dx, wanted[0], depth=sum(extents), magnitude=wanted[0].abs().max())
    for number, one in found.items():
        assert_close(one, wanted[number + 1], depth=x.numel(), magnitude=wanted[number + 1].abs().max())
    assert len(found) == len(factors)


def test_a_factor_that_stands_twice_has_one_gradient(started, monkeypatch):
    _plan_of(monkeypatch, (16, 16), 1)
    x, grad, factor = torch.randn(5, 256, 1), torch.randn(5, 256, 1), torch.randn(16, 16)
    modes = parse("0 0", ((16, 16),))
    chosen = kron_back.plans(modes, [factor], x)
    found = kron_back.gradients(chosen, modes, [factor], x, grad, 1, lambda value, places: value)[1]
    exact = factor.double().requires_grad_()
    (wanted,) = torch.autograd.grad(kron_matmul(x.double(), [exact, exact], side="left"), exact, grad.double())
    assert_close(found[0], wanted, depth=x.numel(), magnitude=wanted.abs().max())


def test_small_neighbours_are_one_axis_in_as_few_groups_as_can_be():
    assert grouped((8,) * 5, False) == ((0,), (1, 2), (3, 4))
    assert grouped((16,) * 4, False) == ((0,), (1,), (2,), (3,))
    assert grouped((4, 4, 4, 4), True) == ((0, 1), (2, 3))
    assert grouped((64,), True) == ((0,),)
    for none in ((64,), (128, 128), (5, 5, 5), (64, 8), (2, 2)):
        assert grouped(none, False) is None


def test_two_axes_of_16_go_into_one_pass_wherever_they_stand():
    found = back((16,) * 5, 1, "f32", "sm_90", HOPPER.shared_per_block)
    assert [groups for _, groups in found] == [((0,), (1,)), ((2,),), ((3,), (4,))]
    assert [plan.beside for plan, _ in found] == [True, True, False]
    assert found[0][0].across == 16


def test_one_power_of_two_serves_a_tile_of_one_row_only():
    def split(extents, right=1, stored="f32"):
        return [plan.splits for plan, _ in back(extents, right, stored, "sm_90", HOPPER.shared_per_block)]

    assert split((8,) * 5) == [False, True]
    assert split((64, 64)) == [True]
    assert split((16,) * 4) == split((64,) * 3) == [True, True]
    assert split((32,) * 3) == [False, True]
    assert split((32,) * 4) == [False, True, True]
    assert split((32, 32)) == split((64, 64), 32)[:1] == split((32, 32), 1, "bf16") == [False]
    assert split((64, 64), 1, "f16") == [True]


def test_what_has_no_kernel_is_left_to_other_ways(started):
    modes, x = parse("0 1", ((16, 16), (16, 16))), torch.randn(3, 256, 1)
    factors = [torch.randn(16, 16)] * 2
    assert kron_back.plans(modes, factors, x)
    assert not kron_back.plans(modes, factors, x.double())
    assert not kron_back.plans(modes, factors, torch.randn(3, 1, 256).mT.transpose(0, 1)[::2])
    assert not kron_back.plans(modes, [factor.unsqueeze(0) for factor in factors], x)
    assert not kron_back.plans(parse("0 i4 0", ((8, 8),)), [torch.randn(8, 8)], x)
    assert not kron_back.plans(parse("0 1", ((16, 8), (16, 16))), factors, torch.randn(3, 128, 1))
    assert not kron_back.plans(modes, factors, torch.randn(3, 256, 3))
    assert back((64, 64), 1, "f32", "sm_86", 101376)
    assert not back((64, 8, 8), 1, "f32", "sm_86", 50000)
    assert not back((64, 64), 32, "f32", "sm_86", 50000)
    assert not started


def test_tiles_cover_every_line():
    plan = BackPlan((8, 8), (), "f32", "sm_90", beside=True)
    assert [plan.tiles(lines, width) for lines, width in ((64, 64), (65, 64), (128, 65))] == [1, 2, 4]
    assert plan.parts == 128
    assert BackPlan((64,), (64,), "f32", "sm_90").shared * 2 <= HOPPER.shared_per_sm - 2048
