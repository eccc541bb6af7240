"""Layers of a module that make their matrices together, on a GPU against float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kernmantle as km
from kernmantle.structured.kronsparse import groups
from kernmantle.testing import assert_close

from .test_kronsparse_grouped import exact

pytestmark = pytest.mark.cuda

CHAINS = (
    ((6, 64, 64, 1), (1, 768, 192, 2)), ((6, 64, 64, 1), (1, 96, 96, 4)), ((32, 12, 12, 1), (1, 32, 32, 12)),
    ((6, 64, 64, 1), (1, 768, 192, 2)),
)  # fmt: skip
"""From 384 features, the third not by tiles."""


class Beside(nn.Module):
    """Layers that are called with the same rows."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        outs = [pattern[0] * pattern[1] * pattern[3] for _, pattern in CHAINS]
        self.layers = nn.ModuleList(
            km.KSLinear(384, out, chain, device="cuda", dtype=dtype) for out, chain in zip(outs, CHAINS, strict=True)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Apply each."""
        return [layer(x) for layer in self.layers]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "graph"])
def test_steps_in_groups(dtype, captured, monkeypatch) -> None:
    monkeypatch.setattr(groups, "shares_matrix", lambda *_: True)
    torch.manual_seed(0)
    model = km.kronsparse.group(Beside(dtype))
    for batch in ((40,), (3, 700)):
        x = torch.randn(*batch, 384, device="cuda").to(dtype).requires_grad_()
        slopes = [torch.randn(*batch, layer.out_features, device="cuda").to(dtype) for layer in model.layers]

        def step(x=x, slopes=slopes):
            values = model(x)
            leaves = [[x, *layer.weights, layer.bias] for layer in model.layers]
            grads = [
                torch.autograd.grad(value, own, slope, retain_graph=True)
                for value, own, slope in zip(values, leaves, slopes, strict=True)
            ]
            every = torch.autograd.grad(values, [own for each in leaves for own in each[1:]], slopes)
            return [value.detach() for value in values], grads, every

        found = step()
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = step()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(0.5)
            graph.replay()
        values, grads, every = found
        assert captured or model.layers[0].info == "torch dense"  # in a graph layers go their own ways
        together = iter(every)
        rows = x.flatten(0, -2)
        for value, own, layer, slope in zip(values, grads, model.layers, slopes, strict=True):
            wanted, terms = exact(layer, rows, slope.flatten(0, -2))
            depth = len(rows) + 256
            for one, two, size in zip([value, *own], wanted, terms, strict=True):
                assert_close(one, two.view(one.shape), dtype=dtype, depth=depth, magnitude=size.view(one.shape))
            for two, size in zip(wanted[2:], terms[2:], strict=True):
                assert_close(next(together), two, dtype=dtype, depth=depth, magnitude=size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "graph"])
def test_layers_of_the_same_rows(dtype, captured, monkeypatch) -> None:
    monkeypatch.setattr(groups, "shares_matrix", lambda *_: True)
    torch.manual_seed(0)
    layers = list(Beside(dtype).layers)
    x = torch.randn(3, 700, 384, device="cuda").to(dtype).requires_grad_()
    slopes = [torch.randn(3, 700, layer.out_features, device="cuda").to(dtype) for layer in layers]
    leaves = [x, *(own for layer in layers for own in (*layer.weights, layer.bias))]

    def step():
        values = km.kronsparse.apply_each(layers, x)
        return [value.detach() for value in values], torch.autograd.grad(values, leaves, slopes)

    values, grads = step()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            values, grads = step()
        graph.replay()
    assert layers[0].info == "torch dense"
    of_x, *rest = grads
    sums, sizes, together = 0, 0, iter(rest)
    for value, layer, slope in zip(values, layers, slopes, strict=True):
        (wanted, one, *own), (terms, other, *parts) = exact(layer, x.flatten(0, -2), slope.flatten(0, -2))
        sums, sizes = sums + one, sizes + other
        assert_close(value, wanted.view(value.shape), dtype=dtype, depth=256, magnitude=terms.view(value.shape))
        for two, size in zip(own, parts, strict=True):
            assert_close(next(together), two, dtype=dtype, depth=2356, magnitude=size)
    assert_close(of_x, sums.view(x.shape), dtype=dtype, depth=1024, magnitude=sizes.view(x.shape))
