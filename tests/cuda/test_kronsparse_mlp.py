"""Two layers as one step, on a GPU against float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_training, groups, joined_layers
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

CHAINS = ((6, 64, 64, 1), (1, 768, 192, 2)), ((24, 64, 64, 1), (1, 96, 384, 4))
HALVES = torch.bfloat16, torch.float16
BLOCKS = ((32, 128, 128, 1), (1, 128, 128, 32)), ((64, 64, 64, 1), (1, 64, 64, 64))


def exact(layers, x, residual, slope, activation):
    """Result and gradients in float64, and bounds of the sizes of the terms of each."""
    found = []
    for own in (lambda value: value, torch.abs):
        leaves = [x, residual, *(each for layer in layers for each in (*layer.weights, layer.bias))]
        leaves = [own(leaf.detach().double()).requires_grad_() for leaf in leaves]
        value, given = leaves[0], iter(leaves[2:])
        for number, layer in enumerate(layers):
            for pattern in layer.patterns:
                a, _, c, d = pattern
                value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), next(given)).flatten(1)
            value = value + next(given)
            if not number:
                value = getattr(functional, activation)(value) if own is not torch.abs else 2 * value
        value = value + leaves[1]
        found.append([value.detach(), *torch.autograd.grad(value, leaves, own(slope.double()))])
    return found


class Together(nn.Module):
    """Both layers as one step."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, activation, residual):
        """Apply them."""
        return km.kronsparse.mlp(x, *self.layers, activation, residual)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *itertools.product(("grouped", "matrix", "factors"), (*HALVES, torch.float32)),
        *itertools.product(("batched", "group", "group of blocks"), HALVES),
    ],
    ids=str,
)
def test_values_and_gradients(kind, dtype, monkeypatch) -> None:
    chains = BLOCKS if kind in ("batched", "group of blocks") else CHAINS
    PLANS.clear()
    monkeypatch.setattr(joined_layers, "kind_of", lambda *_: kind)
    monkeypatch.setattr(chain_training, "kind_of", lambda *_: kind)
    monkeypatch.setattr(groups, "shares_matrix", lambda *_: True)
    torch.manual_seed(0)
    sizes = [(own[0][0] * own[0][2] * own[0][3], own[1][0] * own[1][1] * own[1][3]) for own in chains]
    layers = [km.KSLinear(*size, own, device="cuda", dtype=dtype) for size, own in zip(sizes, chains, strict=True)]
    for activation, rows in (("gelu", 40), ("silu", 1000), ("relu", 264)):
        x, residual, slope = (
            torch.randn(rows, size, device="cuda").to(dtype) for size in (sizes[0][0], sizes[1][1], sizes[1][1])
        )
        x, residual = x.requires_grad_(), residual.requires_grad_()
        leaves = [x, residual, *(each for layer in layers for each in (*layer.weights, layer.bias))]
        wanted, terms = exact(layers, x, residual, slope, activation)
        apply = Together(layers)
        if kind in ("group", "group of blocks"):
            km.kronsparse.group(apply)
        for _ in range(3):
            value = apply(x, activation, residual)
            adds = kind == "matrix" and dtype in HALVES  # other steps do not add the residual
            assert type(value.grad_fn).__name__ == ("_JoinedBackward" if adds else "AddBackward0")
            found = [value.detach(), *torch.autograd.grad(value, leaves, slope)]
            for one, two, size in zip(found, wanted, terms, strict=True):
                assert_close(one, two, dtype=dtype, depth=1024 + rows, magnitude=size)
        leaves.pop(1)
        for _ in range(3):
            value = apply(x, activation, None)
            kernels = kind == "factors" and dtype == torch.float32 and rows == 40  # others have products of torch's
            launches = adds or kernels or kind in ("grouped", "batched")
            assert (type(value.grad_fn).__name__ == "_JoinedBackward") == launches
            found = torch.autograd.grad(value, leaves, slope)
            for one, two, size in zip(found, (wanted[1], *wanted[3:]), (terms[1], *terms[3:]), strict=True):
                assert_close(one, two, dtype=dtype, depth=1024 + rows, magnitude=size)
    PLANS.clear()


class Feeding(nn.Module):
    """Both layers, as a block has them."""

    def __init__(self) -> None:
        super().__init__()
        chains = zip((384, 1536), (1536, 384), CHAINS, strict=True)
        self.layers = nn.ModuleList(km.KSLinear(*sizes, dtype=torch.bfloat16) for sizes in chains)

    def forward(self, x):
        """Apply them."""
        return km.kronsparse.mlp(x, *self.layers, "gelu", x)


def test_graphed_callables() -> None:
    """Graphs of both passes by torch give the result and the gradients."""
    torch.manual_seed(0)
    model, x, slope = Feeding().cuda(), torch.randn(264, 384).cuda().bfloat16(), torch.randn(264, 384).cuda().bfloat16()
    wanted, terms = exact(model.layers, x, x, slope, "gelu")
    x.requires_grad_()
    leaves = [*(each for layer in model.layers for each in (*layer.weights, layer.bias))]
    model(x)
    graphed = torch.cuda.make_graphed_callables(model, (x.detach().clone().requires_grad_(),))
    for _ in range(2):
        value = graphed(x)
        found = [value.detach(), *torch.autograd.grad(value, leaves, slope)]
        for one, two, size in zip(found, (wanted[0], *wanted[3:]), (terms[0], *terms[3:]), strict=True):
            assert_close(one, two, dtype=torch.bfloat16, depth=1024 + 264, magnitude=size)


def test_a_warm_step_is_not_taken_under_autocast(monkeypatch) -> None:
    monkeypatch.setattr(joined_layers, "kind_of", lambda *_: "grouped")
    PLANS.clear()
    torch.manual_seed(0)
    layers = [km.KSLinear(384, 1536, CHAINS[0], device="cuda"), km.KSLinear(1536, 384, CHAINS[1], device="cuda")]
    x = torch.randn(40, 384, device="cuda", requires_grad=True)
    for _ in range(3):
        assert type(km.kronsparse.mlp(x, *layers).grad_fn).__name__ == "_JoinedBackward"
    with torch.autocast("cuda", torch.bfloat16):
        found, wanted = km.kronsparse.mlp(x, *layers), layers[1](functional.gelu(layers[0](x)))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted)
    PLANS.clear()


def test_a_graph_takes_the_layers_one_by_one() -> None:
    torch.manual_seed(0)
    layers = [km.KSLinear(384, 1536, CHAINS[0], device="cuda"), km.KSLinear(1536, 384, CHAINS[1], device="cuda")]
    x = torch.randn(40, 384, device="cuda", requires_grad=True)
    leaves = [x, *layers[0].parameters(), *layers[1].parameters()]

    def step():
        value = km.kronsparse.mlp(x, *layers, residual=x)
        return [value.detach(), *torch.autograd.grad(value.square().sum(), leaves)]

    wanted = [own.clone() for own in step()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    for one, two in zip(found, wanted, strict=True):
        assert_close(one, two.double(), dtype=torch.float32, depth=4096, magnitude=two.abs().double() + two.abs().max())
