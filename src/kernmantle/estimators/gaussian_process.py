"""Gaussian process regression; hyperparameters by the gradient of the marginal likelihood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from tqdm import tqdm

from ..config import config
from ..errors import KernmantleWarning
from ..linalg.pathwise import Posterior, has_prior, pathwise_posterior
from ..pairwise import CONSTRUCTORS, Kernel
from .base import NAMES, KernelEstimator
from .data import Back, rows_and_targets, rows_of
from .ridge import check_positive

SOLVERS = ("auto", "cholesky", "sketch_and_project")
LARGE, SUBSET, SAMPLES, ENOUGH = 30_000, 2000, 64, 1e-2
"""Rows from which on "auto" takes blocks, rows that hyperparameters are found from, functions, and their residual."""
LEAST_NOISE = 1e-6
FLAT = 1e-3
"""Largest derivative of the likelihood a row, by the logarithm of a hyperparameter, at what counts as a maximum."""
FAR = 1e4
"""Factor over the median distance of rows beyond which a bandwidth no longer describes the data."""
WORSE = 10.0
"""By how much a place without a posterior is worse than the best, to a line search, which cannot step over NaN."""


@dataclass
class _Posterior:
    rows: torch.Tensor
    factor: torch.Tensor
    coefficients: torch.Tensor

    def likelihood(self, targets: torch.Tensor) -> float:
        """The logarithm of that of the targets, of which the posterior is."""
        fit = targets @ self.coefficients[:, 0]
        return float(-0.5 * fit - self.factor.diagonal().log().sum() - 0.5 * len(targets) * math.log(2 * math.pi))

    def slope(self) -> torch.Tensor:
        """Its gradient by the matrix, ``(a aᵀ - K⁻¹) / 2`` of coefficients a."""
        return 0.5 * (self.coefficients @ self.coefficients.T - torch.cholesky_inverse(self.factor))


def _posterior(rows: torch.Tensor, matrix: torch.Tensor, targets: torch.Tensor) -> _Posterior | None:
    """That of a matrix with its noise, None if it is not positive definite."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    return None if int(info) else _Posterior(rows, factor, torch.cholesky_solve(targets[:, None], factor))


