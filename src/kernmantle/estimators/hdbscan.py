"""HDBSCAN: clusters of all densities, from a spanning tree that is found without the matrix of distances."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import ClusterMixin
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from ..checks import integer
from ..pairwise.distance import Distances, Entry
from ..pairwise.own_metric import Metric
from .data import TakesPrecomputed, rows_of
from .hierarchy import Condensed, condensed
from .measure import Measure, check_index, check_real, check_square
from .neighbourhood import rounded
from .spanning_tree import spanning_tree

NOISE = -1
Array = np.ndarray


@dataclass(frozen=True)
class Selection:
    """How clusters of a hierarchy are selected; the names are those of HDBSCAN's parameters."""

    method: str
    min_cluster_size: int
    epsilon: float
    max_cluster_size: int | None
    allow_single_cluster: bool

    def of(self, found: Condensed) -> tuple[Array, Array]:
        """Return labels of the rows, -1 of noise, and how firmly they belong to their cluster, (n,) each."""
        tree = Clusters(found)
        chosen = tree.best(self) if self.method == "eom" else tree.is_leaf & (tree.parent >= 0)
        if self.epsilon and chosen.any() and not chosen[0]:
            chosen = self._joined(tree, chosen)
        return tree.labels(chosen, self)

    def _joined(self, tree: Clusters, chosen: Array) -> Array:
        """Return the clusters after those that begin below ``epsilon`` gave way to one above that does not."""
        found = np.zeros_like(chosen)
        with np.errstate(divide="ignore"):
            begins = 1 / tree.birth
        for cluster in np.flatnonzero(chosen).tolist():
            if begins[cluster] < self.epsilon:
                while (above := int(tree.parent[cluster])) and begins[above] <= self.epsilon:
                    cluster = above
                cluster = above if above or self.allow_single_cluster else cluster
            found[cluster] = True
        return found


class Clusters:
    """The clusters of a hierarchy, of which sums are made one by one, in the order that scikit-learn has."""

    def __init__(self, found: Condensed) -> None:
        self.parent, self.birth, self.size, self.cluster, self.leaves, order = (
            part.cpu().numpy()
            for part in (found.parent, found.birth, found.size, found.cluster, found.leaves, found.order)
        )
        self.first = np.arange(1, len(self.parent), 2)  # of two children
        self.is_leaf = np.ones(len(self.parent), dtype=bool)
        self.is_leaf[self.parent[1:]] = False
        own = self.cluster[order]
        with np.errstate(invalid="ignore"):
            gains = self.leaves[order] - self.birth[own]
            self.stability = np.bincount(own, gains, len(self.parent))
            for child in (self.first, self.first + 1):
                above = self.parent[child]
                self.stability[above] += (self.birth[child] - self.birth[above]) * self.size[child]

    def best(self, how: Selection) -> Array:
        """Return the clusters of the largest sum of stabilities of which none is part of another."""
        stability, parent = self.stability.tolist(), self.parent.tolist()
        size, count = self.size.tolist(), len(parent)
        size[0] = size[1] + size[2] if count > 1 else 0
        limit = len(self.cluster) + 1 if how.max_cluster_size is None else how.max_cluster_size
        below, chosen = [0.0] * count, [False] * count
        for node in range(count - 1, -1 if how.allow_single_cluster else 0, -1):
            if below[node] > stability[node] or size[node] > limit:
                stability[node] = below[node]
            else:
                chosen[node] = True
            if node:
                below[parent[node]] += stability[node]
        inside = [False] * count
        for node in range(1, count):
            inside[node] = chosen[parent[node]] or inside[parent[node]]
            chosen[node] = chosen[node] and not inside[node]
        return np.array(chosen)

    def labels(self, chosen: Array, how: Selection) -> tuple[Array, Array]:
        """Return labels and strengths of the rows for the clusters that are taken."""
        names = np.where(chosen, np.cumsum(chosen) - 1, NOISE)
        owner = np.where(chosen, np.arange(len(chosen)), 0)
        for node in np.flatnonzero(~chosen[1:]) + 1:
            owner[node] = owner[self.parent[node]]
        death = np.zeros(len(chosen))
        np.maximum.at(death, self.cluster, self.leaves)
        np.maximum.at(death, self.parent[1:], self.birth[1:])
        own = owner[self.cluster]
        labels = names[own]
        alone = how.allow_single_cluster and chosen[0] and np.count_nonzero(chosen) == 1
        least = 1 / how.epsilon if how.epsilon else death[0]
        labels[(own == 0) & ~(alone & (self.leaves >= least))] = NOISE
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.minimum(self.leaves, death[own]) / death[own]
        strength = np.where((death[own] == 0) | np.isinf(self.leaves), 1.0, share)
        return labels, np.where(labels == NOISE, 0.0, strength)


