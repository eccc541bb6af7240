"""Kronecker products on CUDA tensors against float64: sizes around every tile, both sides, strides, y, and edges."""

from __future__ import annotations

import math

import pytest
import torch

import kernmantle as km
from kernmantle.ops.kron_execute import last_route
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import DEVIATIONS

from ..kron_oracle import MIXED, REAL_WORLD, SQUARE, drawn, limited, named, oracle, powers, terms

pytestmark = pytest.mark.cuda
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
SIZES = [size for size in [*SQUARE, *MIXED, *REAL_WORLD] if len(size[1]) <= 12]
TENSOR = [powers(37, p, n) for p in (8, 16, 17, 24, 31, 32, 50, 64, 127, 128) for n in (1, 2, 3)]
TENSOR += [powers(9, 4, 7), powers(9, 2, 9), powers(5, 16, 4), (7, [(16, 48), (64, 20)]), (7, [(100, 12), (9, 64)])]


def depth(size):
    return sum(p for p, _ in size[1])


def rounded(x, factors, side="right"):
    """Size of what halves round away: x before every factor, and factors that are multiplied out."""
    return DEVIATIONS * math.sqrt(2 * len(factors)) * terms(x, factors, side)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES, ids=named)
def test_sizes(size, dtype):
    x, factors = drawn(limited(size, 1 << 18), DTYPES[dtype], device="cuda")
    found, size_of = km.kron_matmul(x, factors).cpu(), terms(x, factors)
    assert_close(found, oracle(x, factors), dtype=DTYPES[dtype], depth=depth(size), magnitude=size_of)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("size", TENSOR, ids=named)
def test_tensor_cores(size, dtype, side):
    x, factors = drawn(limited(size, 1 << 18), DTYPES[dtype], side, "cuda")
    found = km.kron_matmul(x, factors, side=side).cpu()
    size_of = None if dtype == "f32" else rounded(x, factors, side)
    assert_close(found, oracle(x, factors, side), dtype=DTYPES[dtype], depth=depth(size), magnitude=size_of)


@pytest.mark.parametrize("base", [16, 32, 64])
def test_strides_scalars_and_y(base):
    x, factors = drawn((40, [(base, base)] * 2), torch.float32, device="cuda")
    wide = torch.zeros(40, base * base + 3, device="cuda")
    wide[:, 1:-2] = x
    y = torch.randn(40, base * base, device="cuda")
    expected = 0.5 * oracle(x, factors) - 2 * y.cpu().double().numpy()
    for given in (x, wide[:, 1:-2], x.T.contiguous().T, torch.stack([x, x], 1)[:, 0]):
        out = y.clone()
        assert km.kron_matmul(given, factors, alpha=0.5, beta=-2, y=out, out=out) is out
        assert_close(out.cpu(), expected, depth=3 * base)
    transposed = [factor.mT.contiguous().mT for factor in factors]
    assert_close(km.kron_matmul(x, transposed).cpu(), oracle(x, factors), depth=2 * base)


def test_rows_keep_their_own_accuracy():
    x, factors = drawn((64, [(64, 64)] * 2), torch.float32, device="cuda")
    scales = 2.0 ** (torch.arange(64, device="cuda") % 41 - 20)
    found = km.kron_matmul(x * scales[:, None], factors) / scales[:, None]
    assert_close(found.cpu(), oracle(x, factors), depth=128)
    columns = km.kron_matmul((x * scales[:, None]).T, factors, side="left") / scales
    assert_close(columns.cpu(), oracle(x.T, factors, "left"), depth=128)


def test_nan_and_infinity_stay_in_their_row():
    x, factors = drawn((64, [(32, 32)] * 2), torch.float32, device="cuda")
    clean = km.kron_matmul(x, factors)
    for value in (float("nan"), float("inf")):
        spoiled = x.clone()
        spoiled[5, 7] = value
        found = km.kron_matmul(spoiled, factors)
        assert not found[5].isfinite().any()
        rest = torch.arange(64, device="cuda") != 5
        assert torch.equal(found[rest], clean[rest])


def test_precision_says_which_arithmetic_runs():
    x, factors = drawn((40, [(32, 32)] * 2), torch.float32, device="cuda")
    wanted = oracle(x, factors)
    routes = {}
    for precision in (None, "ieee", "tf32"):
        found = km.kron_matmul(x, factors, precision=precision)
        routes[precision] = last_route()
        kind, size = (torch.float16, rounded(x, factors)) if precision == "tf32" else (torch.float32, None)
        assert_close(found.cpu(), wanted, dtype=kind, depth=64, magnitude=size)
    assert "3 products of scaled f16 halves" in routes[None]
    assert "products" not in routes["ieee"]
    assert "f16 products" in routes["tf32"]


def test_gradients_and_graphs():
    x, factors = drawn((40, [(16, 16), (32, 32)]), torch.float32, device="cuda")
    leaves = [x.requires_grad_(), *(factor.requires_grad_() for factor in factors)]
    found = torch.autograd.grad(km.kron_matmul(x, factors).square().sum(), leaves)
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    wanted = torch.autograd.grad(km.kron_matmul(exact[0], exact[1:]).square().sum(), exact)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.cpu(), other, dtype=torch.float32, depth=40 * 512)
    with torch.no_grad():
        out = km.kron_matmul(x, factors)
        expected = out.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            km.kron_matmul(x, factors, out=out)
        out.zero_()
        graph.replay()
        assert torch.equal(out, expected)
