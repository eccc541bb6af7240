"""Kernel ridge regression on centres: any number of rows, coefficients for some of them (Nyström).

Conjugate gradients whose preconditioner is the factor of the normal equations of a sample of the rows: Rudi, Carratino
and Rosasco, FALKON, 2017, who take the centres for that sample. A larger one of other rows needs fewer passes over all
rows, which are what costs. The residual is that of all rows at the predictions so far, anew in each iteration, so that
rounding of products in float32 is in the direction only.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..arrays import is_numpy_like
from ..checks import integer, positive
from ..errors import LinearAlgebraError, ShapeError
from ..pairwise import Kernel
from ..pairwise.kernel import check_kernel
from ..runtime.progress import bar
from ..torch_ops.outside import outside
from .arguments import enough_memory
from .cg import LIMIT, STAGNATED, Iterations
from .checkpoint import Checkpoint
from .cholesky import Triangle, factorise
from .row_source import RowSource, available, drawn, host_rows, tensor_of
from .sketch_and_project import CHECKED
from .sketch_problem import MEMORY_SHARE, Limits, call_of, check_no_gradient, delivered, described, missed, targets_of

FEWEST, MOST = 4, 16
"""Rows of the sample for each centre (decision 0036)."""
WORTH = 24
"""Operations of float64 that take the time of a kernel value, on two cores and on an H100."""
CHUNK = 1 << 26
"""Entries of a kernel matrix in float64 at a time: 512 MiB."""
COLUMNS = 8
"""Parts of the columns of a product with its own transpose, of which one triangle is computed: 9 of 16 parts."""
JITTER = {torch.float32: 1e-8, torch.float64: 1e-15}
"""Smallest eigenvalue of k(c, c), as a fraction of the sum of its diagonal, by the type of the rows: coefficients along
smaller ones would be so large that products in this type lose what they are to add up to."""
PIVOTS = (1e-13, 1e-12, 1e-10, 1e-8)
"""Fractions of the mean diagonal that are added where a factor fails."""
PATIENCE = 3
"""Iterations without a smaller residual after which rounding is the reason."""


@dataclass(frozen=True, repr=False)
class CentreSolution(Iterations):
    """Coefficients that :func:`falkon` found; ``k.matmul(z, found.centres, found.x)`` predicts.

    Attributes
    ----------
    x : array, shape (m,) or (m, c)
        Coefficients of the centres.
    centres : array, shape (m, k)
        Rows that have coefficients.
    residual : array, shape () or (c,)
        Estimate of the distance to the minimiser: the root of twice the excess of the objective, relative to
        ``‖y‖``. Predictions of all rows differ from those of the minimiser by at most this, in the root mean square.
    error : array, shape () or (c,)
        Difference of the predictions of this solution, in float64, and of those that the residual is of, in the same
        unit; for 2048 random rows.
    history : array, shape (iterations + 1,) or (iterations + 1, c)
        The residual before each iteration and at the end.
    iterations : int
        Each has two products with all rows.
    converged : array of bool, shape () or (c,)
        Whether ``residual + error`` is within the tolerance.
    ran : str
        What was used.
    info : array of int32, shape () or (c,)
        0 for columns that converged; else 1: the iterations or seconds were spent; 2: rounding allows no less.
    """

    centres: Any = None


@dataclass(frozen=True)
class _Problem:
    """The matrix K of all rows and centres, of which nothing is stored, and the targets."""

    kernel: Kernel
    source: RowSource
    centres: torch.Tensor
    y: torch.Tensor
    ridge: float

    @property
    def spans(self) -> list[tuple[int, int]]:
        return [(0, self.source.size)]

    def predictions(self, a: torch.Tensor) -> torch.Tensor:
        """Return ``K a``, in the type of the rows."""
        result, narrow = torch.empty_like(self.y), a.to(self.y.dtype)
        for start, stop, rows in self.source.pieces(self.spans):
            result[start:stop] = self.kernel.matmul(rows, self.centres, narrow)
        return result

    def vjp(self, predicted: torch.Tensor) -> torch.Tensor:
        """Return ``K' (y - predicted)``; sums of pieces are in float64."""
        total = torch.zeros(len(self.centres), self.y.shape[1], dtype=torch.float64, device=self.y.device)
        for start, stop, rows in self.source.pieces(self.spans):
            total += self.kernel.matmul(self.centres, rows, self.y[start:stop] - predicted[start:stop])
        return total


