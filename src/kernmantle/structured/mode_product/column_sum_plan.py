"""Plans of the gradient of weights on a GPU if the batch is contiguous in memory, which is copied in that layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern
from .plan_table import TABLES, columns_of, either, grid, larger, masked, norm, quickest_row, smaller
from .tiled_sum import LONG, TiledSum

ALIGNED = 16  # bytes of a copy, at multiples of which features begin where they are not shifted
_PIECES = (128, 64, 32)  # bytes of a feature that a stage has
_STAGES = (4, 3, 2)  # in the order in which they are preferred
_MOST_WARPS, _MOST_L = 8, 8  # warps and values of l of a block
_RESIDENT = 16, 8  # warps of a multiprocessor, fewer where a warp's tile takes more registers
_OTHER_REGISTERS = 56  # of a thread, besides sums, what it reads and its halves
_LEAST_CHUNKS = 8  # of a part
_FRAGMENTS = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 4))  # of 16 columns and of 8 positions of k of a warp


@dataclass(frozen=True)
class ColumnSumPlan(TiledSum):
    """Template parameters, see ``kronsparse_column_sums.cuh``, and the warps among which registers are shared."""

    arch: str
    dtype: str
    warps_l: int
    m: int
    warps_j: int
    n: int
    warps_k: int
    resident: int
    piece: int
    stages: int
    shifted: bool
    whole: bool
    alone: bool
    products: int

    @property
    def deep(self) -> int:
        """Values of l of a block."""
        return self.warps_l

    @property
    def depth(self) -> int:
        """Entries of the batch in a stage."""
        return self.piece // BYTES[self.dtype]

    @property
    def pitch(self) -> int:
        """Bytes from a feature of a stage to the next one."""
        return self.piece + (ALIGNED if self.shifted else 0)

    @property
    def staged(self) -> int:
        """Bytes of the stages of a block."""
        columns, positions, deep = self.extents
        return self.stages * self.pitch * deep * (columns + positions)

    @property
    def written(self) -> int:
        """Numbers of the sums that are brought together before they are written."""
        _, positions, deep = self.extents
        return 16 * self.warps_j * (positions * deep + 1)

    @property
    def least_part(self) -> int:
        """Entries of the batch that a part has at least."""
        return _LEAST_CHUNKS * self.depth

    def __str__(self) -> str:
        columns, positions, deep = self.extents
        return (
            f"kron sparse gradient {self.arch} mma over columns, {columns} x {positions} x {deep}, {self.warps} warps, "
            f"{self.stages} stages of {self.depth} entries{' anywhere' if self.shifted else ''}, {self.kind}"
        )


def candidates(
    pattern: Pattern, batch: int, dtype: str, shifted: bool, products: int, own: DeviceLimits
) -> ColumnSumPlan:
    """Return the table of every tile that fits, which batches share that take the same pieces.

    ``shifted``: features begin anywhere.
    """
    size = BYTES[dtype]
    least = 16 * size
    pieces = tuple(piece for piece in _PIECES if piece == least or least < piece < 2 * batch * size)
    return _table(pattern, pieces, batch >= LONG, dtype, shifted, products, own)


@lru_cache(maxsize=TABLES)
def _table(
    pattern: Pattern, pieces: tuple[int, ...], alone: bool, dtype: str, shifted: bool, products: int, own: DeviceLimits
) -> ColumnSumPlan:
    """Return the table of tiles by pieces of these bytes; ``alone``: of long sums."""
    (_, b, c, d), size = pattern, BYTES[dtype]
    deep = sorted({l for l in (1, 2, 4, _MOST_L) if l < 2 * d} | {-(-d // -(-d // most)) for most in (3, 6, _MOST_L)})
    at, warps_j, warps_k, warps_l, piece = grid(range(len(_FRAGMENTS)), (1, 2, 4), (1, 2, 4), deep, pieces)
    m, n = columns_of(_FRAGMENTS, at)
    registers = 4 * m * n + (4 if size == 4 else 2) * (2 * m + n) + 8 * m + 16 + _OTHER_REGISTERS
    wide, narrow = (registers <= REGISTERS // (32 * each) for each in _RESIDENT)
    resident: Any = np.where(wide, _RESIDENT[0], np.where(narrow, _RESIDENT[1], 0))
    rest = resident, piece, _STAGES[0], shifted, False, alone, products
    tile = ColumnSumPlan(own.arch, dtype, warps_l, m, warps_j, n, warps_k, *rest)
    columns, positions, _ = tile.extents
    fits = (tile.warps <= np.minimum(_MOST_WARPS, resident)) & (columns < 2 * max(16, b)) & (positions < 2 * max(8, c))
    tile = masked(tile, fits)
    every = [replace(tile, stages=stages) for stages in _STAGES]
    fits = np.stack([plan.shared <= own.shared_per_block for plan in every])
    each = np.where(fits, np.stack([plan.blocks_each(own) for plan in every]), 0)
    # More stages, unless fewer blocks share a multiprocessor.
    stages = np.array(_STAGES)[(fits & (each == each.max(0))).argmax(0)]
    return masked(replace(tile, stages=stages), fits.any(0))


# Cycles on a multiprocessor: of a product, of a number of a product by float32, of what a lane reads of a feature that
# begins anywhere, of the copy and of the store of a warp; of a stage and of 16 columns that a warp writes, besides; the
# share that long sums of whole vectors take more with twice as many warps, which wait for one another; bytes a second
# of the second-level cache, of memory, and of parts that are added; seconds of a sector that is written, to begin, and
# to begin to add parts. Fitted on one H200 to 82 sums of 6 to 28983 entries within 13 % (root mean square; decision
# 0068).
_PRODUCT, _NUMBER, _APART, _COPY, _STORE = 3.2, {True: 3.85, False: 0.16}, 8.1, 12.5, 13.5
_STAGE, _WRITE, _TOGETHER = 150.0, 580.0, 0.04
_CACHE, _MEMORY, _PARTS, _WRITTEN, _START, _ADDED = 5.9e12, 4.0e12, 6e11, 2.8e-12, 1.5e-6, 2e-6
_SECTOR = 32  # bytes that are written at once


def column_sum_seconds(plan: ColumnSumPlan, pattern: Pattern, batch: int, limits: DeviceLimits) -> Any:
    """Return what a plan should take for one group."""
    a, b, c, d = pattern
    columns, positions, deep = plan.extents
    size, split = BYTES[plan.dtype], plan.dtype == "f32"
    each, slots, tiles = plan.blocks_each(limits), plan.slots(pattern, 1, batch, limits), plan.tiles(pattern, 1)
    rounds = -(-tiles * slots // (limits.sm_count * each))
    chunks = -(-batch // (slots * plan.depth))
    fragments, reads, steps = plan.m * plan.n, 2 * plan.m + plan.n, plan.depth // 16
    multiplied = fragments * (plan.products if split else 1) * _PRODUCT
    loaded = (4 if split else _APART) * reads if plan.shifted else size * reads
    step = larger(larger(multiplied, loaded), 4 * reads * _NUMBER[split] + fragments / 4 + 5)
    copied = _COPY * plan.pitch * deep * (columns + positions) / (ALIGNED * plan.threads)
    stored = 4 * fragments + _STORE * columns * positions * deep / plan.threads + 50 * plan.m
    warps = each * plan.warps * (1 + (plan.alone and not plan.shifted) * _TOGETHER * np.log2(plan.warps))
    tile = warps * (chunks * (steps * step + copied) + stored) + _STAGE * chunks + _WRITE * plan.m
    moved = size * batch * a * d * (b * -(-c // positions) + c * -(-b // columns)) / _CACHE
    out = either(slots == 1, size, 4)
    memory = (size * batch * a * d * (b + c) + out * slots * math.prod(pattern)) / _MEMORY
    run = out * either(deep >= d, positions * d, deep)  # bytes that are written together
    written = math.prod(pattern) * slots * out / smaller(run, _SECTOR) * _WRITTEN
    parts = either(slots > 1, _ADDED + 4 * math.prod(pattern) * (slots + 1) / _PARTS, 0.0)
    worked = (rounds * tile + 3000) / CLOCK
    return _START + parts + norm((worked, moved, memory, written), 3)


@lru_cache(maxsize=4096)
def column_sum_choice(
    pattern: Pattern, batch: int, dtype: str, x_bytes: int, y_bytes: int, products: int, limits: DeviceLimits
) -> tuple[float, ColumnSumPlan]:
    """Return the least seconds of a plan, and the plan, for features of which so many bytes may be copied at once."""
    shifted = min(x_bytes, y_bytes) < ALIGNED
    table = candidates(pattern, batch, dtype, shifted, products if dtype == "f32" else 1, limits)
    seconds, best = quickest_row(table, column_sum_seconds(table, pattern, batch, limits))
    return seconds, replace(best, whole=best.slots(pattern, 1, batch, limits) == 1)


def columns_seconds(pattern: Pattern, batch: int, dtype: str, limits: DeviceLimits) -> float:
    """Return what sums over arrays without gaps should take."""
    access = math.gcd(ALIGNED, BYTES[dtype] * batch)
    return column_sum_choice(pattern, batch, dtype, access, access, 3, limits)[0]
