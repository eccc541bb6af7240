"""torch.func.linearize traces what a tangent passes: what is computed before must not be lost on the way."""

from __future__ import annotations

import pytest
import torch
from torch.func import linearize

import kernmantle as km
from kernmantle.testing import assert_close

F64 = torch.float64
SIDES = torch.linspace(-1, 2, 8, dtype=F64).view(4, 2)


def spd(a):
    return a @ a.mT + torch.eye(4, dtype=F64)


CALLS = {
    "logdet_spd": (lambda a: km.linalg.logdet_spd(spd(a)), lambda a: torch.logdet(spd(a))),
    "inverse_spd": (lambda a: km.linalg.inverse_spd(spd(a)).x, lambda a: torch.linalg.inv(spd(a))),
    "cholesky": (lambda a: km.linalg.solve_cholesky(spd(a), SIDES).x, lambda a: torch.linalg.solve(spd(a), SIDES)),
    "upper": (
        lambda a: km.linalg.solve_cholesky(spd(a), SIDES, lower=False).x, lambda a: torch.linalg.solve(spd(a), SIDES)
    ),
    "sides": (
        lambda a: km.linalg.solve_cholesky(spd(SIDES), a).x, lambda a: torch.linalg.solve(spd(SIDES), a)
    ),
    "lu": (lambda a: km.linalg.solve_lu(a, SIDES).x, lambda a: torch.linalg.solve(a, SIDES)),
    "kernel": (lambda a: km.Gaussian(2.0).matmul(a, SIDES.mT, SIDES.mT), lambda a: gaussian(a) @ SIDES.mT),
}  # fmt: skip


def gaussian(a):
    return torch.exp(-(a.unsqueeze(-2) - SIDES.mT).square().sum(-1) / 8)


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "several"])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_tangents(name, batch):
    call, wanted = CALLS[name]
    source = torch.Generator().manual_seed(3)
    a, tangent = (torch.randn((*batch, 4, 4), dtype=F64, generator=source) for _ in range(2))
    value, along = linearize(call, a)
    primal, moved = torch.func.jvp(wanted, (a,), (tangent,))
    assert_close(value, primal, depth=1000)
    assert_close(along(tangent), moved, depth=1000, magnitude=moved.abs().max().expand_as(moved) + 1)
