"""Every metric of the table beside scipy: a row there is a case here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from benchmarks.metric_samples import rows
from kernmantle.config import config
from kernmantle.pairwise import METRICS, Metric, cdist

from .case import Arrays, Case, Exact, Peer, Picks, Prepare, Problem
from .work import Work

M = N = 1024
K = 128
PAIRS = float(M * N * K)


def _inputs(row: Metric) -> Callable[[str], Arrays]:
    def make(device: str) -> Arrays:
        x, y = (rows(row.domain, count, K, seed).float() for seed, count in enumerate((M, N)))
        given = {"x": x, "y": y}
        if "V" in row.options:
            given["V"] = torch.cat([x, y]).var(0)
        if "VI" in row.options:
            given["VI"] = torch.cat([x, y]).mT.cov().inverse()
        return {name: array.to(device) for name, array in given.items()}

    return make


def _options(given: Any) -> dict[str, Any]:
    return {name: given[name] for name in ("V", "VI") if name in given}


def _exact(row: Metric) -> Callable[[Exact, Picks], np.ndarray[Any, Any]]:
    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        x, y = given["x"][picks.rows], given["y"][picks.columns]
        if row.scipy is None:
            with config(backend="reference"):
                return cdist(x, y, metric=row.name)
        if row.boolean:
            x, y = x.astype(bool), y.astype(bool)
        return import_module("scipy.spatial.distance").cdist(x, y, row.scipy, **_options(given))

    return exact


def _scipy(row: Metric) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], Any]:
        distance = import_module("scipy.spatial.distance")
        arrays = {name: array.numpy() for name, array in given.items()}
        x, y = (arrays[name].astype(bool) if row.boolean else arrays[name] for name in "xy")
        return lambda: distance.cdist(x, y, row.scipy, **_options(arrays))

    return prepare


def case(row: Metric) -> Case:
    """Distances of one metric in float32; any metric reads and writes as much and has a multiply-add per column."""
    return Case(
        row.name,
        f"{row.name} distances",
        Problem(_inputs(row), _exact(row), (M, N), K, "f32"),
        lambda given: lambda: cdist(given["x"], given["y"], metric=row.name, **_options(given)),
        (Peer("scipy", _scipy(row), "scipy"),) if row.scipy else (),
        Work(4.0 * (M * K + N * K + M * N), {"fma.f32": PAIRS}),
        elements=PAIRS,
    )


def cases() -> tuple[Case, ...]:
    """One case for every metric there is."""
    return tuple(map(case, METRICS.values()))
