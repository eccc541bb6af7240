"""Plans of Kronecker-sparse products of a small batch on a GPU: the weights are read once, in their own layout.

The weights are nearly all memory traffic of such products, so rearranging them first, as other kernels do, is too slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .plan import Pattern, Problem

THREADS = 256
DTYPES = ("f32", "f16", "bf16")
_MOST_ROWS, _ROWS, _LEAST_ROWS = 64, 8, 4  # of the batch, and those of a thread
_MOST_NUMBERS = 2**31 - 1  # to which steps within a block of the matrix and within x are counted
_OWN, _WARP = 4, 32  # outputs of a thread, threads of a warp
_LONG = 8  # rounds of a thread through a sum that are worth more threads
_LOADS, _STEPS = 32, 8  # numbers, and positions of k, that a thread reads at once


@dataclass(frozen=True)
class Costs:
    """Seconds to start, of a weight, and of its product with a row by the bytes of a number; bytes a second.

    ``bytes`` are those of weights, ``ends`` those of x and the result, ``apart`` those of a result that is written a
    number at a time, ``copied`` those of an array that is copied so that its batch is first, which takes ``copying``
    seconds to begin.
    """

    start: float
    weight: float
    product: Mapping[int, float]
    bytes: float
    ends: float
    copying: float
    copied: float
    apart: float = math.inf


# Fitted on one H200 to 76 products of random patterns within 22 %, and to 20 gradients of weights within 10 % (root
# mean square; decision 0037). A round of a thread through a sum waits for memory.
_PRODUCTS = Costs(2.5e-6, 5.8e-13, {2: 2.3e-13, 4: 2.8e-13}, 3.3e12, 2.5e12, 3.0e-6, 1.2e12, 1.7e12)
_ROUND, _AT_ONCE = 3.4e-7, 4  # seconds of a round, blocks that a multiprocessor holds
# Seconds of what a thread adds to an output of a row, of sums along k: of 53 products on an H200 those with many
# outputs of short sums took 1.3 to 3 times as long as without (decision 0064).
_ADDED = 1.8e-12


@dataclass(frozen=True)
class StreamPlan:
    """Template parameters, see ``kronsparse_stream.cuh``: ``columns`` threads along neighbours, ``depth`` across.

    ``x_row`` are numbers from a row of x to the next one; ``last``: rows of the result lie together.
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
    last: bool = False

    @property
    def rounds(self) -> int:
        """Rounds in which a thread reads ``steps`` positions of k."""
        return -(-self.pattern[2] // (self.steps * (self.columns if self.along else self.depth)))

    def blocks(self, problem: Problem) -> int:
        """Return the blocks of a launch."""
        a, b, _, d = problem.pattern
        each = (self.depth if self.along else self.columns) * self.own
        return problem.groups * a * -(-d // THREADS) * -(-b // each) * -(-problem.batch // self.rows)

    def __str__(self) -> str:
        order = "along" if self.along else "across"
        shape = f"{self.rows} rows x {self.own} of {tuple(self.pattern)}"
        return f"kron sparse {self.arch} streamed weights {order} k, {shape}, {self.dtype}"


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
    """Return whether weights of these strides (group, i, j, k, l) are streamed: (j, k, l) or (k, j, l) without gaps."""
    _, b, c, d = problem.pattern
    _, _, *steps = strides
    wanted = (c * d, d, 1) if lies_along(problem.pattern, strides) else (d, b * d, 1)
    fits = all(own == step or size == 1 for own, step, size in zip(steps, wanted, (b, c, d), strict=True))
    return fits and _fits(problem.pattern, problem.batch, problem.dtype)


@lru_cache(maxsize=4096)
def stream_plan(problem: Problem, along: bool, limits: DeviceLimits) -> StreamPlan | None:
    """Return the plan of a product, with k (``along``) or j next to l in memory; None if it is not streamed.

    A sum is shared by as few threads as read whole sectors along k, or do not go through it in many steps. Where that
    leaves multiprocessors idle, first outputs and rows of a thread are fewer, then more threads share a sum.
    """
    _, b, c, d = problem.pattern
    if not _fits(problem.pattern, problem.batch, problem.dtype):
        return None
    threads, least, shared, own, rows = _threads_of_l(d), _least_columns(d), 1, _OWN, _ROWS
    while own > 1 and own >= 2 * b:
        own //= 2

    def made() -> StreamPlan:
        taken = math.ceil(problem.batch / math.ceil(problem.batch / rows))
        columns = min(max(least, shared), c, threads) if along else min(b, threads, max(least, threads // shared))
        depth = min(threads // columns, -(-b // own) if along else c)
        steps = max(2, min(_STEPS, _LOADS // (own + taken)))
        return StreamPlan(
            limits.arch, problem.dtype, problem.pattern, problem.pattern[0] * c * d, taken, own, steps, along, columns,
            depth, problem.bias, problem.activation, problem.batch > 1 and not problem.y_first,
        )  # fmt: skip

    found = made()
    while found.rounds > _LONG and shared < threads:
        shared *= 2
        found = made()
    while found.blocks(problem) < limits.sm_count:
        if own > 1:
            own //= 2
        elif rows > _LEAST_ROWS:
            rows = _LEAST_ROWS
        elif shared < threads and (found.rounds > 1 if along else found.columns > min(least, b)):
            shared *= 2
        else:
            break
        found = made()
    return found


@lru_cache(maxsize=4096)
def stream_seconds(problem: Problem, limits: DeviceLimits, along: bool = True) -> float:
    """Return the predicted seconds of the product; infinite if it is not streamed."""
    found = stream_plan(problem, along, limits)
    if found is None:
        return math.inf
    (a, b, c, d), copies = problem.pattern, not problem.x_first and problem.batch > 1
    parts, weights = math.ceil(problem.batch / found.rows), problem.groups * a * b * c * d
    waves = math.ceil(found.blocks(problem) / (_AT_ONCE * limits.sm_count))
    x, y = (BYTES[problem.dtype] * problem.groups * problem.batch * a * m * d for m in (c, b))
    taken = max(_seconds(_PRODUCTS, weights, parts, problem.batch, problem.dtype), waves * found.rounds * _ROUND)
    taken += _ADDED * problem.groups * problem.batch * a * b * d * found.columns if along else 0.0
    apart = 0.0 if problem.y_first or problem.batch == 1 else y / _PRODUCTS.apart
    return _PRODUCTS.start + taken + (x + y) / _PRODUCTS.ends + apart + (_copy_seconds(_PRODUCTS, x) if copies else 0.0)


def _seconds(costs: Costs, weights: int, parts: int, batch: int, dtype: str) -> float:
    """Read weights once for each of some parts of the batch, and multiply them by all of it."""
    size = BYTES[dtype]
    return weights * max(parts * costs.weight + batch * costs.product[size], size / costs.bytes)


def _copy_seconds(costs: Costs, size: float) -> float:
    return costs.copying + size / costs.copied
