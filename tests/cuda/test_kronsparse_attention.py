"""Attention between two layers as one step, on a GPU against float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import joined_layers
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

WIDTH = 384
CHAINS = ((6, 64, 64, 1), (1, 576, 192, 2)), ((6, 64, 64, 1), (1, 192, 192, 2))
ROUNDINGS = 16
"""Of what lies between products and is rounded to the type, forward and back."""


class Attending(nn.Module):
    """Both layers with attention between them, added to x."""

    def __init__(self, heads: int, is_causal: bool, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = zip((3 * WIDTH, WIDTH), CHAINS, strict=True)
        self.qkv, self.proj = (km.KSLinear(WIDTH, rows, chain, device="cuda", dtype=dtype) for rows, chain in sizes)
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply them."""
        return km.kronsparse.attention(x, self.qkv, self.proj, self.heads, self.is_causal, residual=x)


def exact(model: Attending, x: torch.Tensor, slope: torch.Tensor) -> list[torch.Tensor]:
    """Result and gradients in float64, by the definition of attention."""
    leaves = [x, *model.qkv.weights, model.qkv.bias, *model.proj.weights, model.proj.bias]
    leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]

    def layer(value, weights, bias):
        shape = value.shape[:-1]
        for weight in weights:
            a, _, c, d = weight.shape
            value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), weight).flatten(1)
        return (value + bias).view(*shape, -1)

    value, *weights = leaves
    each = layer(value, weights[:2], weights[2]).unflatten(-1, (3, model.heads, -1)).permute(2, 0, 3, 1, 4)
    scores = each[0] @ each[1].mT / each.shape[-1] ** 0.5
    if model.is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    mixed = (scores.softmax(-1) @ each[2]).transpose(1, 2).flatten(2)
    result = layer(mixed, weights[3:5], weights[5]) + value
    return [result.detach(), *torch.autograd.grad(result, leaves, slope.double())]


def check(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Compare with entries of the size of the largest ones."""
    size = wanted.abs() + wanted.abs().max()
    depth = ROUNDINGS * WIDTH * (4**9 if dtype.itemsize < 4 else 1)  # what is between is rounded to the type
    assert_close(found, wanted, dtype=dtype, depth=depth, magnitude=size)


def slopes(model: Attending, x: torch.Tensor, slope: torch.Tensor) -> list[torch.Tensor]:
    leaves = [x, *model.qkv.weights, model.qkv.bias, *model.proj.weights, model.proj.bias]
    value = model(x)
    return [value.detach(), *torch.autograd.grad(value, leaves, slope)]


@pytest.mark.parametrize("kernel", [None, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                                    SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], ids=str)  # fmt: skip
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_values_and_gradients(dtype, is_causal, kernel, monkeypatch) -> None:
    if dtype is torch.float32 and kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        return
    PLANS.clear()
    monkeypatch.setattr(joined_layers, "kind_of", lambda *_: "matrix")
    model = Attending(6, is_causal, dtype)
    for batch, tokens in ((3, 40), (2, 197)):
        x, slope = (torch.randn(batch, tokens, WIDTH, device="cuda").to(dtype) for _ in range(2))
        wanted = exact(model, x, slope)
        x.requires_grad_()
        for _ in range(3):
            if kernel is None:
                found = slopes(model, x, slope)
            else:
                with sdpa_kernel(kernel):
                    found = slopes(model, x, slope)
            for one, other in zip(found, wanted, strict=True):
                check(one, other, dtype)
        joined = type(model(x).grad_fn).__name__ == "_JoinedBackward"
        assert joined == (dtype is not torch.float32)
    PLANS.clear()


def test_graphed_callables_and_checkpoints() -> None:
    torch.manual_seed(0)
    model, (x, slope) = Attending(6, True, torch.bfloat16), torch.randn(2, 4, 64, WIDTH).cuda().bfloat16()
    wanted = exact(model, x, slope)
    x.requires_grad_()
    for reentrant in (True, False):
        for _ in range(3):
            value = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
            x.grad = None
            value.backward(slope)
            check(x.grad, wanted[1], torch.bfloat16)
    del value  # a graph that is alive has its sums of gradients on another stream than what is captured
    graphed = torch.cuda.make_graphed_callables(model, (x.detach().clone().requires_grad_(),))
    for _ in range(2):
        for one, other in zip(slopes(graphed, x, slope), wanted, strict=True):
            check(one, other, torch.bfloat16)
