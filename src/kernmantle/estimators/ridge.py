"""Kernel ridge regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import MultiOutputMixin, RegressorMixin

from ..pairwise import Kernel
from .base import KernelEstimator
from .data import rows_and_targets, rows_of, weights_of
from .solve import solve


def check_positive(value: Any, name: str) -> float:
    """A number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{name} must be a number above 0, got {value!r}")
    return float(value)


class KernelRidge(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """Ridge regression in the feature space of a kernel.

    Coefficients solve ``(K + alpha I) c = y``; predictions are ``k(z, x) c`` without the matrix k(z, x).

    Parameters
    ----------
    alpha : float
        Regularisation.
    kernel : str or km.Kernel
        A name of the table of kernels in any case, or a kernel.
    bandwidth : float, optional
        By default the median distance of rows, for kernels that have a bandwidth.
    kernel_params : dict, optional
        Further hyperparameters of a kernel given by its name.
    solver : {"auto", "cholesky", "cg", "sketch_and_project"}
        Conjugate gradients never form K; "auto" takes them above 20 000 rows.
    device : str, optional
        Device used for NumPy input; the CPU by default.
    verbose : bool
        Progress of iterations.

    Attributes
    ----------
    dual_coef_ : array, shape (n,) or (n, outputs)
        Coefficients.
    kernel_ : km.Kernel
        The kernel, with its bandwidth.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``: for invalid parameters, rows with NaN or infinity or another number of
        features, and a matrix that is not positive definite with this ``alpha``.

    Warns
    -----
    ConvergenceWarning
        Where conjugate gradients stop above their tolerance.

    Notes
    -----
    ``fit`` copies the rows and takes sample weights. Cost: n² kernel values and n³ / 3 multiplications with
    Cholesky, n² kernel values an iteration with conjugate gradients.

    Predictions are differentiable by tensors that are predicted. Source: Saunders, Gammerman and Vovk, Ridge regression
    learning algorithm in dual variables, 1998.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import KernelRidge
    >>> x = np.linspace(0, 6, 50)[:, None]
    >>> float(KernelRidge(alpha=1e-3, kernel="gaussian").fit(x, np.sin(x[:, 0])).predict([[1.5]])[0].round(2))
    1.0
    """

    def __init__(
        self, alpha: float = 1.0, *, kernel: str | Kernel = "laplace", bandwidth: float | None = None,
        kernel_params: Mapping[str, Any] | None = None, solver: str = "auto", device: str | None = None,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        self.alpha = alpha
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.solver = solver
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """Solve for the coefficients of the rows."""
        rows, targets, back = rows_and_targets(self, X, y)
        alpha = check_positive(self.alpha, "alpha")
        weights = weights_of(sample_weight, rows)
        self.kernel_ = self._make_kernel(rows if weights is None else rows[weights > 0])
        columns = targets if targets.dim() == 2 else targets[:, None]
        solution = solve(self.kernel_, rows, columns, alpha, self.solver, weights, bool(self.verbose))
        self._rows, self._coefficients = rows, solution.coefficients.reshape(targets.shape)
        self.dual_coef_ = back(self._coefficients)
        return self

    def predict(self, X: Any) -> Any:
        """Predictions of rows, (m,) or (m, outputs)."""
        rows, back = rows_of(self, X)
        trained_rows = self._rows.to(rows)
        return back(self.kernel_.matmul(rows, trained_rows, self._coefficients.to(rows)))
