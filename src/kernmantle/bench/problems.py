"""Problems that several suites share, each with its oracle written out in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .case import DTYPES, Arrays, Exact, Picks, Problem


def normal(rows: int, columns: int, dtype: str, device: str, seed: int) -> torch.Tensor:
    """Normal numbers, the same on every machine and device."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=source).to(device, DTYPES[dtype])


def _differences(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], p: float) -> np.ndarray[Any, Any]:
    gaps = np.abs(x[:, None] - y[None])
    return gaps.max(-1) if np.isinf(p) else (gaps**p).sum(-1) ** (1 / p)


def distances(m: int, n: int, k: int, p: float, dtype: str = "f32") -> Problem:
    """Minkowski distances between two sets of points."""
    return Problem(
        inputs=lambda device: {"x": normal(m, k, dtype, device, 1), "y": normal(n, k, dtype, device, 2)},
        exact=lambda given, picks: _differences(given["x"][picks.rows], given["y"][picks.columns], p),
        shape=(m, n),
        depth=k,
        dtype=dtype,
    )


def own_distances(m: int, k: int, p: float, dtype: str = "f32") -> Problem:
    """Minkowski distances of a set of points among themselves."""
    return Problem(
        inputs=lambda device: {"x": normal(m, k, dtype, device, 1)},
        exact=lambda given, picks: _differences(given["x"][picks.rows], given["x"][picks.columns], p),
        shape=(m, m),
        depth=k,
        dtype=dtype,
    )


def laplace(m: int, n: int, k: int, bandwidth: float, dtype: str = "f32") -> Problem:
    """exp(-distance / bandwidth) under the sum of absolute differences."""
    plain = distances(m, n, k, 1.0, dtype)
    return Problem(plain.inputs, lambda given, picks: np.exp(-plain.exact(given, picks) / bandwidth), (m, n), k, dtype)


def least_sums(m: int, n: int, k: int, dtype: str = "f32") -> Problem:
    """The min-plus product."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return (given["x"][picks.rows][:, None] + given["y"][picks.columns][None]).min(-1)

    return Problem(distances(m, n, k, 1.0, dtype).inputs, exact, (m, n), k, dtype)


def slopes(m: int, n: int, k: int, dtype: str = "f32") -> Problem:
    """Gradient with respect to x of a weighted sum of L1 distances."""

    def inputs(device: str) -> Arrays:
        plain = distances(m, n, k, 1.0, dtype).inputs(device)
        return {**plain, "g": normal(m, n, dtype, device, 3)}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        y = given["y"][:, picks.columns]
        rows = [given["g"][row] @ np.sign(given["x"][row, picks.columns] - y) for row in picks.rows]
        return np.stack(rows)

    return Problem(inputs, exact, (m, k), n, dtype)


def row_sums(m: int, n: int, k: int, dtype: str = "f32") -> Problem:
    """Sums of L1 distances over the second set, as one column."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return np.stack([np.abs(given["x"][row] - given["y"]).sum() for row in picks.rows])[:, None]

    return Problem(distances(m, n, k, 1.0, dtype).inputs, exact, (m, 1), n * k, dtype)
