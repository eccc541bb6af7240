"""Gaussian process regression; hyperparameters by the gradient of the marginal likelihood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from ..checks import integer
from ..config import config
from ..errors import KernmantleWarning, instead_of
from ..linalg.pathwise import Posterior, has_prior, pathwise_posterior
from ..pairwise import CONSTRUCTORS, Kernel
from .base import NAMES, KernelEstimator
from .data import Back, rows_and_targets, rows_of
from .likelihood import (
    FLAT,
    ITERATED,
    Factored,
    Pair,
    Search,
    beginnings,
    checked_priors,
    detached,
    iterated,
    log_bounds,
)
from .ridge import check_positive

LARGE, SUBSET, SAMPLES, ENOUGH = 30_000, 2000, 64, 1e-2
"""Rows from which on "auto" takes blocks, rows that hyperparameters are found from, functions, and their residual."""
LEAST_NOISE = 1e-6  # variance that is always added to the diagonal
FAR = 1e4
"""Factor over the median distance of rows beyond which a bandwidth no longer describes the data."""
AT_BOUND = 1e-3
"""Distance of logarithms within which a value counts as lying on its bound."""
SOLVERS = ("auto", "cholesky", "cg", "sketch_and_project")


def _subset(rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random rows for the search of hyperparameters."""
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
        Steps of a search.
    n_restarts_optimizer : int
        Further searches, from values drawn within the bounds, or within a factor of 10 of the first; the best counts.
    bounds : dict, optional
        Lowest and highest "noise", "scale" and "bandwidth" of the search, as ``{"bandwidth": (0.1, 10)}``.
    priors : dict, optional
        Distributions of "noise", "scale" and "bandwidth" with ``log_prob``, as ``{"bandwidth":
        torch.distributions.Gamma(2.0, 1.0)}``; the search then finds the most probable values.
    solver : {"auto", "cholesky", "cg", "sketch_and_project"}
        "cholesky" stores the matrix. "cg" never does: the likelihood is an estimate from 8 random vectors, the same at
        every step. With "sketch_and_project" hyperparameters are those of 2000 random rows, and the posterior of all
        rows is that of 64 sampled functions (:func:`kernmantle.linalg.pathwise_posterior`), whose spread is the
        standard deviation, to a tenth; covariances are not there. "auto" takes "cg" from 10 000 rows
        on (20 000 on CUDA), and "sketch_and_project" from 30 000.
    random_state : int, RandomState or None
        Draws the beginnings of further searches.
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
        Of the standardised targets, without the priors.

    Raises
    ------
    ValueError
        From ``fit`` and ``predict``, as of :class:`KernelRidge`; for a noise that is not above 0, and for bounds and
        priors that do not fit.

    Warns
    -----
    ConvergenceWarning
        Where ``max_iter`` ends the search before a maximum of the likelihood, or a bandwidth leaves the scale of the
        data: more than 1e4 times, or less than 1e-4 of, where the search began; or where a value ends on its bound.

    Notes
    -----
    Cost of a step with Cholesky: n² numbers of memory and 5 n³ / 3 multiplications. With conjugate gradients: some
    hundred n² kernel values and 400 n numbers of memory, and as many kernel values again for 256 standard deviations.
    By blocks a pass takes n² kernel values and 16 times as many multiplications, and all passes n · 65 numbers of
    memory, three times.

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

    @instead_of(
        alpha="the variance of the noise is noise=", optimizer="optimise=False leaves hyperparameters as they are",
        normalize_y="targets are standardised in every fit", copy_X_train="X is never changed",
        n_targets="a process has one target: fit one for each column of y",
    )  # fmt: skip
    def __init__(
        self, kernel: str | Kernel = "gaussian", *, bandwidth: float | None = None,
        kernel_params: Mapping[str, Any] | None = None, noise: float = 1e-2, ard: bool = False, optimise: bool = True,
        max_iter: int = 50, n_restarts_optimizer: int = 0, bounds: Mapping[str, Pair] | None = None,
        priors: Mapping[str, Any] | None = None, solver: str = "auto", random_state: Any = None,
        device: str | None = None, verbose: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.kernel_params = kernel_params
        self.noise = noise
        self.ard = ard
        self.optimise = optimise
        self.max_iter = max_iter
        self.n_restarts_optimizer = n_restarts_optimizer
        self.bounds = bounds
        self.priors = priors
        self.solver = solver
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _scaled(self, logs: torch.Tensor, width: int) -> tuple[Kernel, torch.Tensor]:
        """Return the kernel and noise of the logarithms of noise, scale and bandwidths."""
        values = logs.exp()
        if isinstance(self.kernel, Kernel):
            return values[1] * self.kernel, values[0] + LEAST_NOISE
        parameters = dict(self.kernel_params or {})
        constructor = CONSTRUCTORS[NAMES[self.kernel.lower()]]
        if self.ard:
            parameters["lengthscales"] = values[2:].expand(width)
        elif "bandwidth" in signature(constructor).parameters:
            parameters["bandwidth"] = values[2]
        return values[1] * constructor(**parameters), values[0] + LEAST_NOISE

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
        bounds = log_bounds(self.bounds, lengths)
        self.n_iter_ = 0
        large = self._is_large(rows, logs)
        is_iterated = not large and self._is_iterated(len(rows), rows.device)
        own, part = (rows, scaled) if not large else _subset(rows, scaled)
        if self.optimise:
            logs = self._searched(logs, own, part, is_iterated, bounds)
        with torch.no_grad():
            self.kernel_, found = self._scaled(logs, rows.shape[1])
            if is_iterated:
                self._posterior, value = iterated(self.kernel_, found, rows, scaled)
                self.log_marginal_likelihood_ = float(value)
            else:
                posterior = Factored.of(own, self.kernel_(own, diagonal=found), part)
                if posterior is None:
                    raise ValueError("the kernel matrix is not positive definite: raise noise, or take another kernel")
                self._posterior, self.log_marginal_likelihood_ = posterior, posterior.likelihood(part)
            self._process = self._of_all(rows, scaled, float(found)) if large else None
        self._targets, self._logs = part, logs.detach()
        self.noise_, self.bandwidths_ = float(found), logs[2:].exp().cpu().numpy()
        self.kernel_ = detached(self.kernel_)
        if self.optimise:
            self._warn_of_lengths(logs[2:] - math.log(begun))
            self._warn_of_bounds(logs.double().cpu().numpy(), bounds)
        return self

    @property
    def log_marginal_likelihood_value_(self) -> float:
        """The name that scikit-learn has for ``log_marginal_likelihood_``."""
        return self.log_marginal_likelihood_

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """Return the logarithm of the marginal likelihood of the data of ``fit``, divided by their standard deviation.

        Parameters
        ----------
        theta : array, shape (2 + bandwidths,), optional
            Logarithms of noise, scale and bandwidths; those that were found by default.
        eval_gradient : bool
            Return a pair with the gradient by ``theta``.

        Returns
        -------
        float, or a pair of it and an array
            An estimate from 8 random vectors where ``fit`` made one: ``solver="cg"``.

        Raises
        ------
        ValueError
            For ``theta`` of another length, and where the matrix is not positive definite.

        Notes
        -----
        Cost: n² kernel values and n³ / 3 multiplications, five times as many for the gradient.
        """
        check_is_fitted(self)
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_
        rows, targets = self._posterior.rows, self._targets
        logs = self._logs if theta is None else torch.as_tensor(np.asarray(theta, float))
        if logs.shape != self._logs.shape:
            raise ValueError(
                f"theta has shape {tuple(logs.shape)}; noise, scale and bandwidths are {len(self._logs)} numbers"
            )
        free, is_iterated = logs.to(rows, copy=True).requires_grad_(), self._is_iterated(len(rows), rows.device)
        made = lambda free: self._scaled(free, rows.shape[1])  # noqa: E731
        loss = Search(made, rows, targets, is_iterated, (), {}, 0, None).loss(free)
        if loss is None or free.grad is None:
            raise ValueError("the kernel matrix is not positive definite: raise noise, or take another kernel")
        value = -loss * len(rows)
        return (value, -free.grad.double().cpu().numpy() * len(rows)) if eval_gradient else value

    def _is_iterated(self, count: int, device: torch.device) -> bool:
        """Return whether conjugate gradients take the place of the factor."""
        least = ITERATED.get(device.type, ITERATED["cpu"])
        return self.solver == "cg" or (self.solver == "auto" and count >= least)

    def _is_large(self, rows: torch.Tensor, logs: torch.Tensor) -> bool:
        """Return whether the posterior is to be that of sampled functions."""
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is none of {', '.join(SOLVERS)}")
        if self.solver == "auto":
            return len(rows) >= LARGE and has_prior(self._scaled(logs, rows.shape[1])[0])
        return self.solver == "sketch_and_project"

    def _of_all(self, rows: torch.Tensor, targets: torch.Tensor, noise: float) -> Posterior:
        """Return the posterior of all rows by blocks of them."""
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

    def _warn_of_bounds(self, logs: np.ndarray, bounds: list[tuple[float | None, float | None]]) -> None:
        """Warn of values that end on their bound."""
        named = [
            "noise",
            "scale",
            *(f"bandwidth of feature {i}" if self.ard else "bandwidth" for i in range(len(logs))),
        ]
        bounded = [
            f"the {name}, {math.exp(edge):.3g}"
            for name, value, pair in zip(named, logs, bounds, strict=False)
            for edge in pair
            if edge is not None and abs(value - edge) < AT_BOUND
        ]
        if bounded:
            warnings.warn(
                f"the search ended on the bound of {'; of '.join(bounded)}: widen bounds=, or leave it if it is meant",
                ConvergenceWarning,
                stacklevel=3,
            )

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

    def _searched(
        self, logs: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor, is_iterated: bool,
        bounds: list[tuple[float | None, float | None]],
    ) -> torch.Tensor:  # fmt: skip
        """Return the best logarithms that the searches pass."""
        random, width = check_random_state(self.random_state), rows.shape[1]
        restarts = integer(self.n_restarts_optimizer, "n_restarts_optimizer", 0)
        found: list[tuple[torch.Tensor, float, float]] = []
        with tqdm(desc="likelihood", disable=not self.verbose) as shown:
            search = Search(
                lambda free: self._scaled(free, width), rows, targets, is_iterated, bounds, checked_priors(self.priors),
                int(self.max_iter), shown,
            )  # fmt: skip
            for begun in beginnings(logs, bounds, restarts, random):
                best, least, slope, calls = search.run(begun)
                found.append((best, least, slope))
                self.n_iter_ += calls
        best, _, slope = min(found, key=lambda one: one[1])
        if slope > FLAT:
            warnings.warn(
                f"the search for hyperparameters stopped after {self.n_iter_} evaluations, where the likelihood still "
                f"has a slope of {slope:.2g} a row: raise max_iter={self.max_iter}, or compute in float64",
                ConvergenceWarning,
                stacklevel=4,
            )
        return best

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Return the posterior means of rows, and on request the standard deviations or the covariance of f.

        Parameters
        ----------
        X : array, shape (m, features)
        return_std, return_cov : bool
            Return a pair whose second part has shape (m,) or (m, m). At most one may be set.

        Returns
        -------
        array, shape (m,), or a pair
            In the units of y; the noise is not part of the deviations. Tensors for tensors.

        Raises
        ------
        ValueError
            If both are set, for a covariance with ``solver="sketch_and_project"``, and for rows that do not fit.

        Notes
        -----
        Cost: m n kernel values, and m n² multiplications for deviations or the covariance with Cholesky. Gradients
        exist for tensors.
        """
        if return_std and return_cov:
            raise ValueError("ask for one of return_std and return_cov")
        rows, back = rows_of(self, X)
        if self._process is not None:
            return self._of_samples(rows, back, return_std, return_cov)
        posterior = self._posterior
        between = self.kernel_(posterior.rows.to(rows), rows)
        mean = (between.T @ posterior.coefficients.to(rows))[:, 0] * self._deviation.to(rows) + self._mean.to(rows)
        if return_cov:
            covariance = self.kernel_(rows) - posterior.explained(between)
            return back(mean), back(covariance * self._deviation.to(rows) ** 2)
        if return_std:
            variance = (self.kernel_.diagonal(rows) - posterior.explained_diagonal(between)).clamp(min=0)
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

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Return draws of f at rows, a NumPy array (m, n_samples).

        Parameters
        ----------
        X : array, shape (m, features)
        n_samples : int
        random_state : int or RandomState
            Not used with ``solver="sketch_and_project"``, whose functions are drawn in ``fit``.

        Raises
        ------
        ValueError
            For more samples than ``fit`` drew with ``solver="sketch_and_project"``, and for rows that do not fit.

        Notes
        -----
        Cost: that of the covariance, and m³ operations. There are no gradients.
        """
        if self._process is not None:
            rows, _ = rows_of(self, X)
            if not 1 <= n_samples <= SAMPLES:
                raise ValueError(f"n_samples={n_samples}: solver='sketch_and_project' has {SAMPLES} functions")
            values = self._process.samples(rows)[:, :n_samples] * self._deviation.to(rows) + self._mean.to(rows)
            return values.cpu().numpy()
        mean, covariance = self.predict(X, return_cov=True)
        arrays = [v.cpu().numpy() if isinstance(v, torch.Tensor) else v for v in (mean, covariance)]
        rounding = float(np.finfo(arrays[1].dtype).eps) ** 0.5  # of a covariance that has eigenvalues of 0
        return check_random_state(random_state).multivariate_normal(*arrays, size=n_samples, tol=rounding).T
