"""How a GPU runs Kronecker-sparse products of a small batch: the weights are read once, where they lie.

What other kernels rearrange before, or read in runs of a block's tile, is nearly all that such products move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .plan import Pattern, Problem

THREADS = 256
DTYPES = ("f32", "f16", "bf16")
_MOST_ROWS, _ROWS = 64, 8  # of the batch, and those of a thread
_MOST_NUMBERS = 2**31 - 1  # to which steps within a block of the matrix and within x are counted
_OWN, _MANY, _WARP = 4, 3, 32  # outputs of a thread, and rows from which those are worth more threads of a sum
_BLOCKS_EACH = 3  # blocks for a multiprocessor
_LOADS, _STEPS = 32, 8  # numbers, and positions of k, that a thread reads at once
# Seconds to start, of a weight and of its product with a row, fitted to 80 products and gradients of weights on one
# H200 within 25 % (root mean square; decision 0032), and of what a thread waits for at once; bytes of weights a second.
_START, _WEIGHT, _PRODUCT, _WAIT, _BYTES = 3.5e-6, 2.0e-12, 3.6e-13, 5e-7, 2.4e12
_COPIED = 4e-6  # seconds of a copy of x whose batch is last


@dataclass(frozen=True)
class StreamPlan:
    """Template parameters, see ``kronsparse_stream.cuh``: ``columns`` threads along neighbours, ``depth`` across.

    ``x_row`` are numbers from a row of x to the next one.
    """

    arch: str
    dtype: str
    pattern: Pattern
    x_row: int
    rows: int
    own: int
    steps: int
    along: bool
    columns: int
    depth: int
    bias: bool = False
    activation: str = ""

    def blocks(self, problem: Problem) -> int:
        """Return the blocks of a launch."""
        a, b, _, d = problem.pattern
        each = (self.depth if self.along else self.columns) * self.own
        return problem.groups * a * -(-d // THREADS) * -(-b // each) * -(-problem.batch // self.rows)

    def __str__(self) -> str:
        order = "along" if self.along else "across"
        shape = f"{self.rows} rows x {self.own} of {self.pattern}"
        return f"kron sparse {self.arch} streamed weights {order} k, {shape}, {self.dtype}"


@dataclass(frozen=True)
class StreamSumPlan:
    """The same of the gradient of weights: a thread has ``own_j`` x ``own_k`` entries."""

    arch: str
    dtype: str
    pattern: Pattern
    x_row: int
    y_row: int
    own_j: int
    own_k: int
    steps: int
    columns: int
    depth: int

    def blocks(self, groups: int) -> int:
        """Return the blocks of a launch."""
        a, b, c, d = self.pattern
        tiles = -(-b // (self.depth * self.own_j)) * -(-c // (self.columns * self.own_k))
        return groups * a * -(-d // THREADS) * tiles

    def __str__(self) -> str:
        return f"kron sparse gradient {self.arch} streamed {self.own_j} x {self.own_k} of {self.pattern}, {self.dtype}"


def _fits(pattern: Pattern, batch: int, dtype: str) -> bool:
    """Return whether steps within x, the result and a block are small enough."""
    a, b, c, d = pattern
    return dtype in DTYPES and 0 < batch <= _MOST_ROWS and max(b * c * d, batch * a * d * max(b, c)) <= _MOST_NUMBERS


def _threads_of_l(d: int) -> int:
    """Return the threads of a block for each l of its tile."""
    return THREADS // math.ceil(d / math.ceil(d / THREADS))


def _least_columns(d: int) -> int:
    """Return the columns with which a warp reads neighbours."""
    return math.ceil(_WARP / math.ceil(d / math.ceil(d / THREADS)))


def lies_along(pattern: Pattern, strides: tuple[int, ...]) -> bool:
    """Return whether k, and not j, lies next to l in weights of these strides (group, i, j, k, l)."""
    return strides[3] == pattern[3] or pattern[2] == 1


def streams(problem: Problem, strides: tuple[int, ...]) -> bool:
    """Whether weights of these strides (group, i, j, k, l) are streamed: (j, k, l) or (k, j, l) without gaps."""
    _, b, c, d = problem.pattern
    _, _, *steps = strides
    wanted = (c * d, d, 1) if lies_along(problem.pattern, strides) else (d, b * d, 1)
    fits = all(own == step or size == 1 for own, step, size in zip(steps, wanted, (b, c, d), strict=True))
    return fits and _fits(problem.pattern, problem.batch, problem.dtype)


@lru_cache(maxsize=4096)
def stream_plan(problem: Problem, along: bool, limits: DeviceLimits) -> StreamPlan | None:
    """Return the plan of a product, with k (``along``) or j beside l in memory; None for what is not streamed."""
    a, b, c, d = problem.pattern
    if not _fits(problem.pattern, problem.batch, problem.dtype):
        return None
    rows, least = math.ceil(problem.batch / math.ceil(problem.batch / _ROWS)), _least_columns(d)

    def made(columns: int, own: int) -> StreamPlan:
        depth = min(_threads_of_l(d) // columns, -(-b // own) if along else c)
        steps = max(2, min(_STEPS, _LOADS // (own + rows)))
        return StreamPlan(
            limits.arch, problem.dtype, problem.pattern, a * c * d, rows, own, steps, along, columns, depth,
            problem.bias, problem.activation,
        )  # fmt: skip

    # Sums along neighbours are shared by as few threads as read whole sectors, others by as few as fill the GPU.
    columns, own, wanted = min(_threads_of_l(d), least if along else b), _OWN, _BLOCKS_EACH * limits.sm_count
    while own > 1 and own >= 2 * b:
        own //= 2
    columns = min(columns, c if along else b)
    while made(columns, own).blocks(problem) < wanted:
        other = min(2 * columns, c, _threads_of_l(d)) if along else -(-columns // 2)
        helps = other >= least and made(other, own).blocks(problem) > made(columns, own).blocks(problem)
        if own > 1 and (rows < _MANY or not helps):
            own //= 2
        elif helps:
            columns = other
        else:
            break
    return made(columns, own)


@lru_cache(maxsize=4096)
def stream_seconds(problem: Problem, limits: DeviceLimits, along: bool = True) -> float:
    """Return what the product should take; infinite for what is not streamed."""
    found = stream_plan(problem, along, limits)
    if found is None:
        return math.inf
    sharing = found.columns if along else found.depth
    waits = _START + _WAIT * math.ceil(problem.pattern[2] / (sharing * found.steps))
    copied = 0.0 if problem.x_first or problem.batch == 1 else _COPIED
    return copied + max(waits, _seconds(problem.groups * math.prod(problem.pattern), problem.batch, problem.dtype))


def _seconds(weights: int, batch: int, dtype: str) -> float:
    return _START + weights * max(_WEIGHT + batch * _PRODUCT, BYTES[dtype] / _BYTES)


@lru_cache(maxsize=4096)
def stream_sum_plan(
    pattern: Pattern, batch: int, groups: int, dtype: str, limits: DeviceLimits
) -> StreamSumPlan | None:  # fmt: skip
    """Return the plan of the gradient of weights; None for what is not streamed."""
    a, b, c, d = pattern
    if not _fits(pattern, batch, dtype):
        return None
    own_j = own_k = 4
    while own_j >= 2 * b:
        own_j //= 2

    def made(own_j: int, own_k: int) -> StreamSumPlan:
        columns = min(_threads_of_l(d), -(-c // own_k))
        depth = min(_threads_of_l(d) // columns, -(-b // own_j))
        ends = a * c * d, a * b * d
        return StreamSumPlan(limits.arch, dtype, pattern, *ends, own_j, own_k, max(1, min(4, batch)), columns, depth)

    while own_k > 1 and (own_k >= 2 * c or made(own_j, own_k).blocks(groups) < limits.sm_count):
        own_k //= 2
    while own_j > 1 and made(own_j, own_k).blocks(groups) < limits.sm_count:
        own_j //= 2
    return made(own_j, own_k)


@lru_cache(maxsize=4096)
def stream_sum_seconds(pattern: Pattern, batch: int, dtype: str, limits: DeviceLimits, last: bool = False) -> float:
    """Return what the gradient of weights should take; infinite for what is not streamed."""
    if stream_sum_plan(pattern, batch, 1, dtype, limits) is None:
        return math.inf
    return (2 * _COPIED if last and batch > 1 else 0.0) + _seconds(math.prod(pattern), batch, dtype)
