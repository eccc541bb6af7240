"""The distance of an estimator: what ``metric``, ``p`` and ``metric_params`` say, checked and traced by ``fit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arrays import to_tensor
from ..checks import integer
from ..pairwise import Kernel
from ..pairwise.distance import Distances, distances
from ..pairwise.inputs import find
from ..pairwise.metric_prepare import inverse_covariance_of, variance_of
from ..pairwise.own_metric import Metric, check_metric
from .data import PRECOMPUTED
from .state import Stored

ALGORITHMS = ("auto", "ball_tree", "kd_tree", "brute")
_NO_SIMILARITY = "take a distance, as metric='euclidean', or order rows by k.argkmax"


@dataclass(frozen=True)
class Measure(Stored):
    """A distance between rows: the name of a metric with options, a kernel, or "precomputed"."""

    metric: Any
    options: Mapping[str, Any]

    @staticmethod
    def of(
        metric: Metric, p: float | None, metric_params: Mapping[str, Any] | None, instead: str = _NO_SIMILARITY
    ) -> Measure:
        """Return the checked distance; a function is traced here. Errors are those of ``km.argkmin``."""
        options = dict(metric_params or {})
        if isinstance(metric, str):
            if metric == PRECOMPUTED:
                if options:
                    raise ValueError(f"metric='precomputed' takes no metric_params, it was given {sorted(options)}")
                return Measure(PRECOMPUTED, {})
            if metric == "minkowski" and p is not None:
                options = {"p": p, **options}
        if isinstance(metric, Kernel) and options:
            raise ValueError("metric_params are those of a metric's name: the hyperparameters of a kernel are its own")
        kernel = check_metric(metric, options, instead)
        return Measure(metric, options) if kernel is None else Measure(kernel, {})

    def fitted(self, rows: torch.Tensor) -> Measure:
        """Return the distance with the variances or the covariance of the rows of a fit, where it takes them."""
        if not isinstance(self.metric, str) or self.is_precomputed:
            return self
        name, options = find(self.metric).name, dict(self.options)
        if name == "seuclidean":
            options.setdefault("V", variance_of(rows))
        elif name == "mahalanobis" and "VI" not in options:
            options["VI"] = inverse_covariance_of(rows)
        return Measure(self.metric, options)

    @property
    def is_precomputed(self) -> bool:
        """Return whether rows are distances already."""
        return self.metric == PRECOMPUTED

    @property
    def euclidean_power(self) -> int:
        """1 for the Euclidean distance, 2 for its square, of columns that count the same; 0 for all others."""
        if self.is_precomputed or not isinstance(self.metric, str) or self.options.get("w") is not None:
            return 0
        name, p = find(self.metric).name, self.options.get("p")
        if name == "sqeuclidean":
            return 2
        return int(name == "euclidean" or (name == "minkowski" and p in (None, 2)))

    def between(self, rows: torch.Tensor, others: torch.Tensor) -> Distances:
        """Return the distances between rows and others; of precomputed ones the rows are the distances."""
        if self.is_precomputed:
            return Distances.precomputed(rows)
        options = {
            name: to_tensor(value, name).to(rows) if isinstance(value, (np.ndarray, list, torch.Tensor)) else value
            for name, value in self.options.items()
        }
        return distances(self.metric, options, rows, others)


def check_square(rows: torch.Tensor) -> None:
    """Raise ValueError for precomputed distances of a fit that are no square matrix, or negative."""
    if rows.shape[0] != rows.shape[1]:
        raise ValueError(
            f"Precomputed matrix must be square: metric='precomputed' takes the distances between all rows, it was "
            f"given {tuple(rows.shape)}"
        )
    check_not_negative(rows)


def check_not_negative(rows: torch.Tensor) -> None:
    """Raise ValueError for negative precomputed distances."""
    if rows.numel() and float(rows.amin()) < 0:
        raise ValueError("Negative values in data passed to X: precomputed distances are not negative")


def check_real(value: Any, name: str, *, above: bool = False, finite: bool = True) -> float:
    """Return a real parameter of at least 0, or above it; finite unless it may be infinite."""
    is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_real or np.isnan(value) or (finite and np.isinf(value)) or value < 0 or (above and value == 0):
        raise ValueError(f"{name} must be a number {'above' if above else 'of at least'} 0, got {value!r}")
    return float(value)


def check_choice(estimator: Any, name: str, allowed: Sequence[str | None], note: str) -> None:
    """Raise ValueError for a parameter of scikit-learn's that is none of these; ``note`` says what they do here."""
    value = getattr(estimator, name)
    if (value is not None and not isinstance(value, str)) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}; {note}")


def check_index(estimator: Any) -> None:
    """Raise ValueError for values of scikit-learn's parameters of a search index that it does not have either."""
    check_choice(estimator, "algorithm", ALGORITHMS, "there is no index, and all of them give the same neighbours")
    integer(estimator.leaf_size, "leaf_size", 1)
    check_jobs(estimator)


def check_jobs(estimator: Any) -> None:
    """Raise ValueError for an ``n_jobs`` that is neither None nor an integer."""
    value = estimator.n_jobs
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value == 0):
        raise ValueError(f"n_jobs must be None or an integer other than 0, got {value!r}; threads are those of torch")
