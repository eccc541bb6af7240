"""Spectral clustering: leading eigenvectors of a normalised affinity that is never stored, then k-means."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from scipy.sparse import csr_array
from sklearn.base import ClusterMixin
from sklearn.manifold import spectral_embedding
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from ..errors import KernmantleWarning, LinearAlgebraError
from ..linalg import eigh
from ..pairwise import Kernel, argkmin
from ..pairwise.own_metric import Metric
from .base import chosen_kernel
from .data import TakesPrecomputed, rows_of
from .kmeans import KMeans, check_clusters
from .measure import Measure, check_choice, check_jobs

LARGEST_STORED = 4096
"""Rows up to which an affinity is stored where the iteration does not get to its eigenvectors: 128 MB of float64."""


@dataclass(frozen=True)
class _Affinity:
    """``S (A - diag A) S`` of a symmetric affinity A, with the inverse roots S of its row sums without the diagonal."""

    product: Callable[[torch.Tensor], torch.Tensor]
    stored: Callable[[], torch.Tensor]
    diagonal: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def of(
        product: Callable[[torch.Tensor], torch.Tensor], stored: Callable[[], torch.Tensor], diagonal: torch.Tensor,
        sums: torch.Tensor,
    ) -> _Affinity:  # fmt: skip
        """Return the rows that nothing is similar to have the scale 1, so that they are eigenvectors of 0."""
        degrees = sums - diagonal
        noise = torch.finfo(sums.dtype).eps * (sums.abs() + diagonal.abs()) * len(sums) ** 0.5
        if bool((degrees < -noise).any()):
            raise ValueError(
                f"the affinities of row {int(degrees.argmin())} sum to {float(degrees.min()):.3g}: SpectralClustering "
                "takes affinities that are not negative"
            )
        return _Affinity(product, stored, diagonal, torch.where(degrees > noise, degrees, 1).rsqrt())

    @property
    def shape(self) -> tuple[int, int]:
        """Rows twice."""
        return len(self.scale), len(self.scale)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows."""
        return self.scale.dtype

    @property
    def device(self) -> torch.device:
        """Device of the rows."""
        return self.scale.device

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        scaled = self.scale[:, None] * v
        return self.scale[:, None] * (self.product(scaled) - self.diagonal[:, None] * scaled)

    def leading(self, count: int, tolerance: float) -> torch.Tensor:
        """Return the eigenvectors of the largest eigenvalues, largest first, times S."""
        first = len(self.scale) - count
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", KernmantleWarning)
                found = eigh(self, subset_by_index=(first, len(self.scale) - 1), tolerance=tolerance)
        except LinearAlgebraError as error:
            if len(self.scale) > LARGEST_STORED:
                raise ValueError(
                    f"the {count} leading eigenvectors of the affinity were not found: raise eigen_tol={tolerance:.1g} "
                    "or the bandwidth, so that the clusters stand out"
                ) from error
            matrix = self.scale[:, None] * self.stored() * self.scale
            matrix.fill_diagonal_(0)
            found = eigh(matrix, subset_by_index=(first, len(self.scale) - 1))
        vectors = found[1].flip(1)
        top = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        return vectors * torch.where(top < 0, -1, 1) * self.scale[:, None]


