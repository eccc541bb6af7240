"""Inputs and independent oracles of every metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import distance
from scipy.special import rel_entr

from benchmarks.metric_samples import rows
from kernmantle.pairwise import METRICS, Metric

Array = np.ndarray[Any, Any]
NAMES = sorted(METRICS)
DIFFERENTIABLE = [name for name in NAMES if METRICS[name].differentiable]


def _shannon(x: Array, y: Array, _: Array) -> Array:
    """In extended precision, which scipy lacks where rows are close."""
    x, y = (np.asarray(rows, np.longdouble) / np.asarray(rows, np.longdouble).sum(-1, keepdims=True) for rows in (x, y))
    middle = (x + y) / 2
    terms = (np.where(one == 0, 0, one * np.log(np.where(one == 0, 1, one) / middle)) for one in (x, y))
    total = np.maximum(sum(terms).sum(-1), 0)
    return np.sqrt(total / 2).astype(float)


ORACLES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "hellinger": lambda x, y, w: np.sqrt((w * (np.sqrt(x) - np.sqrt(y)) ** 2).sum(-1) / 2),
    "jensenshannon": _shannon,
    "inner_product": lambda x, y, w: (w * x * y).sum(-1),
    "kl": lambda x, y, w: (w * rel_entr(x, y)).sum(-1),
}


def exact(row: Metric, x: Array, y: Array, w: Array | None = None, **options: Any) -> Array:
    """Distances by scipy, or by a formula written out."""
    base = options.pop("base", np.e)
    if row.name in ORACLES:
        with np.errstate(all="ignore"):
            value = ORACLES[row.name](x[:, None], y[None], np.ones(x.shape[-1]) if w is None else w)
        return value / np.sqrt(np.log(base))
    assert row.scipy, (
        f"{row.name} is not in scipy: write its definition into ORACLES of {__name__.replace('.', '/')}.py"
    )
    if w is not None:
        options["w"] = w
    if row.domain == "boolean" and np.isin(x, (0, 1)).all():
        x, y = x.astype(bool), y.astype(bool)
    with np.errstate(all="ignore"):
        return distance.cdist(x, y, row.scipy, **options)


def pair(row: Metric, m: int = 7, n: int = 6, k: int = 5, seed: int = 0) -> tuple[Array, Array]:
    """Two sets of rows of the metric's domain; some rows and entries are equal."""
    x, y = (rows(row.domain, count, k, seed + place).numpy() for place, count in enumerate((m, n)))
    if min(m, n) > 3:
        y[2], x[5] = x[3], x[1]
        y[3, : k // 2] = x[3, : k // 2]
    return x, y


def weights(k: int = 5, seed: int = 7) -> Array:
    """Weights, one of them zero."""
    w = rows("positive", 1, k, seed).numpy()[0] * k
    w[1] = 0
    return w


def varied(row: Metric) -> list[dict[str, Any]]:
    """Options to compute with: none, and each that the metric takes."""
    given: dict[str, Any] = {
        "w": weights(), "p": 1.3, "V": weights() + 0.5, "VI": np.cov(rows("real", 5, 20, 3).numpy()), "base": 2.0,
    }  # fmt: skip
    return [{}, *({name: given[name]} for name in row.options)]
