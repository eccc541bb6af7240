"""DBSCAN: clusters of rows that have enough rows within a radius, found without their distances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.base import BaseEstimator, ClusterMixin
from tqdm import tqdm

from ..ir.functions import FUNCTIONS
from ..pairwise.distance import Distances, Entry
from ..pairwise.own_metric import Metric
from .data import rows_of, weights_of
from .measure import Measure, check_index, check_integer, check_real, check_square
from .neighbor_queries import WITHIN, terms_within
from .state import Stored

_where = FUNCTIONS["where"]
_WEIGHT = Entry(lambda d, radius, weight: _where(d <= radius, weight, 0), rows=("radius",), columns=("weight",))
_SMALLEST = Entry(
    lambda d, radius, own, other: _where((d <= radius) & (own != other), other, math.inf), rows=("radius", "own"),
    columns=("other",),
)  # fmt: skip


def joined(labels: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the components of every row, 0, 1, ..., after edges between components."""
    size = int(labels.max()) + 1
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(size, size))
    return connected_components(graph, directed=False)[1][labels]


def connected(found: Distances, radius: float, bar: Any = None) -> np.ndarray:
    """Return the component of every row in the graph of rows within a radius, numbered by their first rows.

    In every round each row asks for the smallest component within the radius that is not its own, and all components
    that found one are joined with it: their number falls at least to half, most often to a few. A row that found none
    has none forever. Of a symmetric distance the largest component need not ask, for the others ask for it, and rows
    that have none need not be asked for.
    """
    count = found.shape[0]
    labels, active = np.arange(count), np.arange(count)
    bound = terms_within(found, radius, True)["radius"]
    while count:
        largest = np.bincount(labels).argmax() if found.is_symmetric else -1
        rows = active[labels[active] != largest]
        columns = active if found.is_symmetric else np.arange(count)
        if not len(rows):
            break
        own = torch.as_tensor(labels, dtype=found.dtype, device=found.device)
        asked, others = (torch.from_numpy(index).to(found.device) for index in (rows, columns))
        terms = {"radius": bound[: len(rows)], "own": own[asked], "other": own[others]}
        least = found.part(asked, others).reduced("min", _SMALLEST, bar=bar, **terms).cpu().numpy()
        has = np.isfinite(least)
        if not has.any():
            break
        labels = joined(labels, labels[rows[has]], least[has].astype(np.int64))
        active = np.setdiff1d(active, rows[~has], assume_unique=True)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


class DBSCAN(ClusterMixin, Stored, BaseEstimator):
    """Clusters of core rows, which have ``min_samples`` rows within ``eps``, and of the rows within ``eps`` of them.

    Core rows i and j are in one cluster where d(i, j) <= eps, and where a chain of core rows joins them.

    Parameters
    ----------
    eps : float
        Distance up to which rows are neighbours.
    min_samples : int
        How many neighbours a core row has, itself among them.
    metric, metric_params, device, algorithm, leaf_size, n_jobs
        As of :class:`NearestNeighbors`: a name, a lambda, a kernel that is a distance, a contraction, "precomputed".
    p : float, optional
        Power of the Minkowski distance.
    verbose : bool
        Whether to show progress.

    Attributes
    ----------
    labels_ : array of int, shape (m,)
        Clusters, numbered by their first core rows; -1 of noise.
    core_sample_indices_ : array of int
        Core rows.
    components_ : array, shape (core rows, features)
        Copies of the core rows.

    Raises
    ------
    ValueError
        From ``fit``: for parameters that make no sense, rows with NaN or infinity.
    KernmantleError
        From ``fit``: for metrics, as of :class:`NearestNeighbors`.

    Notes
    -----
    Labels and core rows are those of ``sklearn.cluster.DBSCAN``: a row within ``eps`` of several clusters is of the
    first of them. A distance that is not symmetric joins core rows where either of the two is within ``eps``; a row is
    the first argument where its neighbours are counted.

    Memory is that of the rows, whatever ``eps`` is: neighbours are counted and components found by reductions of
    distances that are never stored. Cost: m² distances to count, as many for the first round of components, and fewer
    for further rounds, whose number is at most log2(m) and most often two or three. There is no gradient. Source:
    Ester, Kriegel, Sander and Xu, A density-based algorithm for discovering clusters, 1996; rounds as in Borůvka's
    algorithm.

    Examples
    --------
    >>> from kernmantle.estimators import DBSCAN
    >>> rows = [[1.0], [2.0], [3.0], [8.0], [9.0], [50.0]]
    >>> DBSCAN(eps=1.5, min_samples=2, metric=lambda a, b: abs(a - b)).fit(rows).labels_
    array([ 0,  0,  0,  1,  1, -1])
    """

    def __init__(
        self, eps: float = 0.5, *, min_samples: int = 5, metric: Metric = "euclidean",
        metric_params: Mapping[str, Any] | None = None, p: float | None = None, device: str | None = None,
        verbose: bool = False, algorithm: str = "auto", leaf_size: int = 30, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.eps = eps
        self.min_samples = min_samples
        self.metric = metric
        self.metric_params = metric_params
        self.p = p
        self.device = device
        self.verbose = verbose
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = isinstance(self.metric, str) and self.metric == "precomputed"
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> DBSCAN:  # noqa: ARG002
        """Find the clusters; a core row has neighbours whose weights, 1 by default, are ``min_samples`` together."""
        eps, wanted = check_real(self.eps, "eps", 0, above=True), check_integer(self.min_samples, "min_samples", 1)
        check_index(self)
        measure = Measure.of(self.metric, self.p, self.metric_params)
        rows, back = rows_of(self, X, reset=True)
        if measure.is_precomputed:
            check_square(rows)
        weights = weights_of(sample_weight, rows, negative=True)
        found = measure.fitted(rows).between(rows.detach(), rows.detach())
        with tqdm(desc="rows", disable=not self.verbose) as shown:
            bar = shown if self.verbose else None
            terms = terms_within(found, eps, False)
            if weights is None:
                mass = found.reduced("sum", WITHIN, bar=bar, **terms)
            else:
                mass = found.reduced("sum", _WEIGHT, bar=bar, radius=terms["radius"], weight=weights)
            core, border = (mass >= wanted).nonzero()[:, 0], (mass < wanted).nonzero()[:, 0]
            labels = torch.full((len(rows),), -1, device=found.device)
            clusters = connected(found.part(core, core), eps, bar)
            labels[core] = torch.from_numpy(clusters).to(labels)
            if len(core) and len(border):
                part = found.part(border, core)
                terms = {**terms_within(part, eps, False), "other": labels[core].to(found.dtype)}
                least = part.reduced("min", _SMALLEST, bar=bar, **terms)
                labels[border] = torch.where(least.isfinite(), least, -1).long()
        self.labels_, self.core_sample_indices_, self.components_ = back(labels), back(core), back(rows[core])
        return self

    def fit_predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        sample_weight: Any = None,
    ) -> Any:
        """Find the clusters and return ``labels_``."""
        return self.fit(X, sample_weight=sample_weight).labels_
