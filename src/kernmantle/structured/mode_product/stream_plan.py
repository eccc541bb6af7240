"""Plans of Kronecker-sparse products of a small batch on a GPU: the weights are read where they lie.

The weights are nearly all memory traffic of such products, so rearranging them first, as other kernels do, is too slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern, Problem
from .plan_table import TABLES, count_of, either, grid, joined, larger, masked, norm, quickest_row, rows_of, smaller
from .transpose_plan import ACCESS, pass_seconds

DTYPES = ("f32", "f16", "bf16")
_MOST_BATCH = 256  # rows
_MOST_NUMBERS = 2**31 - 1  # to which steps within a block of the matrix and within x are counted
_WARP, _TRANSACTION = 32, 128  # threads of a warp, bytes of one access of the first-level cache
_MOST_SUMS, _MOST_REGISTERS, _OTHER_REGISTERS = 128, 232, 38  # of a thread
_MOST_RESIDENT, _ALLOCATED = 2048, 128  # threads of a multiprocessor, and those by which registers are shared out
_THREADS = (128, 256)  # of a block
_ROWS, _OWN = (4, 8, 12, 16, 24), (1, 2, 3, 4, 6, 8)  # the most rows, and outputs, of a thread
_SHARING = (1, 2, 3, 4, 6, 8, 12, 16, 32)  # threads that share a sum
_READ = 16  # numbers that a thread reads at once, about


@dataclass(frozen=True)
class StreamPlan:
    """Template parameters, see ``kronsparse_stream.cuh``: ``columns`` threads along neighbours, ``depth`` across.

    ``x_row`` are numbers from a row of x to the next one; ``last``: rows of the result lie together.
    """

    arch: str
    dtype: str
    pattern: Pattern
    threads: int
    x_row: int
    rows: int
    own: int
    vector: int
    steps: int
    along: bool
    columns: int
    depth: int
    bias: bool = False
    activation: str = ""
    last: bool = False

    @property
    def wide(self) -> int:
        """Threads of a block along l."""
        return _wide(self.pattern[3] // self.vector, self.threads)

    @property
    def sharing(self) -> int:
        """Threads that share a sum."""
        return self.columns if self.along else self.depth

    @property
    def outputs(self) -> int:
        """Outputs j of a block."""
        return (self.depth if self.along else self.columns) * self.own

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        read = (self.own + self.rows) * larger(1, self.vector * BYTES[self.dtype] // 4)
        return self.vector * (self.own * self.rows + 4) + 2 * self.steps * read + _OTHER_REGISTERS

    @property
    def each(self) -> int:
        """Blocks that share a multiprocessor."""
        threads = -(-self.threads // _ALLOCATED) * _ALLOCATED
        registers = REGISTERS // (-(-self.registers // 8) * 8 * threads)
        return larger(1, smaller(registers, _MOST_RESIDENT // threads))

    @property
    def tiles(self) -> int:
        """Blocks for one group and part of the batch."""
        a, b, _, d = self.pattern
        return a * -(-(d // self.vector) // self.wide) * -(-b // self.outputs)

    def blocks(self, problem: Problem) -> int:
        """Return the blocks of a launch."""
        return problem.groups * self.tiles * -(-problem.batch // self.rows)

    def __str__(self) -> str:
        order = "along" if self.along else "across"
        shape = f"{self.rows} rows x {self.own} x {self.vector} of {tuple(self.pattern)}"
        return f"kron sparse {self.arch} streamed weights {order} k, {shape}, {self.threads} threads, {self.dtype}"


def _wide(neighbours: int, threads: int) -> int:
    """Return the threads of a block along l for so many vectors of neighbours."""
    return -(-neighbours // -(-neighbours // threads))


def _fits(pattern: Pattern, batch: int, dtype: str) -> bool:
    """Return whether steps within x, the result and a block are small enough."""
    a, b, c, d = pattern
    return dtype in DTYPES and 0 < batch <= _MOST_BATCH and max(b * c * d, batch * a * d * max(b, c)) <= _MOST_NUMBERS


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


def candidates(problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int = ACCESS) -> Iterator[StreamPlan]:
    """Yield the plans that fit, for weights of which so many bytes may be read in one access."""
    return rows_of(_every(problem, along, limits, weight_bytes))


def _every(problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int) -> StreamPlan:
    """Return the table of the plans that fit, which batches with as many rows of a thread share."""
    d, batch, size = problem.pattern[3], problem.batch, BYTES[problem.dtype]
    last = batch > 1 and not problem.y_first
    access = min(weight_bytes, problem.x_bytes if problem.x_first else ACCESS)
    twos = d % 2 == 0 and access % (2 * size) == 0 and (last or problem.y_run % 2 == 0)
    rows = tuple(sorted({-(-batch // -(-batch // most)) for most in _ROWS}))
    own = limits.arch, problem.dtype, problem.pattern, along, problem.bias, problem.activation, last
    return _table(*own, [1, 2][: 1 + twos][-1], rows)


@lru_cache(maxsize=TABLES)
def _table(
    arch: str, dtype: str, pattern: Pattern, along: bool, bias: bool, activation: str, last: bool, most: int,
    rows: tuple[int, ...],
) -> StreamPlan:  # fmt: skip
    """Return the table of plans with so many rows of a thread, of vectors of at most so many numbers."""
    (a, b, c, d), tables = pattern, list[StreamPlan]()
    for vector in range(1, most + 1):
        taken, own, threads, sharing = grid(rows, [own for own in _OWN if own <= b], _THREADS, _SHARING)
        left = threads // _wide(d // vector, threads) // sharing
        others = np.minimum(left, b // own)
        columns, depth = (sharing, others) if along else (others, sharing)
        steps = np.minimum(np.minimum(8, _READ // (own + taken)), -(-c // (2 * sharing)))
        found = StreamPlan(
            arch, dtype, pattern, threads, a * c * d, taken, own, vector, np.maximum(1, steps), along, columns, depth,
            bias, activation, last,
        )  # fmt: skip
        fits = (vector * taken * own <= _MOST_SUMS) & (sharing <= c) & (left > 0)
        tables.append(masked(found, fits & (found.registers <= _MOST_REGISTERS)))
    return joined(tables)


@dataclass(frozen=True)
class Costs:
    """Cycles of a multiprocessor that a plan takes, and seconds where it says so.

    ``reached`` is the share of its instructions and accesses, ``apart`` what an access of a warp takes besides that
    begins at no multiple of a line or has parts far from each other, ``step`` instructions of a step, ``wait`` what a
    thread waits for memory, ``block`` what a block takes besides, ``share`` and ``last`` what it takes a warp to add
    shared sums of a row, and to store them in the order of the batch. ``cache`` and ``memory`` are bytes a second,
    ``start`` and ``copying`` seconds to begin; what overlaps is added in a ``power``.
    """

    reached: float
    apart: float
    step: float
    wait: float
    block: float
    share: float
    last: float
    cache: float
    memory: float
    start: float
    copying: float
    power: float


# Fitted on one H200 to 480 tiles of 60 products within 26 % (root mean square; decision 0086).
_COSTS = Costs(0.45, 0.15, 17.5, 420.0, 490.0, 2.5, 7.9, 1.67e13, 3.1e12, 2.4e-6, 2.9e-6, 1.8)
# Share of its cycles that a product of so few rows takes: six of 1 to 5 rows with millions of weights took 0.56 to 0.71
# of the model (H200, decision 0086).
_SMALL, _SMALL_SHARE = 6, 0.6
_SURE = 1.05  # times the model of the tile that is chosen


def plan_seconds(plan: StreamPlan, problem: Problem, limits: DeviceLimits) -> Any:
    """Return what a plan should take."""
    (a, b, c, d), batch, size, own = problem.pattern, problem.batch, BYTES[problem.dtype], _COSTS
    loads, words = plan.own + plan.rows, plan.vector * size / 4
    # Further runs of weights that a warp reads.
    spread = larger(0.0, _WARP / smaller(plan.wide * plan.columns, _WARP) - 1)
    far = either(plan.wide * plan.vector * size % _TRANSACTION != 0, own.apart, 0.0)
    access = loads * larger(1.0, words) + far * loads + own.apart * spread * plan.own
    issued = plan.vector * plan.own * plan.rows + loads * (1 + (size == 2) * plan.vector) + own.step / plan.steps
    steps = -(-c // plan.sharing)
    warps = plan.threads / _WARP
    shared = own.share * np.log2(2 * plan.sharing) * (plan.sharing > 1)
    end = plan.own * plan.vector * plan.rows * (shared + own.last * plan.last)
    block = warps * (steps * larger(access, issued / 4) / own.reached + end)
    blocks = plan.blocks(problem)
    waves = -(-blocks // (limits.sm_count * plan.each))
    worked = -(-blocks // limits.sm_count) * block + waves * own.block
    waited = waves * (-(-steps // plan.steps) * own.wait + own.block + end)
    worked = larger(worked, waited) / CLOCK * (_SMALL_SHARE if batch <= _SMALL else 1.0)
    weights, x, y = (
        size * problem.groups * math.prod(problem.pattern),
        *(size * problem.groups * batch * a * m * d for m in (c, b)),
    )
    parts, repeats = -(-batch // plan.rows), -(-b // plan.outputs)
    moved, memory = (weights * parts + x * repeats) / own.cache, (weights + x + y) / own.memory
    return own.start + norm((worked, moved, memory), own.power)


def copy_seconds(problem: Problem) -> float:
    """Return what it takes to bring the features of x together; nothing where they are."""
    if problem.x_first or problem.batch == 1:
        return 0.0
    (a, _, c, d), size = problem.pattern, BYTES[problem.dtype]
    whole = problem.batch * size % ACCESS == 0
    return _COSTS.copying + problem.groups * pass_seconds(a * c * d, problem.batch, 1, size, True, whole)


@lru_cache(maxsize=4096)
def _choice(problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int) -> tuple[float, StreamPlan] | None:
    """Return the least seconds of a plan, and the plan; None if none fits."""
    if not _fits(problem.pattern, problem.batch, problem.dtype):
        return None
    table = _every(problem, along, limits, weight_bytes)
    return quickest_row(table, plan_seconds(table, problem, limits)) if count_of(table) else None


def stream_plan(problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int = ACCESS) -> StreamPlan | None:
    """Return the plan that should be quickest, with k (``along``) or j next to l in memory; None if none fits."""
    found = _choice(problem, along, limits, weight_bytes)
    return None if found is None else found[1]


def stream_seconds(problem: Problem, limits: DeviceLimits, along: bool = True) -> float:
    """Return the predicted seconds of the product; infinite if it is not streamed."""
    found = _choice(problem, along, limits, ACCESS)
    return math.inf if found is None else _SURE * found[0] + copy_seconds(problem)
