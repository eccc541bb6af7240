"""The public functions on CUDA tensors against the reference evaluator in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close
from kernmantle.testing.cases import CASES

pytestmark = pytest.mark.cuda


def _expected(function, *tensors, **parameters):
    with km.config(backend="reference"):
        return function(*(t.detach().cpu().double() for t in tensors), **parameters)


def _random(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to("cuda", dtype)


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.3, 2, 3, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_cdist(p, dtype):
    x, y = _random(130, 33, dtype=dtype), _random(67, 33, dtype=dtype, seed=1)
    result = km.cdist(x, y, p=p)
    assert result.is_cuda
    assert result.dtype == dtype
    assert_close(result.cpu(), _expected(km.cdist, x, y, p=p), dtype=dtype, depth=33)


@pytest.mark.parametrize("p", [1, 1.3, 2])
def test_symmetric_is_bitwise_symmetric(p):
    x = _random(301, 20)
    result = km.cdist(x, p=p)
    assert torch.equal(result, result.mT)
    assert not result.diagonal().any()
    assert_close(result.cpu(), _expected(km.cdist, x, p=p), dtype=torch.float32, depth=20)


@pytest.mark.parametrize("reduce", ["sum", "prod", "min", "max", "logsumexp"])
def test_gradients(reduce):
    contraction = km.Contraction("mk,nk->mn", lambda a, b, h: abs(a - b) * h + 0.5 * b, reduce=reduce)
    tensors = [_random(20, 9), _random(14, 9, seed=1), torch.tensor(1.3, device="cuda")]
    weights = _random(20, 14, seed=2)

    def slopes(x, y, h, w):
        leaves = [t.detach().clone().requires_grad_() for t in (x, y, h)]
        (contraction(*leaves[:2], h=leaves[2]) * w).sum().backward()
        return [leaf.grad for leaf in leaves]

    actual = slopes(*tensors, weights)
    expected = _expected(slopes, *tensors, weights)
    for got, wanted in zip(actual, expected, strict=True):
        assert_close(got.cpu(), wanted, dtype=torch.float32, depth=9 * 20 * 14)


def test_double_backward():
    x, y = (_random(6, 4, dtype=torch.float64, seed=s).requires_grad_() for s in (0, 1))
    distance = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b) ** 3, epilogue=lambda s: km.exp(-s))
    assert torch.autograd.gradcheck(distance, (x, y))
    assert torch.autograd.gradgradcheck(distance, (x, y))


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    case = CASES[name]
    contraction = km.Contraction(case.equation, case.map, reduce=case.reduce, epilogue=case.epilogue)
    sizes = {axis: 17 + 13 * place for place, axis in enumerate("mnkl")}
    tensors = [torch.from_numpy(operand).float().cuda() for operand in case.operands(sizes)]
    results = contraction(*tensors, params=case.params)
    expected = _expected(contraction, *tensors, params=case.params)
    for got, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, expected)), strict=True):
        assert_close(got.cpu(), wanted, dtype=torch.float32, depth=10000)


def test_batched_parameters_take_one_launch():
    x, y = _random(50, 8), _random(40, 8, seed=1)
    scale = torch.linspace(1, 2, 5, device="cuda")
    laplace = km.Contraction("mk,nk->mn", lambda a, b, h: abs(a - b), epilogue=lambda s, h: km.exp(-s / h))
    result = laplace(x, y, h=scale)
    assert result.shape == (5, 50, 40)
    for one, h in zip(result, scale, strict=True):
        assert_close(one.cpu(), _expected(laplace, x, y, h=h.item()), dtype=torch.float32, depth=8)


def test_graph_capture_replays_on_new_values():
    x, y = _random(256, 16), _random(128, 16, seed=1)
    out = torch.empty(256, 128, device="cuda")
    km.cdist(x, y, p=1, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        km.cdist(x, y, p=1, out=out)
    x.copy_(_random(256, 16, seed=5))
    graph.replay()
    assert_close(out.cpu(), _expected(km.cdist, x, y, p=1), dtype=torch.float32, depth=16)


def test_current_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = _random(2048, 64)
        result = km.cdist(x, x.clone(), p=1)
    stream.synchronize()
    assert_close(result.cpu(), _expected(km.cdist, x, x.clone(), p=1), dtype=torch.float32, depth=64)


def test_strided_views_and_last_rows():
    x, y = _random(33, 300).mT, _random(67, 99, seed=1)[:, ::3]
    assert_close(km.cdist(x, y, p=1).cpu(), _expected(km.cdist, x, y, p=1), dtype=torch.float32, depth=33)
