"""K-means: Lloyd's iteration, of whose distances no more than a block is stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from tqdm import tqdm

from ..arrays import to_tensor
from ..pairwise import cdist
from .data import rows_of, weights_of
from .lloyd import Run, assigned, lloyd
from .measure import check_choice
from .seeding import draw, plus_plus
from .state import Stored


def check_clusters(count: int, rows: torch.Tensor) -> None:
    """Raise ValueError where there are fewer rows than clusters."""
    if rows.shape[0] < count:
        raise ValueError(f"n_samples={rows.shape[0]} should be >= n_clusters={count}.")


def warn_of(name: str, labels: torch.Tensor, count: int, converged: bool, max_iter: int) -> None:
    """ConvergenceWarning for clusters without rows, or an iteration that did not end by itself."""
    distinct = int(labels.unique().numel())
    if distinct < count:
        warnings.warn(
            f"{name} found {distinct} distinct clusters, fewer than n_clusters={count}: rows may be equal",
            ConvergenceWarning,
            stacklevel=3,
        )
    elif not converged:
        warnings.warn(
            f"{name} stopped after max_iter={max_iter} steps, while rows still changed their clusters",
            ConvergenceWarning,
            stacklevel=3,
        )


def _variance(rows: torch.Tensor) -> float:
    """Return the mean of the variances of the columns."""
    squares, _ = assigned(rows, rows.mean(0, keepdim=True))
    return float(squares.sum(dtype=torch.float64)) / rows.numel()


def _same(first: torch.Tensor, second: torch.Tensor, count: int) -> bool:
    """Return whether two labellings differ by the names of the clusters alone."""
    pairs = torch.unique(first * count + second)
    return pairs.numel() == first.unique().numel() == second.unique().numel()


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, Stored, BaseEstimator):
    """Clusters around means, ``min Σ_i w_i min_c ||x_i - c||²``, by Lloyd's iteration.

    Parameters
    ----------
    n_clusters : int
        At most as many as there are rows.
    init : {"k-means++", "random"}, array of shape (n_clusters, features), or callable
        First centres: greedy k-means++, randomly drawn rows, or your own; a callable is given the rows as the caller
        has them, n_clusters, and ``random_state=``.
    n_init : int or "auto"
        Runs from different first centres, of which the best is taken. "auto" is 1 for "k-means++" and an array, 10
        for "random" and a callable.
    max_iter : int
        Most steps of a run.
    tol : float
        A run ends when the squared movement of all centres is at most ``tol`` times the mean variance of the columns.
    verbose : bool
        Progress of the steps.
    random_state : int, RandomState or None
        Draws the first centres, as scikit-learn does from the same state.
    device : str, optional
        Device used for NumPy input; the CPU by default.
    copy_x, algorithm
        Of scikit-learn, without effect: X is never changed, and "elkan" finds what "lloyd" does.

    Attributes
    ----------
    cluster_centers_ : array, shape (n_clusters, features)
        Means.
    labels_ : array of int64, shape (n,)
        Nearest mean of every row.
    inertia_ : float
        Sum of the weighted squared distances.
    n_iter_ : int
        Steps of the best run.

    Raises
    ------
    ValueError
        From ``fit``, ``predict``, ``transform`` and ``score``: for invalid parameters, more clusters than
        rows, rows with NaN or infinity or another number of features, and negative weights.

    Warns
    -----
    ConvergenceWarning
        For fewer distinct clusters than were asked for, and for a run that ended at ``max_iter``.

    Notes
    -----
    Cost of a step: n · n_clusters squared distances. On a CPU only the smallest of a row is stored; on a GPU they come
    from products of centred rows by torch, which follow its setting of TF32, 128 MiB of them at a time. Memory beside
    that: two copies of the rows, three with weights, and a few vectors of n numbers, ``4 + log(n_clusters)`` of them
    for k-means++. Sums of rows are collected in float64; GPUs add them in any order, which may show in the last bits.
    A cluster that lost its rows takes the row that is farthest from its centre. Distances of ``transform`` have
    gradients, labels have none.
    Sources: Lloyd, Least squares quantization in PCM, 1982; Arthur and Vassilvitskii, k-means++: the advantages of
    careful seeding, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import KMeans
    >>> x = np.array([[1.0, 2.0], [1.0, 4.0], [10.0, 2.0], [10.0, 4.0]])
    >>> found = KMeans(2, random_state=0).fit(x)
    >>> bool(found.labels_[0] == found.labels_[1] != found.labels_[2]), found.inertia_
    (True, 4.0)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"k-means++", "random"}), callable, "array-like"],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self, n_clusters: int = 8, *, init: Any = "k-means++", n_init: int | str = "auto", max_iter: int = 300,
        tol: float = 1e-4, verbose: bool = False, random_state: Any = None, device: str | None = None,
        copy_x: bool = True, algorithm: str = "lloyd",
    ) -> None:  # fmt: skip
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.device = device
        self.copy_x = copy_x
        self.algorithm = algorithm

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KMeans:  # noqa: ARG002
        """Find the means by Lloyd's algorithm, the best of ``n_init`` runs.

        Parameters
        ----------
        X : array, shape (n, features)
        y : None
            Not used.
        sample_weight : array, shape (n,), optional
            Weights of the rows, by default 1.

        Returns
        -------
        KMeans
            Itself.
        """
        self._validate_params()
        check_choice(self, "algorithm", ("lloyd", "elkan"), "both find the same means")
        rows, back = rows_of(self, X, reset=True)
        rows = rows.detach()
        check_clusters(self.n_clusters, rows)
        weights, random = weights_of(sample_weight, rows), check_random_state(self.random_state)
        limit = self.tol * _variance(rows) if self.tol else 0.0
        middle = rows.mean(0) if rows.is_cuda else torch.zeros_like(rows[0])
        centred = rows - middle if rows.is_cuda else rows
        best: Run | None = None
        with tqdm(desc="steps", disable=not self.verbose) as bar:
            for _ in range(self._runs()):
                first = self._first(rows, weights, random, back) - middle
                run = lloyd(centred, weights, first, self.max_iter, limit, bar)
                bar.set_postfix(inertia=run.inertia)
                better = best is None or run.inertia < best.inertia
                if better and (best is None or not _same(run.labels, best.labels, self.n_clusters)):
                    best = run
        assert best is not None
        warn_of("KMeans", best.labels, self.n_clusters, best.converged, self.max_iter)
        self._centres = best.centres + middle
        self.cluster_centers_, self.labels_ = back(self._centres), back(best.labels)
        self.inertia_, self.n_iter_, self._n_features_out = best.inertia, best.steps, self.n_clusters
        return self

    def _runs(self) -> int:
        """Return how often it begins anew; from an array once, which gives the same again."""
        if not isinstance(self.init, str) and not callable(self.init):
            return 1
        if self.n_init != "auto":
            return int(self.n_init)
        return 1 if isinstance(self.init, str) and self.init == "k-means++" else 10

    def _first(
        self, rows: torch.Tensor, weights: torch.Tensor | None, random: np.random.RandomState,
        back: Callable[[torch.Tensor], Any],
    ) -> torch.Tensor:  # fmt: skip
        """Return centres that a run begins with."""
        if isinstance(self.init, str):
            shares = rows.new_ones(rows.shape[0]) if weights is None else weights
            if self.init == "random":
                return rows[draw(self.n_clusters, shares, random)]
            return rows[plus_plus(
                self.n_clusters, shares, lambda chosen: cdist(rows[chosen], rows, "sqeuclidean"), random
            )]  # fmt: skip
        own = self.init(back(rows), self.n_clusters, random_state=random) if callable(self.init) else self.init
        centres = to_tensor(own, "init").detach().to(rows, copy=True)
        if centres.shape != (self.n_clusters, rows.shape[1]):
            raise ValueError(
                f"init of KMeans has shape {tuple(centres.shape)}, it must have {(self.n_clusters, rows.shape[1])}: "
                "n_clusters centres of as many columns as X"
            )
        if not bool(torch.isfinite(centres).all()):
            raise ValueError("init of KMeans contains NaN or infinity")
        return centres

    def predict(self, X: Any) -> Any:
        """Return the nearest mean of every row, (m,)."""
        rows, back = rows_of(self, X)
        return back(assigned(rows.detach(), self._centres.to(rows))[1])

    def transform(self, X: Any) -> Any:
        """Return the distances from the means, (m, n_clusters)."""
        rows, back = rows_of(self, X)
        return back(cdist(rows, self._centres.to(rows)))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ARG002
        """Return minus the sum of squared distances of rows from their nearest means.

        Parameters
        ----------
        X : array, shape (m, features)
        y : None
            Not used.
        sample_weight : array, shape (m,), optional
            Weights of the squared distances, by default 1.

        Returns
        -------
        float
            In the squared units of X.
        """
        rows, _ = rows_of(self, X)
        weights = weights_of(sample_weight, rows)
        squares, _ = assigned(rows.detach(), self._centres.to(rows))
        return -float((squares if weights is None else squares * weights).sum(dtype=torch.float64))
