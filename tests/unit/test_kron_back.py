"""All gradients of a Kronecker product in a few passes: which there are, and what is made of the blocks' shares."""

import ast
import ctypes
import math

import numpy as np
import pytest
import torch

from kernmantle import kron_matmul
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import gradient_cuda
from kernmantle.structured.kron.gradient_cost import GpuPrice
from kernmantle.structured.kron.gradient_groups import GroupedPlan, whole
from kernmantle.structured.kron.gradient_plan import BackPlan, back, grouped, tiled
from kernmantle.structured.kron.gradient_steps import gradient_steps
from kernmantle.structured.kron.modes import parse, text_of
from kernmantle.structured.kron.tensor_plan import Tensor
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
    count = (len(rest) - 3) // 3
    pointers, strides, (items, width, slope) = rest[:count], rest[count:-3], rest[-3:]
    used = range(count) if isinstance(plan, GroupedPlan) else [*range(len(plan.first)), *range(2, 2 + len(plan.last))]
    factors = [
        torch.tensor(_array(pointers[n], size, strides[2 * n : 2 * n + 2])).double().requires_grad_()
        for n, size in zip(used, plan.sizes, strict=True)
    ]
    above_shape, shape = ((items, *(size[side] for size in plan.sizes), width) for side in (0, 1))
    wide = torch.tensor(_array(x, shape)).double().requires_grad_()
    value = wide
    for place, factor in enumerate(factors):
        value = torch.tensordot(value, factor, dims=([place + 1], [1])).movedim(-1, place + 1)
    above = torch.tensor(_array(v, above_shape)).double()
    found, *grads = torch.autograd.grad(value, (wide, *factors), above)
    assert [type(value) for value in arguments] == [int] * (6 + 3 * count) + [float]
    _array(out, shape)[:] = slope * found.numpy()
    return torch.cat([grad.flatten() for grad in grads]).numpy()


def _add_up(title, parts, out, shares, size):
    """The sum of what the blocks of a pass wrote, of matrices whose sizes the title has as their transposes."""
    total, sizes = _array(parts, (shares, size)).sum(0), title.partition("transposed ")[2]
    places = np.cumsum([0, *(rows * columns for rows, columns in ast.literal_eval(sizes or "()"))])
    for place, (rows, columns) in zip(places, ast.literal_eval(sizes or "()"), strict=False):
        own = total[place : place + rows * columns]
        own[:] = own.reshape(rows, columns).T.flatten()
    _array(out, (size,))[:] = total


@pytest.fixture
def started(monkeypatch):
    """A pass by torch, kernels being their plans; the plans that were started."""
    starts = []

    def start(plan, index, blocks, arguments):
        if isinstance(plan, str):
            _add_up(plan, *arguments)
            return
        whole = _step(plan, arguments)
        shares = np.random.default_rng(0).random((blocks, 1))
        _array(arguments[3], (blocks, plan.parts))[:] = shares / shares.sum() * whole
        starts.append(plan)

    monkeypatch.setattr(gradient_cuda, "index_of", lambda device: 0)
    monkeypatch.setattr(gradient_cuda, "limits", lambda index: HOPPER)
    monkeypatch.setattr(gradient_cuda, "load_kernels", lambda plan, *_, title="": [title or plan])
    monkeypatch.setattr(gradient_cuda, "resident", lambda kernel, index: 2)
    monkeypatch.setattr(gradient_cuda, "start", start)
    return starts


def _followed(passes, applied, factors, x, grad, slope):
    """The gradient of x and those of the factors by passes; ``applied``: the product that x needs before each."""
    found, value = {}, grad
    for number, (own, apply) in enumerate(zip(passes, applied, strict=True)):
        scale = slope if number == len(passes) - 1 else 1.0
        value, shares = own(value, x if apply is None else apply(x, factors), factors, scale)
        for factor, share in zip(own.numbers, shares, strict=True):
            found[factor] = found[factor] + share if factor in found else share
    return value.view(x.shape), found


