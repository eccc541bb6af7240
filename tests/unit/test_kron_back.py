"""All gradients of a Kronecker product in one pass: which there are, and what is made of the blocks' shares."""

import ast
import ctypes
import math

import numpy as np
import pytest
import torch

from kernmantle import kron_matmul
from kernmantle.backends.cuda.tiles import CARDS, DeviceLimits
from kernmantle.structured.kron import gradient, gradient_cuda
from kernmantle.structured.kron.gradient_cost import GpuPrice
from kernmantle.structured.kron.gradient_groups import whole
from kernmantle.structured.kron.gradient_plan import BackPlan, back, tiled
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
    factors = [
        torch.tensor(_array(pointers[n], size, strides[2 * n : 2 * n + 2])).double().requires_grad_()
        for n, size in enumerate(plan.sizes)
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


def _square(*extents):
    return tuple((extent, extent) for extent in extents)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "right", "kind"),
    [(_square(48, 40), 1, "wgmma"), (_square(16, 16), 12, "beside"), (_square(8, 8, 8), 1, "all"),
     (_square(4, 4, 2, 8), 1, "then"), (_square(13, 12), 3, "all"), (((5, 7), (20, 31)), 1, "all"),
     (((9, 3), (2, 5)), 6, "all"), (_square(5, 5), 624, "registers")],
)  # fmt: skip
def test_passes_give_every_gradient(started, sizes, right, kind, transposed):
    torch.manual_seed(1)
    count, (rows, columns) = 3, whole(sizes)
    x, grad = torch.randn(count, columns * right, 1), torch.randn(count, rows * right, 1)
    factors = [torch.randn(p, q).mT if place % 2 else torch.randn(q, p) for place, (q, p) in enumerate(sizes)]
    modes = parse(text_of([*range(len(sizes)), f"i{right}"]), sizes)
    chosen = gradient_cuda.bind(modes, factors, x, transposed=transposed)
    dx, shares = chosen(grad, x, factors, 0.5)
    exact = [tensor.double().requires_grad_() for tensor in (x, *factors)]
    product = kron_matmul(exact[0], [*exact[1:], right], side="left")
    wanted = torch.autograd.grad(product, exact, grad.double())
    assert_close(dx.view(x.shape), 0.5 * wanted[0], depth=sum(map(max, sizes)), magnitude=wanted[0].abs().max())
    assert chosen.numbers == tuple(range(len(sizes)))
    for place, share in enumerate(shares):
        assert share.is_contiguous()
        own = share.mT if transposed else share
        assert_close(own, wanted[place + 1], depth=x.numel(), magnitude=wanted[place + 1].abs().max())
    assert started == [chosen.plan]
    assert kind in str(chosen.plan)


@pytest.mark.parametrize(
    ("text", "extents", "columns"),
    [("i3 0 1 i4", (16, 16), 1), ("i3 0 1", (16, 64), 1), ("0 1 i8", (8, 5), 1), ("0 1 i4", (16, 12), 3)],
)
def test_identities_stand_before_and_behind(started, text, extents, columns):
    modes = parse(text, tuple((size, size) for size in extents))
    entries = math.prod(mode.columns for mode in modes)
    x, grad = torch.randn(2, entries, columns), torch.randn(2, entries, columns)
    factors = [torch.randn(size, size) for size in extents]
    chosen = gradient_cuda.bind(modes, factors, x)
    dx, found = chosen(grad, x, factors, 1.0)
    exact = [tensor.double().requires_grad_() for tensor in (x, *factors)]
    wide = [int(entry[1:]) if entry.startswith("i") else exact[1 + int(entry)] for entry in text.split()]
    wanted = torch.autograd.grad(kron_matmul(exact[0], wide, side="left"), exact, grad.double())
    assert_close(dx.view(x.shape), wanted[0], depth=sum(extents), magnitude=wanted[0].abs().max())
    for one, exact_share in zip(found, wanted[1:], strict=True):
        assert_close(one, exact_share, depth=x.numel(), magnitude=exact_share.abs().max())


