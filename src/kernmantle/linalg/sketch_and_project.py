"""Kernel systems of more rows than products with all of them can be had of, by blocks of rows.

A step solves the equations of one block approximately and moves its coefficients (sketch and project), with Nesterov's
momentum over the steps: Rathore, Frangella, Yang, Derezinski and Udell, Have ASkotch, 2024 (arXiv 2407.10070); for
several right-hand sides, as samples of a posterior need: Rathore et al., ADASAP, 2025 (arXiv 2505.13723). In the first
pass coefficients of rows that no block has had yet are zero, and their columns are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..pairwise import Kernel
from ..runtime.progress import bar
from ..torch_ops.outside import outside
from .cg import LIMIT, Iterations
from .checkpoint import Checkpoint
from .cholesky import Triangle, factorise
from .preconditioners import LowRank, nystrom
from .row_source import drawn
from .sketch_problem import Limits, Problem, delivered, fingerprint, missed, prepared

JITTER = (1e-6, 1e-5, 1e-4, 1e-3)  # of the mean of the diagonal, tried in turn
EIGENVALUE = 0.1
"""Smallest eigenvalue that the momentum of the first pass assumes, in units of 1 / blocks: of 1, 0.3, 0.1 and 0.03,
constant or divided by the passes or their square, this one, divided by the passes, was best or within a half of it
after 3 to 100 passes of two systems (decision 0029)."""
POWER_STEPS = 8  # products with a block
CHECKED = 2048
"""Random rows whose equations are checked in float64 at the end."""
DIVERGED = 100.0
"""Multiple of the smallest residual of a window of steps at which momentum is dropped, or the iteration given up."""
ASSURED = 0.8
"""Share of the tolerance at which a window of blocks ends the iteration, so that the check of random rows passes."""


@dataclass(frozen=True)
class Momentum:
    """Weights of Nesterov's recursion for a smallest eigenvalue mu and a bound nu of the projections' inverses."""

    alpha: float
    beta: float
    gamma: float

    @staticmethod
    def of(step: int, blocks: int) -> Momentum:
        """Return the momentum of a step: nu is the number of blocks; mu, at most its inverse, falls with the passes."""
        nu = float(blocks)
        mu = EIGENVALUE / (1 + step / blocks) / nu
        gamma = (mu * nu) ** -0.5
        return Momentum(1 / (1 + gamma * nu), 1 - (mu / nu) ** 0.5, gamma)


@dataclass
class _State:
    """Iterates w and v (n, c) in the order of the blocks, and what has been done."""

    w: torch.Tensor
    v: torch.Tensor
    step: int = 0
    momentum: bool = True
    history: list[list[float]] = field(default_factory=list[list[float]])

    def saved(self) -> dict[str, Any]:
        """Return the state as a checkpoint stores it."""
        return {
            "w": self.w.cpu(), "v": self.v.cpu(), "step": self.step, "momentum": self.momentum, "history": self.history
        }  # fmt: skip

    @staticmethod
    def loaded(found: dict[str, Any], device: torch.device) -> _State:
        """Return the state from a checkpoint."""
        w, v = (found[name].to(device) for name in ("w", "v"))
        return _State(w, v, found["step"], found["momentum"], found["history"])


def _projection(problem: Problem, rows: torch.Tensor, ridge: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Approximate inverse of a block's matrix, divided by a bound of how far it goes too far."""
    if problem.rank is None:
        matrix = problem.kernel(rows)
        matrix.diagonal().add_(ridge if isinstance(ridge, float) else ridge[:, 0])
        made = factorise(matrix.clone(), True, True)
        if bool(made.info.any()):
            # More on the diagonal only shortens the step.
            made = factorise(matrix, True, True, JITTER)
        return Triangle(made.factor, made.lower).solve
    return _scaled(problem, rows, ridge, problem.rank)


