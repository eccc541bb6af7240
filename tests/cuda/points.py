"""Points on the GPU, their squared distances in float64, and how far products are off."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same ones for a shape and seed."""
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(*shape, device="cuda", generator=generator)


def squared(x: torch.Tensor, y: torch.Tensor, w: Any = 1.0) -> torch.Tensor:
    """Squared distances by differences, some rows at a time."""
    x, y = x.double(), y.double()
    step = max(1, 40_000_000 // y.numel())
    return torch.cat([(w * (part[:, None] - y) ** 2).sum(-1) for part in x.split(step)])


def share(found: torch.Tensor, entries: torch.Tensor, v: torch.Tensor) -> float:
    """Largest error of a product as a share of the sum of absolute products."""
    size = entries.abs() @ v.double().abs()
    assert torch.isfinite(found).all()
    return ((found - entries @ v.double()).abs() / size.clamp_min(1e-300)).max().item()


def assert_same_in_a_graph(product: Callable[[], torch.Tensor], x: torch.Tensor) -> None:
    """Compare bits of repeated calls, and of replays of a captured one after x has changed; NaN stays in its row."""
    first = product()
    assert all(torch.equal(first, product()) for _ in range(5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = product()
    x.mul_(0.5)
    graph.replay()
    assert torch.equal(captured, product())
    x[3, 1] = math.nan
    graph.replay()
    assert captured[3].isnan().all()
    assert torch.isfinite(captured[4:]).all()
