"""Rows of each domain, for tests and benchmarks."""

from __future__ import annotations

import torch


def rows(domain: str, count: int, columns: int, seed: int) -> torch.Tensor:
    """Return random rows in float64: normal numbers, positive ones that sum to 1, or zeros and ones."""
    source = torch.Generator().manual_seed(seed)
    if domain == "real":
        return torch.randn(count, columns, generator=source, dtype=torch.float64)
    uniform = torch.rand(count, columns, generator=source, dtype=torch.float64)
    if domain == "boolean":
        return (uniform < 0.5).double()
    return (uniform + 0.05) / (uniform + 0.05).sum(-1, keepdim=True)
