"""Plans for two Kronecker-sparse products in one GPU kernel, the intermediate result in shared memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from ...compiler.nest import BYTES

Pattern = tuple[int, int, int, int]
EDGE = 16  # columns, and positions of k, of a block of packed weights
DTYPES = ("f32", "f16", "bf16")
_WARPS = (4, 8, 16)  # warps of a block
_REGISTERS, _MOST_REGISTERS = 65536, 128
# Fitted to 76 plans of 19 pairs with 16 rows on an H200: 10 % (float32) and 8 % (root mean square), and the plan chosen
# is the quickest that was tried. Seconds of the start, of a round of the first factor's tiles through the warps, what
# it takes longer where numbers of x are read one by one; then, for the blocks on a multiprocessor, of a product, of a
# number stored, of one without a neighbour and of one between the factors; and of a product for all blocks.
_COSTS = {
    "f32": (1.87e-6, 8.99e-7, 0.0, 7.11e-9, 8.5e-10, 1.46e-9, 1.65e-10, 4.56e-8),
    "bf16": (1.61e-6, 1.32e-6, 2.17e-7, 5.38e-9, 4.2e-10, 7.6e-10, 0.0, 2.15e-8),
}
_COSTS["f16"] = _COSTS["bf16"]
# With more rows two launches were quicker nearly everywhere; with fewer, what should be this much quicker is taken.
_MOST_ROWS, _MARGIN = 16, 1.1


@dataclass(frozen=True)
class FusedProblem:
    """The sizes and layouts of two products, as the kernel takes them.

    ``inner`` blocks of the second factor's columns come from each block of the first's rows, ``rank`` columns for
    each; ``p`` blocks of the first are in one of the second. ``vector``: 4 numbers of x may be read at once, ``y_run``
    numbers of a row of y may be written at once.
    """

    first: Pattern
    second: Pattern
    batch: int
    dtype: str
    x_first: bool
    y_first: bool
    vector: bool
    y_run: int = 1
    products: int = 3
    bias: bool = False
    activation: str = ""

    @property
    def p(self) -> int:
        """Blocks of the first factor in one of the second."""
        return self.first[0] // self.second[0]

    @property
    def inner(self) -> int:
        """Blocks of the second factor that one of the first is in."""
        return self.second[3] // self.first[3]

    @property
    def rank(self) -> int:
        """Columns of one of the first that belong to one of the second."""
        return self.first[1] // self.inner

    @property
    def deep(self) -> int:
        """Steps of k in a block of the second."""
        return -(-self.second[2] // EDGE)


def contiguous(first: Pattern, second: Pattern, batch: int, dtype: str, features: bool) -> FusedProblem:
    """Return the problem of arrays without gaps, features or batch together in both."""
    vector = features and first[3] == 1 and first[2] % 4 == 0
    return FusedProblem(first, second, batch, dtype, features, features, vector, run_of(second, BYTES[dtype], 16))


def run_of(second: Pattern, size: int, access: int) -> int:
    """Return the numbers of a row of y in one store, if pointers and strides allow accesses of so many bytes."""
    return math.gcd(access // size, second[1] * second[3], EDGE * second[3])


@dataclass(frozen=True)
class FusedPlan:
    """Template parameters, see ``kronsparse_fused.cuh``, and the part of a block: ``slice`` and ``columns``."""

    arch: str
    dtype: str
    x_first: bool
    y_first: bool
    vector: bool
    across: bool
    m: int
    warps: int
    run: int
    products: int
    bias: bool
    activation: str
    slice: int
    columns: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Rows of the batch of a block."""
        return 16 * self.m

    @property
    def split(self) -> bool:
        """Return whether numbers are taken apart into halves."""
        return self.dtype == "f32"

    @property
    def chunk_bytes(self) -> int:
        """Bytes of prepared weights, 16 columns and 16 positions."""
        return EDGE * EDGE * (4 if self.split else 2)

    def shared(self, problem: FusedProblem) -> int:
        """Return the bytes of shared memory of a block."""
        return self.shared_bytes(self.slice, problem.deep, self.columns, problem.inner)

    def shared_bytes(self, slice_: int, deep: int, columns: int, inner: int) -> int:
        """Return the bytes of shared memory of a block that has such a part, as in ``kronsparse_fused.cuh``."""
        middle = EDGE * (slice_ * deep | 1)
        row = -(-columns * inner // 8) * 8 + 16 // BYTES[self.dtype] if self.run else 0
        return self.rows * (middle + row) * BYTES[self.dtype]

    def blocks(self, problem: FusedProblem) -> int:
        """Return the blocks of a launch."""
        a, b, _, _ = problem.second
        parts = -(-problem.inner // self.slice) * -(-b // self.columns)
        return a * problem.first[3] * parts * -(-problem.batch // self.rows)

    def sizes(self, problem: FusedProblem) -> tuple[int, ...]:
        """Return the arguments of the kernel for the problem and for the part of a block."""
        a, b, _, _ = problem.second
        own = problem.p, problem.first[2], problem.rank, problem.inner
        return *own, b, a, problem.first[3], self.slice, self.columns

    def views(self, problem: FusedProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Groups, pattern and strides with which both factors' weights are prepared."""
        a, b, c, d = problem.first
        step = c * d
        if self.across:
            first = (a, 1, b, c, d, b * step, 0, step, d, 1)
        else:
            first = (a, problem.inner, problem.rank, c, d, b * step, step, problem.inner * step, d, 1)
        a, b, c, d = problem.second
        return first, (1, a, b, c, d, 0, b * c * d, c * d, d, 1)

    def image(self, view: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the bytes of a prepared factor, numbers of its scales, and blocks that prepare it."""
        groups, a, b, c, d = view[:5]
        tiles = groups * a * d * -(-b // EDGE)
        scales = tiles * EDGE if self.split else 0
        return tiles * -(-c // EDGE) * self.chunk_bytes, scales, tiles * (2 if self.split else 1)

    def __str__(self) -> str:
        layouts = " to ".join("first" if first else "last" for first in (self.x_first, self.y_first))
        kind = "3 x f16 " if self.split and self.products == 3 else "f16 " if self.split else ""
        shape = f"rows {self.rows} columns {self.columns} x {self.slice}, {self.warps} warps"
        return f"kron sparse back-to-back {self.arch} mma {shape}, batch {layouts}, {kind}{self.dtype}"


def _slices(problem: FusedProblem, across: bool) -> Iterator[int]:
    """Yield the parts of the inner blocks that one block may own."""
    inner = problem.inner
    yield inner
    if not across or problem.rank == 1:
        least = EDGE if across else 1
        yield from (part for part in (1, 2, 4, 8, 16, 32, 64) if least <= part < inner)


def candidates(problem: FusedProblem, limits: DeviceLimits) -> Iterator[FusedPlan]:
    """Yield the plans that fit."""
    b = problem.second[1]
    for across in {problem.rank * 2 <= EDGE and problem.inner > 1, problem.inner == 1}:
        for part in _slices(problem, across):
            for columns in {min(-(-b // EDGE) * EDGE, wide) for wide in (16, 32, 64, 128, 256, 1 << 20)}:
                for m, warps in itertools.product((1, 2), _WARPS):
                    whole = problem.y_first and part == problem.inner > 1 == problem.first[3]
                    found = FusedPlan(
                        limits.arch, problem.dtype, problem.x_first, problem.y_first, problem.vector, across, m, warps,
                        problem.y_run if whole else 0, problem.products, problem.bias, problem.activation, part,
                        columns,
                    )  # fmt: skip
                    if found.shared(problem) <= limits.shared_per_block and found.blocks(problem) < 2**31:
                        yield found


def _each(plan: FusedPlan, problem: FusedProblem, limits: DeviceLimits) -> int:
    """Return the blocks that share a multiprocessor."""
    by_memory = limits.shared_per_sm // (plan.shared(problem) + RESERVED_SHARED)
    return max(1, min(by_memory, limits.threads_per_sm // plan.threads, _REGISTERS // (plan.threads * _MOST_REGISTERS)))


def seconds(plan: FusedPlan, problem: FusedProblem, limits: DeviceLimits) -> float:
    """Return the predicted seconds of a plan."""
    b, c = problem.first[1:3]
    if plan.across:
        first = problem.p * -(-(plan.slice if plan.slice < problem.inner else b) // EDGE)
    else:
        first = problem.p * plan.slice * -(-problem.rank // EDGE)
    second = plan.slice * -(-min(plan.columns, problem.second[1]) // EDGE)
    steps, blocks, each = -(-c // EDGE), plan.blocks(problem), _each(plan, problem, limits)
    waves, per_sm = -(-blocks // (limits.sm_count * each)), min(each, -(-blocks // limits.sm_count))
    start, round_seconds, single, product, stored, alone, between, every = _COSTS[problem.dtype]
    rounds = -(-first // plan.warps) * -(-steps // (4 // plan.m))
    products, numbers = (first * steps + second * problem.deep) * plan.m, EDGE * EDGE * plan.m
    scattered = problem.y_first and not plan.run and problem.second[3] > 1
    block = rounds * (round_seconds + (0.0 if problem.vector else single)) + per_sm * (
        products * product + numbers * (second * (stored + (alone if scattered else 0.0)) + first * between)
    )
    return start + waves * block + blocks * products / limits.sm_count * every


@lru_cache(maxsize=4096)
def plan_fused(problem: FusedProblem, limits: DeviceLimits) -> FusedPlan | None:
    """Return the plan with the least predicted time; None if none fits into shared memory."""
    return min(candidates(problem, limits), key=lambda found: seconds(found, problem, limits), default=None)


@lru_cache(maxsize=4096)
def fused_seconds(problem: FusedProblem, limits: DeviceLimits) -> float:
    """Return the seconds of two products as one; infinite if two launches are likely to be no slower."""
    reads = problem.vector or (problem.dtype != "f32" and not problem.x_first)
    chosen = plan_fused(problem, limits) if problem.batch <= _MOST_ROWS and reads else None
    if chosen is None or chosen.blocks(problem) > limits.sm_count * _each(chosen, problem, limits):
        return math.inf
    return _MARGIN * seconds(chosen, problem, limits)