def cut(one: Array, other: Array, weight: Array, distance: float, smallest: int) -> Array:
    """Return labels of the rows that edges shorter than a distance join, (n,); -1 of fewer rows than a number.

    Edges are ascending. Clusters are numbered by one of their rows, that which scikit-learn's union-find has on top.
    """
    top, rank = list(range(len(one) + 1)), [0] * (len(one) + 1)
    for left, right in zip(*(ends[weight < distance].tolist() for ends in (one, other)), strict=True):
        ends: list[int] = []
        for row in (left, right):
            while top[row] != row:
                top[row] = row = top[top[row]]
            ends.append(row)
        left, right = ends
        rank[left] = max(rank[left], 1)
        if rank[right] == rank[left]:
            rank[right] += 1
        if rank[right] > rank[left]:
            left, right = right, left
        top[right] = left
    roots = torch.as_tensor(top)
    for _ in range(len(top).bit_length()):
        roots = roots[roots]
    _, labels, sizes = np.unique(roots.numpy(), return_inverse=True, return_counts=True)
    large = sizes >= smallest
    return np.where(large, np.cumsum(large) - 1, NOISE)[labels]


_DISTANCE = Entry(lambda d: d)
_METHODS = ("eom", "leaf")
_CENTERS = (None, "centroid", "medoid", "both")
_PROBED = 64
"""Rows whose distances from each other are compared where the expressions do not prove the metric symmetric."""
INFINITE, MISSING = -2, -3


