"""Log-sum-exps of sums on the GPU against float64: exactness where products would underflow."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km

from .log_products import PROMISE

pytestmark = pytest.mark.cuda
M, N, K = 2048, 1920, 256
PLUS = km.Contraction("mk,nk->mn", lambda a, b: a + b, reduce="logsumexp")


def _given(rows: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(rows, K, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def _exact(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.logsumexp(part.double()[:, None] + y.double(), -1) for part in x.split(32)])


def _error(found: torch.Tensor, want: torch.Tensor) -> float:
    same = (found == want) | (found.isnan() & want.isnan())
    off = torch.where(same, 0.0, (found.double() - want).abs() / (PROMISE + 2.0**-22 * want.abs()))
    return float(torch.where(off.isfinite(), off, torch.inf).max())


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 30.0, 1000.0])
def test_large_products(scale: float) -> None:
    x, y = _given(M, 0, scale), _given(N, 1, scale)
    assert _error(PLUS(x, y), _exact(x, y)) <= 1
    assert "logarithms of products" in repr(PLUS)


def test_masks_and_what_is_not_finite() -> None:
    x, y = _given(M, 0), _given(N, 1)
    x[torch.rand(x.shape, device="cuda") < 0.9] = -torch.inf
    y[torch.rand(y.shape, device="cuda") < 0.9] = -torch.inf
    x[3], y[5] = -torch.inf, -torch.inf
    x[7, 3], y[9, 3], x[11, 0] = torch.nan, torch.inf, torch.inf
    assert _error(PLUS(x, y), _exact(x, y)) <= 1


def test_as_it_is_written() -> None:
    x, y = _given(M, 0), _given(N, 1)
    assert _error(PLUS(x, y, precision="ieee"), _exact(x, y)) <= 1
    assert "products" not in repr(PLUS)


def test_gradient() -> None:
    x, y = _given(300, 0).requires_grad_(), _given(200, 1).requires_grad_()
    g = torch.randn(300, 200, device="cuda")
    found = torch.autograd.grad(PLUS(x, y), (x, y), g)
    a, b = (each.detach().double().requires_grad_() for each in (x, y))
    want = torch.autograd.grad(torch.logsumexp(a[:, None] + b, -1), (a, b), g.double())
    assert all((f - w).abs().max() <= 1e-5 * w.abs().max() for f, w in zip(found, want, strict=True))


def test_graph_capture_replays_on_new_values() -> None:
    x, y, out = _given(M, 0), _given(N, 1), torch.empty(M, N, device="cuda")
    PLUS(x, y, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        PLUS(x, y, out=out)
    x.copy_(_given(M, 5, 30.0))
    graph.replay()
    assert _error(out, _exact(x, y)) <= 1
