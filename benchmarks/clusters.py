"""Clustering under L1, L2 and a lambda, on a GPU, beside scikit-learn and hdbscan on the CPU and FlashLib on a GPU.

The rows are drawn around centres, so that the clusters are known: the result of a case is the share of the rows whose
cluster, named after the centre that most of its rows have, is that of their centre.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch

from . import problems
from .case import Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .work import Work

COLUMNS, CENTRES, SPREAD = 64, 20, 3.0
SKLEARN, HDBSCAN, FLASHLIB = "scikit-learn, CPU", "hdbscan, CPU", "FlashLib"
UNKNOWN = 0.05
MIN_SAMPLES, SMALLEST, STEPS, MEANS = 10, 25, 20, 256


def bounded(a: Any, b: Any) -> Any:
    """A metric that no library has: differences count little more the larger they are."""
    return abs(a - b) / (1 + abs(a - b))


def _of_rows(a: Any, b: Any) -> Any:
    """``bounded``, of two rows: scikit-learn's callables."""
    return bounded(a, b).sum()


METRICS: dict[str, tuple[Any, float]] = {"L1": ("l1", 66.0), "L2": ("l2", 11.0), "a lambda": (bounded, 27.3)}
"""Metric, and the radius within which nearly all rows of a cluster have ``MIN_SAMPLES`` others."""


def around(rows: int) -> Problem:
    """Rows around centres."""

    def inputs(device: str) -> Arrays:
        middles = SPREAD * problems.normal(CENTRES, COLUMNS, "f32", "cpu", 4)
        truth = torch.arange(rows) % CENTRES
        x = middles[truth] + problems.normal(rows, COLUMNS, "f32", "cpu", 1)
        return {"x": x.to(device), "truth": truth.to(device)}

    def exact(_: Exact, __: Picks) -> np.ndarray[Any, Any]:
        return np.ones((1, 1))

    return Problem(inputs, exact, (1, 1), COLUMNS, "f32", part=lambda given, _: {"x": given["x"][:1]})


def right(labels: Any, truth: torch.Tensor) -> torch.Tensor:
    """Share of the rows in a cluster whose most frequent centre is theirs, (1, 1)."""
    found = torch.as_tensor(labels).to(truth.device, torch.int64) + 1
    sizes = torch.bincount(found * CENTRES + truth, minlength=CENTRES).double()
    table = torch.nn.functional.pad(sizes, (0, -len(sizes) % CENTRES)).reshape(-1, CENTRES)
    return (table[1:].amax(1).sum() / len(truth)).reshape(1, 1)


