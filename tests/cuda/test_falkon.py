"""Kernel ridge regression on centres, on CUDA, against least squares in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km

pytestmark = pytest.mark.cuda


def task(dtype):
    source = torch.Generator().manual_seed(5)
    x = torch.rand(20000, 9, generator=source, dtype=torch.float64)
    y = (4 * x.sum(1)).sin() + 0.2 * torch.randn(20000, generator=source, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def excess(x, y, c, a, ridge):
    """The root of twice the objective above its minimum, relative to the targets."""
    x, y, c, a = (t.double().cpu() for t in (x, y, c, a))
    wide, square = torch.exp(-torch.cdist(x, c)), torch.exp(-torch.cdist(c, c))
    stacked = torch.cat([wide, ridge**0.5 * torch.linalg.cholesky(square).mT])
    gap = a - torch.linalg.lstsq(stacked, torch.cat([y, y.new_zeros(len(c))])[:, None]).solution[:, 0]
    return float((stacked @ gap).norm() / y.norm())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-3), (torch.float64, 1e-8)])
@pytest.mark.parametrize("where", ["resident", "streamed", "copied"])
def test_solutions_are_those_of_least_squares(where, dtype, limit):
    x, y = task(dtype)
    placed = (x.cuda(), y.cuda()) if where == "resident" else (x, y)
    memory = 1000 if where == "streamed" else None
    found = km.linalg.falkon(km.Laplace(1.0, p=2), *placed, 2.0, 300, tolerance=limit, memory=memory, device="cuda")
    assert found.converged
    assert found.x.is_cuda
    assert ("streamed" in found.ran) == (where == "streamed")
    assert excess(x, y, found.centres, found.x, 2.0) <= limit


def test_memory_is_that_of_two_matrices_of_the_centres():
    x, y = (t.cuda() for t in task(torch.float32))
    km.linalg.falkon(km.Laplace(1.0, p=2), x, y, 2.0, 100)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    km.linalg.falkon(km.Laplace(1.0, p=2), x, y, 2.0, 4000)
    assert torch.cuda.max_memory_allocated() - before <= 2 * 4000**2 * 8 + 4 * 2**29