def _scaled(problem: Problem, rows: torch.Tensor, ridge: Any, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the inverse of a Nyström approximation plus its smallest eigenvalue, which stands for the rest."""
    least = ridge if isinstance(ridge, float) else float(ridge.mean())
    source = torch.Generator(rows.device).manual_seed(problem.seed)
    made = nystrom(problem.kernel.operator(rows), min(rank, len(rows)), least, generator=source)
    damped = least * (1 + float(made.values.min()))
    scale = made.scale.new_full((1, 1), damped**-0.5)
    approximate = LowRank(made.name, made.basis, made.values * (least / damped), scale)
    probe = torch.randn(len(rows), 1, generator=source, dtype=rows.dtype, device=rows.device)
    size = 1.0
    for _ in range(POWER_STEPS):
        vector = approximate.root_transposed(probe / probe.norm())
        probe = approximate.root(problem.kernel.matmul(rows, None, vector) + ridge * vector)
        size = float(probe.norm())
    bound = max(1.0, 1.05 * size)
    return lambda residual: approximate(residual) / bound


def _step(problem: Problem, state: _State, momentum: Momentum) -> list[float]:
    """Solve one block, and return ``‖b - a z‖ / ‖b‖`` of its equations before, for each column."""
    source = problem.source
    start, stop = source.span(problem.index(state.step))
    rows, ridge = source.rows(start, stop), problem.ridge_of(start, stop)
    spans = problem.visited(state.step)
    # w becomes the point between w and v at which the residual is taken.
    if state.momentum:
        state.w.lerp_(state.v, momentum.alpha)
    target = problem.y[start:stop]
    residual = problem.product(rows, state.w, spans) + ridge * state.w[start:stop] - target
    change = _projection(problem, rows, ridge)(residual)
    if state.momentum:
        state.v.lerp_(state.w, 1 - momentum.beta)
        state.v[start:stop] -= momentum.gamma * change
    state.w[start:stop] -= change
    state.step += 1
    sizes = target.double().square().sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    return (residual.double().square().sum(0) / sizes).tolist()


def _window(history: list[list[float]], blocks: int) -> float:
    """Return the largest relative residual of a column over the last tenth of a pass."""
    last = history[-max(4, blocks // 10) :]
    return max(math.sqrt(sum(row[c] for row in last) / len(last)) for c in range(len(last[0])))


def _iterated(problem: Problem, state: _State, limits: Limits, target: float, checkpoint: Checkpoint | None) -> bool:
    """Steps until the residuals of a window are at the target; False where a limit is reached or they grow."""
    blocks = problem.source.blocks
    best = math.inf
    with bar(total=limits.steps, unit="block") as shown:
        shown.update(state.step)
        while not limits.spent(state.step):
            state.history.append(_step(problem, state, Momentum.of(state.step, blocks)))
            level = _window(state.history, blocks)
            shown.set_postfix_str(f"residual {level:.2g}", refresh=False)
            shown.update()
            if not level < DIVERGED * max(best, target):
                if not state.momentum:
                    return False
                state.momentum, best = False, math.inf
            best = min(best, level)
            if checkpoint is not None and checkpoint.due():
                checkpoint.save(state.saved())
            if state.step >= blocks and level <= target:
                return True
    return False


def _solved(
    problem: Problem, state: _State, limits: Limits, checkpoint: Checkpoint | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the steps until random rows say that the tolerance is reached, or no more may be made."""
    target = ASSURED * limits.tolerance
    while True:
        going = _iterated(problem, state, limits, target, checkpoint)
        residual, error = _checked(problem, state)
        if not going or bool((residual + 2 * error <= limits.tolerance).all()):
            break
        target /= 2
    if checkpoint is not None:
        checkpoint.save(state.saved())
    return residual, error


def _checked(problem: Problem, state: _State) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the relative residual of each column and its standard error, by random rows in float64."""
    size = problem.source.size
    count = min(CHECKED, size)
    chosen = torch.arange(size) if count == size else drawn(size, count, problem.seed + 1)
    there = chosen.to(state.w.device)
    rows = problem.source.picked(chosen).double()
    ridge = problem.ridge[there, None].double() if isinstance(problem.ridge, torch.Tensor) else problem.ridge
    gap = problem.product(rows, state.w, problem.visited(state.step)) + ridge * state.w[there].double()
    squares = (problem.y[there].double() - gap).square()
    norms = problem.y.double().square().sum(0).clamp_min(torch.finfo(torch.float64).tiny)
    mean = squares.mean(0)
    residual = (mean * size / norms).sqrt()
    spread = squares.std(0) / count**0.5 if count < size else torch.zeros_like(mean)
    error = spread / (2 * mean.clamp_min(torch.finfo(torch.float64).tiny).sqrt()) * (size / norms).sqrt()
    return residual, error


@outside
def sketch_and_project(
    kernel: Kernel,
    x: Any,
    y: Any,
    ridge: Any,
    *,
    block: int | None = None,
    rank: int | None = None,
    passes: float = 30.0,
    tolerance: float = 1e-3,
    seconds: float | None = None,
    memory: int | None = None,
    device: Any = None,
    checkpoint: Any = None,
    every: float = 300.0,
    seed: int = 0,
    check_errors: bool = False,
) -> Iterations:
    """Solve ``(k(x, x) + ridge I) c = y`` for any number of rows, block by block of them.

    Parameters
    ----------
    kernel : Kernel
        Symmetric and positive definite.
    x : array, shape (n, k)
        Rows, float32 or float64: a tensor, on the host or a GPU, or a numpy array, also one of ``numpy.memmap``.
    y : array, shape (n,) or (n, c)
        Targets, of the dtype of x. Several share every product.
    ridge : number or array, shape (n,)
        Positive, for all rows or for each.
    block : int, optional
        Rows of a step; by default a hundredth of n, from 256 to 2048 on the CPU and 16384 on CUDA.
    rank : int, optional
        Columns of a Nyström approximation of a block's matrix. By default the matrix is factored up to 4096 rows,
        16384 on CUDA, and larger ones have a rank of 1000. With a small ridge and few passes a tenth of the block
        predicts better than a factor, which fits the noise of its block.
    passes : number
        Times that every row may be in a block; a pass costs n² kernel values, the first one half of it.
    tolerance : float
        Largest ``‖y - (k(x, x) + ridge I) c‖ / ‖y‖`` of a column to stop at.
    seconds : float, optional
        Begin no step after so many.
    memory : int, optional
        Bytes of rows that may be copied to the device, by default 0.4 of what is free. More rows than that are read
        again from where they are in each step, while the device works; their blocks are of consecutive rows, so they
        should be in random order.
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
    Iterations
        ``residual`` and ``error``, its standard error, are of fresh products in float64 for 2048 random rows with all
        that have coefficients; ``converged`` asks for ``residual + 2 error`` within the tolerance. ``history`` has the
        residuals of the blocks, each before its step.

    Raises
    ------
    LinearAlgebraError
        With ``check_errors``; where the solution is not finite.
    CheckpointError
        For a file that is of another problem, before anything runs.
    ShapeError, DtypeError, ParameterError, GradientError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    There are no gradients. Memory on the device: rows as ``memory`` says, 2 n c numbers, and a block's matrix. Sources:
    Rathore et al., arXiv 2407.10070 and 2505.13723.

    Cost of a step: block · n · (1 + c / 4) kernel values, and block³ / 3 operations for a factor.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x = torch.linspace(0, 3, 400, dtype=torch.float64)[:, None]
    >>> k, y = km.Gaussian(0.5), x[:, 0].sin()
    >>> found = km.linalg.sketch_and_project(k, x, y, 1e-2, block=100, tolerance=1e-2)
    >>> bool(found.converged), bool((k.matmul(x, None, found.x) - y).abs().max() < 2e-2)
    (True, True)
    """
    problem, limits, columns = prepared(
        kernel, x, y, ridge, block, rank, passes, tolerance, seconds, memory, device, seed
    )
    file = None if checkpoint is None else Checkpoint(checkpoint, fingerprint(problem), every)
    with torch.no_grad():
        zero = torch.zeros_like(problem.y)
        found = None if file is None else file.load()
        state = _State(zero, zero.clone()) if found is None else _State.loaded(found, zero.device)
        try:
            residual, error = _solved(problem, state, limits, file)
        finally:
            problem.source.close()
    return _result(problem, state, limits, residual, error, columns, y, check_errors)


def _result(
    problem: Problem, state: _State, limits: Limits, residual: torch.Tensor, error: torch.Tensor, vector: bool,
    y: Any, check_errors: bool,
) -> Iterations:  # fmt: skip
    converged = residual + 2 * error <= limits.tolerance
    info = torch.where(converged, 0, LIMIT).to(torch.int32)
    if not bool(converged.all()):
        done = f"sketch-and-project stopped after {state.step} of {limits.steps} steps"
        missed(done, float(residual.max()), limits, "passes, seconds", check_errors)
    history = torch.tensor(state.history, dtype=torch.float64).reshape(-1, residual.shape[0]).sqrt()
    coefficients = problem.source.unsorted(state.w)
    dtype = coefficients.dtype
    parts = [coefficients, residual.to(dtype), history, converged, info, error.to(dtype)]
    x, residual, history, converged, info, error = delivered(parts, vector, y)
    how = "factored" if problem.rank is None else f"by Nyström approximations of rank {problem.rank}"
    where = "streamed" if problem.source.order is None else "in memory"
    blocks, size = problem.source.blocks, problem.source.block
    ran = f"sketch-and-project, {blocks} blocks of {size} rows {where}, {how}"
    return Iterations(x, residual, history, state.step, converged, ran, info, error)
