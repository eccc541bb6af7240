"""Kernel systems in blocks of rows: their arguments, checked, and their products with all rows visited so far."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arrays import is_numpy_like, to_tensor, unwrap
from ..checks import integer, positive
from ..errors import GradientError, KernmantleWarning, LinearAlgebraError, ParameterError, ShapeError
from ..pairwise import Kernel
from ..pairwise.kernel import check_kernel
from ..pairwise.kernel_inputs import Call
from .arguments import watched
from .row_source import RowSource, available, host_rows, tensor_of

EXACT = {"cpu": 4096, "cuda": 16384}
"""Rows up to which the matrix of a block is factored by default; larger ones are approximated."""
BLOCKS = {"cpu": 2048, "cuda": 16384}
"""Rows of a block by default, at most: a step's product must take longer than its factor."""
MEMORY_SHARE = 0.4
"""Share of the free memory that rows take by default."""


@dataclass(frozen=True)
class Problem:
    """``(k(x, x) + diag(ridge)) c = y`` in blocks; y and the ridge are in the order of the blocks."""

    kernel: Kernel
    source: RowSource
    y: torch.Tensor
    ridge: float | torch.Tensor
    rank: int | None
    seed: int

    def ridge_of(self, start: int, stop: int) -> Any:
        """Return the ridge of some rows, as a number or a column."""
        return self.ridge[start:stop, None] if isinstance(self.ridge, torch.Tensor) else self.ridge

    def order(self, epoch: int) -> torch.Tensor:
        """Return blocks in the order of a pass; the first is in that of memory where rows are there in random order."""
        if epoch == 0 and self.source.order is not None:
            return torch.arange(self.source.blocks)
        return torch.randperm(self.source.blocks, generator=torch.Generator().manual_seed(self.seed + epoch))

    def index(self, step: int) -> int:
        """Return the block of a step."""
        return int(self.order(step // self.source.blocks)[step % self.source.blocks])

    def visited(self, step: int) -> list[tuple[int, int]]:
        """Return spans of the blocks before a step, of which coefficients need not be zero."""
        count = self.source.blocks
        if step >= count:
            return [(0, self.source.size)]
        return [self.source.span(int(block)) for block in self.order(0)[:step]]

    def product(self, rows: torch.Tensor, w: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
        """``k(rows, x) @ w`` over spans of x, in the type of the rows."""
        total = rows.new_zeros(len(rows), w.shape[1])
        for start, stop, part in self.source.pieces(spans):
            total += self.kernel.matmul(rows, part.to(rows.dtype), w[start:stop].to(rows.dtype))
        return total


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    tolerance: float
    steps: int
    deadline: float

    def spent(self, step: int) -> bool:
        """Return whether no step may follow so many."""
        return step >= self.steps or time.monotonic() >= self.deadline


def missed(done: str, worst: float, limits: Limits, options: str, check_errors: bool) -> None:
    """Warn that a solver ended above its tolerance; raise LinearAlgebraError if asked, and where nothing is finite."""
    message = (
        f"{done} at a residual of {worst:.2g}, where {limits.tolerance:.2g} was asked; raise {options}, the tolerance "
        f"or the ridge"
    )
    if check_errors or not math.isfinite(worst):
        raise LinearAlgebraError(message)
    warnings.warn(message, KernmantleWarning, stacklevel=5)


def delivered(parts: Sequence[torch.Tensor], vector: bool, y: Any) -> list[Any]:
    """Return results of columns as those of a vector if the targets are one, and as arrays of their kind."""
    own = [part[..., 0] if vector else part for part in parts]
    return [part.cpu().numpy() for part in own] if is_numpy_like(y) else own


def described(kernel: Kernel, source: RowSource, y: torch.Tensor) -> dict[str, Any]:
    """Return what a checkpoint says of a kernel, its rows and the targets."""
    values = {name: str(value) for name, value in kernel.hyperparameters.items()}
    return {
        "kernel": repr(kernel), "hyperparameters": values, "rows": source.size, "columns": source.columns,
        "dtype": str(y.dtype), "targets": list(y.shape),
    }  # fmt: skip


def fingerprint(problem: Problem) -> dict[str, Any]:
    """Return what a checkpoint is of: sizes, options, and sums of the data that other data would not have."""
    source, y = problem.source, problem.y
    picked = source.rows(*source.span(0)).double()
    ridge = float(problem.ridge.double().sum()) if isinstance(problem.ridge, torch.Tensor) else problem.ridge
    return {
        **described(problem.kernel, source, y), "block": source.block, "in memory": source.order is not None,
        "rank": problem.rank, "seed": problem.seed, "ridge": ridge,
        "sum of the first rows": float(picked.sum()), "sum of squares of y": float(y.double().square().sum()),
    }  # fmt: skip


def device_of(x: Any, device: Any) -> torch.device:
    """Return the device to compute on: the given one, that of x, or a GPU for rows on the host."""
    if device is not None:
        return torch.device(device)
    if isinstance(x, torch.Tensor) and x.is_cuda:
        return x.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_no_gradient(name: str, *values: Any) -> None:
    """Raise GradientError where a derivative by one of the values is recorded, or a transform of torch.func has it."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if any(watched(t) or (t.requires_grad and torch.is_grad_enabled()) for t in tensors):
        raise GradientError(f"{name} has no gradient: pass detached tensors, or take km.linalg.solve_kernel or cg")


def targets_of(y: Any, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, bool]:
    """Checked targets as a tensor, where they are, and whether they are a vector."""
    (targets,), _ = unwrap(y, names=["y"])
    if targets.dim() not in (1, 2) or targets.shape[0] != n or not targets.numel():
        wanted = f"shape ({n},) or ({n}, c) with c >= 1, one for each row of x"
        raise ShapeError(f"y must have {wanted}; it has {tuple(targets.shape)}")
    if targets.dtype != dtype:
        raise ParameterError(f"x is {dtype} but y is {targets.dtype}; convert one of them")
    return targets, targets.dim() == 1


def call_of(name: str, kernel: Kernel, x: Any, device: Any) -> tuple[torch.device, Call]:
    """Return the device on which a solver works, and a call of its kernel with one row of the host."""
    host_rows(x)
    where = device_of(x, device)
    call, _ = kernel.prepared(tensor_of(x, 0, 1).to(where), None)
    if call.batch:
        raise ShapeError(f"{name} takes one kernel, not a batch {call.batch}; loop over it")
    return where, call


def prepared(
    kernel: Kernel, x: Any, y: Any, ridge: Any, block: int | None, rank: int | None, passes: float, tolerance: float,
    seconds: float | None, memory: int | None, device: Any, seed: int,
) -> tuple[Problem, Limits, bool]:  # fmt: skip
    """Checked arguments: the system, when to stop, and whether y is a vector."""
    check_kernel(kernel)
    seed, rank = integer(seed, "seed", 0), None if rank is None else integer(rank, "rank")
    check_no_gradient("sketch_and_project", x, y, ridge, *kernel.hyperparameters.values())
    (where, call), n = call_of("sketch_and_project", kernel, x, device), x.shape[0]
    targets, vector = targets_of(y, n, call.x.dtype)
    rows = min(BLOCKS[where.type], max(256, n // 100)) if block is None else integer(block, "block")
    rows = min(rows, n)
    if rank is None and rows > EXACT[where.type]:
        rank = 1000
    allowed = int(MEMORY_SHARE * available(where)) if memory is None else int(positive(memory, "memory"))
    passes, tolerance = positive(passes, "passes"), positive(tolerance, "tolerance")
    source = RowSource(x, where, rows, allowed, seed)
    deadline = time.monotonic() + (math.inf if seconds is None else positive(seconds, "seconds", infinite=True))
    limits = Limits(tolerance, max(1, math.ceil(passes * source.blocks)), deadline)
    columns = source.sorted(targets.detach().reshape(n, -1)).contiguous()
    return Problem(kernel, source, columns, _ridge(ridge, n, source, columns), rank, seed), limits, vector


def _ridge(ridge: Any, n: int, source: RowSource, like: torch.Tensor) -> float | torch.Tensor:
    if not np.ndim(ridge):
        return positive(ridge, "ridge")
    each = to_tensor(ridge, "ridge").detach()
    if each.shape != (n,):
        raise ShapeError(f"ridge must be a number or have shape ({n},), it has {tuple(each.shape)}")
    return source.sorted(each).to(like)
