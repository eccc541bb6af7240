"""Feature maps of kernels: by landmarks, and by the ends of a spectrum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_array, check_random_state

from ..checks import integer
from ..pairwise import Kernel
from .base import KernelEstimator, TakesMatrices
from .data import placed, rows_of
from .measure import check_choice, check_jobs
from .ridge import check_positive
from .solve import solve


def inverse_root(matrix: torch.Tensor) -> torch.Tensor:
    """``matrix^(-1/2)`` of a positive semidefinite matrix; directions at the rounding error count as empty."""
    values, vectors = torch.linalg.eigh(matrix)
    least = values.amax() * values.shape[0] * torch.finfo(values.dtype).eps
    scale = torch.where(values > least, values, torch.inf).rsqrt()
    return (vectors * scale) @ vectors.T


class Nystroem(ClassNamePrefixFeaturesOutMixin, TransformerMixin, KernelEstimator):
    """Features whose inner products approximate a kernel: ``k(x, landmarks) k(landmarks, landmarks)^(-1/2)``.

    Parameters
    ----------
    kernel, bandwidth, kernel_params, gamma, degree, coef0, device
        As of :class:`KernelRidge`, but no matrices.
    n_components : int
        Rows that are drawn as landmarks; fewer if there are fewer.
    random_state : int, RandomState or None
        Draws the landmarks.
    n_jobs
        Of scikit-learn, without effect: threads are those of torch.

    Attributes
    ----------
    components_ : array, shape (n_components, features)
        Landmarks.
    component_indices_ : array of int
        Their rows.
    normalization_ : array, shape (n_components, n_components)
        The inverse root.

    Raises
    ------
    ValueError
        From ``fit`` and ``transform``, as of :class:`KernelRidge`.

    Notes
    -----
    Cost: c² kernel values and an eigendecomposition of order c = n_components to fit, c kernel values a row to
    transform. Features are differentiable by tensors that are transformed. Source: Williams and Seeger, Using the
    Nyström method to speed up kernel machines, 2001.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import Nystroem
    >>> Nystroem("gaussian", n_components=20, random_state=0).fit_transform(np.random.rand(100, 3)).shape
    (100, 20)
    """

    def __init__(
        self, kernel: str | Kernel | Callable[..., Any] = "laplace", *, n_components: int = 100,
        bandwidth: float | None = None, kernel_params: Mapping[str, Any] | None = None,
        gamma: float | str | None = None, degree: float | None = None, coef0: float | None = None,
        random_state: Any = None, device: str | None = None, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.n_components = n_components
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> Nystroem:  # noqa: ARG002
        """Draw the landmarks."""
        check_jobs(self)
        rows, back = rows_of(self, X, reset=True)
        count = min(integer(self.n_components, "n_components"), rows.shape[0])
        drawn = check_random_state(self.random_state).permutation(rows.shape[0])[:count]
        self.kernel_ = self._make_kernel(rows)
        self._landmarks = rows[torch.as_tensor(drawn, device=rows.device)]
        self._root = inverse_root(self.kernel_(self._landmarks))
        self.component_indices_ = drawn
        self.components_, self.normalization_ = back(self._landmarks), back(self._root)
        self._n_features_out = count
        return self

    def transform(self, X: Any) -> Any:
        """Return the features of rows, (m, n_components)."""
        rows, back = rows_of(self, X)
        return back(self.kernel_(rows, self._landmarks.to(rows)) @ self._root.to(rows))


class KernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TakesMatrices):
    """Principal components in the feature space of a kernel, ``K_centred v = λ v``.

    Parameters
    ----------
    n_components : int, optional
        By default all whose eigenvalue is not 0.
    kernel, bandwidth, kernel_params, gamma, degree, coef0, device
        As of :class:`KernelRidge`.
    fit_inverse_transform : bool
        Whether ``fit`` prepares :meth:`inverse_transform`.
    alpha : float
        Regularisation of that.
    remove_zero_eig : bool
        Whether to leave out components whose eigenvalue is 0 also where ``n_components`` says how many are wanted.
    eigen_solver, tol, max_iter, iterated_power, random_state, copy_X, n_jobs
        Of scikit-learn, without effect: eigenvectors are those of LAPACK, without random numbers; X is never changed.

    Attributes
    ----------
    eigenvalues_ : array
        Of the centred kernel matrix, largest first.
    eigenvectors_ : array, shape (n, n_components)
        Of length 1; the sign makes the largest entry positive.
    X_transformed_fit_, dual_coef_ : array, shape (n, n_components), (n, features)
        Components of the rows of the fit, and coefficients of :meth:`inverse_transform`, where it was prepared.

    Raises
    ------
    ValueError
        From ``fit`` and ``transform``, as of :class:`KernelRidge`.

    Notes
    -----
    Cost: the matrix of n² kernel values and its leading eigenvectors to fit, n kernel values a row to transform.
    Components are differentiable by tensors that are transformed. Source: Schölkopf, Smola and Müller, Nonlinear
    component analysis as a kernel eigenvalue problem, 1998.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import KernelPCA
    >>> KernelPCA(2).fit_transform(np.random.rand(30, 4)).shape
    (30, 2)
    """

    def __init__(
        self, n_components: int | None = None, *, kernel: str | Kernel | Callable[..., Any] = "laplace",
        bandwidth: float | None = None, kernel_params: Mapping[str, Any] | None = None,
        gamma: float | str | None = None, degree: float | None = None, coef0: float | None = None,
        device: str | None = None, alpha: float = 1.0, fit_inverse_transform: bool = False,
        eigen_solver: str = "auto", tol: float = 0.0, max_iter: int | None = None, iterated_power: int | str = "auto",
        remove_zero_eig: bool = False, random_state: Any = None, copy_X: bool = True, n_jobs: int | None = None,
    ) -> None:  # fmt: skip
        self.n_components = n_components
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.device = device
        self.alpha = alpha
        self.fit_inverse_transform = fit_inverse_transform
        self.eigen_solver = eigen_solver
        self.tol = tol
        self.max_iter = max_iter
        self.iterated_power = iterated_power
        self.remove_zero_eig = remove_zero_eig
        self.random_state = random_state
        self.copy_X = copy_X
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> KernelPCA:  # noqa: ARG002
        """Find the components."""
        check_jobs(self)
        check_choice(self, "eigen_solver", ("auto", "dense", "arpack", "randomized"), "all are computed by LAPACK")
        rows, back = rows_of(self, X, reset=True)
        wanted = rows.shape[0] if self.n_components is None else integer(self.n_components, "n_components")
        self.kernel_ = self._kernel_or_matrix(rows)
        if self.fit_inverse_transform and not isinstance(self.kernel_, Kernel):
            raise ValueError("Cannot fit_inverse_transform with a precomputed kernel: the rows are not known")
        matrix = self.kernel_(rows)
        self._means, self._mean = matrix.mean(0), matrix.mean()
        matrix = matrix.sub_(self._means).sub_(self._means[:, None]).add_(self._mean)
        values, vectors = torch.linalg.eigh(matrix)
        values, vectors = values.flip(0)[:wanted], vectors.flip(1)[:, :wanted]
        significant = values > values[:1].abs() * rows.shape[0] * torch.finfo(values.dtype).eps
        if self.n_components is None or self.remove_zero_eig:
            values, vectors = values[significant], vectors[:, significant]
        else:
            values = torch.where(significant, values, 0)
        top = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
        self._rows, self._values, self._vectors = rows, values, vectors * torch.sign(top)
        self.eigenvalues_, self.eigenvectors_ = back(self._values), back(self._vectors)
        self._n_features_out = values.shape[0]
        if self.fit_inverse_transform and isinstance(self.kernel_, Kernel):
            self._components = self._vectors * self._values.clamp(min=0).sqrt()
            alpha = check_positive(self.alpha, "alpha")
            self._inverse = solve(self.kernel_, self._components, rows, alpha, "auto", None, False).coefficients
            self.X_transformed_fit_, self.dual_coef_ = back(self._components), back(self._inverse)
        return self

    def transform(self, X: Any) -> Any:
        """Return components of rows, (m, n_components)."""
        rows, back = rows_of(self, X)
        scaled = self._vectors * torch.where(self._values > 0, self._values, torch.inf).rsqrt()
        scaled = scaled.to(rows)
        # Centring is a matter of the coefficients: the columns of scaled sum to 0 up to rounding.
        centred = scaled - scaled.mean(0)
        return back(self.kernel_.matmul(rows, self._rows.to(rows), centred) - self._means.to(rows) @ centred)

    def inverse_transform(self, X: Any) -> Any:
        """Return rows (m, features) whose components approximate these, by kernel ridge regression.

        Parameters
        ----------
        X : array, shape (m, n_components)

        Returns
        -------
        array, shape (m, features)

        Raises
        ------
        NotFittedError
            Where ``fit`` was not asked for it by ``fit_inverse_transform=True``.

        Notes
        -----
        Source: Bakır, Weston and Schölkopf, Learning to find pre-images, 2004.
        """
        if not hasattr(self, "_inverse"):
            raise NotFittedError("inverse_transform is prepared by fit, with fit_inverse_transform=True")
        is_tensor, kinds = isinstance(X, torch.Tensor), [np.float64, np.float32]
        points = X if is_tensor else placed(self, check_array(X, dtype=kinds))  # pyright: ignore[reportArgumentType]
        if points.dim() != 2 or points.shape[1] != self._components.shape[1]:
            raise ValueError(f"X has shape {tuple(points.shape)}, of {self._components.shape[1]} components")
        assert isinstance(self.kernel_, Kernel)
        found = self.kernel_.matmul(points, self._components.to(points), self._inverse.to(points))
        return found if is_tensor else found.cpu().numpy()
