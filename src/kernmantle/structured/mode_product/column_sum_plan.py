"""How a GPU sums to the gradient of weights where the batch lies together in memory, which it copies as it lies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern
from .tiled_sum import TiledSum

PIECE = 128  # bytes of a feature that a stage has
_STAGES = (4, 3, 2)
_MOST_WARPS, _MOST_L = 8, 8
_OTHER_REGISTERS = 50  # of a thread, beside sums, what it reads and its halves
_LEAST_CHUNKS = 8  # of a part
_FRAGMENTS = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4))  # of 16 columns and of 8 positions of k of a warp


@dataclass(frozen=True)
class ColumnSumPlan(TiledSum):
    """Template parameters, see ``kronsparse_column_sums.cuh``."""

    RESIDENT_WARPS = 16

    arch: str
    dtype: str
    tile_l: int
    m: int
    warps_j: int
    n: int
    warps_k: int
    stages: int
    x_bytes: int
    y_bytes: int
    products: int

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.tile_l * self.warps_j * self.warps_k

    @property
    def extents(self) -> tuple[int, int, int]:
        """Columns, positions of k and values of l of a block."""
        return 16 * self.m * self.warps_j, 8 * self.n * self.warps_k, self.tile_l

    @property
    def depth(self) -> int:
        """Entries of the batch in a stage."""
        return PIECE // BYTES[self.dtype]

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        columns, positions, deep = self.extents
        return self.stages * PIECE * deep * (columns + positions)

    @property
    def least_part(self) -> int:
        """Entries of the batch that a part has at least."""
        return _LEAST_CHUNKS * self.depth

    def __str__(self) -> str:
        columns, positions, deep = self.extents
        return (
            f"kron sparse gradient {self.arch} mma over columns, {columns} x {positions} x {deep}, {self.warps} warps, "
            f"{self.stages} stages of {self.depth} entries, {self.kind}"
        )


def candidates(
    pattern: Pattern, dtype: str, x_bytes: int, y_bytes: int, products: int, own: DeviceLimits
) -> Iterator[ColumnSumPlan]:
    """Yield the plans of every tile that fits, for features of which so many bytes may be copied at once."""
    _, b, c, d = pattern
    deep = [l for l in (1, 2, 4, _MOST_L) if l < 2 * d]
    for (m, n), warps_j, warps_k, tile_l in itertools.product(_FRAGMENTS, (1, 2, 4), (1, 2, 4), deep):
        warps, columns, positions = tile_l * warps_j * warps_k, 16 * m * warps_j, 8 * n * warps_k
        if warps > _MOST_WARPS or columns >= 2 * max(16, b) or positions >= 2 * max(8, c):
            continue
        registers = 4 * m * n + (4 if dtype == "f32" else 2) * (2 * m + n) + 8 * m + 16 + _OTHER_REGISTERS
        if registers > REGISTERS // (32 * ColumnSumPlan.RESIDENT_WARPS):
            continue
        every = (
            ColumnSumPlan(own.arch, dtype, tile_l, m, warps_j, n, warps_k, stages, x_bytes, y_bytes, products)
            for stages in _STAGES
        )
        fits = [plan for plan in every if plan.shared <= own.shared_per_block]
        if fits:  # more stages, unless fewer blocks share a multiprocessor
            most = max(plan.blocks_each(own) for plan in fits)
            yield next(plan for plan in fits if plan.blocks_each(own) == most)


# Cycles of a product and of an instruction on a multiprocessor, and those that a stage waits; bytes a second of the
# second-level cache, of memory, and of parts that are added; seconds of a number that is written apart from others,
# to begin, and to begin to add parts (one H200, decision 0064).
_PRODUCT, _ISSUE, _WAIT, _CLOCK = 3.2, 0.25, 900.0, 1.7e9
_CACHE, _MEMORY, _PARTS, _WRITTEN, _START, _ADDED = 5.0e12, 4.0e12, 6e11, 5e-12, 2e-6, 2e-6
_SHARE = 1.1  # times the model: 14 sums of 1488 to 25088 entries on one H200 (decision 0064)
# Shorter batches, and those that are copied fewer bytes at a time, took up to four times as long as by the kernel that
# reads single numbers.
_LEAST_BATCH, _LEAST_BYTES = 1024, 8
_WIDEST = 128  # of blocks both ways: (1, 1024, 256, 1), f32, takes 537 us, 474 by the other kernel (decision 0064)


def column_sum_seconds(plan: ColumnSumPlan, pattern: Pattern, batch: int, limits: DeviceLimits) -> float:
    """Return what a plan should take for one group; infinite for what other kernels are quicker at."""
    a, b, c, d = pattern
    if batch < _LEAST_BATCH or min(plan.x_bytes, plan.y_bytes) < _LEAST_BYTES or min(b, c) > _WIDEST:
        return math.inf
    columns, positions, deep = plan.extents
    size, split = BYTES[plan.dtype], plan.dtype == "f32"
    each, slots, tiles = plan.blocks_each(limits), plan.slots(pattern, 1, batch, limits), plan.tiles(pattern, 1)
    rounds = -(-tiles * slots // (limits.sm_count * each))
    chunks = -(-batch // (slots * plan.depth))
    fragments, reads, steps = plan.m * plan.n, 2 * plan.m + plan.n, plan.depth // 16
    multiplied = fragments * (plan.products if split else 1) * _PRODUCT
    copied = PIECE * deep * (columns / plan.y_bytes + positions / plan.x_bytes) / plan.threads
    numbers = 4 * reads
    issued = steps * (2 * reads + numbers * (6 if split else 1) + 4 * fragments * (2 if split else 0) + 20)
    issued += 8 * copied + 60
    chunk = each * plan.warps * max(steps * multiplied, issued * _ISSUE) + _WAIT / (plan.stages - 1)
    moved = size * batch * a * d * (b * -(-c // positions) + c * -(-b // columns)) / _CACHE
    memory = size * batch * a * d * (b + c) / _MEMORY
    written = math.prod(pattern) * slots * _WRITTEN * min(d, 8) / 8
    parts = _ADDED + 4 * math.prod(pattern) * (slots + 1) / _PARTS if slots > 1 else 0.0
    worked = rounds * (chunks * chunk + 3000) / _CLOCK
    together = (worked**3 + moved**3 + memory**3) ** (1 / 3)
    return _START + parts + written + _SHARE * together


@lru_cache(maxsize=4096)
def column_sum_plan(
    pattern: Pattern, batch: int, dtype: str, x_bytes: int, y_bytes: int, products: int, limits: DeviceLimits
) -> ColumnSumPlan:
    """Return the plan that should be quickest, for features of which so many bytes may be copied at once."""
    found = candidates(pattern, dtype, x_bytes, y_bytes, products if dtype == "f32" else 1, limits)
    return min(found, key=lambda plan: column_sum_seconds(plan, pattern, batch, limits))


@lru_cache(maxsize=4096)
def columns_seconds(pattern: Pattern, batch: int, dtype: str, limits: DeviceLimits) -> float:
    """Return what sums over arrays without gaps should take."""
    access = math.gcd(16, BYTES[dtype] * batch)
    chosen = column_sum_plan(pattern, batch, dtype, access, access, 3, limits)
    return column_sum_seconds(chosen, pattern, batch, limits)
