"""Regularised systems of kernel matrices."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, get_args

import torch
from sklearn.exceptions import ConvergenceWarning

from ..checks import integer
from ..config import config
from ..errors import KernmantleWarning, LinearAlgebraError
from ..linalg import Iterations, falkon, solve_kernel
from ..linalg.cholesky import MEANING
from ..linalg.kernel import Method
from ..linalg.solution import raise_for
from ..pairwise import Kernel
from .base import Precomputed

SOLVERS: dict[str, Method] = {name: name for name in get_args(Method)}


@dataclass(frozen=True)
class Solution:
    """``(K + diagonal) coefficients = targets``; the lower factor where one was made."""

    coefficients: torch.Tensor
    factor: torch.Tensor | None

    def left_out(self, targets: torch.Tensor, ridge: float, weights: torch.Tensor | None) -> torch.Tensor:
        """Return what each row would be predicted as, had it not been there; of weight w > 1, had it weight w - 1.

        Let A be the regularised matrix, G its inverse, c the coefficients and d = ridge / w the entry of row i on
        the diagonal. Weight w - 1 makes the entry d' = ridge / (w - 1), a change of A by (d' - d) e_i e_i', so
        that c_i becomes c_i / (1 + (d' - d) G_ii), and the prediction, targets_i - d' times it, is
        ``targets_i - c_i / (1 / d' + (1 - d / d') G_ii)``. Without the row d' is infinite.
        """
        assert self.factor is not None
        identity = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        inverse = torch.linalg.solve_triangular(self.factor, identity, upper=False).square().sum(0)
        if weights is None:
            return targets - self.coefficients / inverse[:, None]
        left = (weights - 1).clamp(min=0) / ridge
        return targets - self.coefficients / (left + (1 - left * ridge / weights) * inverse)[:, None]


def solve(
    kernel: Kernel | Precomputed, rows: torch.Tensor, targets: torch.Tensor, ridge: float, solver: str,
    weights: torch.Tensor | None = None, verbose: bool = False,
) -> Solution:  # fmt: skip
    """Return the coefficients of the rows, for targets as columns.

    With weights of the rows the sum of weighted squared errors is minimised: ``ridge / weight`` stands on the
    diagonal, and rows without weight have coefficient 0.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r} is none of {', '.join(SOLVERS)}")
    if weights is None:
        return _solved(kernel, rows, targets, ridge, solver, verbose)
    positive = weights > 0
    some = rows[positive] if isinstance(kernel, Kernel) else rows[positive][:, positive]
    found = _solved(kernel, some, targets[positive], ridge / weights[positive], solver, verbose)
    coefficients = torch.zeros_like(targets)
    coefficients[positive] = found.coefficients
    return Solution(coefficients, found.factor)


def solve_centres(
    kernel: Kernel, rows: torch.Tensor, targets: torch.Tensor, ridge: float, centres: Any, seed: int, verbose: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return some random rows and their coefficients, which minimise the regularised error of all rows."""
    centres = integer(centres, "centres")
    with config(progress=bool(verbose)), warnings.catch_warnings():
        warnings.simplefilter("ignore", KernmantleWarning)  # of an iteration that did not converge: said below
        try:
            found = falkon(kernel, rows, targets, ridge, int(centres), tolerance=1e-3, device=rows.device, seed=seed)
        except LinearAlgebraError as error:
            raise ValueError(f"the system of the centres was not solved, raise alpha: {error}") from error
    _check_iterations(found)
    return found.centres, found.x


def _factored(matrix: torch.Tensor, targets: torch.Tensor, diagonal: float | torch.Tensor, solver: str) -> Solution:
    """Return the solution of a matrix that is there."""
    if solver not in ("auto", "cholesky"):
        raise ValueError(
            f"solver={solver!r} is for kernels whose matrix is not stored; kernel='precomputed' takes 'cholesky'"
        )
    own = matrix.clone()
    own.diagonal().add_(diagonal)
    factor, info = torch.linalg.cholesky_ex(own)
    if int(info):
        raise ValueError("the precomputed kernel matrix is not positive definite with this alpha: raise alpha")
    return Solution(torch.cholesky_solve(targets, factor), factor)


def _solved(
    kernel: Kernel | Precomputed, rows: torch.Tensor, targets: torch.Tensor, diagonal: float | torch.Tensor,
    solver: str, verbose: bool,
) -> Solution:  # fmt: skip
    if not isinstance(kernel, Kernel):
        return _factored(rows, targets, diagonal, solver)
    with config(progress=verbose), warnings.catch_warnings():
        warnings.simplefilter("ignore", KernmantleWarning)  # of an iteration that did not converge: said below
        found = solve_kernel(kernel, rows, targets, diagonal, method=SOLVERS[solver])
    if found.iterations is not None:
        _check_iterations(found.iterations)
        return Solution(found.x, None)
    assert found.factor is not None
    try:
        raise_for(found.factor.info, MEANING)
    except LinearAlgebraError as error:
        raise ValueError(f"the system of the kernel matrix was not solved, raise alpha: {error}") from error
    return Solution(found.x, found.factor.factor if found.factor.lower else found.factor.factor.mT)


def _check_iterations(found: Iterations) -> None:
    """Warn where the iteration stopped above its tolerance; ValueError where there is no solution at all."""
    if not bool(torch.isfinite(found.x).all()):
        raise ValueError("the system of the kernel matrix was not solved, raise alpha: the iteration gave NaN")
    if not bool(found.converged.all()):
        warnings.warn(
            f"conjugate gradients stopped after {found.iterations} iterations at a relative residual of "
            f"{float(found.residual.max()):.2g}, above the tolerance: raise alpha, or take solver='cholesky'",
            ConvergenceWarning,
            stacklevel=5,
        )