@dataclass(frozen=True)
class _Whitened:
    """Coordinates ``u = L' a`` for ``L L' = k(c, c)``, and a factor of the normal equations of a sample in them.

    The equations are ``(L⁻¹ K' K L'⁻¹ + ridge) u = L⁻¹ K' y``: squares of small eigenvalues stand in none of them.
    """

    factor: torch.Tensor
    sample: Triangle

    def coefficients(self, u: torch.Tensor) -> torch.Tensor:
        """Return ``a = L'⁻¹ u``."""
        return torch.linalg.solve_triangular(self.factor.mT, u, upper=True)

    def vjp(self, v: torch.Tensor) -> torch.Tensor:
        """Return ``L⁻¹ v``."""
        return torch.linalg.solve_triangular(self.factor, v, upper=False)


@dataclass
class _State:
    """Coordinates u (m, c) in float64, and the residual of each iteration."""

    u: torch.Tensor
    history: list[list[float]] = field(default_factory=list[list[float]])

    def saved(self) -> dict[str, Any]:
        """Return the state as a checkpoint stores it."""
        return {"u": self.u.cpu(), "history": self.history}


def _squares(v: torch.Tensor) -> torch.Tensor:
    """Return the sums of squares of the columns, in float64, without a copy in it."""
    parts = v.split(1 << 22)
    return torch.stack([torch.linalg.vector_norm(part, dim=0, dtype=torch.float64) for part in parts]).square().sum(0)


def _factor(problem: _Problem) -> torch.Tensor:
    """Lower factor of the kernel's matrix of the centres."""
    m, c = len(problem.centres), problem.centres.double()
    matrix = torch.empty(m, m, dtype=torch.float64, device=c.device)
    for amounts in ((), PIVOTS):
        problem.kernel(c, out=matrix)
        matrix.diagonal().add_(JITTER[problem.y.dtype] * matrix.diagonal().sum())
        made = factorise(matrix, True, True, amounts)
        if not bool(made.info.any()):
            return made.factor
    raise LinearAlgebraError("the kernel's matrix of the centres is not positive definite: is the kernel?")