def own(name: str, **options: Any) -> Prepare:
    """One of the estimators."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        make = getattr(import_module("kernmantle.estimators"), name)
        return lambda: right(make(**options).fit(given["x"]).labels_, given["truth"])

    return prepare


def sklearns(name: str, **options: Any) -> Peer:
    """The estimator of scikit-learn, on all cores."""
    return Peer(SKLEARN, _on_cpu("sklearn.cluster", name, options), "scikit-learn")


def _on_cpu(module: str, name: str, options: dict[str, Any]) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        make = getattr(import_module(module), name)
        x, truth = given["x"].cpu().numpy(), given["truth"].cpu()
        return lambda: right(make(**options).fit(x).labels_, truth)

    return prepare


def flashlibs(name: str, **options: Any) -> Peer:
    """The function of FlashLib."""

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        call = getattr(import_module("flashlib"), name)

        def labels(x: torch.Tensor) -> Any:
            found = call(x, **options)
            return found[0] if isinstance(found, tuple) else found

        return lambda: right(labels(given["x"]), given["truth"])

    return Peer(FLASHLIB, prepare, "flashlib", compiles=True)


def dbscan(metric: str, rows: int, theirs: bool = True) -> Case:
    """DBSCAN; scikit-learn takes microseconds a pair for a lambda."""
    measure, eps = METRICS[metric]
    peers = []
    if theirs and not isinstance(measure, str):
        peers.append(sklearns("DBSCAN", eps=eps, min_samples=MIN_SAMPLES, metric=_of_rows, algorithm="brute"))
    elif theirs:
        peers.append(sklearns("DBSCAN", eps=eps, min_samples=MIN_SAMPLES, metric=measure, n_jobs=-1))
    if metric == "L2":
        peers.append(flashlibs("flash_dbscan", eps=eps, min_samples=MIN_SAMPLES))
    ours = own("DBSCAN", eps=eps, min_samples=MIN_SAMPLES, metric=measure)
    return _case("DBSCAN", metric, rows, ours, *peers)


def hdbscan(metric: str, rows: int, theirs: bool) -> Case:
    """HDBSCAN; scikit-learn's and hdbscan's take the square of the rows on one core."""
    measure, _ = METRICS[metric]
    options: dict[str, Any] = {"min_cluster_size": SMALLEST, "min_samples": 5, "metric": measure}
    peers = []
    if theirs and isinstance(measure, str):
        peers += [
            Peer(HDBSCAN, _on_cpu("hdbscan", "HDBSCAN", options | {"core_dist_n_jobs": -1}), "hdbscan"),
            sklearns("HDBSCAN", **options, n_jobs=-1, copy=True),
        ]
    if metric == "L2":
        peers.append(flashlibs("flash_hdbscan", min_cluster_size=SMALLEST, min_samples=5))
    ours = own("HDBSCAN", **options)
    return _case("HDBSCAN", metric, rows, ours, *peers)


def means(rows: int) -> Case:
    """Steps of Lloyd's algorithm from the same centres; the result is the sum of squares in float64 after them."""

    def begun(given: Arrays) -> torch.Tensor:
        return given["x"][:MEANS].clone()

    def total(centres: torch.Tensor) -> torch.Tensor:
        return (centres.double().square().sum() / centres.shape[0]).reshape(1, 1)

    def exact(given: Exact, _: Picks) -> np.ndarray[Any, Any]:
        x = torch.from_numpy(given["x"]).to("cuda" if torch.cuda.is_available() else "cpu")
        centres = x[:MEANS].clone()
        for _step in range(STEPS):
            nearest = torch.addmm(centres.square().sum(1), x, centres.mT, alpha=-2).argmin(1)
            counts = torch.bincount(nearest, minlength=MEANS).clamp(min=1)[:, None]
            centres = torch.zeros_like(centres).index_add_(0, nearest, x) / counts
        return (centres.square().sum() / MEANS).reshape(1, 1).cpu().numpy()

    def ours(given: Arrays) -> Callable[[], torch.Tensor]:
        make = import_module("kernmantle.estimators").KMeans
        options: dict[str, Any] = {"init": begun(given), "n_init": 1, "max_iter": STEPS, "tol": 0.0}
        return lambda: total(make(MEANS, **options).fit(given["x"]).cluster_centers_)

    def theirs(given: Arrays) -> Callable[[], torch.Tensor]:
        make = import_module("sklearn.cluster").KMeans
        x, init = given["x"].cpu().numpy(), begun(given).cpu().numpy()

        def call() -> torch.Tensor:
            model = make(MEANS, init=init, n_init=1, max_iter=STEPS, tol=0.0).fit(x)
            return total(torch.from_numpy(model.cluster_centers_))

        return call

    def flash(given: Arrays) -> Callable[[], torch.Tensor]:
        call = import_module("flashlib").flash_kmeans
        options: dict[str, Any] = {"max_iters": STEPS, "tol": 0.0, "init_centroids": begun(given)[None]}
        return lambda: total(call(given["x"][None], MEANS, **options)[1].reshape(MEANS, -1))

    base = around(rows)
    problem = Problem(base.inputs, exact, (1, 1), COLUMNS, "f32")
    peers = Peer(SKLEARN, theirs, "scikit-learn"), Peer(FLASHLIB, flash, "flashlib", compiles=True)
    title = f"k-means, {STEPS} steps of {MEANS} centres, {rows} x {COLUMNS}"
    return Case("KMeans L2", title, problem, ours, peers, Work(), _targets("L2"), accuracy=1e-2)


def _targets(metric: str) -> tuple[Target, ...]:
    """A hundred times scikit-learn under L1, at least 1/1.2 of FlashLib's speed under L2."""
    return (Target("faster", 100 if metric == "L1" else 1, SKLEARN), Target("faster", 1 / 1.2, FLASHLIB))


def _case(name: str, metric: str, rows: int, ours: Prepare, *peers: Peer) -> Case:
    targets = tuple(target for target in _targets(metric) if target.peer in {peer.name for peer in peers})
    return Case(
        f"{name} {metric} {rows}", f"{name}, {metric}, {rows} x {COLUMNS}, {CENTRES} clusters", around(rows), ours,
        peers, Work(), targets, accuracy=UNKNOWN,
    )  # fmt: skip


def cpu_suite(rows: int = 100_000) -> Suite:
    """What scikit-learn and hdbscan take minutes for, beside our estimators on the same CPU."""
    cases = (replace(case, targets=()) for case in (dbscan("L1", rows), hdbscan("L1", rows, theirs=True)))
    return Suite("clusters-cpu", "cpu", tuple(cases))


def suite(rows: int = 100_000, fewer: int = 10_000, fewest: int = 2_000) -> Suite:
    """All cases; scikit-learn has as many rows as the others only where a target is beside it, under L1."""
    return Suite(
        "clusters",
        "cuda",
        (
            means(rows),
            *(hdbscan(metric, rows, theirs=False) for metric in METRICS),
            dbscan("a lambda", rows, theirs=False),
            dbscan("a lambda", fewest),
            *(hdbscan(metric, fewer, theirs=True) for metric in ("L2", "L1")),
            dbscan("L2", rows, theirs=False),
            dbscan("L2", fewer),
            dbscan("L1", rows),
        ),
    )
