"""Sinkhorn transport and attention with an L1 score on one core, each beside the same formula on whole matrices.

``python examples/transport_and_attention.py 5000`` takes 5000 points. Times are of the processor, the best of three.
"""
# ruff: noqa: T201

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import torch

import kernmantle as km

EPS, STEPS = 0.5, 10


def transport(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Potentials after ten iterations, without the costs in memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", km.errors.KernmantleWarning)  # ten iterations are not enough
        found = km.ot.sinkhorn(x, y, eps=EPS, scaling=1, max_iterations=STEPS, tolerance=1e-30)
    return found.f, found.g


def dense_transport(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on the matrix of costs."""
    costs, a, b = torch.cdist(x, y).square_(), 1 / len(x), 1 / len(y)
    weights = torch.tensor(a).log(), torch.tensor(b).log()
    g = torch.zeros(len(y))
    for _ in range(STEPS):
        f = -EPS * torch.logsumexp(weights[1] + (g - costs) / EPS, 1)
        g = -EPS * torch.logsumexp(weights[0] + (f[:, None] - costs) / EPS, 0)
    f = -EPS * torch.logsumexp(weights[1] + (g - costs) / EPS, 1)
    shift = (f.mean() - g.mean()) / 2
    return f - shift, g + shift


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with minus the L1 distance as the score."""
    return km.attention(q, k, v, score=lambda a, b: -abs(a - b))


def dense_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same on the matrix of weights."""
    return torch.softmax(-torch.cdist(q, k, p=1), -1) @ v


def seconds(function: Callable[[], object]) -> float:
    """Least time of the processor of three calls."""
    times = []
    for _ in range(3):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def main(points: int = 1000) -> None:
    """Compare values, then times."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(points, 3, generator=random) for _ in range(2))
    heads = [torch.randn(8, 1024, 64, generator=random) for _ in range(3)]
    for found, want in zip(transport(x, y), dense_transport(x, y), strict=True):
        torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(attention(*heads), dense_attention(*heads), atol=1e-4, rtol=1e-4)
    fused, dense = seconds(lambda: transport(x, y)), seconds(lambda: dense_transport(x, y))
    print(f"Sinkhorn, {points} x {points} points, {STEPS} iterations: {fused:.3f} s, on matrices {dense:.3f} s")
    fused, dense = seconds(lambda: attention(*heads)), seconds(lambda: dense_attention(*heads))
    print(f"L1 attention, 8 x 1024 x 1024 x 64: {fused:.3f} s, on matrices {dense:.3f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
