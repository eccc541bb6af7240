"""Solvers under torch.func on CUDA tensors, against the CPU."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.testing import assert_close

pytestmark = pytest.mark.cuda

CALLS = {
    "cholesky": lambda a: km.linalg.solve_cholesky(a, torch.ones_like(a[:, :2])).x,
    "upper": lambda a: km.linalg.solve_cholesky(a, torch.ones_like(a[0]), lower=False).x,
    "lu": lambda a: km.linalg.solve_lu(a + a.square(), torch.ones_like(a[:, :2])).x,
    "inverse": lambda a: km.linalg.inverse_spd(a).x,
    "determinant": km.linalg.logdet_spd,
    "values": lambda a: km.linalg.eigh(a, eigvals_only=True),
    "part": lambda a: km.linalg.eigh(a, subset_by_index=(1, 2)).v.square(),
}


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("name", CALLS)
def test_transforms(name, n):
    """Of orders that one kernel solves, and of others."""
    root = torch.randn(3, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = root @ root.mT / n + torch.diag(torch.linspace(1, 3, n).double())
    call = CALLS[name]
    ways = (
        torch.func.vmap(call),
        torch.func.vmap(torch.func.grad(lambda a: call((a + a.mT) / 2).sin().sum())),
        lambda a: torch.func.jvp(torch.func.vmap(call), (a,), (a.square(),))[1],
    )
    # The derivative of an eigenvector is a sum of quotients by the distances to the other eigenvalues.
    values = torch.linalg.eigvalsh(a)
    gaps = (values[:, 1:3, None] - values[:, None]).abs()
    magnitude = float(1 / gaps[gaps > 0].min()) if name == "part" else 1.0
    for way in ways:
        assert_close(way(a.cuda()), way(a), depth=10**5, magnitude=magnitude)
