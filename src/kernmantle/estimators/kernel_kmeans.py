"""K-means in the feature space of a kernel, whose matrix is never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from tqdm import tqdm

from ..arrays import to_tensor
from ..pairwise import Kernel
from .base import KernelEstimator
from .data import rows_of, weights_of
from .kmeans import check_clusters, warn_of
from .seeding import draw, plus_plus
from .state import Stored


@dataclass(frozen=True)
class _Space(Stored):
    """Rows, their weights and their squared lengths in the feature space."""

    kernel: Kernel
    rows: torch.Tensor
    weights: torch.Tensor
    squares: torch.Tensor

    def membership(self, labels: torch.Tensor, count: int) -> torch.Tensor:
        """Return the weight of every row in the column of its cluster, (n, count)."""
        return self.rows.new_zeros(len(labels), count).scatter_(1, labels[:, None], self.weights[:, None])

    def sums(self, labels: torch.Tensor, count: int) -> torch.Tensor:
        """Return the inner products of every row with the weighted sum of each cluster."""
        return self.kernel.matmul(self.rows, None, self.membership(labels, count))

    def moved(self, sums: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        """Return the same after some rows changed their clusters, from those rows alone."""
        rows = (before != after).nonzero()[:, 0]
        own = self.weights[rows, None]
        change = sums.new_zeros(len(rows), sums.shape[1]).scatter_add_(1, after[rows, None], own)
        change.scatter_add_(1, before[rows, None], -own)
        return sums + self.kernel.matmul(self.rows, self.rows[rows], change)

    def nearest(self, sums: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Weights of the clusters, squared lengths of their means, and of every row the nearest: how far, and which."""
        mass, norms = self._means(sums, labels)
        smallest, found = (norms - 2 * sums / mass).min(1)
        return mass, norms, (self.squares + smallest).clamp_(min=0), found

    def total(self, gaps: torch.Tensor) -> float:
        """Weighted sum over the rows."""
        return float((gaps * self.weights).sum(dtype=torch.float64))

    def _means(self, sums: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weight of every cluster, and squared length of its mean; infinite of those without weight."""
        count = sums.shape[1]
        mass = self.weights.new_zeros(count, dtype=torch.float64).index_add_(0, labels, self.weights.double())
        own = (sums.gather(1, labels[:, None])[:, 0] * self.weights).double()
        inside = torch.zeros_like(mass).index_add_(0, labels, own)
        norms = torch.where(mass > 0, inside / mass.square(), torch.inf)
        return torch.where(mass > 0, mass, 1).to(sums.dtype), norms.to(sums.dtype)


@dataclass(frozen=True)
class _Run(Stored):
    """Labels of the nearest means, the sum of squared distances, and the means: whose labels, mass and norms."""

    labels: torch.Tensor
    inertia: float
    members: torch.Tensor
    mass: torch.Tensor
    norms: torch.Tensor
    steps: int
    converged: bool


def _filled(labels: torch.Tensor, gaps: torch.Tensor, weights: torch.Tensor, count: int) -> torch.Tensor:
    """Return labels of which every one occurs: rows that are farthest from their means go to clusters without rows."""
    counts = torch.bincount(labels[weights > 0], minlength=count)
    empty = (counts == 0).nonzero()[:, 0]
    gaps = torch.where(weights > 0, gaps, 0)
    if not empty.numel() or not float(gaps.max()) > 0:
        return labels
    return labels.index_copy(0, gaps.topk(empty.numel()).indices, empty)


def _iterate(space: _Space, labels: torch.Tensor, count: int, max_iter: int, tol: float, bar: Any) -> _Run:
    """Assign rows to the nearest means until none changes, which a product with the whole matrix has confirmed."""
    sums, exact, last = space.sums(labels, count), True, float("inf")
    for step in range(1, max_iter + 1):
        mass, norms, gaps, found = space.nearest(sums, labels)
        inertia = space.total(gaps)
        bar.update()
        bar.set_postfix(inertia=inertia)
        after = _filled(found, gaps, space.weights, count)
        changed = int((after != labels).sum())
        small = last - inertia <= tol * inertia
        if exact and (not changed or small):
            return _Run(found, inertia, labels, mass, norms, step, True)
        exact = not changed or small or 2 * changed > len(labels)
        sums = space.sums(after, count) if exact else space.moved(sums, labels, after)
        labels, last = after, inertia
    sums = sums if exact else space.sums(labels, count)
    mass, norms, gaps, found = space.nearest(sums, labels)
    return _Run(found, space.total(gaps), labels, mass, norms, max_iter, False)


class KernelKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, KernelEstimator):
    """Clusters around means in the feature space φ of a kernel, ``min Σ_i w_i min_c ||φ(x_i) - μ_c||²``.

    Parameters
    ----------
    n_clusters : int
        At most as many as there are rows.
    kernel, bandwidth, kernel_params, device
        As of :class:`KernelRidge`; the kernel is symmetric.
    init : {"k-means++", "random"} or array of int, shape (n,)
        Nearest of rows that are far from each other in the feature space, or of drawn rows; or your own labels.
    n_init : int
        Runs from different beginnings, of which the best is taken.
    max_iter : int
        Most steps of a run.
    tol : float
        A run ends when the sum of squared distances falls by no more than this share of it.
    verbose : bool
        Progress of the steps.
    random_state : int, RandomState or None
        Draws the beginnings.

    Attributes
    ----------
    labels_ : array of int64, shape (n,)
        Nearest mean of every row.
    inertia_ : float
        Sum of the weighted squared distances in the feature space.
    n_iter_ : int
        Steps of the best run.
    kernel_ : km.Kernel
        The kernel, with its bandwidth.

    Raises
    ------
    ValueError
        From ``fit``, ``predict``, ``transform`` and ``score``: for invalid parameters, a kernel that is not
        symmetric, more clusters than rows, rows with NaN or infinity or another number of features.

    Warns
    -----
    ConvergenceWarning
        For fewer distinct clusters than were asked for, and for a run that ended at ``max_iter``.

    Notes
    -----
    Cost of a step: n kernel values for every row that changed its cluster, n² of the first and the last. The kernel's
    matrix is not stored: memory is a copy of the rows and a few arrays of n · n_clusters numbers. A cluster that lost
    its rows takes the row that is farthest from its mean. Distances of ``transform`` have gradients, labels have none.
    Sources: Dhillon, Guan and Kulis, Kernel k-means, spectral clustering and normalized cuts, 2004; Arthur and
    Vassilvitskii, k-means++: the advantages of careful seeding, 2007.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    >>> ring = np.stack([np.cos(angle), np.sin(angle)], 1)
    >>> x = np.concatenate([ring, 3 * ring])
    >>> radius = km.Kernel(lambda x, y: (x * x, y * y), lambda a, b: a * b)  # feature: the squared length
    >>> labels = km.estimators.KernelKMeans(2, kernel=radius, random_state=0).fit_predict(x)
    >>> len(set(labels[:60])), len(set(labels[60:])), bool(labels[0] != labels[60])
    (1, 1, True)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions({"k-means++", "random"}), "array-like"],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self, n_clusters: int = 8, *, kernel: str | Kernel = "gaussian", bandwidth: float | None = None,
        kernel_params: Mapping[str, Any] | None = None, init: Any = "k-means++", n_init: int = 1, max_iter: int = 300,
        tol: float = 1e-6, verbose: bool = False, random_state: Any = None, device: str | None = None,
    ) -> None:  # fmt: skip
        self.n_clusters = n_clusters
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KernelKMeans:  # noqa: ARG002
        """Find the clusters."""
        self._validate_params()
        rows, back = rows_of(self, X, reset=True)
        rows, random = rows.detach(), check_random_state(self.random_state)
        check_clusters(self.n_clusters, rows)
        weights = weights_of(sample_weight, rows)
        self.kernel_ = self._make_kernel(rows if weights is None else rows[weights > 0])
        if not self.kernel_.is_symmetric:
            raise ValueError(f"kernel={self.kernel_!r} of KernelKMeans is not symmetric in its two rows")
        own = rows.new_ones(rows.shape[0]) if weights is None else weights
        space = _Space(self.kernel_, rows, own, self.kernel_.diagonal(rows))
        best: _Run | None = None
        with tqdm(desc="steps", disable=not self.verbose) as bar:
            for _ in range(self.n_init if isinstance(self.init, str) else 1):
                run = _iterate(space, self._first(space, random), self.n_clusters, self.max_iter, self.tol, bar)
                if best is None or run.inertia < best.inertia:
                    best = run
        assert best is not None
        warn_of("KernelKMeans", best.labels, self.n_clusters, best.converged, self.max_iter)
        self._space, self._run = space, best
        self.labels_, self.inertia_, self.n_iter_ = back(best.labels), best.inertia, best.steps
        self._n_features_out = self.n_clusters
        return self

    def _first(self, space: _Space, random: np.random.RandomState) -> torch.Tensor:
        """Return the labels that a run begins with."""
        rows, count, kernel = space.rows, self.n_clusters, space.kernel
        if not isinstance(self.init, str):
            own = to_tensor(self.init, "init").to(rows.device).long()
            if own.shape != rows.shape[:1] or not bool(((own >= 0) & (own < count)).all()):
                raise ValueError(
                    f"init of KernelKMeans must have a label from 0 to {count - 1} for each of the {rows.shape[0]} rows"
                )
            return own

        def squares(chosen: torch.Tensor) -> torch.Tensor:
            across = kernel(rows[chosen], rows)
            return (space.squares[chosen, None] + space.squares - 2 * across).clamp_(min=0)

        seeds = draw(count, space.weights, random) if self.init == "random" else plus_plus(
            count, space.weights, squares, random
        )  # fmt: skip
        return squares(seeds).argmin(0)

    def _gaps(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the squared distances of further rows from the means, less the squared lengths of the rows."""
        space, run = self._space, self._run
        members = space.membership(run.members, self.n_clusters) / run.mass
        across = self.kernel_.matmul(rows, space.rows.to(rows), members.to(rows))
        return run.norms.to(rows) - 2 * across

    def predict(self, X: Any) -> Any:
        """Return the nearest mean of every row, (m,)."""
        rows, back = rows_of(self, X)
        return back(self._gaps(rows.detach()).argmin(1))

    def transform(self, X: Any) -> Any:
        """Return the distances from the means in the feature space, (m, n_clusters)."""
        rows, back = rows_of(self, X)
        return back((self.kernel_.diagonal(rows)[:, None] + self._gaps(rows)).clamp(min=0).sqrt())

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ARG002
        """Return minus the sum of weighted squared distances from the nearest means."""
        rows, _ = rows_of(self, X)
        weights = weights_of(sample_weight, rows)
        gaps = (self.kernel_.diagonal(rows) + self._gaps(rows).amin(1)).clamp(min=0)
        return -float((gaps if weights is None else gaps * weights).sum(dtype=torch.float64))