class SpectralClustering(ClusterMixin, TakesPrecomputed):
    """Clusters of rows that are connected, by k-means on eigenvectors of the normalised graph Laplacian.

    The Laplacian is ``I - D^(-1/2) A D^(-1/2)`` of the affinities A without their diagonal, with their row sums D.

    Parameters
    ----------
    n_clusters : int
        At most as many as there are rows.
    affinity : km.Kernel, str or {"nearest_neighbors", "precomputed"}
        A kernel, or its name as of :class:`KernelRidge`; 1 for rows that are neighbours of each other, 1/2 where one
        is; or X is the symmetric matrix of affinities.
    bandwidth, kernel_params
        Of a kernel given by its name; the bandwidth is by default the median distance of the rows.
    gamma, degree, coef0
        As of :class:`KernelRidge`.
    n_components : int, optional
        Eigenvectors that are taken; by default n_clusters.
    n_neighbors : int
        Neighbours of a row, itself included, for "nearest_neighbors".
    metric : str, callable, km.Kernel or km.Contraction
        Distance of neighbours, as of :func:`km.argkmin`.
    metric_params : dict, optional
        Options of the metric.
    n_init : int
        Runs of k-means, of which the best is taken.
    eigen_tol : float or "auto"
        Residual of the eigenvectors relative to the largest eigenvalue; by default the root of the type's unit.
    random_state : int, RandomState or None
        Draws what k-means begins with.
    device : str, optional
        Device used for NumPy input; the CPU by default.
    verbose : bool
        Progress of k-means.
    assign_labels : {"kmeans"}
        As scikit-learn's; "discretize" and "cluster_qr" are refused.
    eigen_solver, n_jobs
        Of scikit-learn, without effect: eigenvectors are found by blocks, with the threads of torch.

    Attributes
    ----------
    labels_ : array of int64, shape (n,)
        Cluster of every row.
    embedding_ : array, shape (n, n_components)
        Eigenvectors divided by the roots of the row sums, whose rows k-means clusters.
    affinity_ : km.Kernel or None
        The kernel, with its bandwidth.

    Raises
    ------
    ValueError
        From ``fit``: for invalid parameters, more clusters than rows, rows with NaN or infinity, affinities
        that are negative or not symmetric, and eigenvectors that the iteration did not find.

    Warns
    -----
    ConvergenceWarning
        As of :class:`KMeans`; UserWarning by scikit-learn for a graph of neighbours in several parts.

    Notes
    -----
    Cost of a kernel: n² values for every product with a block of at least 16 columns, of which some ten are needed
    where the clusters stand out. Its matrix is stored only where the iteration fails on at most 4096 rows. The graph of
    neighbours is sparse; its eigenvectors come from scikit-learn's ``spectral_embedding``, on the CPU. Labels have no
    gradient. Sources: Shi and Malik, Normalized cuts and image segmentation, 2000; von Luxburg, A tutorial on spectral
    clustering, 2007.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> import kernmantle as km
    >>> x, y = make_moons(200, noise=0.03, random_state=0)
    >>> labels = km.estimators.SpectralClustering(2, affinity=km.Gaussian(0.1), random_state=0).fit_predict(x)
    >>> bool((labels == y).all() or (labels != y).all())
    True
    """

    _choice = "affinity"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "eigen_tol": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self, n_clusters: int = 8, *, affinity: str | Kernel | Callable[..., Any] = "gaussian",
        bandwidth: float | None = None, kernel_params: Mapping[str, Any] | None = None,
        gamma: float | str | None = None, degree: float | None = None, coef0: float | None = None,
        n_components: int | None = None, n_neighbors: int = 10,
        metric: Metric = "euclidean", metric_params: Mapping[str, Any] | None = None, n_init: int = 10,
        eigen_tol: float | str = "auto", random_state: Any = None, device: str | None = None, verbose: bool = False,
        assign_labels: str = "kmeans", eigen_solver: str | None = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.n_clusters = n_clusters
        self.affinity = affinity
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.n_components = n_components
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.metric_params = metric_params
        self.n_init = n_init
        self.eigen_tol = eigen_tol
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.assign_labels = assign_labels
        self.eigen_solver = eigen_solver
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> SpectralClustering:  # noqa: ARG002
        """Find the clusters."""
        self._validate_params()
        check_jobs(self)
        check_choice(self, "assign_labels", ("kmeans",), "other ways are those of sklearn.cluster.SpectralClustering")
        check_choice(self, "eigen_solver", (None, "arpack", "lobpcg", "amg"), "all find the same eigenvectors")
        rows, back = rows_of(self, X, reset=True)
        rows, random = rows.detach(), check_random_state(self.random_state)
        check_clusters(self.n_clusters, rows)
        count = min(self.n_clusters if self.n_components is None else int(self.n_components), rows.shape[0])
        self.affinity_ = None
        if isinstance(self.affinity, str) and self.affinity == "nearest_neighbors":
            embedding = self._of_neighbours(rows, count, random)
        else:
            auto = torch.finfo(rows.dtype).eps ** 0.5
            tolerance = auto if isinstance(self.eigen_tol, str) else float(self.eigen_tol)
            embedding = self._of_affinity(rows).leading(count, tolerance)
        means = KMeans(self.n_clusters, n_init=self.n_init, random_state=random, verbose=self.verbose)
        labels = means.fit(embedding).labels_
        self.embedding_, self.labels_ = back(embedding), back(labels)
        return self

    def _of_affinity(self, rows: torch.Tensor) -> _Affinity:
        """Return the normalised affinity of a kernel or of a matrix."""
        if self._is_precomputed:
            if rows.shape[0] != rows.shape[1]:
                raise ValueError(f"affinity='precomputed' takes a square matrix, it was given {tuple(rows.shape)}")
            gap = (rows - rows.mT).abs().max()
            if float(gap) > 1e3 * torch.finfo(rows.dtype).eps * float(rows.abs().max()):
                raise ValueError(f"the affinities are not symmetric, they differ by {float(gap):.3g}")
            return _Affinity.of(lambda v: rows @ v, lambda: rows, rows.diagonal(), rows.sum(1))
        kernel = chosen_kernel(self, "affinity", rows)
        if not kernel.is_symmetric:
            raise ValueError(f"affinity={kernel!r} of SpectralClustering is not symmetric in its two rows")
        self.affinity_ = kernel
        return _Affinity.of(
            lambda v: kernel.matmul(rows, None, v), lambda: kernel(rows), kernel.diagonal(rows), kernel.sum(rows)
        )

    def _of_neighbours(self, rows: torch.Tensor, count: int, random: np.random.RandomState) -> torch.Tensor:
        """Return the eigenvectors of the graph of neighbours."""
        tolerance = cast(Any, self.eigen_tol)  # the stubs say str
        instead = "neighbours are ordered by a distance; or pass the kernel as affinity="
        measure = Measure.of(self.metric, None, self.metric_params, instead)
        neighbours = min(int(self.n_neighbors), rows.shape[0])
        indices = argkmin(rows, rows, neighbours, metric=measure.metric, **measure.options)
        indices = indices.flatten().int().cpu().numpy()
        starts = np.arange(0, len(indices) + 1, neighbours, dtype=indices.dtype)
        graph = csr_array((np.ones(len(indices)), indices, starts), (rows.shape[0], rows.shape[0]))
        found = spectral_embedding(
            0.5 * (graph + graph.T), n_components=count, eigen_solver="arpack", random_state=random,
            eigen_tol=tolerance, drop_first=False,
        )  # fmt: skip
        return torch.as_tensor(found).to(rows)
