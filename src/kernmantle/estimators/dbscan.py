"""DBSCAN: clusters of rows that have enough rows within a radius, found without their distances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.base import ClusterMixin
from tqdm import tqdm

from ..checks import integer
from ..pairwise.distance import numbered
from ..pairwise.own_metric import Metric
from .data import TakesPrecomputed, rows_of, weights_of
from .measure import Measure, check_index, check_real, check_square
from .neighbourhood import WEIGHT, Neighbourhood, rounded

_RECHECKED = 16
"""So many times fewer rows than there are is few enough to be asked again in float32 at once."""


def _united(labels: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the component of every row, by its smallest row, after edges between components that are named so."""
    parent = torch.arange(len(labels), device=labels.device)
    while True:
        one, other = parent[one], parent[other]
        if bool((one == other).all()):
            return parent[labels]
        parent = parent.scatter_reduce(0, torch.maximum(one, other), torch.minimum(one, other), "amin")
        for _ in range(len(labels).bit_length()):  # a component's parent is smaller: the root, by doubling
            parent = parent[parent]


def connected(hood: Neighbourhood) -> torch.Tensor:
    """Return the component of every row in the graph of rows within a radius, numbered by their first rows.

    In every round each row asks for the smallest component within the radius that is not its own, and all components
    that found one are joined with it: their number falls at least to half, most often to a few. A row that found none
    has none forever. Of a symmetric distance the largest component need not ask, for the others ask for it, and rows
    that have none need not be asked for. Of rounded distances those surely within join first, then the rows that have
    others perhaps within are asked again.
    """
    found = hood.found
    active = numbered(found.shape[0], found).long()
    labels, begins = active, True
    while len(active):
        largest = labels.bincount().argmax() if found.is_symmetric else -1
        columns = active if found.is_symmetric else torch.arange(len(labels), device=labels.device)
        rows = active[labels[active] != largest]
        if hood.products is not None and not begins and len(rows):
            perhaps = hood.part(rows, columns).smallest(1, labels[rows], labels[columns])
            active = _without(active, rows[perhaps.isinf()], len(labels))
            rows = rows[perhaps.isfinite()]
        if not len(rows):
            break
        side = -1 if hood.products is not None and (begins or _RECHECKED * len(rows) > len(labels)) else 0
        least = hood.part(rows, columns).smallest(side, labels[rows], labels[columns])
        if side and not begins and bool(least.isinf().all()):
            side, least = 0, hood.part(rows, columns).smallest(0, labels[rows], labels[columns])
        has = least.isfinite()
        if not side:
            active = _without(active, rows[~has], len(labels))
        labels = _united(labels, labels[rows[has]], least[has].long())
        begins = False
    return labels.unique(return_inverse=True)[1]


def _without(active: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    stays = torch.ones(count, dtype=torch.bool, device=active.device)
    stays[rows] = False
    return active[stays[active]]


class DBSCAN(ClusterMixin, TakesPrecomputed):
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

    On GPUs, Euclidean distances of float32 rows of 16 to 128 numbers are compared with ``eps`` as products, on tensor
    cores; those so close to it that rounding decides are computed again by differences, and labels are those of the
    latter.

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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> DBSCAN:  # noqa: ARG002
        """Find the clusters; a core row has neighbours whose weights, 1 by default, are ``min_samples`` together."""
        eps, wanted = check_real(self.eps, "eps", above=True), integer(self.min_samples, "min_samples", 1)
        check_index(self)
        measure = Measure.of(self.metric, self.p, self.metric_params)
        rows, back = rows_of(self, X, reset=True)
        if measure.is_precomputed:
            check_square(rows)
        weights = weights_of(sample_weight, rows, negative=True)
        found = measure.fitted(rows).between(rows.detach(), rows.detach())
        with tqdm(desc="rows", disable=not self.verbose) as shown:
            hood = Neighbourhood(found, eps, rounded(measure, rows, eps), shown if self.verbose else None)
            if weights is None:
                is_core = hood.has(wanted)
            else:
                is_core = hood.reduced(WEIGHT, weight=weights) >= wanted
            core, border = is_core.nonzero()[:, 0], (~is_core).nonzero()[:, 0]
            labels = torch.full((len(rows),), -1, device=found.device)
            labels[core] = connected(hood.part(core, core))
            if len(core) and len(border):
                least = hood.part(border, core).first(labels[core])
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
