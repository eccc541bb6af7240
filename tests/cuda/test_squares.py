"""Sums of squared differences on the GPU against float64: exactness where products lose digits."""

from __future__ import annotations

import pytest
import torch

import kernmantle as km
from kernmantle.backends.cuda.squares_plan import PROMISE
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import FORMATS

pytestmark = pytest.mark.cuda
M, N, K = 2048, 1920, 256


def _given(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def _exact(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor | None = None) -> torch.Tensor:
    """Squared distances from differences in float64."""
    weights = torch.ones(x.shape[-1], device=x.device) if w is None else w
    parts = [((part.double()[:, None] - y.double()) ** 2 * weights.double()).sum(-1) for part in x.split(32)]
    return torch.cat(parts)


def _error(found: torch.Tensor, want: torch.Tensor) -> float:
    same = (found == want) | (found.isnan() & want.isnan())
    off = torch.where(same, 0.0, (found.double() - want).abs() / want.abs())
    return float(torch.where(off.isfinite(), off, torch.inf).max())


@pytest.mark.parametrize("kind", ["plain", "near", "moved", "uneven", "large", "small", "clusters"])
def test_large_distances(kind: str) -> None:
    x, y = _given(M, K), _given(N, K, seed=1)
    if kind == "near":
        y[:500] = x[:500] * (1 + 1e-7 * torch.arange(500, device="cuda")[:, None])
    if kind == "moved":
        x, y = x + 1e4, y + 1e4
    if kind == "uneven":
        x, y = (t * 10.0 ** (torch.arange(len(t), device="cuda") % 9 - 4)[:, None] for t in (x, y))
    if kind in ("large", "small"):
        x, y = (t * (1e15 if kind == "large" else 1e-15) for t in (x, y))
    if kind == "clusters":
        x, y = (1e-4 * t + 10 * _given(7, K, seed=2)[torch.arange(len(t), device="cuda") % 7] for t in (x, y))
    assert _error(km.cdist(x, y, metric="sqeuclidean"), _exact(x, y)) <= PROMISE
    assert _error(km.cdist(x, y), _exact(x, y).sqrt()) <= PROMISE


def test_equal_rows_are_exactly_zero_and_own_distances_symmetric() -> None:
    x = _given(M, K)
    x[100:200] = x[300:400]
    result = km.cdist(x)
    assert torch.equal(result, result.mT)
    assert not result.diagonal().any()
    assert not result[100:200, 300:400].diagonal().any()
    assert _error(result, _exact(x, x).sqrt()) <= PROMISE


def test_nan_and_infinity_go_through() -> None:
    x, y = _given(M, K), _given(N, K, seed=1)
    x[3, 5], x[900, 7], y[11, 5], y[12, 5] = torch.inf, torch.nan, torch.inf, -torch.inf
    assert _error(km.cdist(x, y), _exact(x, y).sqrt()) <= PROMISE


def test_weights() -> None:
    x, y, w = _given(M, K), _given(N, K, seed=1), _given(K, seed=2).abs()
    assert _error(km.cdist(x, y, metric="sqeuclidean", w=w), _exact(x, y, w)) <= PROMISE


def test_batches_and_views() -> None:
    x, y = _given(3, K, 700, seed=3).mT, _given(1, 900, 2 * K, seed=4)[..., ::2]
    result = km.cdist(x, y, metric="sqeuclidean")
    assert max(_error(one, _exact(part, y[0])) for one, part in zip(result, x, strict=True)) <= PROMISE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 8.0])
def test_halves(dtype: torch.dtype, offset: float) -> None:
    x, y = (t.add(offset).to(dtype) for t in (_given(M, K), _given(N, K, seed=1)))
    y[:10] = x[:10]
    name = str(dtype).removeprefix("torch.")
    rounding = FORMATS[name].roundoff
    assert _error(km.cdist(x, y), _exact(x, y).sqrt().to(dtype).double()) <= 2 * rounding


def test_precision() -> None:
    x, y = _given(M, K), _given(N, K, seed=1)
    y[:10] = x[:10]
    distance = km.Contraction("mk,nk->mn", lambda a, b: (a - b) ** 2)
    exact = _exact(x, y)
    results = {precision: distance(x, y, precision=precision) for precision in (None, "ieee", "tf32")}
    routes = []
    for precision in results:
        distance(x, y, precision=precision)
        routes.append(repr(distance))
    assert _error(results[None], exact) <= PROMISE
    assert _error(results["ieee"], exact) <= PROMISE
    assert PROMISE < _error(results["tf32"], exact) <= 2.0**-10
    assert not results["tf32"][:10, :10].diagonal().any()
    assert len(set(routes)) == 3


def test_gradient() -> None:
    x, y = _given(M, K).requires_grad_(), _given(N, K, seed=1).requires_grad_()
    weights = _given(M, N, seed=2)
    (km.Gaussian(20.0)(x, y) * weights).sum().backward()
    a, b = (t.detach().double().requires_grad_() for t in (x, y))
    (torch.exp(-(torch.cdist(a, b) ** 2) / 800) * weights.double()).sum().backward()
    assert_close(x.grad.cpu(), a.grad.cpu(), dtype=torch.float32, depth=N)
    assert_close(y.grad.cpu(), b.grad.cpu(), dtype=torch.float32, depth=M)


def test_graph_capture_replays_on_new_values() -> None:
    x, y = _given(M, K), _given(N, K, seed=1)
    out = torch.empty(M, N, device="cuda")
    km.cdist(x, y, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        km.cdist(x, y, out=out)
    x.copy_(_given(M, K, seed=5))
    graph.replay()
    assert _error(out, _exact(x, y).sqrt()) <= PROMISE
