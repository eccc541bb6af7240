"""Classes and means of the rows within a radius: products with a matrix of votes that is never stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ..ir.functions import FUNCTIONS
from ..pairwise.distance import Entry
from ..pairwise.own_metric import Metric
from .classifier import named
from .data import Back, rows_and_classes, rows_and_targets
from .measure import Measure, check_real
from .neighbor_queries import WITHIN, RadiusQueries, terms_within
from .neighbors import Weights, check_weights

_where = FUNCTIONS["where"]
_EQUAL = Entry(
    lambda d, own, other: _where((d == 0) & (own != other), 1, 0), rows=("own",), columns=("other",),
)  # fmt: skip
_RECIPROCAL = Entry(
    lambda d, radius, own, other: _where((d <= radius) & (d > 0) & (own != other), 1 / d, 0), rows=("radius", "own"),
    columns=("other",),
)  # fmt: skip


@lru_cache(maxsize=64)
def _weighted(weights: Callable[[Any], Any]) -> Entry:
    """Return the entry of a function of the distances within the radius."""
    return replace(WITHIN, function=lambda d, radius, own, other: _where((d <= radius) & (own != other), weights(d), 0))


class _WithinRadius(RadiusQueries):
    """Rows, and sums over those within the radius."""

    weights: Weights
    metric: Metric
    p: float
    metric_params: Mapping[str, Any] | None

    def _fit_rows(self, rows: torch.Tensor, back: Back) -> None:
        check_weights(self.weights)
        check_real(self.radius, "radius", finite=False)
        self._keep(rows, back, Measure.of(self.metric, self.p, self.metric_params))

    def _means(self, X: Any, values: torch.Tensor) -> tuple[torch.Tensor, Back]:
        """Weighted means of values, (fitted rows, c), over the rows within the radius; NaN where there are none."""
        rows, back = self._queries(X)
        found = self._between(rows.detach())
        labelled = torch.cat([values, values.new_ones(len(values), 1)], 1).to(rows)
        terms = terms_within(found, float(self.radius), X is None)
        if callable(self.weights):
            sums = found.product(_weighted(self.weights), labelled, **terms)
        elif self.weights in (None, "uniform"):
            sums = found.product(WITHIN, labelled, **terms)
        else:
            equal, others = found.product(_EQUAL, labelled, **terms), found.product(_RECIPROCAL, labelled, **terms)
            sums = torch.where(equal[:, -1:] > 0, equal, others)
        return torch.where(sums[:, -1:] > 0, sums[:, :-1] / sums[:, -1:], torch.nan), back


class RadiusNeighborsClassifier(ClassifierMixin, _WithinRadius):
    """Vote of the rows within a radius.

    Parameters
    ----------
    radius : float
        Distance up to which rows vote.
    weights : {"uniform", "distance"}, callable or None
        Equal votes (also None), those of the reciprocal distance, or a function of a distance, which is compiled:
        ``lambda d: km.exp(-d)``. scikit-learn's takes arrays of distances.
    metric, p, metric_params, device, algorithm, leaf_size, n_jobs
        As of :class:`NearestNeighbors`.
    outlier_label : label or "most_frequent", optional
        What rows without neighbours are predicted as; by default they are an error.

    Attributes
    ----------
    classes_ : array
        Labels, sorted.
    outlier_label_ : label or None
        What rows without neighbours are predicted as.

    Raises
    ------
    ValueError, TypeError
        As of :class:`NearestNeighbors`; from ``predict`` for rows without neighbours where there is no
        ``outlier_label``; from ``fit`` for one of another type than the labels.

    Notes
    -----
    One product of the matrix of votes, which is never stored, with one column for each class. Cost of m
    rows and n fitted ones: m n distances, with ``weights="distance"`` twice. Ties go to the label that comes first.
    Votes have no gradient.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from kernmantle.estimators import RadiusNeighborsClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> bool(RadiusNeighborsClassifier(1.0, metric="manhattan").fit(x, y).score(x, y) > 0.95)
    True
    """

    def __init__(
        self, radius: float = 1.0, *, weights: Weights = "uniform", metric: Metric = "minkowski", p: float = 2.0,
        metric_params: Mapping[str, Any] | None = None, outlier_label: Any = None, device: str | None = None,
        algorithm: str = "auto", leaf_size: int = 30, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.radius = radius
        self.weights = weights
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.outlier_label = outlier_label
        self.device = device
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any) -> RadiusNeighborsClassifier:
        """Keep the rows and their labels."""
        rows, classes, codes, back = rows_and_classes(self, X, y)
        label = self._label_of_outliers(classes, codes)
        self._fit_rows(rows, back)
        self.classes_, self.outlier_label_ = classes, label
        self._votes = torch.nn.functional.one_hot(torch.from_numpy(codes), len(classes)).to(rows)
        return self

    def _label_of_outliers(self, classes: np.ndarray, codes: np.ndarray) -> Any:
        label = self.outlier_label
        if isinstance(label, str) and label == "most_frequent":
            return classes[np.bincount(codes).argmax()]
        if label is not None and (np.ndim(label) or np.append(classes, label).dtype != classes.dtype):
            raise TypeError(f"outlier_label={label!r} cannot be converted to the type of y, which is {classes.dtype}")
        return label

    def predict_proba(self, X: Any) -> Any:
        """Return the shares of the votes, (m, classes); 0 of rows without neighbours, whose label is no class."""
        shares, back = self._shares(X)
        outliers = shares[:, 0].isnan()
        shares[outliers] = 0
        if bool(outliers.any()):
            (index,) = np.nonzero(self.classes_ == self.outlier_label_)
            if not len(index):
                warnings.warn(
                    f"outlier_label {self.outlier_label_!r} is not a class: probabilities of rows without neighbours "
                    "are all 0",
                    stacklevel=2,
                )
            shares[outliers.nonzero(), torch.from_numpy(index).to(shares.device)] = 1
        return back(shares)

    def predict(self, X: Any) -> Any:
        """Return labels with the most votes, the first of equals; without X of the fitted rows, each by the others."""
        shares, back = self._shares(X)
        outliers = shares[:, 0].isnan()
        labels = named(self.classes_, shares.nan_to_num().argmax(1), back(shares))
        if bool(outliers.any()):
            labels[outliers if isinstance(labels, torch.Tensor) else outliers.cpu().numpy()] = self.outlier_label_
        return labels

    def _shares(self, X: Any) -> tuple[torch.Tensor, Back]:
        check_is_fitted(self)
        shares, back = self._means(X, self._votes)
        outliers = shares[:, 0].isnan()
        if self.outlier_label_ is None and bool(outliers.any()):
            first = outliers.nonzero()[:10, 0].tolist()
            raise ValueError(
                f"No neighbors found for {int(outliers.sum())} rows, of which the first are {first}: take a larger "
                "radius, or say outlier_label="
            )
        return shares, back


class RadiusNeighborsRegressor(MultiOutputMixin, RegressorMixin, _WithinRadius):
    """Mean of the targets of the rows within a radius, ``Σ w_j y_j / Σ w_j``.

    Parameters
    ----------
    radius, weights, metric, p, metric_params, device, algorithm, leaf_size, n_jobs
        As of :class:`RadiusNeighborsClassifier`.

    Raises
    ------
    ValueError, KernmantleError
        As of :class:`NearestNeighbors`.

    Notes
    -----
    Rows without neighbours are predicted as NaN, with a warning. Cost as of :class:`RadiusNeighborsClassifier`. y may
    have several columns, shape (n, outputs). Means have no gradient.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import RadiusNeighborsRegressor
    >>> x = np.arange(5.0)[:, None]
    >>> RadiusNeighborsRegressor(1.0).fit(x, x[:, 0]).predict([[1.4]])
    array([1.5])
    """

    def __init__(
        self, radius: float = 1.0, *, weights: Weights = "uniform", metric: Metric = "minkowski", p: float = 2.0,
        metric_params: Mapping[str, Any] | None = None, device: str | None = None, algorithm: str = "auto",
        leaf_size: int = 30, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.radius = radius
        self.weights = weights
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.device = device
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any) -> RadiusNeighborsRegressor:
        """Keep the rows and their targets."""
        rows, targets, back = rows_and_targets(self, X, y)
        self._fit_rows(rows, back)
        self._targets = targets
        return self

    def predict(self, X: Any) -> Any:
        """Return the means, (m,) or (m, outputs); without X of the fitted rows, each by the others."""
        check_is_fitted(self)
        targets = self._targets
        means, back = self._means(X, targets if targets.dim() == 2 else targets[:, None])
        if bool(means.isnan().any()):
            warnings.warn("rows without neighbours within the radius are predicted as NaN", stacklevel=2)
        return back(means if targets.dim() == 2 else means[:, 0])