def test_a_factor_that_stands_twice_has_one_gradient(started, monkeypatch):
    monkeypatch.setattr(gradient, "_gpu", lambda: gradient_cuda)
    x, grad, factor = torch.randn(5, 256, 1), torch.randn(5, 256, 1), torch.randn(16, 16)
    modes = parse("0 0", ((16, 16),))
    launch = gradient_cuda.bind(modes, [factor], x)
    assert launch.numbers == (0, 0)
    steps = (gradient._Pass(launch, 0, 1, tuple(x.shape), True, ()),)
    _, found = gradient.BoundGradients("a pass", steps, 0, (True,))((x, [factor], grad, ()), 2.0)
    exact = factor.double().requires_grad_()
    (wanted,) = torch.autograd.grad(2 * kron_matmul(x.double(), [exact, exact], side="left"), exact, grad.double())
    assert_close(found[0], wanted, depth=x.numel(), magnitude=wanted.abs().max())


def _back(sizes, before=1, right=1, columns=1, stored="f32", own=HOPPER):
    return back(sizes, (before, right), columns, stored, own)


def test_small_neighbours_are_one_axis_in_as_little_room_as_can_be():
    assert _back(_square(*[8] * 4)).groups == (_square(8, 8), _square(8, 8))
    assert _back(_square(16, 16)).groups == (_square(16), _square(16))
    assert _back(_square(4, 4, 4, 4), right=64).groups == (_square(4, 4), _square(4, 4))
    assert _back(((5, 7), (9, 3), (20, 31))).groups == (((5, 7), (9, 3)), ((20, 31),))
    for none in ((64,), (8, 8), (128, 128), (5, 65), (8,) * 5):  # one axis has room for it, or two have not
        assert _back(_square(*none)) is None
    assert _back(_square(16, 8, 8), right=64) is None


def test_two_axes_of_16_go_into_one_pass_wherever_they_stand():
    found = _back(_square(16, 16), right=4096)
    assert found.has_columns
    assert found.across == 16
    assert not _back(_square(16, 16)).has_columns


def test_one_power_of_two_serves_a_tile_of_one_row_only():
    def split(extents, before=1, **others):
        return _back(_square(*extents), before, **others).splits

    assert all([split((64, 64)), split((16, 16), 256), split((12, 12), 144), split((16, 16), right=256)])
    assert split((64, 64), stored="f16")
    assert not any([split((32, 32)), split((32, 32), stored="bf16"), split((16, 16), 256, right=12, columns=12)])
    assert _back(_square(10, 10), 100).items == 10


def test_what_has_no_kernel_is_left_to_other_ways(started):
    modes, x = parse("0 1", ((16, 16), (16, 16))), torch.randn(3, 256, 1)
    factors = [torch.randn(16, 16)] * 2
    assert gradient_cuda.bind(modes, factors, x)
    assert gradient_cuda.bind(modes, factors, x.double()) is None
    assert gradient_cuda.bind(modes, factors, x[:0]) is None
    assert gradient_cuda.bind(modes, [factor.unsqueeze(0) for factor in factors], x) is None
    assert gradient_cuda.bind(parse("0 i4 0", ((8, 8),)), [torch.randn(8, 8)], x) is None
    assert gradient_cuda.bind(parse("0 1", ((16, 65), (16, 16))), factors, torch.randn(3, 65 * 16, 1)) is None
    small = DeviceLimits("sm_86", 84, 50000)
    assert _back(_square(64, 64), own=CARDS["sm_120"])
    assert _back(_square(64, 64), own=small) is None
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
    assert _back(_square(12, 12)).vector == 4
    assert _back(_square(12, 10)).vector == 2
    assert _back(_square(31, 31), stored="f16").vector == _back(((16, 12), (20, 33))).vector == 1
    assert [_back(_square(16, 16), right=right).vector for right in (3, 64)] == [1, 4]


def test_tiles_cover_every_item():
    plan = BackPlan((_square(16), _square(16)), "f32", "sm_90", 1, 4, has_columns=True)
    assert [plan.tiles(items, width) for items, width in ((1, 16), (2, 16), (2, 17))] == [1, 2, 4]
    assert plan.parts == 512
    assert tiled(BackPlan((_square(12), _square(12)), "f32", "sm_90", 1, 4)).items == 16
    assert BackPlan((_square(64), _square(64)), "f32", "sm_90", 1, 4).shared * 2 <= HOPPER.shared_per_sm - 2048
