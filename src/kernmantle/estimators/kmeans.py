"""K-means: Lloyd's iteration, of whose distances no more than a block is stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from tqdm import tqdm

from ..pairwise import argkmin, cdist
from .data import rows_of, weights_of
from .measure import check_choice
from .seeding import draw, plus_plus
from .state import Stored

PART = 4096
"""Rows that are summed in their own type before the sums are added in float64; more for more clusters than that."""
BLOCK = 1 << 25
"""Products of rows and centres that a GPU stores at a time: 128 MiB of float32."""


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


@dataclass(frozen=True)
class Run:
    """Labels, the sum of weighted squared distances, centres, and how many steps there were."""

    labels: torch.Tensor
    inertia: float
    centres: torch.Tensor
    steps: int
    converged: bool


def assigned(rows: torch.Tensor, centres: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the squared distance of every row from the nearest centre, and which that is."""
    squares, labels = argkmin(rows, centres, 1, metric="sqeuclidean", return_values=True)
    return squares[:, 0], labels[:, 0]


def _labels(rows: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Return the nearest centre of every row; on a GPU rows are centred, so that products keep their digits."""
    if not rows.is_cuda:
        return argkmin(rows, centres, 1, metric="sqeuclidean")[:, 0]
    squares = centres.square().sum(1)
    found = rows.new_empty(rows.shape[0], dtype=torch.int64)
    for part, out in zip(*(each.split(max(1, BLOCK // len(centres))) for each in (rows, found)), strict=True):
        torch.argmin(torch.addmm(squares, part, centres.mT, alpha=-2), 1, out=out)
    return found


def _squares(rows: torch.Tensor, centres: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the squared distance of every row from its centre."""
    parts = zip(*(each.split(max(1, BLOCK // rows.shape[1])) for each in (rows, labels)), strict=True)
    return torch.cat([(part - centres[own]).square().sum(1) for part, own in parts])


def _sums(
    rows: torch.Tensor, weights: torch.Tensor | None, labels: torch.Tensor, count: int, offsets: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sums of the rows of every cluster, and sums of their weights, in float64."""
    if offsets is not None:
        return _sums_at_once(rows, weights, labels + offsets, count)
    size = max(PART, count)
    sums = rows.new_zeros(count, rows.shape[1], dtype=torch.float64)
    mass = rows.new_zeros(count, dtype=torch.float64)
    for start in range(0, rows.shape[0], size):
        own = slice(start, start + size)
        part = rows[own] if weights is None else rows[own] * weights[own, None]
        sums += rows.new_zeros(count, rows.shape[1]).index_add_(0, labels[own], part)
        ones = mass.new_ones(part.shape[0]) if weights is None else weights[own].double()
        mass.index_add_(0, labels[own], ones)
    return sums, mass


def _offsets(rows: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return, for a GPU, the first cluster of the part of every row, where every part has clusters of its own."""
    if not rows.is_cuda:
        return None
    numbers = torch.arange(rows.shape[0], device=rows.device)
    return numbers.div_(max(PART, count), rounding_mode="floor").mul_(count)


def _sums_at_once(
    rows: torch.Tensor, weights: torch.Tensor | None, labels: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums where a launch takes longer than its work: those of all parts, then over the parts."""
    parts = -(-rows.shape[0] // max(PART, count))
    sums, mass = rows.new_zeros(parts * count, rows.shape[1]), rows.new_zeros(parts * count)
    sums.index_add_(0, labels, rows if weights is None else rows * weights[:, None])
    mass.index_add_(0, labels, rows.new_ones(()).expand(rows.shape[0]) if weights is None else weights)
    return (
        sums.unflatten(0, (parts, count)).sum(0, dtype=torch.float64),
        mass.unflatten(0, (parts, count)).sum(0, dtype=torch.float64),
    )


def _means(sums: torch.Tensor, mass: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the means of the clusters; those without rows have the heaviest cluster's."""
    return torch.where(mass[:, None] > 0, sums / mass[:, None], sums[mass.argmax()] / mass.max()).to(dtype)


def _filled(
    rows: torch.Tensor, weights: torch.Tensor | None, labels: torch.Tensor, squares: torch.Tensor, mass: torch.Tensor
) -> torch.Tensor:
    """Return the means after clusters without rows took the rows that are farthest from their centres."""
    empty = (mass == 0).nonzero()[:, 0]
    gaps = squares if weights is None else torch.where(weights > 0, squares, 0)
    if float(gaps.max()) > 0:
        labels = labels.index_copy(0, gaps.topk(empty.numel()).indices, empty)
    return _means(*_sums(rows, weights, labels, mass.numel(), _offsets(rows, mass.numel())), rows.dtype)


def _length(values: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(values, dtype=torch.float64)


def lloyd(
    rows: torch.Tensor, weights: torch.Tensor | None, centres: torch.Tensor, max_iter: int, limit: float, bar: Any
) -> Run:
    """Assign rows to centres and move these to the means, until no label changes or they move by less than a limit.

    A step waits for a GPU once: for whether labels changed, whether a cluster is empty and how far centres moved.
    """

    def ended(labels: torch.Tensor, centres: torch.Tensor, step: int, converged: bool) -> Run:
        squares = _squares(rows, centres, labels)
        inertia = float((squares if weights is None else squares * weights).sum(dtype=torch.float64))
        return Run(labels, inertia, centres, step, converged)

    labels, converged, step = None, False, 0
    offsets = _offsets(rows, centres.shape[0])
    for step in range(1, max_iter + 1):
        found = _labels(rows, centres)
        bar.update()
        sums, mass = _sums(rows, weights, found, centres.shape[0], offsets)
        means = (sums / mass[:, None]).to(rows.dtype)
        changes = mass.new_ones(1) if labels is None else found != labels
        read = changes.sum(dtype=torch.float64), mass.min(), _length(means - centres)
        changed, least, length = torch.stack(read).tolist()
        if not changed:
            return ended(found, centres, step, True)
        if least == 0:
            means = _filled(rows, weights, found, _squares(rows, centres, found), mass)
            length = float(_length(means - centres))
        labels, centres = found, means
        if length**2 <= limit:
            converged = True
            break
    return ended(_labels(rows, centres), centres, step, converged)


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
        """Centres that a run begins with."""
        if isinstance(self.init, str):
            shares = rows.new_ones(rows.shape[0]) if weights is None else weights
            if self.init == "random":
                return rows[draw(self.n_clusters, shares, random)]
            return rows[plus_plus(
                self.n_clusters, shares, lambda chosen: cdist(rows[chosen], rows, "sqeuclidean"), random
            )]  # fmt: skip
        own = self.init(back(rows), self.n_clusters, random_state=random) if callable(self.init) else self.init
        centres = torch.as_tensor(own).detach().to(rows, copy=True)
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