def _whitened(problem: _Problem, chosen: torch.Tensor) -> tuple[_Whitened, torch.Tensor]:
    """Return factors of the centres and of the normal equations of a sample, scaled to all rows; and its solution."""
    m, c, kernel = len(problem.centres), problem.centres.double(), problem.kernel
    factor = _factor(problem)
    matrix = torch.zeros_like(factor)
    right = matrix.new_zeros(m, problem.y.shape[1])
    width = -(-m // COLUMNS)
    for part in chosen.split(max(1, CHUNK // m)):
        block = torch.linalg.solve_triangular(factor, kernel(c, problem.source.picked(part).double()), upper=False)
        for top in range(0, m, width):
            stop = min(top + width, m)
            matrix[top:, top:stop].addmm_(block[top:], block[top:stop].T)
        right.addmm_(block, problem.y[part.to(c.device)].double())
    scale = problem.source.size / len(chosen)
    matrix.mul_(scale).diagonal().add_(problem.ridge)
    made = factorise(matrix, True, True)
    if bool(made.info.any()):
        raise LinearAlgebraError("the normal equations of the sample have NaN or infinities: x has, or the kernel")
    solver = Triangle(made.factor, True)
    return _Whitened(factor, solver), solver.solve(right * scale)


def _iterated(
    problem: _Problem, state: _State, white: _Whitened, limits: Limits, file: Checkpoint | None
) -> tuple[torch.Tensor, int]:
    """Conjugate gradients until the residual is within the tolerance; the predictions, and why they ended."""
    predicted = problem.predictions(white.coefficients(state.u))
    size = _squares(problem.y).clamp_min(torch.finfo(torch.float64).tiny)
    gap = white.vjp(problem.vjp(predicted)) - problem.ridge * state.u
    z = white.sample.solve(gap)
    level = (gap * z).sum(0).clamp_min(0)
    direction, waited = z, 0
    state.history.append((level / size).sqrt().tolist())
    with bar(total=limits.steps) as shown:
        shown.update(len(state.history) - 1)
        while max(state.history[-1]) > limits.tolerance:
            if limits.spent(len(state.history) - 1):
                return predicted, LIMIT
            change = problem.predictions(white.coefficients(direction))
            curvature = _squares(change) + problem.ridge * direction.square().sum(0)
            step = (direction * gap).sum(0) / torch.where(curvature > 0, curvature, torch.inf)
            state.u += step * direction
            predicted += change * step.to(change.dtype)
            before, gap = gap, white.vjp(problem.vjp(predicted)) - problem.ridge * state.u
            z = white.sample.solve(gap)
            # Polak and Ribière's: rounding of the products makes directions other than they should be.
            weight = (z * (gap - before)).sum(0).clamp_min(0) / torch.where(level > 0, level, torch.inf)
            level = (gap * z).sum(0).clamp_min(0)
            direction = z + weight * direction
            best = min(max(row) for row in state.history)
            state.history.append((level / size).sqrt().tolist())
            waited = 0 if max(state.history[-1]) < best else waited + 1
            shown.set_postfix_str(f"residual {max(state.history[-1]):.2g}", refresh=False)
            shown.update()
            if file is not None and file.due():
                file.save(state.saved())
            if waited >= PATIENCE or not math.isfinite(max(state.history[-1])):
                return predicted, STAGNATED
    return predicted, 0


def _checked(problem: _Problem, a: torch.Tensor, predicted: torch.Tensor, seed: int) -> torch.Tensor:
    """Return the relative difference of the predictions of coefficients in float64, for random rows, and these."""
    chosen = drawn(problem.source.size, min(CHECKED, problem.source.size), seed + 1)
    rows, there = problem.source.picked(chosen).double(), chosen.to(predicted.device)
    true = problem.kernel.matmul(rows, problem.centres.double(), a.double())
    mean = _squares(problem.y) / problem.source.size
    missed = (true - predicted[there].double()).square().mean(0)
    return (missed / mean.clamp_min(torch.finfo(torch.float64).tiny)).sqrt()


def _fingerprint(problem: _Problem, sample: int, seed: int) -> dict[str, Any]:
    """Return what a checkpoint is of: sizes, options, and sums of the data that other data would not have."""
    return {
        **described(problem.kernel, problem.source, problem.y), "ridge": problem.ridge, "sample": sample, "seed": seed,
        "centres": len(problem.centres),
        "sum of the centres": float(problem.centres.double().sum()),
        "sum of squares of y": float(_squares(problem.y).sum()),
    }  # fmt: skip


@outside
def falkon(
    kernel: Kernel,
    x: Any,
    y: Any,
    ridge: float,
    centres: Any,
    *,
    sample: int | None = None,
    tolerance: float = 1e-2,
    max_iterations: int = 30,
    seconds: float | None = None,
    memory: int | None = None,
    device: Any = None,
    checkpoint: Any = None,
    every: float = 300.0,
    seed: int = 0,
    check_errors: bool = False,
) -> CentreSolution:
    """Minimise ``‖y - k(x, c) a‖² + ridge aᵀ k(c, c) a``: kernel ridge regression with coefficients for centres c.

    Parameters
    ----------
    kernel : Kernel
        Symmetric and positive definite.
    x : array, shape (n, k)
        Rows, float32 or float64: a tensor, on the host or a GPU, or a numpy array, also one of ``numpy.memmap``.
    y : array, shape (n,) or (n, c)
        Targets, of the dtype of x. Several share every product.
    ridge : number
        Positive; with all rows as centres the predictions are those of :func:`solve_kernel` with this ridge.
    centres : int or array, shape (m, k)
        How many random rows, all where there are fewer, or which. The more, the closer to all rows as centres; several
        times the effective dimension ``tr(K (K + ridge I)⁻¹)`` are enough.
    sample : int, optional
        Random rows, other than the centres, whose normal equations precondition. More of them need fewer iterations;
        by default as many as take the time of one, but from 4 m to 16 m.
    tolerance : float
        Largest ``residual + error`` of a column to stop at. The mean square of the training error is then larger than
        it could be by no more than about the square of this, in units of the mean square of y.
    max_iterations : int
        Iterations at most; a start from the sample's solution comes before the first.
    seconds : float, optional
        Begin no iteration after so many.
    memory : int, optional
        Bytes of rows that may be copied to the device, by default 0.4 of what the factor leaves free. More rows than
        that are read again in each product, while the device works.
    device : torch.device or str, optional
        Where to compute; by default where x is, and a GPU for rows on the host if there is one.
    checkpoint : path, optional
        File that is replaced every so many seconds, atomically, and that a call of the same problem goes on from.
    every : float
        Seconds between checkpoints.
    seed : int
        Of all random choices; results are reproducible.
    check_errors : bool
        Raise where the tolerance was not reached, instead of warning.

    Returns
    -------
    CentreSolution
        ``k.matmul(z, found.centres, found.x)`` predicts.

    Raises
    ------
    LinearAlgebraError
        With ``check_errors``; where the kernel is not positive definite, or the solution not finite.
    OutOfMemoryError
        Where the factor, 2 m² numbers in float64, does not fit.
    CheckpointError
        For a file that is of another problem, before anything runs.
    ShapeError, DtypeError, ParameterError, GradientError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    There are no gradients. Memory on the device: 2 m² numbers of float64, 512 MiB, 3 n c numbers, and rows as
    ``memory`` says. A checkpoint has m c numbers; the factors are made again. In float32 k(c, c) has
    1e-8 of its trace added to its diagonal, in float64 1e-15. Source: Rudi, Carratino and Rosasco, FALKON, 2017 (arXiv
    1705.10958).

    Cost: 2 n m kernel values for the start and for each iteration; 2 sample · m² + 2 m³ / 3 multiplications in float64.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x = torch.linspace(0, 3, 2000)[:, None]
    >>> k, y = km.Gaussian(0.5), x[:, 0].sin()
    >>> found = km.linalg.falkon(k, x, y, 1e-3, 50)
    >>> bool(found.converged), bool((k.matmul(x, found.centres, found.x) - y).abs().max() < 1e-2)
    (True, True)
    """
    check_kernel(kernel)
    check_no_gradient("falkon", x, y, ridge, centres, *kernel.hyperparameters.values())
    begun = time.monotonic()
    seed = integer(seed, "seed", 0)
    problem, chosen, vector = _prepared(kernel, x, y, ridge, centres, sample, memory, device, seed)
    duration = math.inf if seconds is None else positive(seconds, "seconds", infinite=True)
    limits = Limits(positive(tolerance, "tolerance"), integer(max_iterations, "max_iterations", 0), begun + duration)
    file = None if checkpoint is None else Checkpoint(checkpoint, _fingerprint(problem, len(chosen), seed), every)
    with torch.no_grad():
        try:
            found = None if file is None else file.load()
            white, start = _prepared_preconditioner(problem, chosen)
            state = _State(start) if found is None else _State(found["u"].to(start), found["history"][:-1])
            predicted, why = _iterated(problem, state, white, limits, file)
            coefficients = white.coefficients(state.u).to(problem.y.dtype)
            error = _checked(problem, coefficients, predicted, seed)
            if file is not None:
                file.save(state.saved())
        finally:
            problem.source.close()
    return _result(problem, coefficients, state.history, limits, error, why, len(chosen), vector, y, check_errors)


def _prepared_preconditioner(problem: _Problem, chosen: torch.Tensor) -> tuple[_Whitened, torch.Tensor]:
    m = len(problem.centres)
    whole = problem.centres.new_empty(1, dtype=torch.float64).expand(m, m)
    with enough_memory("cholesky", whole, "twice, and a chunk of the sample; fewer centres take less"):
        return _whitened(problem, chosen)


def _prepared(
    kernel: Kernel, x: Any, y: Any, ridge: Any, centres: Any, sample: int | None, memory: int | None, device: Any,
    seed: int,
) -> tuple[_Problem, torch.Tensor, bool]:  # fmt: skip
    """Checked arguments: the problem, the rows of the sample, and whether y is a vector."""
    (where, call), n = call_of("falkon", kernel, x, device), x.shape[0]
    targets, vector = targets_of(y, n, call.x.dtype)
    ridge = positive(ridge, "ridge")
    counted = isinstance(centres, (int, np.integer))
    m = min(integer(centres, "centres"), n) if counted else len(host_rows(centres, "centres"))
    if not counted and (centres.shape[1] != x.shape[1] or str(tensor_of(centres, 0, 1).dtype) != str(call.x.dtype)):
        raise ShapeError(
            f"centres must have {x.shape[1]} columns of {call.x.dtype}, as x has; they are {tuple(centres.shape)} of "
            f"{centres.dtype}"
        )
    other = n - m if counted and m < n else n
    usual = min(MOST * m, max(FEWEST * m, WORTH * n // m))
    size = min(other, usual if sample is None else integer(sample, "sample"))
    free = max(0, available(where) - 16 * m * m)
    source = RowSource(x, where, n, int(MEMORY_SHARE * free if memory is None else positive(memory, "memory")), None)
    picked = drawn(n, m + size if counted and m < n else size, seed)
    if counted:
        points = source.picked(picked[:m] if m < n else torch.arange(n))
        picked = picked[m:] if m < n else picked
    else:
        points = tensor_of(centres, 0, m).to(where)
    columns = targets.detach().reshape(n, -1).to(where)
    return _Problem(kernel, source, points, columns, ridge), picked, vector


def _result(
    problem: _Problem, coefficients: torch.Tensor, levels: list[list[float]], limits: Limits, error: torch.Tensor,
    why: int, sample: int, vector: bool, y: Any, check_errors: bool,
) -> CentreSolution:  # fmt: skip
    history = torch.tensor(levels, dtype=torch.float64)
    residual, error = history[-1], error.cpu()
    converged = residual + error <= limits.tolerance
    info = torch.where(converged, 0, why or STAGNATED).to(torch.int32)
    if not bool(converged.all()):
        done = f"falkon stopped after {len(levels) - 1} of {limits.steps} iterations"
        missed(done, float((residual + error).max()), limits, "max_iterations, seconds, sample", check_errors)
    dtype, device = problem.y.dtype, problem.y.device
    parts = [part.to(device) for part in (coefficients, residual.to(dtype), history, converged, info, error.to(dtype))]
    x, residual, history, converged, info, error = delivered(parts, vector, y)
    centres = problem.centres.cpu().numpy() if is_numpy_like(y) else problem.centres
    where = "streamed" if problem.source.streamed else "in memory"
    ran = (
        f"conjugate gradients for {len(problem.centres)} centres, {problem.source.size} rows {where}, preconditioned "
        f"by {sample} of them"
    )
    return CentreSolution(x, residual, history, len(levels) - 1, converged, ran, info, error, centres)
