"""Queries of fitted rows: the nearest, and those within a radius; and the estimator that has nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.utils.validation import check_is_fitted

from ..ir.functions import FUNCTIONS
from ..pairwise import Kernel
from ..pairwise.distance import Distances, Entry, distances, numbered
from ..pairwise.own_metric import Metric
from ..torch_ops.blocks import LARGEST
from .data import Back, TakesPrecomputed, rows_of
from .measure import Measure, check_index, check_not_negative, check_real, check_square

_where = FUNCTIONS["where"]
WITHIN = Entry(
    lambda d, radius, own, other: _where((d <= radius) & (own != other), 1, 0), rows=("radius", "own"),
    columns=("other",),
)  # fmt: skip
_OTHERS = Entry(lambda d, own, other: _where(own == other, math.nan, d), rows=("own",), columns=("other",))
_LARGEST_OTHERS = Entry(lambda d, own, other: _where(own == other, math.nan, -d), rows=("own",), columns=("other",))
_MODES = ("connectivity", "distance")


class Fitted(TakesPrecomputed):
    """Rows, and the distance to them."""

    n_samples_fit_: int
    similarity: Kernel | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self._is_precomputed
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_measure")  # a fit that fails has counted the features

    def _keep(self, rows: torch.Tensor, back: Back, measure: Measure) -> None:
        check_index(self)
        if measure.is_precomputed:
            check_square(rows)
        self._rows, self._back, self._measure = rows, back, measure.fitted(rows)
        self.n_samples_fit_ = rows.shape[0]

    def _queries(self, X: Any) -> tuple[torch.Tensor, Back]:
        """Return the rows to query, by default the fitted ones, and how results go back."""
        check_is_fitted(self)
        if X is None:
            return self._rows, self._back
        rows, back = rows_of(self, X)
        if self._measure.is_precomputed:
            check_not_negative(rows)
        return rows, back

    def _between(self, rows: torch.Tensor) -> Distances:
        if self.similarity is not None:
            return distances(self.similarity, {}, rows, self._rows.to(rows))
        return self._measure.between(rows, self._rows.to(rows))


class NearestQueries(Fitted):
    """The nearest of the fitted rows; estimators have a parameter ``n_neighbors``."""

    n_neighbors: int

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """Return distances and indices of the nearest fitted rows, nearest first, or the indices alone.

        Parameters
        ----------
        X : array, shape (m, features), optional
            Queries; without them every fitted row looks among the others.
        n_neighbors : int, optional
            That of the estimator by default.
        return_distance : bool
            Whether to return the pair.

        Returns
        -------
        array, shape (m, n_neighbors), or a pair
            Of the kind of X. The distances have gradients for tensors.

        Raises
        ------
        TypeError, ValueError
            For an ``n_neighbors`` that is no integer from 1 to the number of rows to choose from.

        Notes
        -----
        Cost: one pass over m n distances, with memory of the results.
        """
        rows, back = self._queries(X)
        values, indices = self._nearest(rows, n_neighbors, X is None)
        return (back(values), back(indices)) if return_distance else back(indices)

    def kneighbors_graph(self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity") -> csr_matrix:
        """Return a sparse matrix (m, fitted rows) in csr form with an entry for each neighbour, 1 or its distance."""
        _check_mode(mode)
        rows, _ = self._queries(X)
        values, indices = self._nearest(rows, n_neighbors, X is None)
        count = values.shape[1]
        starts = np.arange(0, values.numel() + 1, count)
        return _graph(starts, indices, values, mode, (len(rows), self.n_samples_fit_))

    def _nearest(
        self, rows: torch.Tensor, count: int | None = None, others: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = self.n_neighbors if count is None else count
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
            raise TypeError(f"n_neighbors must be an integer, got {count!r}")
        count, fitted = int(count), self.n_samples_fit_
        if not 1 <= count <= fitted - others:
            raise ValueError(
                f"Expected n_neighbors {'<' if others else '<='} n_samples_fit and > 0, but n_neighbors = {count}, "
                f"n_samples_fit = {fitted}, n_samples = {len(rows)}"
            )
        found = self._between(rows)
        if others:
            every, is_largest = numbered(fitted, found), self.similarity is not None
            values, indices = found.smallest(count, _LARGEST_OTHERS if is_largest else _OTHERS, own=every, other=every)
            return (-values if is_largest else values), indices
        if self.similarity is not None:
            return self.similarity.argkmax(rows, self._rows.to(rows), count, return_values=True)
        return found.smallest(count, precision=None)


class RadiusQueries(Fitted):
    """The fitted rows within a radius; estimators have a parameter ``radius``."""

    radius: float

    def radius_neighbors(
        self, X: Any = None, radius: float | None = None, return_distance: bool = True, sort_results: bool = False
    ) -> Any:
        """Return distances and indices of the fitted rows within the radius, or the indices alone.

        Parameters
        ----------
        X : array, shape (m, features), optional
            Queries; without them every fitted row looks among the others.
        radius : float, optional
            That of the estimator by default, in the units of the metric.
        return_distance : bool
            Whether to return the pair.
        sort_results : bool
            Order by distance instead of by the position of the fitted rows.

        Returns
        -------
        array of m arrays, or a pair
            For tensors lists of tensors.

        Raises
        ------
        ValueError
            For ``sort_results`` without ``return_distance``, and for a radius that is negative or no number.
        """
        if sort_results and not return_distance:
            raise ValueError("return_distance must be True if sort_results is True.")
        rows, back = self._queries(X)
        counts, indices, values = self._within(rows, radius, X is None, sort_results)
        parts = counts.tolist()
        chosen = _listed(indices, parts, back)
        return (_listed(values, parts, back), chosen) if return_distance else chosen

    def radius_neighbors_graph(
        self, X: Any = None, radius: float | None = None, mode: str = "connectivity", sort_results: bool = False
    ) -> csr_matrix:
        """Return a sparse matrix (m, fitted rows) in csr form with an entry for each row within the radius."""
        _check_mode(mode)
        rows, _ = self._queries(X)
        counts, indices, values = self._within(rows, radius, X is None, sort_results)
        starts = np.concatenate([[0], np.cumsum(counts.cpu().numpy())])
        return _graph(starts, indices, values, mode, (len(rows), self.n_samples_fit_))

    def _within(
        self, rows: torch.Tensor, radius: float | None, others: bool, ordered: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        radius = check_real(self.radius if radius is None else radius, "radius", finite=False)
        counts, indices, values = within(self._between(rows.detach()), radius, others)
        if ordered:
            owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
            order = values.argsort(stable=True)
            order = order[owner[order].argsort(stable=True)]
            indices, values = indices[order], values[order]
        return counts, indices, values


def terms_within(found: Distances, radius: float, others: bool) -> dict[str, torch.Tensor]:
    """Terms of ``WITHIN``: the radius, and indices of rows and columns; no row has an index without ``others``."""
    bound = torch.tensor([radius, -1.0], dtype=found.dtype, device=found.device)[:, None].expand(2, found.shape[0])
    every = numbered(found.shape[1], found)
    return {"radius": bound[0], "own": every if others else bound[1], "other": every}


def within(found: Distances, radius: float, others: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the number of columns within a radius for every row, these columns row by row, and the distances.

    They are counted first, so that rows without any cost no more and results have memory once; the distances of the
    other rows are there in blocks. With ``others`` a row has no part in its own.
    """
    columns, terms = found.shape[1], terms_within(found, radius, others)
    wanted, bound = found.reduced("sum", WITHIN, **terms).long(), terms["radius"][0]
    chosen, size = wanted.nonzero()[:, 0], int(wanted.sum())
    counts, end = torch.zeros_like(wanted), 0
    indices, values = chosen.new_empty(size), bound.new_empty(size)
    for part in chosen.split(max(1, LARGEST // (bound.element_size() * max(1, columns)))):
        block = found.part(part).matrix()
        inside = block <= bound
        if others:
            inside[torch.arange(len(part), device=part.device), part] = False
        counts[part] = inside.sum(1)
        start, end = end, end + int(counts[part].sum())
        if end > len(indices):  # a distance that rounds to the radius here, and above it where it was counted
            indices, values = (torch.cat([old, old.new_empty(end - len(old))]) for old in (indices, values))
        indices[start:end], values[start:end] = inside.nonzero()[:, 1], block[inside]
    return counts, indices[:end], values[:end]


def _listed(flat: torch.Tensor, counts: list[int], back: Back) -> Any:
    parts = flat.split(counts)
    if isinstance(back(flat), torch.Tensor):
        return list(parts)
    found = np.empty(len(parts), dtype=object)
    for index, part in enumerate(parts):
        found[index] = back(part)
    return found


def _check_mode(mode: str) -> None:
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r} is none of {', '.join(_MODES)}")


def _graph(
    starts: np.ndarray, indices: torch.Tensor, values: torch.Tensor, mode: str, shape: tuple[int, int]
) -> csr_matrix:
    flat = indices.cpu().numpy().ravel()
    data = np.ones(len(flat)) if mode == "connectivity" else values.detach().cpu().numpy().ravel()
    return csr_matrix((data, flat, starts), shape=shape)


class NearestNeighbors(NearestQueries, RadiusQueries):
    """The nearest rows, and the rows within a radius, under any metric.

    Parameters
    ----------
    n_neighbors : int
        How many, where a query does not say.
    radius : float
        Which distance is the largest, where a query does not say.
    metric : str, callable, km.Kernel or km.Contraction
        A metric of :func:`km.cdist`; your own distance, as ``lambda a, b: abs(a - b)``, a function of one entry
        of each row that is traced by ``fit`` and whose values are summed over the columns; a ``km.Kernel(map,
        epilogue)`` or a contraction of two sets of rows; or "precomputed", where rows are distances. The smallest
        value is the nearest, as in :func:`km.argkmin`; named kernels, whose largest values are near, are refused.
    p : float
        Power of the Minkowski distance.
    metric_params : dict, optional
        Further options of the metric; parameters of a lambda or a contraction by name.
    device : str, optional
        Device used for NumPy input; the CPU by default.
    algorithm, leaf_size, n_jobs
        Of scikit-learn: checked, without effect. All rows are compared, by the threads of torch.

    Attributes
    ----------
    n_samples_fit_ : int
        How many rows there are.

    Raises
    ------
    ValueError
        From ``fit`` and queries: for invalid parameters, more neighbours than rows, rows with NaN or
        infinity or another number of features.
    KernmantleError
        From ``fit``: for an unknown metric, a function that cannot be traced, and options that a metric does not have.

    Notes
    -----
    The interface is that of ``sklearn.neighbors.NearestNeighbors``; there is no index to build, ``fit`` keeps the
    rows. ``kneighbors`` and ``radius_neighbors`` without rows leave each fitted row out of its own neighbours, exactly,
    whatever duplicates there are. Rows at the same distance come in any order.

    Cost of rows (m, features) beside n fitted ones: m n distances, none of which is stored but the nearest; of a radius
    up to twice that, once to count and once for rows that have neighbours, in blocks of 64 MB. The distances of
    ``kneighbors`` have gradients by tensors that are queried.

    Examples
    --------
    >>> from kernmantle.estimators import NearestNeighbors
    >>> near = NearestNeighbors(2, radius=1.5, metric=lambda a, b: abs(a - b)).fit([[0.0], [1.0], [3.0]])
    >>> near.kneighbors([[0.9]], return_distance=False)
    array([[1, 0]])
    >>> near.radius_neighbors_graph(mode="distance").toarray()
    array([[0., 1., 0.],
           [1., 0., 0.],
           [0., 0., 0.]])
    """

    def __init__(
        self, n_neighbors: int = 5, *, radius: float = 1.0, metric: Metric = "minkowski", p: float = 2.0,
        metric_params: Mapping[str, Any] | None = None, device: str | None = None, algorithm: str = "auto",
        leaf_size: int = 30, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.device = device
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> NearestNeighbors:  # noqa: ARG002
        """Keep the rows."""
        rows, back = rows_of(self, X, reset=True)
        self._keep(rows, back, Measure.of(self.metric, self.p, self.metric_params))
        return self
