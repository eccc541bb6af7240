"""Steps of two factors with the batch last between them, on a GPU against float64."""

from __future__ import annotations

import itertools

import pytest
import torch

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_batched, chain_training
from kernmantle.structured.mode_product import rearrange
from kernmantle.structured.mode_product.transpose_plan import padded
from kernmantle.structured.mode_product.weight_gradient import add_parts
from kernmantle.testing import assert_close

from .test_kronsparse_grouped import exact

pytestmark = pytest.mark.cuda

CHAINS = {
    "monarch": ((32, 128, 128, 1), (1, 128, 128, 32)), "more": ((16, 64, 64, 1), (1, 64, 64, 16)),
    "wide": ((8, 64, 64, 1), (1, 344, 64, 8)), "few": ((4, 16, 24, 1), (1, 8, 8, 8)),
    "odd": ((16, 64, 64, 1), (1, 172, 64, 16)), "small and odd": ((8, 32, 24, 1), (1, 20, 16, 16)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _batched_steps(monkeypatch) -> None:
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: "batched")


def layer_of(chain, dtype):
    (a, _, c, d), (p, q, _, r) = chain
    return km.KSLinear(a * c * d, p * q * r, chain, device="cuda", dtype=dtype)


@pytest.mark.parametrize("summed", [0, 1 << 40], ids=["on the way", "apart"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_layers_are_trained(chain, dtype, summed, monkeypatch) -> None:
    monkeypatch.setattr(chain_batched, "_LEAST_SUMMED", summed)
    torch.manual_seed(0)
    layer = layer_of(chain, dtype)
    for batch in ((8,), (1000,), (3, 40)):
        sizes = layer.in_features, layer.out_features
        x, grad = (torch.randn(*batch, size, device="cuda").to(dtype) for size in sizes)
        x.requires_grad_()
        leaves = [x, *layer.weights, layer.bias]
        for _ in range(3):  # the first step binds its passes, the third one has what the second one's left in memory
            value = layer(x)
            assert "batch last between" in layer.info
            found = [value.detach(), *torch.autograd.grad(value, leaves, grad)]
        depth = sum(max(pattern[1:3]) for pattern in chain) + x.numel() // x.shape[-1]
        for one, wanted, terms in zip(found, *exact(layer, x.flatten(0, -2), grad.flatten(0, -2)), strict=True):
            assert_close(one, wanted.view(one.shape), dtype=dtype, depth=depth, magnitude=terms.view(one.shape))


@pytest.mark.parametrize("name", ["more", "odd", "small and odd"])
def test_a_graph_adds_a_bias_that_begins_between_vectors(name) -> None:
    torch.manual_seed(0)
    layer = layer_of(CHAINS[name], torch.bfloat16)
    layer.bias.data = torch.randn(1 + layer.out_features, device="cuda").bfloat16()[1:]
    x = torch.randn(64, layer.in_features, device="cuda").bfloat16().requires_grad_()
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = layer(x).detach()
    layer.bias.data.normal_()
    graph.replay()
    grad = torch.zeros(64, layer.out_features, device="cuda").bfloat16()
    (wanted, *_), (terms, *_) = exact(layer, x, grad)
    assert_close(found, wanted, dtype=torch.bfloat16, depth=128, magnitude=terms)


def test_every_subset_of_gradients_and_rows_that_lie_apart() -> None:
    torch.manual_seed(0)
    layer = layer_of(CHAINS["more"], torch.bfloat16)
    base, slopes = (torch.randn(64, 2100, device="cuda").bfloat16() for _ in range(2))
    x, grad = base[:, 8 : 8 + layer.in_features].requires_grad_(), slopes[:, 1 : 1 + layer.out_features]
    leaves = [x, *layer.weights, layer.bias]
    _, *wanted = exact(layer, x, grad)[0]
    _, *terms = exact(layer, x, grad)[1]
    for asked in itertools.product((False, True), repeat=len(leaves)):
        if not any(asked):
            continue
        for leaf, needed in zip(leaves, asked, strict=True):
            leaf.requires_grad_(needed)
        found = torch.autograd.grad(layer(x), list(itertools.compress(leaves, asked)), grad)
        expected = itertools.compress(zip(wanted, terms, strict=True), asked)
        for one, (own, sizes) in zip(found, expected, strict=True):
            assert_close(one, own, dtype=torch.bfloat16, depth=192, magnitude=sizes)


@pytest.mark.parametrize("rows", [64, 4096])
def test_a_graph_binds_what_no_eager_call_had(rows, monkeypatch) -> None:
    """A stream that is captured does not allow what the choice of a product's algorithm may do."""
    PLANS.clear()
    monkeypatch.setattr(chain_training, "kind_of", lambda *given: "batched" if given[-1] is True else "matrix")
    torch.manual_seed(0)
    layer = layer_of(CHAINS["more"], torch.bfloat16)
    sizes = layer.in_features, layer.out_features
    x, grad = (torch.randn(rows, size, device="cuda").bfloat16() for size in sizes)
    leaves = [x.requires_grad_(), *layer.weights, layer.bias]

    def step():
        value = layer(x)
        return [value.detach(), *torch.autograd.grad(value, leaves, grad)]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    for one, wanted, terms in zip(found, *exact(layer, x, grad), strict=True):
        assert_close(one, wanted, dtype=torch.bfloat16, depth=192 + rows, magnitude=terms)
    PLANS.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "extents", [(1, 20, 16), (3, 20, 16), (2, 172, 64), (3, 33, 300), (2, 7, 1), (1, 64, 32)], ids=str
)
def test_what_is_brought_back_has_a_bias(extents, dtype) -> None:
    torch.manual_seed(0)
    a, high, l = extents
    bias = torch.randn(a * high * l, device="cuda").to(dtype)
    for count in (1, 50, 1001):
        rows = torch.randn(count, a, l, padded(high, dtype.itemsize), device="cuda").to(dtype)
        out = torch.full((count, a * high * l), torch.nan, device="cuda", dtype=dtype)
        rearrange.transpose_rows(rows.flatten(1), out, a, high, l, False, bias)
        assert torch.equal(out, rows[..., :high].mT.reshape(count, -1) + bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("extents", [(128, 32), (64, 64), (344, 32), (8, 8), (16, 1024), (1024, 64)], ids=str)
def test_rows_are_transposed_and_summed(extents, dtype) -> None:
    torch.manual_seed(0)
    extent, d = extents
    features = extent * d
    for count, apart in ((1, 0), (7, 64), (1000, 8), (4100, 0)):
        rows = torch.randn(count, features + apart, device="cuda").to(dtype)[:, :features]
        rows[-1, :8] = 100
        made, sums = rearrange.rows_and_sums(rows, extent, d)
        assert torch.equal(made, rows.reshape(count, extent, d).mT.flatten(1))
        exact = rows.double()
        assert_close(sums.sum(0), exact.sum(0), dtype=torch.float32, depth=count + 200, magnitude=exact.abs().sum(0))
        again = rearrange.rows_and_sums(rows, extent, d)
        assert torch.equal(again[1], sums)
        assert_close(add_parts(sums, dtype), sums.double().sum(0), dtype=dtype, depth=200, magnitude=exact.abs().sum(0))


@pytest.mark.parametrize("summed", [0, 1 << 40], ids=["on the way", "apart"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_graphs_sum_a_bias(chain, dtype, summed, monkeypatch) -> None:
    monkeypatch.setattr(chain_batched, "_LEAST_SUMMED", summed)
    torch.manual_seed(0)
    layer = layer_of(chain, dtype)
    x, grad = (torch.randn(520, size, device="cuda").to(dtype) for size in (layer.in_features, layer.out_features))
    x.requires_grad_()
    leaves = [x, *layer.weights, layer.bias]

    def step():
        return torch.autograd.grad(layer(x), leaves, grad)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for _ in range(2):
        grad.normal_()
        graph.replay()
        _, *wanted = zip(*exact(layer, x, grad), strict=True)
        for one, (two, size) in zip(found, wanted, strict=True):
            assert_close(one, two, dtype=dtype, depth=1000, magnitude=size)
