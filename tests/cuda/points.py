"""Points on the GPU, their squared distances in float64, and how far products are off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import kernmantle as km
from kernmantle.runtime.dispatch import PLANS


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


def small_sizes_too(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *least: str) -> Iterator[None]:
    """Plan the kernels of a module for any size while a test runs, which is skipped where GPUs have no such kernels."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("these kernels are of Hopper GPUs")
    PLANS.clear()
    for name in least:
        monkeypatch.setattr(module, name, 1)
    yield
    PLANS.clear()


def assert_alike(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare results of which some are NaN or infinite."""
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found[wanted.isinf()].double(), wanted[wanted.isinf()])
    fine = torch.isfinite(wanted)
    assert torch.allclose(found[fine].double(), wanted[fine], rtol=1e-4, atol=1e-3)


def assert_distances(x: torch.Tensor, y: torch.Tensor, width: int) -> None:
    """Compare products with kernels of distances that lose digits with float64."""
    d = squared(x, y)
    h = float(d.median().sqrt()) or 1.0
    v = normal(y.shape[0], width)
    assert share(km.Laplace(bandwidth=h, p=2.0).matmul(x, y, v), (-d.sqrt() / h).exp(), v) < 2e-6
    assert share(km.Gaussian(h).matmul(x, y, v), (-d / (2 * h * h)).exp(), v) < 1e-6
