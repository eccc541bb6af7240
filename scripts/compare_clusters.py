"""Clusters beside scikit-learn's at the same parameters: that they are as good, and what time both take to find them.

The time is that of the processor, so that other programs on the machine count little; run it on one thread,
``OMP_NUM_THREADS=1 python scripts/compare_clusters.py``.
"""
# ruff: noqa: T201

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from sklearn import cluster
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

import kernmantle as km
from kernmantle import estimators as own

ROUNDS = 5


def fastest(models: list[Any], x: np.ndarray) -> list[float]:
    """Least time of a fit of each, which take turns; kernels are compiled before."""
    found = [float("inf")] * len(models)
    models[0].fit(x[:500])
    for _ in range(ROUNDS):
        for i, model in enumerate(models):
            begun = time.process_time()
            model.fit(x)
            found[i] = min(found[i], time.process_time() - begun)
    return found


def means() -> dict[str, tuple[list[Any], np.ndarray]]:
    """Twenty steps from the same centres."""
    random, found = np.random.default_rng(0), {}
    for rows, columns, count in ((100_000, 2, 8), (50_000, 16, 64), (20_000, 64, 256), (20_000, 784, 10)):
        for dtype in (np.float32, np.float64):
            x = random.normal(size=(rows, columns)).astype(dtype)
            options = {"n_clusters": count, "init": x[:count], "n_init": 1, "max_iter": 20, "tol": 0.0}
            name = f"KMeans, {rows} x {columns}, {count} clusters, {dtype.__name__}"
            found[name] = [own.KMeans(**options), cluster.KMeans(**options)], x
    return found


def spectral() -> dict[str, tuple[list[Any], np.ndarray]]:
    """Two moons, connected by a Gaussian."""
    x, _ = make_moons(4000, noise=0.05, random_state=0)
    ours = own.SpectralClustering(2, affinity=km.Gaussian(0.1), random_state=0)
    return {
        "SpectralClustering, 4000 rows, float64": (
            [ours, cluster.SpectralClustering(2, gamma=50.0, random_state=0)], np.asarray(x),
        )
    }  # fmt: skip


def main() -> None:
    """Compare."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"{'':50} {'ours':>8} {'theirs':>8}")
    for name, (models, x) in {**means(), **spectral()}.items():
        ours, theirs = fastest(models, x)
        if hasattr(models[1], "inertia_"):
            assert abs(models[0].inertia_ / models[1].inertia_ - 1) < 1e-3
        else:
            assert adjusted_rand_score(models[0].labels_, models[1].labels_) == 1
        print(f"{name:50} {ours * 1e3:5.0f} ms {theirs * 1e3:5.0f} ms")


if __name__ == "__main__":
    main()
