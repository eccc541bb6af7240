"""Kernel ridge regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state

from ..pairwise import Kernel
from .base import TakesMatrices
from .data import rows_and_targets, rows_of, weights_of
from .solve import solve, solve_centres


def check_positive(value: Any, name: str) -> float:
    """Return a number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        hint = "; the kernel is kernel=" * (isinstance(value, (str, Kernel)) or callable(value))
        raise ValueError(f"{name} must be a number above 0, got {value!r}{hint}")
    return float(value)


def _penalties(alpha: Any, outputs: int) -> list[float]:
    """Return the penalty of all outputs, or one of each."""
    if not (hasattr(alpha, "__len__") and not isinstance(alpha, str) and np.ndim(alpha) == 1):
        return [check_positive(alpha, "alpha")]
    if len(alpha) != outputs:
        raise ValueError(f"alpha has {len(alpha)} numbers where y has {outputs} outputs: pass one of each, or one")
    return [check_positive(each, "alpha") for each in np.asarray(alpha).tolist()]


class KernelRidge(MultiOutputMixin, RegressorMixin, TakesMatrices):
    """Ridge regression in the feature space of a kernel.

    Coefficients solve ``(K + alpha I) c = y``; predictions are ``k(z, x) c`` without the matrix k(z, x).

    Parameters
    ----------
    alpha : float or array, shape (outputs,)
        Regularisation, of all outputs or one of each.
    kernel : str, km.Kernel or callable
        A name of the table of kernels in any case, a kernel, or a lambda of an entry of each row whose values are
        summed over the columns; "precomputed" where X is the kernel matrix.
    bandwidth : float, optional
        By default the median distance of rows, for kernels that have a bandwidth.
    kernel_params : dict, optional
        Further hyperparameters of a kernel given by its name, or of the lambda.
    gamma, degree, coef0 : number, optional
        scikit-learn's names: ``gamma`` gives the bandwidth of "rbf", ``exp(-gamma d²)``, and of "laplacian",
        ``exp(-gamma d)``; it may be "scale" or "auto" as of ``SVC``. "poly" is ``(gamma x·y + coef0)^degree``, of which
        ``gamma`` is 1 / features by default. Kernels that have no such number do not use it.
    solver : {"auto", "cholesky", "cg", "sketch_and_project"}
        Conjugate gradients never form K; "auto" takes them from 20 000 rows on, and from 60 000 on CUDA. Blocks of rows
        (:func:`kernmantle.linalg.sketch_and_project`) are for more: "auto" takes them from 200 000 and 1 000 000 on.
    centres : int, optional
        Coefficients for so many random rows only, which minimise the error of all: :func:`kernmantle.linalg.falkon`,
        for any number of rows. Without sample weights, and in place of a solver.
    random_state : int, RandomState or None
        Draws the centres.
    device : str, optional
        Device used for NumPy input; the CPU by default.
    verbose : bool
        Progress of iterations.

    Attributes
    ----------
    dual_coef_ : array, shape (n,) or (n, outputs)
        Coefficients, of the centres alone if there are any.
    centres_ : array, shape (centres, features)
        Rows that have coefficients, where ``centres`` is set.
    kernel_ : km.Kernel
        The kernel, with its bandwidth.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``: for invalid parameters, rows with NaN or infinity or another number of
        features, and a matrix that is not positive definite with this ``alpha``; for weights and matrices with
        ``centres``.

    Warns
    -----
    ConvergenceWarning
        Where conjugate gradients stop above their tolerance.

    Notes
    -----
    ``fit`` copies the rows and takes sample weights. Cost: n² kernel values and n³ / 3 multiplications with
    Cholesky, n² kernel values an iteration with conjugate gradients, 2 n · centres with centres.

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
        self, alpha: float = 1.0, *, kernel: str | Kernel | Callable[..., Any] = "laplace",
        bandwidth: float | None = None, kernel_params: Mapping[str, Any] | None = None,
        gamma: float | str | None = None, degree: float | None = None, coef0: float | None = None,
        solver: str = "auto", centres: int | None = None, random_state: Any = None, device: str | None = None,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        self.alpha = alpha
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.solver = solver
        self.centres = centres
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """Solve ``(K + alpha I) dual_coef_ = y``, with ``alpha`` over the weights where there are any.

        Parameters
        ----------
        X : array, shape (n, features)
            Rows, copied; with ``kernel="precomputed"`` the kernel matrix (n, n).
        y : array, shape (n,) or (n, outputs)
        sample_weight : array, shape (n,), optional
            Weights of the rows, by default 1.

        Returns
        -------
        KernelRidge
            Itself.
        """
        rows, targets, back = rows_and_targets(self, X, y)
        columns = targets if targets.dim() == 2 else targets[:, None]
        penalties = _penalties(self.alpha, columns.shape[1])
        weights = weights_of(sample_weight, rows)
        self.kernel_ = self._kernel_or_matrix(rows, None if weights is None else weights > 0)
        parts = list(zip(penalties, columns.tensor_split(len(penalties), 1), strict=True))
        if self.centres is None:
            coefficients = torch.cat([
                solve(self.kernel_, rows, part, alpha, self.solver, weights, bool(self.verbose)).coefficients
                for alpha, part in parts
            ], 1)  # fmt: skip
        else:
            if weights is not None or not isinstance(self.kernel_, Kernel):
                raise ValueError("centres are for rows without sample weights, and for kernels, not their matrices")
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            found = [
                solve_centres(self.kernel_, rows, part, alpha, self.centres, seed, self.verbose)
                for alpha, part in parts
            ]
            rows, coefficients = found[0][0], torch.cat([each for _, each in found], 1)
            self.centres_ = back(rows)
        self._rows, self._coefficients = rows, coefficients.reshape(-1, *targets.shape[1:])
        self.dual_coef_ = back(self._coefficients)
        return self

    def predict(self, X: Any) -> Any:
        """Return the predictions ``k(X, rows) @ dual_coef_``.

        Parameters
        ----------
        X : array, shape (m, features)

        Returns
        -------
        array, shape (m,) or (m, outputs)
            A tensor for a tensor, with its gradient.

        Notes
        -----
        Cost: m n kernel values in one pass, with no matrix of them in memory.
        """
        rows, back = rows_of(self, X)
        trained_rows = self._rows.to(rows)
        return back(self.kernel_.matmul(rows, trained_rows, self._coefficients.to(rows)))
