"""All gradients of a Kronecker product in one pass: which there are, and what is made of the blocks' shares."""

import ast
import ctypes
import math

import numpy as np
import pytest
import torch

from kernmantle import kron_matmul
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import bound_gradients, gradient_cuda
from kernmantle.structured.kron.gradient_cost import GpuPrice
from kernmantle.structured.kron.gradient_groups import whole
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
    count = (len(rest) - 4) // 3
    pointers, strides, (items, width, _, slope) = rest[:count], rest[count:-4], rest[-4:]
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
    assert [type(value) for value in arguments] == [int] * (7 + 3 * count) + [float]
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
    monkeypatch.setattr(gradient_cuda, "load_kernel", lambda plan, *_: plan)
    monkeypatch.setattr(gradient_cuda, "load_kernels", lambda plan, *_, title="": [title or plan])
    monkeypatch.setattr(gradient_cuda, "resident", lambda kernel, index: 2)
    monkeypatch.setattr(gradient_cuda, "start", start)
    return starts


def _square(*extents):
    return tuple((extent, extent) for extent in extents)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "right", "kind"),
    [(_square(48, 40), 1, "wgmma"), (_square(16, 16), 12, "all"), (_square(8, 8, 8), 1, "all"),
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
    dx, finish = chosen(grad, x, factors, 0.5)
    exact = [tensor.double().requires_grad_() for tensor in (x, *factors)]
    product = kron_matmul(exact[0], [*exact[1:], right], side="left")
    wanted = torch.autograd.grad(product, exact, grad.double())
    assert_close(dx.view(x.shape), 0.5 * wanted[0], depth=sum(map(max, sizes)), magnitude=wanted[0].abs().max())
    assert chosen.numbers == tuple(range(len(sizes)))
    for place, share in enumerate(finish()):
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
    dx, finish = chosen(grad, x, factors, 1.0)
    exact = [tensor.double().requires_grad_() for tensor in (x, *factors)]
    wide = [int(entry[1:]) if entry.startswith("i") else exact[1 + int(entry)] for entry in text.split()]
    wanted = torch.autograd.grad(kron_matmul(exact[0], wide, side="left"), exact, grad.double())
    assert_close(dx.view(x.shape), wanted[0], depth=sum(extents), magnitude=wanted[0].abs().max())
    for one, exact_share in zip(finish(), wanted[1:], strict=True):
        assert_close(one, exact_share, depth=x.numel(), magnitude=exact_share.abs().max())


def test_a_factor_that_stands_twice_has_one_gradient(started, monkeypatch):
    monkeypatch.setattr(bound_gradients, "gpu", lambda: gradient_cuda)
    x, grad, factor = torch.randn(5, 256, 1), torch.randn(5, 256, 1), torch.randn(16, 16)
    modes = parse("0 0", ((16, 16),))
    launch = gradient_cuda.bind(modes, [factor], x)
    assert launch.numbers == (0, 0)
    steps = (bound_gradients.PassStep(launch, 0, 1, tuple(x.shape), True, ()),)
    _, found = bound_gradients.BoundGradients("a pass", steps, 0, (True,))((x, [factor], grad, ()), 2.0)
    exact = factor.double().requires_grad_()
    (wanted,) = torch.autograd.grad(2 * kron_matmul(x.double(), [exact, exact], side="left"), exact, grad.double())
    assert_close(found[0], wanted, depth=x.numel(), magnitude=wanted.abs().max())


def test_what_has_no_kernel_is_left_to_other_ways(started):
    modes, x = parse("0 1", ((16, 16), (16, 16))), torch.randn(3, 256, 1)
    factors = [torch.randn(16, 16)] * 2
    assert gradient_cuda.bind(modes, factors, x)
    assert gradient_cuda.bind(modes, factors, x.double()) is None
    assert gradient_cuda.bind(modes, factors, x[:0]) is None
    assert gradient_cuda.bind(modes, [factor.unsqueeze(0) for factor in factors], x) is None
    assert gradient_cuda.bind(parse("0 i4 0", ((8, 8),)), [torch.randn(8, 8)], x) is None
    assert gradient_cuda.bind(parse("0 1", ((16, 65), (16, 16))), factors, torch.randn(3, 65 * 16, 1)) is None
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
