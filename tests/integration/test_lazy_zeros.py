"""Zeros without memory, as forward mode has them: they are read as zeros, and nothing is written to them."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km

LAYER = km.KSLinear(15, 10, [(5, 2, 3, 1)])
FACTORS = [torch.randn(3, 4), torch.randn(5, 2)]
CALLS = {
    "kron_matmul": lambda x: km.kron_matmul(x, FACTORS),
    "kron_sparse_matmul": lambda x: km.kron_sparse_matmul(x, LAYER.weights[0].detach()),
    "KSLinear": LAYER,
    "pack": LAYER.pack(),
    "cdist": lambda x: km.cdist(x, torch.ones(2, 15)),
    "matmul": lambda x: km.Gaussian(2.0).matmul(x, torch.ones(2, 15), torch.ones(2)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("calls_before", [0, 4])
def test_zeros_without_memory_are_read(name, calls_before):
    for _ in range(calls_before):
        CALLS[name](torch.randn(7, 15))
    zeros = torch._efficientzerotensor((7, 15))  # such a tangent has the sign of torch.linalg.slogdet
    assert torch.equal(CALLS[name](zeros), CALLS[name](torch.zeros(7, 15)))


def test_gradients_may_be_zeros_without_memory():
    x = torch.randn(7, 15, requires_grad=True)
    for grad in (torch.randn(7, 8), torch.randn(7, 8), torch._efficientzerotensor((7, 8))):
        (found,) = torch.autograd.grad(km.kron_matmul(x, FACTORS), x, grad)
    assert torch.equal(found, torch.zeros(7, 15))


def test_nothing_is_written_to_zeros_without_memory():
    with pytest.raises(km.errors.OutputError, match="lazily zero"):
        km.kron_matmul(torch.randn(7, 15), FACTORS, out=torch._efficientzerotensor((7, 8)))
