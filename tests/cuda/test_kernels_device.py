"""Kernels on the GPU: nothing waits for the device, everything can be captured, gradients of every size are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kernmantle as km
from kernmantle.compat import kermac
from kernmantle.testing import assert_close

from ..arrays import nothing_waits

pytestmark = pytest.mark.cuda
M, N, K = 1200, 2500, 700


def _given(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {
    "matrix": lambda x, y, v: km.Laplace(20.0, p=1.3)(x, y, diagonal=0.1),
    "device bandwidth": lambda x, y, v: km.Gaussian(torch.full((), 9.0, device="cuda"))(x, y),
    "median": lambda x, y, v: km.Gaussian(km.median_bandwidth(x))(x, y),
    "standardise": lambda x, y, v: km.standardise(x, y)[1],
    "matmul": lambda x, y, v: km.Matern(20.0).matmul(x, y, v),
    "gradient": lambda x, y, v: km.Laplace(20.0).gradient(x, y, v),
    "gradient by products": lambda x, y, v: km.Gaussian(20.0).gradient(x, y, v),
    "agop": lambda x, y, v: km.Gaussian(20.0).agop(x, y, v, centred=True),
    "transformed": lambda x, y, v: km.Laplace(20.0).transformed(v[:K]).gradient(x, y, v),
    "compat": lambda x, y, v: kermac.run_kernel(kermac.kernel_descriptor_laplace_l2, x, y, bandwidth=2.0, epsilon=1e-6),
    "compat gradient": lambda x, y, v: kermac.cdist_grad(_given(N, M), y.mT, v.mT, x.mT, p=1.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_waits_for_the_device(name: str) -> None:
    x, y, v = _given(M, K), _given(N, K, seed=1), _given(N, 5, seed=2)
    CALLS[name](x, y, v)
    with nothing_waits():
        CALLS[name](x, y, v)


@pytest.mark.parametrize("kernel", [km.Laplace(20.0), km.Laplace(20.0, 1.3), km.Gaussian(20.0), km.NTK()], ids=repr)
@pytest.mark.parametrize("outputs", [1, 3, 17])
def test_gradients_that_are_large(kernel: km.Kernel, outputs: int) -> None:
    z, x, coef = _given(M, K), _given(N, K, seed=1), _given(N, outputs, seed=2)
    found = kernel.gradient(z, x, coef)
    exact = kernel.gradient(z[:9].cpu().double(), x.cpu().double(), coef.cpu().double())
    assert found.shape == (outputs, M, K)
    assert_close(found[:, :9].cpu(), exact, depth=N * K)
    assert_close(kernel.agop(z, x, coef), torch.einsum("omd,ome->de", found.double(), found.double()), depth=N)


@pytest.mark.parametrize("name", ["gradient", "gradient by products", "matmul"])
def test_a_graph_can_be_captured(name: str) -> None:
    x, y, v = _given(M, K), _given(N, K, seed=1), _given(N, 5, seed=2)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = CALLS[name](x, y, v)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = CALLS[name](x, y, v)
    graph.replay()
    assert torch.equal(found, expected)
