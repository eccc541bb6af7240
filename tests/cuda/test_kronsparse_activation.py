"""Activations and their slopes on addresses, on a GPU against float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernmantle.structured.mode_product import activation as activations
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

SHAPES = (8, 4), (1, 8), (3, 1000), (257, 4096)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_values_and_gradients(name, dtype) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        value = 3 * torch.randn(*shape, device="cuda").to(dtype)
        value.view(-1)[:2] = 0
        grad, found = torch.randn(*shape, device="cuda").to(dtype), torch.empty_like(value)
        exact = value.double().requires_grad_()
        wanted = getattr(functional, name)(exact)
        (slope,) = torch.autograd.grad(wanted, exact, grad.double())
        apply, pull = (activations.bind_activation(value, name, slope) for slope in (False, True))
        apply((value.data_ptr(), found.data_ptr()))
        assert_close(found, wanted.detach(), dtype=dtype, depth=4, magnitude=exact.detach().abs() + 1)
        own = grad.clone()
        pull((value.data_ptr(), own.data_ptr(), own.data_ptr()))  # written where it is read
        assert_close(own, slope, dtype=dtype, depth=4, magnitude=2 * grad.double().abs())


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_numbers_that_are_not_finite(name) -> None:
    nan, inf = float("nan"), float("inf")
    value = torch.tensor([nan, inf, -inf, 0, 1, -1, 2, -2], device="cuda").bfloat16().requires_grad_()
    grad, found = torch.ones_like(value), torch.empty_like(value)
    wanted = getattr(functional, name)(value)
    (slope,) = torch.autograd.grad(wanted, value, grad)
    apply, pull = (activations.bind_activation(value.detach(), name, slope) for slope in (False, True))
    apply((value.data_ptr(), found.data_ptr()))
    torch.testing.assert_close(found, wanted.detach(), equal_nan=True)
    pull((value.data_ptr(), grad.data_ptr(), found.data_ptr()))
    torch.testing.assert_close(found, slope, equal_nan=True)


def test_arrays_that_are_not_whole_vectors_are_refused() -> None:
    value = torch.randn(3, 3, device="cuda").bfloat16()
    assert activations.bind_activation(value, "gelu") is None
    assert activations.bind_activation(torch.randn(8, 8, device="cuda").double(), "gelu") is None
    assert activations.bind_activation(torch.randn(8, 8, device="cuda").mT, "gelu") is None
    assert activations.bind_activation(torch.randn(8, 8), "gelu") is None
