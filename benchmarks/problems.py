"""Problems that several suites share, each with its oracle written out in float64."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from .case import DTYPES, Arrays, Exact, Picks, Problem


@lru_cache(maxsize=6)
def normal(rows: int, columns: int, dtype: str, device: str, seed: int) -> torch.Tensor:
    """Normal numbers, the same on every machine and device; they are kept, so nobody may write to them.

    On "meta" there are none.
    """
    if device == "meta":
        return torch.empty(rows, columns, dtype=DTYPES[dtype], device=device)
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


def clusters(m: int, n: int, k: int, centres: int) -> Problem:
    """Euclidean distances of points 1e-4 around a few centres of size 10, so that many pairs are near."""

    def inputs(device: str) -> Arrays:
        middles = 10 * normal(centres, k, "f32", device, 4)
        points = {name: normal(rows, k, "f32", device, seed) for name, rows, seed in (("x", m, 1), ("y", n, 2))}
        return {
            name: 1e-4 * each + middles[torch.arange(len(each), device=device) % centres]
            for name, each in points.items()
        }

    return Problem(inputs, distances(m, n, k, 2.0).exact, (m, n), k, "f32")


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


def gaussian(m: int, n: int, k: int, bandwidth: float) -> Problem:
    """exp(-distance² / (2 bandwidth²)) under Euclidean distances."""
    plain = distances(m, n, k, 2.0)
    return Problem(
        plain.inputs, lambda given, picks: np.exp(-0.5 * (plain.exact(given, picks) / bandwidth) ** 2), (m, n), k, "f32"
    )


def least_sums(m: int, n: int, k: int, dtype: str = "f32", sign: float = 1.0) -> Problem:
    """The min-plus product; of the other ``sign``, the max-plus product."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return sign * (sign * (given["x"][picks.rows][:, None] + given["y"][picks.columns][None])).min(-1)

    return Problem(distances(m, n, k, 1.0, dtype).inputs, exact, (m, n), k, dtype)


def positive_least_sums(m: int, n: int, k: int) -> Problem:
    """The min-plus product of numbers that are not negative."""
    plain = least_sums(m, n, k)
    return Problem(
        lambda device: {name: each.abs() for name, each in plain.inputs(device).items()}, plain.exact, (m, n), k, "f32"
    )


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
