"""Products of matrices that are bound to cuBLASLt, and training steps that launch them, against float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernmantle import KSLinear
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_training
from kernmantle.testing import assert_close
from kernmantle.torch_ops.cuda_matmul import bind_matmul

pytestmark = pytest.mark.cuda
TYPES = [torch.bfloat16, torch.float16]
SIZES = [(8, 8, 8), (16, 384, 1536), (200, 64, 72), (1000, 1536, 384), (1, 64, 128)]  # rows, contracted, columns


def matrix(rows, columns, is_columns_first, batch=(), **options):
    """Return numbers whose rows, or columns, lie together, between others."""
    if is_columns_first:
        return torch.randn(*batch, columns, rows + 8, **options)[..., :rows].mT
    return torch.randn(*batch, rows, columns + 8, **options)[..., :columns]


def launched(product, left, right, out, vector=None):
    """Run a bound product on tensors like those that it was bound for."""
    product([0 if each is None else each.data_ptr() for each in (left, right, out, vector)])
    return out


def checked(found, left, right, bias=None):
    wide = left.double() @ right.double()
    size = left.double().abs() @ right.double().abs()
    if bias is not None:
        wide, size = wide + bias.double(), size + bias.double().abs()
    assert_close(found, wide, depth=left.shape[-1], magnitude=size)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_matrices_in_every_order(sizes, dtype):
    rows, inner, columns = sizes
    options = {"device": "cuda", "dtype": dtype}
    ran = 0
    for batch, (first, second, third) in itertools.product(((), (3,)), itertools.product((False, True), repeat=3)):
        left, right = matrix(rows, inner, first, batch, **options), matrix(inner, columns, second, batch, **options)
        out = matrix(rows, columns, third, batch, **options)
        product = bind_matmul(left, right, out)
        if product is None:  # a single row whose numbers lie apart
            assert rows == 1
            continue
        around = out.clone()
        checked(launched(product, left, right, out), left, right)
        assert not torch.equal(around, out)
        ran += 1
    assert ran


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_bias_and_sums_on_the_way(sizes, dtype):
    rows, inner, columns = sizes
    options = {"device": "cuda", "dtype": dtype}
    x, weight, bias = (torch.randn(shape, **options) for shape in ((rows, inner), (columns, inner), (columns,)))
    out = torch.empty(rows, columns, **options)
    product = bind_matmul(x, weight.mT, out, bias)
    for own in (bias, -bias):  # the address of the vector is that of the call
        checked(launched(product, x, weight.mT, out, own), x, weight.mT, own)
    grad, of_weight, of_bias = torch.randn_like(out), torch.empty_like(weight), torch.empty_like(bias)
    product = bind_matmul(grad.mT, x, of_weight, sums=of_bias)
    if product is None:  # a column of numbers that lie together, which is no whole vector
        assert rows == 1
        return
    checked(launched(product, grad.mT, x, of_weight, of_bias), grad.mT, x)
    assert_close(of_bias, grad.double().sum(0), depth=rows, magnitude=grad.double().abs().sum(0))


def test_what_the_library_does_not_take():
    options = {"device": "cuda", "dtype": torch.bfloat16}
    x, weight = torch.randn(16, 24, **options), torch.randn(24, 32, **options)
    out = torch.empty(16, 32, **options)
    assert bind_matmul(x, weight, out) is not None
    assert bind_matmul(x.float(), weight.float(), out.float()) is None
    assert bind_matmul(torch.randn(16, 25, **options)[:, 1:], weight, out) is None  # rows that begin anywhere
    assert bind_matmul(x, torch.randn(24, 64, **options)[:, ::2], out) is None  # numbers that lie apart
    assert bind_matmul(x[:0], weight, out[:0]) is None


CHAINS = {
    "vit": ((6, 64, 64, 1), (1, 768, 192, 2)), "narrow": ((2, 16, 24, 1), (1, 24, 8, 4)),
    "wide": ((16, 64, 64, 1), (1, 256, 256, 4)),
}  # fmt: skip


def gradients(layer, x, cotangent, leaves):
    result = layer(x)
    return [result.detach(), *torch.autograd.grad(result, leaves, cotangent)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("chain", list(CHAINS), ids=str)
@pytest.mark.parametrize("shape", [(24,), (3, 40), (1000,)], ids=str)
def test_steps_through_the_matrix(shape, chain, dtype, monkeypatch):
    PLANS.clear()
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: chain_training.MATRIX)
    torch.manual_seed(0)
    (a, _, c, _), (_, b, _, d) = patterns = CHAINS[chain]
    layer = KSLinear(a * c, b * d, patterns, device="cuda", dtype=dtype)
    exact = KSLinear(a * c, b * d, patterns, device="cuda", dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    for number in range(4):  # the first call binds, the next ones are prepared by their forward passes
        x = torch.randn(*shape, a * c, device="cuda", dtype=dtype, requires_grad=number != 2)
        cotangent = torch.randn(*shape, b * d, device="cuda", dtype=dtype)
        if number == 3:
            cotangent = cotangent[..., :1, :1].expand(cotangent.shape) if len(shape) == 2 else cotangent.mT.clone().mT
        wide = x.detach().double().requires_grad_(x.requires_grad)
        leaves, own = ([each, *net.parameters()] for each, net in ((x, layer), (wide, exact)))
        if number == 2:
            leaves, own = leaves[1:], own[1:]
        found, wanted = gradients(layer, x, cotangent, leaves), gradients(exact, wide, cotangent.double(), own)
        for one, other in zip(found, wanted, strict=True):
            error = (one.double() - other).norm() / other.norm()
            assert error <= 4 * torch.finfo(dtype).eps, (number, tuple(other.shape))
    assert layer.info == "torch dense"
    PLANS.clear()


def test_steps_through_the_matrix_in_a_graph(monkeypatch):
    PLANS.clear()
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: chain_training.MATRIX)
    patterns = CHAINS["vit"]
    layer = KSLinear(384, 1536, patterns, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(256, 384, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    leaves, cotangent = [x, *layer.parameters()], torch.randn(256, 1536, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(layer, x, cotangent, leaves)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(layer, x, cotangent, leaves)
    with torch.no_grad():
        x.normal_()
    graph.replay()
    for one, other in zip(captured, gradients(layer, x, cotangent, leaves), strict=True):
        assert (one.double() - other.double()).norm() <= 0.02 * other.double().norm()
    PLANS.clear()
