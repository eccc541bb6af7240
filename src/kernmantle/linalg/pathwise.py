"""Samples of a Gaussian process and of its posterior given any number of rows (pathwise conditioning).

A sample of the prior, made of random features, becomes one of the posterior by a correction that is solved for like the
mean, together with it: Wilson et al., Pathwise conditioning of Gaussian processes, 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ..arrays import is_numpy_like, unwrap
from ..checks import integer, positive
from ..errors import ParameterError
from ..pairwise import CONSTRUCTORS, Kernel
from ..pairwise.kernel import check_kernel
from .cg import Iterations
from .row_source import PIECE, host_rows, tensor_of
from .sketch_and_project import sketch_and_project
from .sketch_problem import check_no_gradient, device_of

Frequencies = Callable[[int, int, Any, torch.Generator], torch.Tensor]


def _normal(columns: int, count: int, source: torch.Generator) -> torch.Tensor:
    return torch.randn(columns, count, generator=source, dtype=torch.float64)


def _chi(count: int, degrees: int, source: torch.Generator) -> torch.Tensor:
    """Chi-squared numbers over their degrees of freedom."""
    return torch.randn(degrees, count, generator=source, dtype=torch.float64).square().mean(0)


def _gaussian(columns: int, count: int, _: Any, source: torch.Generator) -> torch.Tensor:
    return _normal(columns, count, source)


def _student(degrees: int) -> Frequencies:
    """Return the spectral density of Matérn's functions: Student's t of 2 nu degrees."""

    def draw(columns: int, count: int, _: Any, source: torch.Generator) -> torch.Tensor:
        return _normal(columns, count, source) * _chi(count, degrees, source).rsqrt()

    return draw


def _cauchy(columns: int, count: int, _: Any, source: torch.Generator) -> torch.Tensor:
    """Draw frequencies of the exponential of absolute differences, each column by itself."""
    return _normal(columns, count, source) / _normal(columns, count, source)


ROWS: dict[str, tuple[dict[str, Any], Frequencies]] = {
    "Gaussian": ({}, _gaussian),
    "Matern 0.5": ({"nu": 0.5}, _student(1)),
    "Matern 1.5": ({"nu": 1.5}, _student(3)),
    "Matern 2.5": ({"nu": 2.5}, _student(5)),
    "Laplace 1": ({"p": 1}, _cauchy),
    "Laplace 2": ({"p": 2}, _student(1)),
}
"""Kernels whose spectral densities are sampled: options of their constructors, and frequencies for bandwidth 1."""


@lru_cache(maxsize=1)
def _forms() -> dict[Any, Frequencies]:
    """Frequencies by the form of each kernel, alone and with a factor, whose values are parameters of the form."""
    found: dict[Any, Frequencies] = {}
    for name, (options, draw) in ROWS.items():
        kernel: Kernel = CONSTRUCTORS[name.split()[0]](bandwidth=3.0, **options)
        each: Kernel = CONSTRUCTORS[name.split()[0]](lengthscales=torch.ones(1), **options)
        found |= {form: draw for one in (kernel, each) for form in (one.form, (2.0 * one).form)}
    return found


def has_prior(kernel: Kernel) -> bool:
    """Return whether samples of the prior can be drawn for a kernel."""
    return kernel.form in _forms() and "transform" not in kernel.hyperparameters


@dataclass(frozen=True)
class Prior:
    """Samples of a Gaussian process with a stationary kernel: ``cos(x w + b) theta``, of random features.

    Attributes
    ----------
    frequencies : tensor, shape (k, features)
    phases : tensor, shape (features,)
    weights : tensor, shape (features, samples)
    """

    frequencies: torch.Tensor
    phases: torch.Tensor
    weights: torch.Tensor

    @staticmethod
    def of(kernel: Kernel, like: torch.Tensor, features: int, samples: int, seed: int) -> Prior:
        """Return the prior for rows like these; ParameterError if the spectral density is not in the table."""
        values = kernel.hyperparameters
        if not has_prior(kernel):
            raise ParameterError(
                f"samples of the prior are there for {', '.join(ROWS)}, with a bandwidth, lengthscales and a factor, "
                f"not for {kernel!r}"
            )
        source = torch.Generator().manual_seed(seed)
        frequencies = _forms()[kernel.form](like.shape[1], features, values, source) / float(values["bandwidth"])
        if "lengthscales" in values:
            frequencies = frequencies / values["lengthscales"].detach().cpu().double()[:, None]
        phases = 2 * torch.pi * torch.rand(features, generator=source, dtype=torch.float64)
        weights = torch.randn(features, samples, generator=source, dtype=torch.float64)
        weights = weights * (2 * float(values.get("scale", 1.0)) / features) ** 0.5
        return Prior(frequencies.to(like), phases.to(like), weights.to(like))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values (m, samples) at rows."""
        parts = [(part @ self.frequencies + self.phases).cos() @ self.weights for part in x.split(1 << 14)]
        return torch.cat(parts) if parts else x.new_empty(0, self.weights.shape[1])


