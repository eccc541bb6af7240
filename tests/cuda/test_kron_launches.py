"""Training steps by Kronecker products whose passes are launches on tables of addresses, against float64."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.testing import assert_close
from kernmantle.torch_ops.joined_launches import BothPasses

from .test_launch_graphs import graphs  # noqa: F401 - a fixture

pytestmark = pytest.mark.cuda
STEPS = [
    (16, ((32, 32), (32, 32)), torch.float32, 1), (4096, ((32, 32), (32, 32)), torch.bfloat16, 1),
    (16384, ((32, 32), (32, 32)), torch.bfloat16, 1), (4096, ((32, 32), (32, 32)), torch.float32, -0.5),
    (300, ((64, 64), (64, 64)), torch.float16, 1), (70, ((64, 32), (64, 32)), torch.float32, 1),
    (16, ((16, 16), (16, 16)), torch.bfloat16, 2.5), (1024, ((8, 8), (8, 8), (8, 8)), torch.float32, 1),
    (16384, ((8, 8), (8, 8), (8, 8)), torch.float32, 1), (1024, ((4, 4), (4, 4), (4, 4)), torch.bfloat16, 1),
    (40, ((3, 5), (9, 4)), torch.float64, 1),
]  # fmt: skip


def product(x, weights, scale=1, base=None):
    if len(weights) == 2:
        return km.kron_linear(x, *weights, scale=scale, base=base)
    return km.kron_matmul(x, [weight.mT for weight in weights], alpha=scale, y=base)


def exact(leaves, count, scale, cotangent):
    """The product of x and ``count`` weights, and all gradients, in float64."""
    wide = [each.detach().double().requires_grad_() for each in leaves]
    value, right = wide[0], 1
    for weight in reversed(wide[1 : 1 + count]):
        value = weight @ value.reshape(-1, weight.shape[1], right)
        right *= weight.shape[0]
    value = scale * value.reshape(len(leaves[0]), right)
    value = value + wide[-1] if len(wide) > 1 + count else value
    return [value.detach(), *torch.autograd.grad(value, wide, cotangent.double())]


def check(found, wanted, depth):
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert_close(one, other, dtype=one.dtype, depth=depth, magnitude=other.abs().max())


@pytest.fixture
def launched(monkeypatch):
    """How often gradients were launches of a step."""
    found, run = [], BothPasses.run_backward

    def counted(*arguments):
        found.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(BothPasses, "run_backward", counted)
    PLANS.clear()
    yield found
    PLANS.clear()


@pytest.mark.parametrize("has_base", [False, True])
@pytest.mark.parametrize(("rows", "sizes", "dtype", "scale"), STEPS, ids=str)
def test_values_are_those_at_the_time_of_the_call(rows, sizes, dtype, scale, has_base, graphs, launched) -> None:  # noqa: F811
    """With two arrays of rows and two streams in turns, and weights that change."""
    torch.manual_seed(0)
    columns, outputs = (math.prod(size[side] for size in sizes) for side in (1, 0))

    def drawn(*shape):
        return torch.randn(shape, device="cuda").to(dtype).requires_grad_()

    arrays, weights, cotangent = [drawn(rows, columns) for _ in range(2)], [drawn(*size) for size in sizes], None
    base = [drawn(rows, outputs)] if has_base else []
    cotangent = drawn(rows, outputs).detach()
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for number in range(28):
        leaves = [arrays[number % 2], *weights, *base]
        with torch.no_grad():
            for each in leaves:
                each.mul_(-1.01)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[number // 2 % 2]):
            value = product(leaves[0], weights, scale, *base)
            found = [value.detach(), *torch.autograd.grad(value, leaves, cotangent)]
        torch.cuda.synchronize()
        if number in (0, 1, 2) or number >= 24:
            check(found, exact(leaves, len(sizes), scale, cotangent), 4 * (rows + columns))
        del value, found
    assert all(whole for whole, _ in graphs)
    if dtype is not torch.float64:
        assert len(launched) > 20


def test_rows_of_several_axes_are_those_of_one(launched) -> None:
    x, base = (torch.randn(4, 100, 1024, device="cuda").requires_grad_() for _ in range(2))
    weights = [torch.randn(32, 32, device="cuda").requires_grad_() for _ in range(2)]
    cotangent = torch.randn(4, 100, 1024, device="cuda")
    for _ in range(14):
        value = km.kron_linear(x, *weights, 0.5, base)
        found = [value.detach(), *torch.autograd.grad(value, [x, *weights, base], cotangent)]
        rows = [each.detach().flatten(0, 1) for each in (x, base, cotangent)]
        wanted = exact([rows[0], *weights, rows[1]], 2, 0.5, rows[2])
        check(found, [one.view(other.shape) for one, other in zip(wanted, found, strict=True)], 4096)
    assert len(launched) == 13


def test_steps_are_captured_between_eager_ones(launched) -> None:
    x, w1, w2 = (torch.randn(shape, device="cuda").requires_grad_() for shape in ((256, 1024), (32, 32), (32, 32)))
    leaves, cotangent = [x, w1, w2], torch.randn(256, 1024, device="cuda")

    def step():
        value = km.kron_linear(x, w1, w2, scale=0.5)
        return [value.detach(), *torch.autograd.grad(value, leaves, cotangent)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(12):
            step()
    torch.cuda.current_stream().wait_stream(side)
    ran = len(launched)
    assert ran > 8
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    assert len(launched) == ran
    for _ in range(3):
        with torch.no_grad():
            for each in leaves:
                each.mul_(-1.01)
        graph.replay()
        wanted = exact(leaves, 2, 0.5, cotangent)
        check(captured, wanted, 4096)
        check(step(), wanted, 4096)
    assert len(launched) == ran + 3


def test_second_derivatives_kept_graphs_and_autocast(launched) -> None:
    x, w1, w2 = (torch.randn(shape, device="cuda").requires_grad_() for shape in ((64, 1024), (32, 32), (32, 32)))
    leaves, cotangent = [x, w1, w2], torch.randn(64, 1024, device="cuda")
    wanted = exact(leaves, 2, 1, cotangent)
    for _ in range(3):
        value = km.kron_linear(x, w1, w2)
        for _ in range(2):
            check(torch.autograd.grad(value, leaves, cotangent, retain_graph=True), wanted[1:], 4096)
        (part,) = torch.autograd.grad(value, [w2], cotangent)
        check([part], wanted[3:], 4096)
        slopes = torch.autograd.grad(km.kron_linear(x, w1, w2), leaves, cotangent, create_graph=True)
        second = torch.autograd.grad(sum(each.square().sum() for each in slopes), leaves)
        wide = [each.detach().double().requires_grad_() for each in leaves]
        other = torch.autograd.grad(wide[0] @ torch.kron(*wide[1:]).mT, wide, cotangent.double(), create_graph=True)
        check(second, torch.autograd.grad(sum(each.square().sum() for each in other), wide), 1 << 16)
        with torch.autocast("cuda", torch.bfloat16):
            value = km.kron_linear(x, w1, w2)
        assert value.dtype == torch.bfloat16
        for one, exact_one in zip(torch.autograd.grad(value, leaves, cotangent.bfloat16()), wanted[1:], strict=True):
            assert_close(one, exact_one, dtype=torch.bfloat16, depth=4096, magnitude=exact_one.abs().max())