def _subset(rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows for the search of hyperparameters."""
    source = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(rows), generator=source)[:SUBSET].to(rows.device)
    return rows[chosen], targets[chosen]


class GaussianProcessRegressor(RegressorMixin, KernelEstimator):
    """Gaussian process ``y = mean + f(x) + noise`` with ``f`` of covariance ``scale k(x, x')``.

    Scale, noise and the bandwidth (one for each feature with ``ard``) maximise the marginal likelihood, by
    L-BFGS on its gradient, unless ``optimise`` is off or the kernel is an object, whose own values stay.

    Parameters
    ----------
    kernel, bandwidth, kernel_params, device
        As of :class:`KernelRidge`; the bandwidth is where the search begins.
    noise : float
        Variance of the noise where the search begins, in units of the variance of y.
    ard : bool
        One bandwidth for each feature.
    optimise : bool
        Search; otherwise scale 1 (in units of the variance of y) and the values given.
    max_iter : int
        Steps of the search.
    solver : {"auto", "cholesky", "sketch_and_project"}
        "cholesky" stores the matrix. "sketch_and_project" never does: hyperparameters are those of 2000 random rows,
        and the posterior of all rows is that of 64 sampled functions (:func:`kernmantle.linalg.pathwise_posterior`),
        whose spread is the standard deviation, to a tenth; covariances are not there. "auto" takes it from 30 000 rows
        on.
    verbose : bool
        Show progress.

    Attributes
    ----------
    kernel_ : km.Kernel
        With its scale, in units of the variance of y.
    noise_ : float
        Variance of the noise, in the same units, at least 1e-6.
    bandwidths_ : array
        Of each feature.
    n_iter_ : int
        Evaluations of the likelihood in the search, 0 without one.
    log_marginal_likelihood_ : float
        Of the standardised targets.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``, as of :class:`KernelRidge`; and for a noise that is not above 0.

    Warns
    -----
    ConvergenceWarning
        Where ``max_iter`` ends the search before a maximum of the likelihood, or a bandwidth leaves the scale of the
        data: more than 1e4 times, or less than 1e-4 of, where the search began.

    Notes
    -----
    By Cholesky the matrix is stored: n² memory, n³ / 3 multiplications a step. By blocks a pass takes n² kernel values
    and 16 times as many multiplications, and all passes n · 65 numbers of memory, three times.

    Means and standard deviations are differentiable with respect to tensors passed to ``predict``.
    Source: Rasmussen and Williams, Gaussian
    processes for machine learning, 2006, algorithm 2.1.

    Examples
    --------
    >>> import numpy as np
    >>> from kernmantle.estimators import GaussianProcessRegressor
    >>> x = np.linspace(0, 6, 30)[:, None]
    >>> mean, std = GaussianProcessRegressor().fit(x, np.sin(x[:, 0])).predict([[1.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.5)) < 0.02)
    True
    """

    def __init__(
        self, kernel: str | Kernel = "gaussian", *, bandwidth: float | None = None,
        kernel_params: Mapping[str, Any] | None = None, noise: float = 1e-2, ard: bool = False, optimise: bool = True,
        max_iter: int = 50, solver: str = "auto", device: str | None = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.noise = noise
        self.ard = ard
        self.optimise = optimise
        self.max_iter = max_iter
        self.solver = solver
        self.device = device
        self.verbose = verbose

    def _scaled(self, logs: torch.Tensor, width: int) -> tuple[Kernel, torch.Tensor]:
        """Kernel and noise of the logarithms of noise, scale and bandwidths."""
        values = logs.exp()
        if isinstance(self.kernel, Kernel):
            return values[1] * self.kernel, values[0]
        parameters = dict(self.kernel_params or {})
        constructor = CONSTRUCTORS[NAMES[self.kernel.lower()]]
        if self.ard:
            parameters["lengthscales"] = values[2:].expand(width)
        elif "bandwidth" in signature(constructor).parameters:
            parameters["bandwidth"] = values[2]
        return values[1] * constructor(**parameters), values[0]

    def _matrix(self, logs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        kernel, noise = self._scaled(logs, rows.shape[1])
        return kernel(rows, diagonal=noise + LEAST_NOISE)

    def fit(self, X: Any, y: Any) -> GaussianProcessRegressor:
        """Find the hyperparameters and the posterior."""
        rows, targets, _ = rows_and_targets(self, X, y, multi_output=False)
        noise = check_positive(self.noise, "noise")
        start = self._make_kernel(rows)
        self._mean = targets.mean()
        deviation = targets.std(correction=0)
        self._deviation = torch.where(deviation > 0, deviation, 1.0)
        scaled = (targets - self._mean) / self._deviation
        begun = float(start.hyperparameters.get("bandwidth", 1.0)) if not isinstance(self.kernel, Kernel) else 1.0
        lengths = rows.shape[1] if self.ard else 1
        first = [math.log(noise), 0.0, *[math.log(begun)] * lengths]
        logs = torch.tensor(first, dtype=rows.dtype, device=rows.device)
        self.n_iter_ = 0
        large = self._is_large(rows, logs)
        own, part = (rows, scaled) if not large else _subset(rows, scaled)
        if self.optimise:
            logs = self._searched(logs, own, part)
        with torch.no_grad():
            self.kernel_, found = self._scaled(logs, rows.shape[1])
            posterior = _posterior(own, self._matrix(logs, own), part)
            if posterior is None:
                raise ValueError("the kernel matrix is not positive definite: raise noise, or take another kernel")
            self._posterior, self.log_marginal_likelihood_ = posterior, posterior.likelihood(part)
            self._process = self._of_all(rows, scaled, float(found) + LEAST_NOISE) if large else None
        self.noise_, self.bandwidths_ = float(found) + LEAST_NOISE, logs[2:].exp().cpu().numpy()
        if self.optimise:
            self._warn_of_lengths(logs[2:] - math.log(begun))
        return self

    def _is_large(self, rows: torch.Tensor, logs: torch.Tensor) -> bool:
        """Whether the posterior is to be that of sampled functions."""
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is none of {', '.join(SOLVERS)}")
        if self.solver == "auto":
            return len(rows) >= LARGE and has_prior(self._scaled(logs, rows.shape[1])[0])
        return self.solver == "sketch_and_project"

    def _of_all(self, rows: torch.Tensor, targets: torch.Tensor, noise: float) -> Posterior:
        """The posterior of all rows by blocks of them."""
        with config(progress=bool(self.verbose)), warnings.catch_warnings():
            warnings.simplefilter("ignore", KernmantleWarning)  # of an iteration that did not converge: said below
            found = pathwise_posterior(
                self.kernel_, rows, targets, noise, samples=SAMPLES, tolerance=ENOUGH, device=rows.device
            )
        if not bool(found.iterations.converged.all()):
            warnings.warn(
                f"blocks of rows were solved to relative residuals of {float(found.iterations.residual.max()):.2g}, "
                f"not {ENOUGH:g}: raise noise, or take solver='cholesky'",
                ConvergenceWarning,
                stacklevel=3,
            )
        return found

    def _warn_of_lengths(self, moved: torch.Tensor) -> None:
        """Warn of bandwidths that left the scale of the data, by the logarithms of how far they went."""
        gone = (moved.abs() > math.log(FAR)).nonzero()[:, 0].tolist()
        if gone:
            which = f"bandwidths of the features {gone}" if self.ard else "bandwidth"
            values = ", ".join(f"{value:.2g}" for value in self.bandwidths_[gone])
            warnings.warn(
                f"the likelihood has no maximum within a factor of {FAR:g} of the distances in the data: the {which} "
                f"became {values}; leave features out that do not matter, or take a larger noise",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _searched(self, logs: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The best logarithms that the search passes."""
        best, least, slope = logs.clone(), math.inf, math.inf
        free = logs.clone().requires_grad_()
        search = torch.optim.LBFGS([free], lr=0.5, max_iter=int(self.max_iter), line_search_fn="strong_wolfe")
        with tqdm(desc="likelihood", disable=not self.verbose) as shown:

            def step() -> torch.Tensor:
                nonlocal best, least, slope
                self.n_iter_ += 1
                search.zero_grad()
                matrix = self._matrix(free, rows)
                posterior = _posterior(rows, matrix.detach(), targets)
                if posterior is None:
                    value = WORSE + 2 * abs(least) if math.isfinite(least) else 0.0
                else:
                    matrix.backward(-posterior.slope() / targets.shape[0])
                    value = -posterior.likelihood(targets) / targets.shape[0]
                    if value < least:
                        assert free.grad is not None
                        best, least, slope = free.detach().clone(), value, float(free.grad.abs().max())
                shown.update()
                shown.set_postfix(loss=f"{value:.4f}")
                return matrix.new_tensor(value)

            search.step(step)
        if slope > FLAT:
            warnings.warn(
                f"the search for hyperparameters stopped after max_iter={self.max_iter} steps, where the likelihood "
                f"still has a slope of {slope:.2g} a row: raise max_iter",
                ConvergenceWarning,
                stacklevel=4,
            )
        return best

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Return the means of rows, and on request the standard deviations or the covariance of f."""
        if return_std and return_cov:
            raise ValueError("ask for one of return_std and return_cov")
        rows, back = rows_of(self, X)
        if self._process is not None:
            return self._of_samples(rows, back, return_std, return_cov)
        mean, half = self._moments(rows)
        if return_cov:
            covariance = self.kernel_(rows) - half.T @ half
            return back(mean), back(covariance * self._deviation.to(rows) ** 2)
        if return_std:
            variance = (self.kernel_.diagonal(rows) - half.square().sum(0)).clamp(min=0)
            return back(mean), back(variance.sqrt() * self._deviation.to(rows))
        return back(mean)

    def _of_samples(self, rows: torch.Tensor, back: Back, return_std: bool, return_cov: bool) -> Any:
        assert self._process is not None
        if return_cov:
            raise ValueError("solver='sketch_and_project' has no covariances: ask for return_std, or sample_y")
        mean = back(self._process.mean(rows) * self._deviation.to(rows) + self._mean.to(rows))
        if not return_std:
            return mean
        return mean, back(self._process.variance(rows).sqrt() * self._deviation.to(rows))

    def _moments(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fitted = self._posterior
        between = self.kernel_(fitted.rows.to(rows), rows)
        mean = (between.T @ fitted.coefficients.to(rows))[:, 0] * self._deviation.to(rows) + self._mean.to(rows)
        return mean, torch.linalg.solve_triangular(fitted.factor.to(rows), between, upper=False)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of f at rows, (m, n_samples)."""
        if self._process is not None:
            rows, _ = rows_of(self, X)
            if not 1 <= n_samples <= SAMPLES:
                raise ValueError(f"n_samples={n_samples}: solver='sketch_and_project' has {SAMPLES} functions")
            values = self._process.samples(rows)[:, :n_samples] * self._deviation.to(rows) + self._mean.to(rows)
            return values.cpu().numpy()
        mean, covariance = self.predict(X, return_cov=True)
        arrays = [v.cpu().numpy() if isinstance(v, torch.Tensor) else v for v in (mean, covariance)]
        return check_random_state(random_state).multivariate_normal(*arrays, size=n_samples).T