def _square(*extents):
    return tuple((extent, extent) for extent in extents)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "right"),
    [(_square(*[8] * 5), 1), (_square(*[16] * 4), 1), (_square(*[32] * 3), 1), (_square(8, 8, 8), 1),
     (_square(4, 4, 2, 8), 1), (_square(16, 16), 12), (_square(8), 4), (_square(*[10] * 4), 1), (_square(13, 12), 3),
     (((5, 7), (20, 31), (24, 10)), 1), (((9, 3), (2, 5), (64, 33)), 6)],
)  # fmt: skip
def test_passes_give_every_gradient(started, sizes, right, transposed):
    torch.manual_seed(1)
    count, (rows, columns) = 3, whole(sizes)
    x, grad = torch.randn(count, columns, right), torch.randn(count, rows, right)
    factors = [torch.randn(p, q).mT if place % 2 else torch.randn(q, p) for place, (q, p) in enumerate(sizes)]
    modes = parse(text_of(range(len(sizes))), sizes)
    chosen = gradient_cuda.bind(modes, factors, x, transposed=transposed)
    assert chosen

    def applied(places):
        own = [math.prod(p for _, p in sizes[: places[0]]), *(factors[n] for n in places)] if places else []
        return (lambda value, _: kron_matmul(value, own, side="left")) if places else None

    dx, found = _followed(chosen, [applied(one.rest) for one in chosen], factors, x, grad, 0.5)
    exact = [tensor.double().requires_grad_() for tensor in (x, *factors)]
    product = kron_matmul(exact[0], exact[1:], side="left")
    wanted = torch.autograd.grad(product, exact, grad.double())
    assert_close(dx, 0.5 * wanted[0], depth=sum(map(max, sizes)), magnitude=wanted[0].abs().max())
    for place in range(len(sizes)):
        own = found[place].mT if transposed else found[place]
        assert found[place].is_contiguous()
        assert_close(own, wanted[place + 1], depth=x.numel(), magnitude=wanted[place + 1].abs().max())
    assert [str(plan) for plan in started] == [str(one.plan) for one in chosen]


@pytest.mark.parametrize(
    ("text", "extents", "right"),
    [("i3 0 1 i4", (16, 16), 4), ("i3 0 1", (16, 64), 1), ("0 i8", (8,), 8), ("0 i4", (16,), 12)],
)
def test_identities_stand_before_and_behind(started, text, extents, right):
    columns = 3 if right == 12 else 1
    modes = parse(text, tuple((size, size) for size in extents))
    entries = math.prod(mode.columns for mode in modes)
    x, grad = torch.randn(2, entries, columns), torch.randn(2, entries, columns)
    factors = [torch.randn(size, size) for size in extents]
    given = [int(entry[1:]) if entry.startswith("i") else factors[int(entry)] for entry in text.split()]

    def applied(places):
        own = [modes[place].columns if place not in places else given[place] for place in range(len(given))]
        return (lambda value, _: kron_matmul(value, own, side="left")) if places else None

    chosen = gradient_cuda.bind(modes, factors, x)
    dx, found = _followed(chosen, [applied(one.rest) for one in chosen], factors, x, grad, 1.0)
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


def test_a_factor_that_stands_twice_has_one_gradient(started):
    x, grad, factor = torch.randn(5, 256, 1), torch.randn(5, 256, 1), torch.randn(16, 16)
    modes = parse("0 0", ((16, 16),))
    chosen = gradient_cuda.bind(modes, [factor], x)
    found = _followed(chosen, [None] * len(chosen), [factor], x, grad, 1.0)[1]
    exact = factor.double().requires_grad_()
    (wanted,) = torch.autograd.grad(kron_matmul(x.double(), [exact, exact], side="left"), exact, grad.double())
    assert_close(found[0], wanted, depth=x.numel(), magnitude=wanted.abs().max())


def test_small_neighbours_are_one_axis_in_as_few_groups_as_can_be():
    assert grouped(_square(*[8] * 5), False) == ((0,), (1, 2), (3, 4))
    assert grouped(_square(*[16] * 4), False) == ((0,), (1,), (2,), (3,))
    assert grouped(_square(4, 4, 4, 4), True) == ((0, 1), (2, 3))
    assert grouped(_square(*[10] * 4), False) == ((0,), (1,), (2,), (3,))
    assert grouped(((5, 7), (9, 3), (20, 31)), False) == ((0, 1), (2,))
    assert grouped(_square(64), True) == ((0,),)
    for none in ((64,), (128, 128), (5, 65), (64,)):
        assert grouped(_square(*none), False) is None