class HDBSCAN(ClusterMixin, TakesPrecomputed):
    """Clusters that persist over the densities: the hierarchy of DBSCAN over all ``eps``, cut where it is most stable.

    With the core distance c_i of a row to its ``min_samples``-th nearest row, itself among them, the hierarchy is that
    of the minimum spanning tree of the mutual reachability ``max(c_i, c_j, d(i, j) / alpha)``.

    Parameters
    ----------
    min_cluster_size : int
        Rows of the smallest cluster; splits that leave fewer are noise that falls out of a cluster.
    min_samples : int, optional
        How many rows define the density around a row; ``min_cluster_size`` by default.
    cluster_selection_epsilon : float
        Clusters that split below this distance stay one.
    max_cluster_size : int, optional
        Rows of the largest cluster of "eom".
    metric, metric_params, device, algorithm, leaf_size, n_jobs
        As of :class:`NearestNeighbors`: a name, a lambda, a kernel that is a distance, a contraction, "precomputed";
        symmetric.
    p : float, optional
        Power of the Minkowski distance.
    alpha : float
        Divides distances before they are compared with core distances.
    cluster_selection_method : {"eom", "leaf"}
        The clusters of the largest excess of mass, or the leaves of the tree, which are smaller and more alike.
    allow_single_cluster : bool
        Whether all rows may be one cluster.
    store_centers : {None, "centroid", "medoid", "both"}
        Which centres of clusters to find, weighted by the probabilities.
    verbose : bool
        Whether to show progress.
    copy
        Of scikit-learn, without effect: X is never changed.

    Attributes
    ----------
    labels_ : array of int, shape (m,)
        Clusters; -1 of noise, -2 of rows with an infinity, -3 of rows with NaN.
    probabilities_ : array, shape (m,)
        How firmly a row belongs to its cluster, from 0 to 1; NaN of rows with NaN.
    centroids_, medoids_ : array, shape (clusters, features)
        Where they are wanted.

    Raises
    ------
    ValueError
        From ``fit``: for parameters that make no sense, a single row, more ``min_samples`` than rows, precomputed
        distances that are NaN, no square or not symmetric, a metric that is not symmetric.
    KernmantleError
        From ``fit``: for metrics, as of :class:`NearestNeighbors`.

    Notes
    -----
    Labels are those of ``sklearn.cluster.HDBSCAN``, and of the package hdbscan with ``min_samples`` less one and its
    exact algorithm. Of more than 20 000 rows they are where no two weights of the tree are equal; of fewer, those that
    are equal because they are one row's core distance are told apart as there. Rows that no finite distance joins are
    as far as numbers go.

    Cost: m² distances for the core distances, and up to as many in each of at most log2(m) rounds of Borůvka's
    algorithm, in which only rows are asked whose candidate was joined; on a GPU, Euclidean distances of 16 to 128
    numbers a row are bounded by products on tensor cores first. Memory: rows, m ``min_samples`` numbers, and 16 log2(m)
    bytes a row while the hierarchy is made of the tree, on the device of the rows. There is no gradient.
    Source: Campello, Moulavi and Sander, Density-based clustering based on hierarchical density estimates, 2013.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import HDBSCAN
    >>> random = np.random.default_rng(0)
    >>> rows = np.concatenate([random.normal(0, 1, (50, 2)), random.normal(9, 0.1, (50, 2))])
    >>> np.unique(HDBSCAN(10, metric=lambda a, b: abs(a - b)).fit(rows).labels_[[0, 1, 98, 99]])
    array([0, 1])
    """

    def __init__(
        self, min_cluster_size: int = 5, min_samples: int | None = None, cluster_selection_epsilon: float = 0.0,
        max_cluster_size: int | None = None, metric: Metric = "euclidean",
        metric_params: Mapping[str, Any] | None = None, alpha: float = 1.0, *, p: float | None = None,
        cluster_selection_method: str = "eom", allow_single_cluster: bool = False, store_centers: str | None = None,
        device: str | None = None, verbose: bool = False, algorithm: str = "auto", leaf_size: int = 40,
        n_jobs: int | None = None, copy: bool | str = True,
    ) -> None:  # fmt: skip
        self.min_cluster_size = min_cluster_size
        self.min_samples = min_samples
        self.cluster_selection_epsilon = cluster_selection_epsilon
        self.max_cluster_size = max_cluster_size
        self.metric = metric
        self.metric_params = metric_params
        self.alpha = alpha
        self.p = p
        self.cluster_selection_method = cluster_selection_method
        self.allow_single_cluster = allow_single_cluster
        self.store_centers = store_centers
        self.device = device
        self.verbose = verbose
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.n_jobs = n_jobs
        self.copy = copy

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = not tags.input_tags.pairwise
        return tags

    def fit(self, X: Any, y: Any = None) -> HDBSCAN:  # noqa: ARG002
        """Find the clusters."""
        check_index(self)
        wanted, selection = self._checked()
        measure = Measure.of(self.metric, self.p, self.metric_params)
        every, back = rows_of(self, X, reset=True, finite=False)
        every = every.detach()
        if measure.is_precomputed:
            _check_matrix(every)
            whole = torch.ones(len(every), dtype=torch.bool, device=every.device)
        else:
            whole = every.isfinite().all(1)
        rows = every[whole]
        if len(rows) < 2:
            raise ValueError(f"n_samples={len(rows)} while HDBSCAN requires more than one sample")
        if wanted > len(rows):
            raise ValueError(f"min_samples ({wanted}) must be at most the number of samples in X ({len(rows)})")
        found = measure.fitted(rows).between(rows, rows)
        if not measure.is_precomputed:
            _check_symmetric(found)
        with tqdm(desc="rows", disable=not self.verbose) as shown:
            products = rounded(measure, rows, 0.0) if measure.euclidean_power == 1 else None
            bar = shown if self.verbose else None
            tree = spanning_tree(found, wanted, float(self.alpha), bar, products=products)
        if np.isinf(tree.weight).any():
            warnings.warn("some rows have no finite distance from the others: they are joined last", stacklevel=2)
        self._one, self._other, self._weight = tree = tree.ascending()
        one, other, weight = (torch.from_numpy(part).to(rows.device) for part in tree)
        found_labels, found_strength = selection.of(condensed(one, other, 1 / weight, selection.min_cluster_size))
        missing = every.isnan().any(1) & ~whole
        labels = torch.where(missing, MISSING, torch.where(whole, 0, INFINITE))
        strength = torch.where(missing, torch.nan, every.new_zeros(len(every), dtype=torch.float64))
        labels[whole] = torch.from_numpy(found_labels).to(labels)
        strength[whole] = torch.from_numpy(found_strength).to(strength)
        self.labels_, self.probabilities_ = back(labels), back(strength)
        self._whole, self._back = whole, back
        if self.store_centers is not None:
            self._find_centers(rows, found, labels[whole], strength[whole].to(rows))
        return self

    def fit_predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
    ) -> Any:
        """Find the clusters and return ``labels_``."""
        return self.fit(X).labels_

    def dbscan_clustering(self, cut_distance: float, min_cluster_size: int = 5) -> Any:
        """Return labels of DBSCAN with ``eps=cut_distance`` without its border rows, (m,), from the tree that is there.

        Clusters of fewer rows than ``min_cluster_size`` are noise.
        """
        check_is_fitted(self)
        found = cut(self._one, self._other, self._weight, cut_distance, min_cluster_size)
        labels = torch.as_tensor(self.labels_).clone()
        labels[self._whole] = torch.from_numpy(found).to(labels)
        return self._back(labels)

    def _checked(self) -> tuple[int, Selection]:
        """Return the number of rows that define a density, and what cuts the hierarchy, after all checks."""
        size = integer(self.min_cluster_size, "min_cluster_size", 2)
        wanted = size if self.min_samples is None else integer(self.min_samples, "min_samples", 1)
        largest = self.max_cluster_size
        check_real(self.alpha, "alpha", above=True)
        if self.cluster_selection_method not in _METHODS:
            raise ValueError(f"cluster_selection_method={self.cluster_selection_method!r} is none of eom, leaf")
        if self.store_centers not in _CENTERS:
            raise ValueError(f"store_centers={self.store_centers!r} is none of None, centroid, medoid, both")
        if self.store_centers is not None and self._is_precomputed:
            raise ValueError("Cannot store centers when using a precomputed distance matrix.")
        return wanted, Selection(
            method=self.cluster_selection_method,
            min_cluster_size=size,
            epsilon=check_real(self.cluster_selection_epsilon, "cluster_selection_epsilon"),
            max_cluster_size=None if largest is None else integer(largest, "max_cluster_size", 1),
            allow_single_cluster=bool(self.allow_single_cluster),
        )

    def _find_centers(self, rows: torch.Tensor, found: Distances, labels: torch.Tensor, strength: torch.Tensor) -> None:
        clusters = [(labels == label).nonzero()[:, 0] for label in range(int(labels.max()) + 1)]
        if self.store_centers in ("centroid", "both"):
            means = [(strength[own] @ rows[own]) / strength[own].sum() for own in clusters]
            self.centroids_ = self._back(torch.stack(means) if means else rows[:0])
        if self.store_centers in ("medoid", "both"):
            sums = [found.part(own, own).product(_DISTANCE, strength[own, None])[:, 0] for own in clusters]
            best = [own[distance.argmin()] for own, distance in zip(clusters, sums, strict=True)]
            self.medoids_ = self._back(rows[torch.stack(best)] if best else rows[:0])


def _check_matrix(matrix: torch.Tensor) -> None:
    """ValueError for precomputed distances that are NaN, negative, no square or not symmetric; infinity is far."""
    if bool(matrix.isnan().any()):
        raise ValueError("np.nan values found in precomputed-dense")
    check_square(matrix)
    if not torch.allclose(matrix, matrix.mT):
        raise ValueError("The precomputed distance matrix is expected to be symmetric, its values are not")


def _check_symmetric(found: Distances) -> None:
    """Raise ValueError for a metric that is not symmetric, as far as some rows show it."""
    if not found.is_symmetric:
        part = found.part(slice(_PROBED), slice(_PROBED)).matrix()
        if not torch.allclose(part, part.mT, equal_nan=True):
            raise ValueError("the metric of HDBSCAN is not symmetric: take the mean or the maximum of d(x, y), d(y, x)")
