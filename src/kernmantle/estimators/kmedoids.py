"""K-medoids under any distance: clusters around rows, by alternation or by swaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from tqdm import tqdm

from ..arrays import to_tensor
from ..pairwise import Kernel, argkmin, cdist
from ..pairwise.distances import contraction
from ..pairwise.inputs import find, request
from ..pairwise.own_metric import Metric
from ..torch_ops.row_reduce import task_of
from .data import TakesPrecomputed, rows_of
from .kmeans import check_clusters, warn_of
from .measure import Measure
from .seeding import draw, plus_plus
from .state import Stored

Nearest = tuple[torch.Tensor, torch.Tensor]


class Dissimilarity(Protocol):
    """Distances d(x, y), of which y are rows of the fit."""

    rows: torch.Tensor

    def columns(self, indices: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return the distances of x, by default all rows, from those of these indices: (m, indices)."""
        ...

    def nearest(self, indices: torch.Tensor, count: int, x: torch.Tensor | None = None) -> Nearest:
        """Return the smallest distances of every row, and their positions among the indices: (m, count) each."""
        ...

    def sums(self, indices: torch.Tensor | slice) -> torch.Tensor:
        """Return the sum over the rows of these indices of their distances from each of them."""
        ...


class OfMetric(Stored):
    """Distances of rows by the name of a metric, or by a kernel that is a distance."""

    def __init__(self, rows: torch.Tensor, metric: Any, options: Mapping[str, Any] | None) -> None:
        found = Measure.of(metric, None, options, "pass a metric, or a distance of your own, lambda a, b: abs(a - b)")
        if isinstance(found.metric, str) and not find(found.metric).symmetric:
            raise ValueError(f"metric={metric!r} is not symmetric: medoids have distances that are")
        self.rows, self.metric, self.options = rows, found.metric, found.fitted(rows).options

    def _of(self, rows: torch.Tensor) -> dict[str, Any]:
        """Return the options, of which arrays are on the device of rows."""
        return {
            name: to_tensor(value, name).to(rows) if hasattr(value, "shape") else value
            for name, value in self.options.items()
        }

    def columns(self, indices: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return the distances of x, by default all rows, from those of these indices: (m, indices)."""
        left = self.rows if x is None else x
        right = self.rows[indices].to(left)
        if isinstance(self.metric, Kernel):
            return self.metric(left, right)
        return cdist(left, right, self.metric, **self._of(left))

    def nearest(self, indices: torch.Tensor, count: int, x: torch.Tensor | None = None) -> Nearest:
        """Return the smallest distances of every row, and their positions among the indices: (m, count) each."""
        left = self.rows if x is None else x
        right = self.rows[indices].to(left)
        return argkmin(left, right, count, metric=self.metric, return_values=True, **self._of(left))

    def sums(self, indices: torch.Tensor | slice) -> torch.Tensor:
        """Return the sum over the rows of these indices of their distances from each of them."""
        rows = self.rows[indices]
        if isinstance(self.metric, Kernel):
            return self.metric.transposed().sum(rows, rows)
        own: dict[str, Any] = {"p": None, "w": None, "V": None, "VI": None, "base": None, **self._of(rows)}
        wanted = request(find(self.metric), rows, rows, **own)
        ready = wanted.prepared()
        contract = contraction(wanted.row.name, wanted.variant, ready.weighted, True)
        task, tensors = task_of(contract, "sum", ready.operands, ready.parameters)
        return task.evaluate(tensors)[0]


class OfMatrix(Stored):
    """Distances that are entries of a square matrix, d(x_i, x_j) in row i and column j."""

    def __init__(self, matrix: torch.Tensor) -> None:
        if matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                f"metric='precomputed' takes the square matrix of the distances, it was given {tuple(matrix.shape)}"
            )
        self.rows = matrix

    def columns(self, indices: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return the columns of these indices."""
        return (self.rows if x is None else x).index_select(1, indices)

    def nearest(self, indices: torch.Tensor, count: int, x: torch.Tensor | None = None) -> Nearest:
        """Return the smallest entries of these columns in every row."""
        found = self.columns(indices, x).topk(count, 1, largest=False)
        return found.values, found.indices

    def sums(self, indices: torch.Tensor | slice) -> torch.Tensor:
        """Return the sums of the columns of a block."""
        return self.rows[indices][:, indices].sum(0)


BLOCK = {"cpu": 4 << 20, "cuda": 64 << 20}
"""Bytes of the distances that are there at a time; of arrays of this size there are four."""


def blocks(distances: Dissimilarity) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield all rows as candidates, some at a time, with the distances of every row from them."""
    rows = distances.rows
    size = max(1, BLOCK.get(rows.device.type, BLOCK["cuda"]) // (rows.element_size() * rows.shape[0]))
    for indices in torch.arange(rows.shape[0], device=rows.device).split(size):
        yield indices, distances.columns(indices)


def alternate(distances: Dissimilarity, medoids: torch.Tensor, max_iter: int, bar: Any) -> tuple[torch.Tensor, int]:
    """Make the most central row of every cluster its medoid until none changes; the medoids, and the steps taken."""
    for step in range(1, max_iter + 1):
        _, labels = distances.nearest(medoids, 1)
        after = medoids.clone()
        for cluster in range(len(medoids)):
            members = (labels[:, 0] == cluster).nonzero()[:, 0]
            if members.numel():
                sums = distances.sums(members)
                best = sums.argmin()
                stays = (members == medoids[cluster]) & (sums <= sums[best])
                after[cluster] = medoids[cluster] if bool(stays.any()) else members[best]
        bar.update()
        if torch.equal(after, medoids):
            return medoids, step
        medoids = after
    return medoids, max_iter + 1


def swap(distances: Dissimilarity, medoids: torch.Tensor, max_iter: int, bar: Any) -> tuple[torch.Tensor, int]:
    """Swap medoids with rows where this lowers the sum of distances, until no swap does; as ``alternate``.

    Of a row with distances n from its medoid, s from the second and d from a candidate, a swap of its medoid for the
    candidate changes the sum by the smaller of d and s, minus n; that of another medoid by the smaller of d and n,
    minus n. The difference of the two is the middle of (n, d, s), minus n: it is summed over the rows of each medoid.
    """
    if len(medoids) == 1:
        return distances.sums(slice(None)).argmin()[None], 1
    medoids, closest, labels, second = _two(distances, medoids.clone())
    for step in range(1, max_iter + 1):
        swaps = 0
        for indices, columns in blocks(distances):
            while True:
                change = columns.new_zeros(len(medoids), len(indices))
                middle = columns.maximum(closest[:, None]).minimum(second[:, None])
                change.index_add_(0, labels, middle.sub_(closest[:, None]))
                change += columns.minimum(closest[:, None]).sub_(closest[:, None]).sum(0)
                change.masked_fill_(torch.isin(indices, medoids), torch.inf)
                best = int(change.argmin())
                cluster, candidate = divmod(best, len(indices))
                if not float(change[cluster, candidate]) < -_noise(closest):
                    break
                medoids[cluster] = indices[candidate]
                medoids, closest, labels, second = _two(distances, medoids)
                swaps += 1
        bar.update()
        bar.set_postfix(swaps=swaps, inertia=float(closest.sum()))
        if not swaps:
            return medoids, step
    return medoids, max_iter + 1


def _two(
    distances: Dissimilarity, medoids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return medoids, and of every row the distance to the nearest, which that is, and the distance to the second."""
    values, positions = distances.nearest(medoids, 2)
    return medoids, values[:, 0].contiguous(), positions[:, 0].contiguous(), values[:, 1].contiguous()


def _noise(closest: torch.Tensor) -> float:
    """Change of the sum of distances that may be rounding."""
    return 8 * torch.finfo(closest.dtype).eps * float(closest.sum(dtype=torch.float64))


def build(distances: Dissimilarity, count: int) -> torch.Tensor:
    """Return the most central row, then each time the row that lowers the sum of distances most."""
    medoids = [distances.sums(slice(None)).argmin()]
    closest = distances.columns(medoids[0][None])[:, 0]
    while len(medoids) < count:
        gains = []
        for indices, columns in blocks(distances):
            gain = (closest[:, None] - columns).clamp_(min=0).sum(0)
            gains.append(gain.masked_fill_(torch.isin(indices, torch.stack(medoids)), -1))
        medoids.append(torch.cat(gains).argmax())
        closest = torch.minimum(closest, distances.columns(medoids[-1][None])[:, 0])
    return torch.stack(medoids)


class KMedoids(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, TakesPrecomputed):
    """Clusters around rows, ``min Σ_i min_c d(x_i, x_{m_c})`` for any distance d.

    Parameters
    ----------
    n_clusters : int
        At most as many as there are rows.
    metric : str, callable, km.Kernel or km.Contraction
        A metric of :func:`km.cdist` that is symmetric, your own distance, ``lambda a, b: abs(a - b)``,
        which is summed over the columns, or "precomputed": X is then the matrix of distances.
    method : {"alternate", "pam"}
        Alternate between labels and the most central rows of the clusters; or swap medoids with other rows as long as
        that lowers the sum of distances, which costs more and ends lower.
    init : {"k-medoids++", "random", "heuristic", "build"} or array of int, shape (n_clusters,)
        First medoids: rows far from each other, drawn rows, the rows that are closest to all others, those that lower
        the sum of distances most one after another, or your own rows.
    max_iter : int
        Most steps; of "pam" passes over all rows.
    metric_params : dict, optional
        Options of the metric, as ``{"p": 1.5}``. V and VI are by default those of the rows of the fit.
    verbose : bool
        Progress of the steps.
    random_state : int, RandomState or None
        Draws the first medoids.
    device : str, optional
        Device used for NumPy input; the CPU by default.

    Attributes
    ----------
    medoid_indices_ : array of int64, shape (n_clusters,)
        Rows that are medoids.
    cluster_centers_ : array, shape (n_clusters, features), or None
        These rows; None where distances were given.
    labels_ : array of int64, shape (n,)
        Nearest medoid of every row.
    inertia_ : float
        Sum of the distances.
    n_iter_ : int
        Steps taken.

    Raises
    ------
    ValueError
        From ``fit``, ``predict`` and ``transform``: for invalid parameters, more clusters than rows, metrics
        that are not symmetric, rows with NaN or infinity or another number of features.
    KernmantleError
        From ``fit``: for an unknown metric, options that it does not have, and a named kernel as metric.

    Warns
    -----
    ConvergenceWarning
        For fewer distinct clusters than were asked for, and for an iteration that ended at ``max_iter``.

    Notes
    -----
    Cost of a step of n rows: n · n_clusters distances, and for "alternate" the squares of the clusters' sizes, for
    "pam" n² and a few more operations for each. The matrix of distances is not stored: memory is a copy of the rows,
    n-vectors, and for "pam" blocks of distances of 4 MB, on GPUs 64 MB. Distances of ``transform`` have gradients where
    the metric has, labels have none. Sources: Park and Jun, A simple and fast algorithm for k-medoids clustering, 2009;
    Schubert and Rousseeuw, Fast and eager k-medoids clustering, 2021, whose swaps are made here block by block.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import KMedoids
    >>> x = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 3.0], [10.0, 2.0], [10.0, 4.0], [10.0, 3.0]])
    >>> sorted(KMedoids(2, metric="cityblock", method="pam", random_state=0).fit(x).medoid_indices_.tolist())
    [2, 5]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "method": [StrOptions({"alternate", "pam"})],
        "init": [StrOptions({"k-medoids++", "random", "heuristic", "build"}), "array-like"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self, n_clusters: int = 8, *, metric: Metric = "euclidean", method: str = "alternate",
        init: Any = "k-medoids++", max_iter: int = 300, metric_params: Mapping[str, Any] | None = None,
        verbose: bool = False, random_state: Any = None, device: str | None = None,
    ) -> None:  # fmt: skip
        self.n_clusters = n_clusters
        self.metric = metric
        self.method = method
        self.init = init
        self.max_iter = max_iter
        self.metric_params = metric_params
        self.verbose = verbose
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> KMedoids:  # noqa: ARG002
        """Find the medoids."""
        self._validate_params()
        rows, back = rows_of(self, X, reset=True)
        rows, precomputed = rows.detach(), self._is_precomputed
        check_clusters(self.n_clusters, rows)
        distances = OfMatrix(rows) if precomputed else OfMetric(rows, self.metric, self.metric_params)
        iterate = swap if self.method == "pam" else alternate
        with tqdm(desc="steps", disable=not self.verbose) as bar:
            first = self._first(distances, check_random_state(self.random_state))
            medoids, steps = iterate(distances, first, self.max_iter, bar)
        values, labels = distances.nearest(medoids, 1)
        warn_of("KMedoids", labels, self.n_clusters, steps <= self.max_iter, self.max_iter)
        self._distances, self._medoids = distances, medoids
        self.medoid_indices_, self.labels_ = back(medoids), back(labels[:, 0].contiguous())
        self.cluster_centers_ = None if precomputed else back(rows[medoids])
        self.inertia_, self.n_iter_ = float(values.sum(dtype=torch.float64)), min(steps, self.max_iter)
        self._n_features_out = self.n_clusters
        return self

    def _first(self, distances: Dissimilarity, random: np.random.RandomState) -> torch.Tensor:
        """Return medoids to begin with."""
        rows, count = distances.rows, self.n_clusters
        equal = rows.new_ones(rows.shape[0])
        if not isinstance(self.init, str):
            own = to_tensor(self.init, "init").to(rows.device).long()
            fits = own.shape == (count,) and bool(((own >= 0) & (own < rows.shape[0])).all())
            if not fits or own.unique().numel() < count:
                raise ValueError(
                    f"init of KMedoids must have n_clusters={count} different indices of rows, it was given {self.init}"
                )
            return own
        if self.init == "k-medoids++":
            return plus_plus(count, equal, lambda chosen: distances.columns(chosen).square_().mT, random)
        if self.init == "random":
            return draw(count, equal, random)
        if self.init == "build":
            return build(distances, count)
        return distances.sums(slice(None)).topk(count, largest=False).indices

    def predict(self, X: Any) -> Any:
        """Return the nearest medoid of every row, (m,); of given distances X has a column for every row of the fit."""
        rows, back = rows_of(self, X)
        medoids = self._medoids.to(rows.device)
        return back(self._distances.nearest(medoids, 1, rows.detach())[1][:, 0].contiguous())

    def transform(self, X: Any) -> Any:
        """Return the distances from the medoids, (m, n_clusters)."""
        rows, back = rows_of(self, X)
        return back(self._distances.columns(self._medoids.to(rows.device), rows))
