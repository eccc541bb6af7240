"""Nearest neighbours under any metric of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin

from ..arrays import to_tensor
from ..pairwise import Kernel
from ..pairwise.own_metric import Metric
from .classifier import named
from .data import Back, rows_and_classes, rows_and_targets
from .measure import Measure
from .neighbor_queries import NearestQueries

WEIGHTS = ("uniform", "distance")
Weights = str | Callable[[Any], Any] | None


def check_weights(weights: Weights) -> None:
    """Raise ValueError for weights of neighbours that are neither known by name nor a function."""
    if weights is not None and not callable(weights) and weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r} is none of {', '.join(WEIGHTS)}, a function or None")


class _Neighbors(NearestQueries):
    """Rows, and the nearest of them."""

    def __init__(
        self, n_neighbors: int = 5, *, weights: Weights = "uniform", metric: Metric = "minkowski", p: float = 2.0,
        metric_params: Mapping[str, Any] | None = None, similarity: Kernel | None = None, device: str | None = None,
        algorithm: str = "auto", leaf_size: int = 30, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.similarity = similarity
        self.device = device
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.n_jobs = n_jobs

    def _fit_rows(self, rows: torch.Tensor, back: Back) -> None:
        check_weights(self.weights)
        if isinstance(self.n_neighbors, bool) or not isinstance(self.n_neighbors, (int, np.integer)):
            raise ValueError(f"n_neighbors must be an integer, got {self.n_neighbors!r}")
        if self.similarity is not None:
            if not isinstance(self.similarity, Kernel):
                raise ValueError(f"similarity must be a km.Kernel or None, got {self.similarity!r}")
            if not (isinstance(self.metric, str) and self.metric == "minkowski") or self.metric_params:
                raise ValueError("similarity and metric are two ways to order rows: pass one of them")
        instead = "pass it as similarity=, as similarity=km.Linear()"
        self._keep(rows, back, Measure.of(self.metric, self.p, self.metric_params, instead))

    def _shares(self, values: torch.Tensor, back: Back) -> torch.Tensor:
        """Return the weight of each neighbour; those at distance 0 outweigh all others."""
        if callable(self.weights):
            return _of_function(self.weights, values, back)
        if self.weights in (None, "uniform"):
            return torch.full_like(values, 1 / values.shape[1])
        if self.similarity is not None:
            return values / values.sum(1, keepdim=True)
        zero = values == 0
        shares = torch.where(zero.any(1, keepdim=True), zero.to(values), 1 / values)
        return shares / shares.sum(1, keepdim=True)


def _of_function(weights: Callable[[Any], Any], values: torch.Tensor, back: Back) -> torch.Tensor:
    """Return the shares by a function of the distances; ValueError where those of a row are all 0."""
    found = to_tensor(weights(back(values)), "weights(distances)").to(values)
    if found.shape != values.shape:
        raise ValueError(f"weights gave shape {tuple(found.shape)} for distances of shape {tuple(values.shape)}")
    total = found.sum(1, keepdim=True)
    if bool((total == 0).any()):
        raise ValueError(
            "All neighbors of some sample is getting zero weights: modify the function weights= so that some are not 0"
        )
    return found / total


class KNeighborsClassifier(ClassifierMixin, _Neighbors):
    """Vote of the nearest rows.

    Parameters
    ----------
    n_neighbors : int
        How many vote.
    weights : {"uniform", "distance"}, callable or None
        Equal votes (None too), those of the reciprocal distance (of a similarity its value), or of a function of the
        distances, (m, n_neighbors), to as many weights.
    metric : str, callable, km.Kernel or km.Contraction
        As of :class:`NearestNeighbors`: the name of a metric, your own distance, as ``lambda a, b: abs(a - b)``,
        or "precomputed". The smallest value is the nearest, as in :func:`km.argkmin`.
    p : float
        Power of the Minkowski distance.
    metric_params : dict, optional
        Further options of the metric.
    similarity : km.Kernel, optional
        A kernel whose largest value is the nearest, as ``km.Laplace(2.0)``, instead of a metric.
    device : str, optional
        Device used for NumPy input; the CPU by default.
    algorithm, leaf_size, n_jobs
        Of scikit-learn: checked, without effect. All rows are compared, by the threads of torch.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``: for invalid parameters, more neighbours than rows, rows with NaN or
        infinity or another number of features, and labels that are no classes.
    KernmantleError
        From ``fit``: for an unknown metric, options that it does not have, and a named kernel as metric.

    Notes
    -----
    Cost of m rows and n fitted ones: m n distances, none of which is stored but the nearest. There is no index to
    build: ``fit`` keeps the rows. Votes have no gradient. Ties go to the label that comes first.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from kernmantle.estimators import KNeighborsClassifier
    >>> x, y = load_iris(return_X_y=True)
    >>> bool(KNeighborsClassifier(metric="canberra").fit(x, y).score(x, y) > 0.95)
    True
    """

    def fit(self, X: Any, y: Any) -> KNeighborsClassifier:
        """Keep the rows and their labels."""
        rows, classes, codes, back = rows_and_classes(self, X, y)
        self._fit_rows(rows, back)
        self.classes_, self._codes = classes, codes
        return self

    def _votes(self, X: Any) -> tuple[torch.Tensor, Back]:
        rows, back = self._queries(X)
        values, indices = self._nearest(rows, None, X is None)
        codes = torch.as_tensor(self._codes, device=rows.device)[indices]
        votes = values.new_zeros(rows.shape[0], len(self.classes_))
        return votes.scatter_add_(1, codes, self._shares(values, back)), back

    def predict_proba(self, X: Any) -> Any:
        """Return the shares of the votes, (m, classes)."""
        votes, back = self._votes(X)
        return back(votes)

    def predict(self, X: Any) -> Any:
        """Return labels with the most votes, the first of equals; without X of the fitted rows, each by the others."""
        votes, back = self._votes(X)
        return named(self.classes_, votes.argmax(1), back(votes))


class KNeighborsRegressor(MultiOutputMixin, RegressorMixin, _Neighbors):
    """Mean of the nearest rows' targets, ``Σ w_j y_j / Σ w_j``.

    Parameters
    ----------
    n_neighbors, weights, metric, p, metric_params, similarity, device, algorithm, leaf_size, n_jobs
        As of :class:`KNeighborsClassifier`.

    Raises
    ------
    ValueError, KernmantleError
        As of :class:`KNeighborsClassifier`.

    Notes
    -----
    Cost as of :class:`KNeighborsClassifier`. y may have several columns. With ``weights="distance"`` predictions have
    the gradient of the distances.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import KNeighborsRegressor
    >>> x = np.arange(5.0)[:, None]
    >>> KNeighborsRegressor(2).fit(x, x[:, 0]).predict([[1.6]])
    array([1.5])
    """

    def fit(self, X: Any, y: Any) -> KNeighborsRegressor:
        """Keep the rows and their targets."""
        rows, targets, back = rows_and_targets(self, X, y)
        self._fit_rows(rows, back)
        self._targets = targets
        return self

    def predict(self, X: Any) -> Any:
        """Return the means, (m,) or (m, outputs); without X of the fitted rows, each by the others."""
        rows, back = self._queries(X)
        values, indices = self._nearest(rows, None, X is None)
        shares = self._shares(values, back)
        trained_targets = self._targets.to(rows)
        if trained_targets.dim() == 1:
            return back((shares * trained_targets[indices]).sum(1))
        return back((shares[..., None] * trained_targets[indices]).sum(1))
