"""Steps whose launches take the same addresses again, which become CUDA graphs, against float64."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_training
from kernmantle.testing import assert_close
from kernmantle.torch_ops import cuda_launches

from .test_kronsparse_grouped import exact

pytestmark = pytest.mark.cuda

CHAIN, WIDE = ((8, 64, 32, 1), (1, 40, 64, 8)), ((6, 64, 64, 1), (1, 768, 192, 2))


@pytest.fixture
def graphs(monkeypatch):
    """Graphs that are made, by whether they have all launches."""
    made = []

    class Noted(cuda_launches.LaunchGraph):
        def __init__(self, start):
            super().__init__(start)
            made.append((self.is_whole, weakref.ref(self)))

    monkeypatch.setattr(cuda_launches, "LaunchGraph", Noted)
    monkeypatch.setattr(cuda_launches, "_BEFORE", 2)
    PLANS.clear()
    yield made
    PLANS.clear()


@pytest.mark.parametrize(
    ("kind", "dtype", "chain"),
    [("batched", torch.bfloat16, CHAIN), ("matrix", torch.float16, WIDE), ("factors", torch.float32, WIDE)], ids=str,
)  # fmt: skip
def test_values_are_those_at_the_time_of_the_call(kind, dtype, chain, graphs, monkeypatch) -> None:
    """With two arrays of rows and two streams in turns, and weights that change."""
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: kind)
    torch.manual_seed(0)
    (a, _, c, d), (p, q, _, r) = chain
    layer = km.KSLinear(a * c * d, p * q * r, chain, device="cuda", dtype=dtype)
    rows = [torch.randn(4096, layer.in_features, device="cuda").to(dtype).requires_grad_() for _ in range(2)]
    grad = torch.randn(4096, layer.out_features, device="cuda").to(dtype)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for number in range(32):
        x = rows[number % 2]
        with torch.no_grad():
            for each in (x, *layer.parameters()):
                each.mul_(-1.01)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[number // 2 % 2]):
            value = layer(x)
            found = [value.detach(), *torch.autograd.grad(value, [x, *layer.weights, layer.bias], grad)]
        torch.cuda.synchronize()
        if number >= 24:
            depth = 4096 + sum(max(pattern[1:3]) for pattern in chain)
            for one, other, magnitude in zip(found, *exact(layer, x, grad), strict=True):
                assert_close(one, other, dtype=dtype, depth=depth, magnitude=magnitude)
        del value, found
    assert len(graphs) >= 2
    assert all(whole for whole, _ in graphs)


def test_graphs_end_with_their_layer(graphs, monkeypatch) -> None:
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: "batched")
    layer = km.KSLinear(256, 320, CHAIN, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(64, 256, device="cuda").bfloat16().requires_grad_()
    for _ in range(24):
        torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])
    assert graphs
    PLANS.clear()
    del layer
    gc.collect()
    assert all(graph() is None for _, graph in graphs)
