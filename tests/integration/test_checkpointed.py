"""Products inside of ``torch.utils.checkpoint``, which gives each saved tensor one time in a backward pass."""

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kernmantle as km

FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "distances": lambda x, y: km.cdist(x, y, "cityblock"),
    "kernel": km.Gaussian(1.5),
    "product with a kernel": lambda x, y: km.Laplace(1.5).matmul(x, y, y),
    "Kronecker product": lambda x, y: km.kron_matmul(x, [y[:2, :2], y[2:4, :2]]),
    "attention": lambda x, y: km.attention(x, y, y, score=lambda a, b: -abs(a - b)),
    "attention by inner products": lambda x, y: km.attention(x, y, y),
    "transport": lambda x, y: km.ot.sinkhorn(x, y, eps=1.0).value,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_without(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(7, 4, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    function = FUNCTIONS[name]
    wanted = torch.autograd.grad(function(x, y).square().sum(), (x, y))
    for _ in range(3):  # the first backward pass binds what the others run
        found = torch.autograd.grad(checkpoint(function, x, y, use_reentrant=False).square().sum(), (x, y))
        for own, each in zip(found, wanted, strict=True):
            torch.testing.assert_close(own, each, rtol=1e-9, atol=1e-9)


def test_a_layer_is_trained_through_it() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = km.KSLinear(8, 8, patterns=[(2, 4, 4, 1), (1, 4, 4, 2)], dtype=torch.float64)
    x = torch.randn(5, 8, dtype=torch.float64, generator=generator)
    wanted = torch.autograd.grad(layer(x).square().sum(), [*layer.parameters()])
    for _ in range(3):
        found = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), [*layer.parameters()])
        for own, each in zip(found, wanted, strict=True):
            torch.testing.assert_close(own, each, rtol=1e-9, atol=1e-9)