class Posterior:
    """A Gaussian process given rows and noisy values, of :func:`pathwise_posterior`.

    Attributes
    ----------
    iterations : Iterations
        How the systems were solved; ``iterations.x`` (n, 1 + samples) are the coefficients of the mean and the samples.
    """

    def __init__(self, kernel: Kernel, x: Any, prior: Prior, iterations: Iterations, device: torch.device) -> None:
        self._kernel, self._x, self._prior, self._device = kernel, x, prior, device
        self.iterations = iterations

    def _products(self, z: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows on the device, and the kernel's products with all coefficients (m, 1 + samples)."""
        rows = tensor_of(host_rows(z, "z"), 0, z.shape[0]).to(self._device)
        total = rows.new_zeros(len(rows), self.iterations.x.shape[1])
        for start in range(0, self._x.shape[0], PIECE):
            part = tensor_of(self._x, start, start + PIECE).to(self._device)
            total += self._kernel.matmul(rows, part, self.iterations.x[start : start + PIECE])
        return rows, total

    def _as(self, z: Any, result: torch.Tensor) -> Any:
        return result.cpu().numpy() if is_numpy_like(z) else result

    def mean(self, z: Any) -> Any:
        """Return the posterior mean at rows.

        Parameters
        ----------
        z : array, shape (m, k)
            Rows, of the dtype and columns of x.

        Returns
        -------
        array, shape (m,)
            NumPy for a NumPy array, else a tensor on the device of the systems.

        Raises
        ------
        ShapeError, DtypeError
            For rows that do not fit.

        Notes
        -----
        Cost: m n k operations for n rows with values, in memory of m (1 + samples) numbers. There are no gradients.
        """
        return self._as(z, self._products(z)[1][:, 0])

    def variance(self, z: Any) -> Any:
        """Return the posterior variance of the function at rows, estimated from the samples.

        Parameters
        ----------
        z : array, shape (m, k)
            Rows, of the dtype and columns of x.

        Returns
        -------
        array, shape (m,)
            NumPy for a NumPy array, else a tensor on the device of the systems.

        Raises
        ------
        ShapeError, DtypeError
            For rows that do not fit.

        Notes
        -----
        Its relative standard error is √(2 / samples). Cost: that of the mean, and m · features · samples operations.
        There are no gradients.
        """
        rows, products = self._products(z)
        return self._as(z, (self._prior(rows) - products[:, 1:]).square().mean(1))

    def samples(self, z: Any) -> Any:
        """Return functions drawn from the posterior at rows; they are the same functions in each call.

        Parameters
        ----------
        z : array, shape (m, k)
            Rows, of the dtype and columns of x.

        Returns
        -------
        array, shape (m, samples)
            NumPy for a NumPy array, else a tensor on the device of the systems.

        Raises
        ------
        ShapeError, DtypeError
            For rows that do not fit.

        Notes
        -----
        Cost: that of the mean, and m · features · samples operations. There are no gradients.
        """
        rows, products = self._products(z)
        return self._as(z, self._prior(rows) + products[:, :1] - products[:, 1:])

    def __repr__(self) -> str:
        count = self._prior.weights.shape[1]
        return f"<posterior of {self._kernel!r} given {self._x.shape[0]} rows, {count} samples; {self.iterations.ran}>"


def pathwise_posterior(
    kernel: Kernel, x: Any, y: Any, noise: float, *, samples: int = 16, features: int = 2048, seed: int = 0,
    device: Any = None, **options: Any,
) -> Posterior:  # fmt: skip
    """Return the mean, variances and samples of a Gaussian process given any number of rows.

    Parameters
    ----------
    kernel : Kernel
        Gaussian, Matern, or Laplace with p 1 or 2, with a bandwidth and perhaps a factor.
    x : array, shape (n, k)
        Rows, float32 or float64, as of :func:`sketch_and_project`.
    y : array, shape (n,)
        Values at the rows, of mean zero.
    noise : number
        Variance of the noise of y.
    samples : int
        Functions to draw.
    features : int
        Random features of a draw of the prior; its covariance is off by 1 / √features.
    seed : int
        Of all random choices.
    device : torch.device or str, optional
        As of :func:`sketch_and_project`.
    **options
        Of :func:`sketch_and_project`: ``block``, ``passes``, ``tolerance``, ``checkpoint`` and so on.

    Returns
    -------
    Posterior
        With ``mean(z)``, ``variance(z)`` and ``samples(z)``.

    Raises
    ------
    ParameterError
        For a kernel whose spectral density is not in the table.
    LinearAlgebraError, CheckpointError, ShapeError, DtypeError, GradientError
        As of :func:`sketch_and_project`.

    Notes
    -----
    There are no gradients. Cost in addition to the systems, which share all products: n · features · samples
    operations. Memory: n (1 + samples) numbers, three times. Source: Wilson et al., Pathwise conditioning, 2021.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x = torch.linspace(0, 3, 200, dtype=torch.float64)[:, None]
    >>> process = km.linalg.pathwise_posterior(km.Gaussian(0.5), x, x[:, 0].sin(), 1e-2, tolerance=1e-2)
    >>> z = torch.tensor([[1.0], [9.0]], dtype=torch.float64)
    >>> bool(abs(process.mean(z)[0] - z[0].sin()) < 0.05), bool(process.variance(z)[1] > 10 * process.variance(z)[0])
    (True, True)
    """
    samples, features = integer(samples, "samples"), integer(features, "features")
    noise, seed = positive(noise, "noise"), integer(seed, "seed", 0)
    check_kernel(kernel)
    check_no_gradient("pathwise_posterior", x, y, noise, *kernel.hyperparameters.values())
    where = device_of(host_rows(x), device)
    first = tensor_of(x, 0, 1).to(where)
    prior = Prior.of(kernel, first, features, samples, seed)
    (y,), _ = unwrap(y, names=["y"])
    if tuple(y.shape) != (x.shape[0],):
        raise ParameterError(f"y must have shape ({x.shape[0]},), it has {tuple(y.shape)}")
    source = torch.Generator().manual_seed(seed + 1)
    targets = torch.empty(x.shape[0], 1 + samples, dtype=first.dtype, device=where)
    with torch.no_grad():
        for start in range(0, x.shape[0], PIECE):
            rows = tensor_of(x, start, start + PIECE).to(where)
            values = y[start : start + PIECE].to(rows)
            errors = torch.randn(len(rows), samples, generator=source, dtype=torch.float64).to(rows)
            targets[start : start + PIECE, 0] = values
            targets[start : start + PIECE, 1:] = prior(rows) + noise**0.5 * errors
        found = sketch_and_project(kernel, x, targets, noise, device=where, seed=seed, **options)
    return Posterior(kernel, x, prior, found, where)
