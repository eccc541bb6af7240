"""Marginal likelihoods of Gaussian processes with their gradients, factored or by iterations, and their maximum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from scipy.optimize import minimize

from ..config import config
from ..linalg import cg, logdet, nystrom
from ..linalg.preconditioners import LowRank
from ..pairwise import Kernel
from .state import Stored

NAMES = ("noise", "scale", "bandwidth")
FLAT = 1e-3
"""Largest derivative of the likelihood a row, by the logarithm of a hyperparameter, at what counts as a maximum."""
WORSE = 10.0
"""By how much a point without a posterior is worse than the best, to a line search, which cannot step over NaN."""
ITERATED = {"cpu": 10_000, "cuda": 20_000}
"""Rows from which on the matrix is not factored, by device. An evaluation of 5000 rows of 54 columns, a bandwidth each,
takes 4.6 s of two cores factored and 9 s by iterations; the one grows with the cube of the rows, the other with the
square. A fit of 10 000 rows takes an H200 0.42 s factored and 3.7 s by iterations (decision 0062)."""
PROBES, STEPS, RANK, COLUMNS = 8, 20, 200, 256
"""Probe vectors, Lanczos steps, rank of the preconditioner, columns at a time."""
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}  # relative residual of conjugate gradients
REACH = math.log(10.0)
"""How far from the first beginning others are drawn where there are no bounds."""
Made = Callable[[torch.Tensor], tuple[Kernel, torch.Tensor]]
Pair = tuple[float, float]


def _inverse(factor: torch.Tensor) -> torch.Tensor:
    """Return the inverse of the matrix whose Cholesky factor is given."""
    if factor.device.type != "cpu":
        return torch.cholesky_solve(torch.eye(len(factor), dtype=factor.dtype, device=factor.device), factor)
    # torch.cholesky_inverse takes ten times as long, a solution with the identity twice as long as LAPACK's potri
    upper = factor.contiguous().numpy().T
    (potri,) = get_lapack_funcs(("potri",), (upper,))
    lower = torch.from_numpy(potri(upper, lower=False)[0].T)
    return lower.tril() + lower.tril(-1).mT


@dataclass
class Factored(Stored):
    """A posterior with the Cholesky factor of its matrix."""

    rows: torch.Tensor
    factor: torch.Tensor
    coefficients: torch.Tensor

    @staticmethod
    def of(rows: torch.Tensor, matrix: torch.Tensor, targets: torch.Tensor) -> Factored | None:
        """Return that of a matrix with its noise, None if it is not positive definite."""
        factor, info = torch.linalg.cholesky_ex(matrix)
        return None if int(info) else Factored(rows, factor, torch.cholesky_solve(targets[:, None], factor))

    def likelihood(self, targets: torch.Tensor) -> float:
        """Return the logarithm of that of the targets, of which the posterior is."""
        fit = targets @ self.coefficients[:, 0]
        return float(-0.5 * fit - self.factor.diagonal().log().sum() - 0.5 * len(targets) * math.log(2 * math.pi))

    def slope(self) -> torch.Tensor:
        """Return its gradient by the matrix, ``(a aᵀ - K⁻¹) / 2`` of coefficients a."""
        return torch.addmm(_inverse(self.factor), self.coefficients, self.coefficients.T, beta=-0.5, alpha=0.5)

    def explained(self, between: torch.Tensor) -> torch.Tensor:
        """Return ``bᵀ K⁻¹ b`` of the columns of ``between``, (n, m)."""
        half = torch.linalg.solve_triangular(self.factor.to(between), between, upper=False)
        return half.T @ half

    def explained_diagonal(self, between: torch.Tensor) -> torch.Tensor:
        """Return the diagonal of it."""
        return torch.linalg.solve_triangular(self.factor.to(between), between, upper=False).square().sum(0)


@dataclass
class Iterated(Stored):
    """A posterior whose matrix is never stored; every variance is a solve by conjugate gradients."""

    rows: torch.Tensor
    kernel: Kernel
    noise: float
    coefficients: torch.Tensor

    def _solved(self, between: torch.Tensor) -> torch.Tensor:
        rows = self.rows.to(between)
        with config(progress=False):
            approximate = preconditioner(self.kernel, rows, self.noise)
            operator = self.kernel.operator(rows, diagonal=self.noise)
            parts = between.split(COLUMNS, 1)
            tolerance = TOLERANCE[rows.dtype]
            found = [cg(operator, part, preconditioner=approximate, tolerance=tolerance).x for part in parts]
        return torch.cat(found, 1)

    def explained(self, between: torch.Tensor) -> torch.Tensor:
        """Return ``bᵀ K⁻¹ b`` of the columns of ``between``, (n, m)."""
        return between.T @ self._solved(between)

    def explained_diagonal(self, between: torch.Tensor) -> torch.Tensor:
        """Return the diagonal of it."""
        return (between * self._solved(between)).sum(0)


def preconditioner(kernel: Kernel, rows: torch.Tensor, noise: Any) -> LowRank:
    """Return an approximate inverse, the same at every call."""
    generator = torch.Generator(rows.device).manual_seed(0)
    with torch.no_grad():
        return nystrom(kernel.operator(rows), min(RANK, rows.shape[0]), noise, generator=generator)


def iterated(
    kernel: Kernel, noise: torch.Tensor, rows: torch.Tensor, targets: torch.Tensor
) -> tuple[Iterated, torch.Tensor]:
    """Return the posterior, and the estimated logarithm of the likelihood with its gradient by the hyperparameters."""
    with config(progress=False):
        approximate = preconditioner(detached(kernel), rows, noise.detach())
        operator = kernel.operator(rows, diagonal=noise)
        tolerance = TOLERANCE[rows.dtype]
        found = cg(operator, targets[:, None], preconditioner=approximate, tolerance=tolerance)
        determinant = logdet(operator, probes=PROBES, steps=STEPS, preconditioner=approximate).value
    value = -0.5 * (targets @ found.x[:, 0] + determinant + len(targets) * math.log(2 * math.pi))
    return Iterated(rows, detached(kernel), float(noise.detach()), found.x.detach()), value


def detached(kernel: Kernel) -> Kernel:
    """Return the kernel with values that record no gradient: arrays where they are, single numbers on the host."""

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach() if value.dim() else value.detach().cpu()

    made, (form, values, weights, text, level, transform, named) = kernel.__reduce__()
    values, weights = ({name: own(value) for name, value in each.items()} for each in (values, weights))
    return made(form, values, weights, text, level, own(transform), named)


@dataclass(frozen=True)
class Search:
    """State of a search: the function from logarithms to kernel and noise, the data, and the bounds."""

    made: Made
    rows: torch.Tensor
    targets: torch.Tensor
    is_iterated: bool
    bounds: Sequence[tuple[float | None, float | None]]
    priors: Mapping[int, Any]
    max_iter: int
    bar: Any

    def loss(self, logs: torch.Tensor) -> float | None:
        """Return the negative logarithm a row, with the gradient in ``logs.grad``; None without a posterior."""
        count, kernel, noise = len(self.targets), *self.made(logs)
        if self.is_iterated:
            _, found = iterated(kernel, noise, self.rows, self.targets)
            (-found / count).backward()
            value = -float(found.detach()) / count
        else:
            matrix = kernel(self.rows, diagonal=noise)
            posterior = Factored.of(self.rows, matrix.detach(), self.targets)
            if posterior is None:
                return None
            matrix.backward(-posterior.slope() / count)
            value = -posterior.likelihood(self.targets) / count
        if not math.isfinite(value):
            return None
        for index, prior in self.priors.items():
            own = logs.exp()[index:] if index == len(NAMES) - 1 else logs.exp()[index]
            density = -prior.log_prob(own).sum() / count
            density.backward()
            value += float(density.detach())
        return value

    def run(self, begun: torch.Tensor) -> tuple[torch.Tensor, float, float, int]:
        """Return the best logarithms from a beginning, their loss, the slope that is left, and the evaluations."""
        best, least, slope, calls = begun.clone(), math.inf, math.inf, 0

        def step(values: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal best, least, slope, calls
            calls += 1
            free = torch.tensor(values, dtype=self.rows.dtype, device=self.rows.device, requires_grad=True)
            value = self.loss(free)
            self.bar.update()
            if value is None or free.grad is None:
                return (WORSE + 2 * abs(least) if math.isfinite(least) else 0.0), np.zeros_like(values)
            self.bar.set_postfix(loss=f"{value:.4f}")
            if value < least:
                best, least, slope = free.detach().clone(), value, self._left(values, free.grad.cpu().numpy())
            return value, free.grad.double().cpu().numpy()

        minimize(
            step, begun.double().cpu().numpy(), jac=True, method="L-BFGS-B", bounds=list(self.bounds),
            options={"maxiter": self.max_iter, "maxfun": 4 * self.max_iter, "gtol": FLAT / 10, "ftol": 1e-10},
        )  # fmt: skip
        return best, least, slope, calls

    def _left(self, values: np.ndarray, slope: np.ndarray) -> float:
        """Return the largest derivative of those that no bound holds."""
        low = np.array([-np.inf if least is None else least for least, _ in self.bounds])
        high = np.array([np.inf if most is None else most for _, most in self.bounds])
        blocked = ((values <= low) & (slope > 0)) | ((values >= high) & (slope < 0))
        return float(np.where(blocked, 0, np.abs(slope)).max())


def log_bounds(values: Mapping[str, Pair] | None, lengths: int) -> list[tuple[float | None, float | None]]:
    """Return bounds of the logarithms of noise, scale and bandwidths; ValueError for what does not fit."""
    found: dict[str, tuple[float | None, float | None]] = dict.fromkeys(NAMES, (None, None))
    for name, pair in dict(values or {}).items():
        if name not in NAMES:
            raise ValueError(f"bounds has no {name!r}; there are {', '.join(NAMES)}")
        low, high = pair
        if not 0 < low < high:
            raise ValueError(f"bounds of {name} must be two numbers, 0 < low < high, got {pair!r}")
        found[name] = math.log(low), math.log(high)
    return [found["noise"], found["scale"], *[found["bandwidth"]] * lengths]


def checked_priors(values: Mapping[str, Any] | None) -> dict[int, Any]:
    """Return priors by the index of what they are of; ValueError for names and objects that do not fit."""
    for name, prior in dict(values or {}).items():
        if name not in NAMES:
            raise ValueError(f"priors has no {name!r}; there are {', '.join(NAMES)}")
        if not callable(getattr(prior, "log_prob", None)):
            raise ValueError(f"the prior of {name} has no log_prob, as torch.distributions.Gamma(2.0, 1.0) has")
    return {NAMES.index(name): prior for name, prior in dict(values or {}).items()}


def beginnings(
    first: torch.Tensor, bounds: Sequence[tuple[float | None, float | None]], restarts: int, random: Any
) -> list[torch.Tensor]:
    """Return the first beginning, moved into the bounds, and others drawn within them or around the first."""
    own = first.double().cpu().numpy()
    low = np.array([value - REACH if least is None else least for value, (least, _) in zip(own, bounds, strict=True)])
    high = np.array([value + REACH if most is None else most for value, (_, most) in zip(own, bounds, strict=True)])
    drawn = [random.uniform(low, np.maximum(low, high)) for _ in range(restarts)]
    return [torch.as_tensor(values).to(first) for values in (np.clip(own, low, high), *drawn)]