def test_two_axes_of_16_go_into_one_pass_wherever_they_stand():
    found = back(_square(*[16] * 5), 1, "f32", "sm_90", HOPPER.shared_per_block)
    assert [groups for _, groups in found] == [((0,), (1,)), ((2,),), ((3,), (4,))]
    assert [plan.has_columns for plan, _ in found] == [True, True, False]
    assert found[0][0].across == 16


def test_one_power_of_two_serves_a_tile_of_one_row_only():
    def split(extents, right=1, stored="f32"):
        return [plan.splits for plan, _ in back(_square(*extents), right, stored, "sm_90", HOPPER.shared_per_block)]

    assert split((8,) * 5) == [False, True]
    assert split((64, 64)) == [True]
    assert split((16,) * 4) == split((64,) * 3) == [True, True]
    assert split((32,) * 3) == [False, True]
    assert split((32,) * 4) == [False, True, True]
    assert split((32, 32)) == split((64, 64), 32)[:1] == split((32, 32), 1, "bf16") == [False]
    assert split((64, 64), 1, "f16") == split((12,) * 4)[1:] == [True]
    assert [plan.used for plan, _ in back(_square(*[10] * 4), 1, "f32", "sm_90", HOPPER.shared_per_block)] == [1, 10]


def test_what_has_no_kernel_is_left_to_other_ways(started):
    modes, x = parse("0 1", ((16, 16), (16, 16))), torch.randn(3, 256, 1)
    factors = [torch.randn(16, 16)] * 2
    assert gradient_cuda.plans(modes, factors, x)
    assert not gradient_cuda.plans(modes, factors, x.double())
    assert not gradient_cuda.plans(modes, [factor.unsqueeze(0) for factor in factors], x)
    assert not gradient_cuda.plans(parse("0 i4 0", ((8, 8),)), [torch.randn(8, 8)], x)
    assert not gradient_cuda.plans(parse("0 1", ((16, 65), (16, 16))), factors, torch.randn(3, 65 * 16, 1))
    assert back(_square(64, 64), 1, "f32", "sm_86", 101376)
    assert not back(_square(64, 8, 8), 1, "f32", "sm_86", 50000)
    assert not back(_square(64, 64), 32, "f32", "sm_86", 50000)
    assert not started


def test_passes_are_taken_where_they_should_be_quicker():
    def kinds(sizes, rows, wanted, of_x=True):
        text, is_wanted = " ".join(map(str, range(len(sizes)))), tuple(place in wanted for place in range(len(sizes)))
        price = GpuPrice(sizes, rows, 1, "f32", HOPPER, Tensor("f16", 3), True)
        steps = gradient_steps(text, sizes, is_wanted, (False,) * len(sizes), of_x, (), price)
        return [(step[0], len(step[3])) for step in steps if step[0] != "product"]

    assert kinds(_square(64, 64), 1024, range(2)) == [("pass", 2)]
    assert kinds(_square(*[16] * 4), 1024, range(4)) == [("pass", 2)] * 2
    assert kinds(_square(*[12] * 3), 1024, range(3)) == [("pass", 3)]
    assert kinds(_square(25, 16, 8), 1, range(3), False) == [("pass", 3)]
    assert not any(kind == "pass" for kind, _ in kinds(_square(48, 48, 48), 300, [0], False))


def test_copies_are_as_wide_as_lines_allow():
    def vectors(sizes, right=1, stored="f32"):
        return [plan.vector for plan, _ in back(sizes, right, stored, "sm_90", HOPPER.shared_per_block)]

    assert vectors(_square(12, 12)) == [4]
    assert vectors(_square(10, 10)) == [2]
    assert vectors(_square(31, 31), 1, "f16") == vectors(((16, 12), (20, 33))) == [1]
    assert vectors(_square(32, 32, 32), 3) == [4, 4, 1]


def test_tiles_cover_every_item():
    plan = BackPlan(_square(8, 8), (), "f32", "sm_90", 4, 1, has_columns=True)
    assert [plan.tiles(items, width) for items, width in ((1, 64), (2, 64), (2, 65))] == [1, 2, 4]
    assert plan.parts == 128
    assert tiled(BackPlan(_square(12), _square(12), "f32", "sm_90", 4, 1)).used == 16
    assert BackPlan(_square(64), _square(64), "f32", "sm_90", 4, 1).shared * 2 <= HOPPER.shared_per_sm - 2048
