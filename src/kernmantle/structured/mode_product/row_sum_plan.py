"""Plans of the gradient of weights on a GPU over rows with contiguous features, which are copied in that layout.

Its cost is fitted on one H200 (decision 0060).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern
from .plan_table import TABLES, columns_of, either, grid, larger, masked, norm, quickest_row
from .tiled_sum import LONG, TiledSum

DEPTH = 16  # rows of a product
_MOST_WHOLE = 12  # values of l, up to which a block takes all of them
_OTHER_REGISTERS = 60  # of a thread, besides sums, what it reads and its halves of the gradient
_LEAST_STEPS = 16  # of a part
_STAGES = ((2, 3), (2, 2), (1, 4), (1, 3), (1, 2))  # products of 16 rows of a stage, and stages
# Fragments of 16 columns and of 8 positions of k of a warp, by the values of l that it reads at once.
_FRAGMENTS = {
    1: ((2, 8), (3, 4), (2, 4), (1, 8), (1, 4)), 2: ((2, 4), (1, 4), (1, 2)), 4: ((1, 4), (1, 2)), 8: ((1, 2),),
}  # fmt: skip


@dataclass(frozen=True)
class RowSumPlan(TiledSum):
    """Template parameters, see ``kronsparse_row_sums.cuh``."""

    resident = 12
    arch: str
    dtype: str
    full: bool
    warp_l: int
    warps_l: int
    m: int
    warps_j: int
    n: int
    warps_k: int
    steps: int
    stages: int
    x_bytes: int
    y_bytes: int
    shifted: bool
    whole: bool
    alone: bool
    products: int

    @property
    def deep(self) -> int:
        """Values of l of a block."""
        return self.warp_l * self.warps_l

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: rows of the gradient, then of x."""
        columns, positions, deep = self.extents
        size = BYTES[self.dtype]
        crossed = self.warp_l * size == 16 and self.warps_l % 2 == 0
        skew = 16 if crossed else 32
        shift = 16 if self.shifted else 0
        pitches = ((each * deep * size + shift + 127 - skew) // 128 * 128 + skew for each in (columns, positions))
        return self.steps * DEPTH * sum(pitches)

    @property
    def staged(self) -> int:
        """Bytes of the stages of a block."""
        return self.stages * self.stage_bytes

    @property
    def written(self) -> int:
        """Numbers of the sums that are brought together before they are written."""
        return 16 * self.warps_j * (8 * self.warps_k * self.extents[2] + 1)

    @property
    def least_part(self) -> int:
        """Entries of the batch that a part has at least."""
        return _LEAST_STEPS * DEPTH

    def __str__(self) -> str:
        columns, positions, deep = self.extents
        return (
            f"kron sparse gradient {self.arch} mma over rows, {columns} x {positions} x {deep}, {self.warps} warps, "
            f"{self.stages} stages of {DEPTH * self.steps} rows{' anywhere' if self.shifted else ''}, {self.kind}"
        )


@lru_cache(maxsize=TABLES)
def candidates(
    d: int, alone: bool, dtype: str, x_bytes: int, y_bytes: int, products: int, own: DeviceLimits
) -> RowSumPlan:
    """Return the table of every tile that fits, for rows of which so many bytes may be copied at once.

    ``alone``: for long sums.
    """
    size = BYTES[dtype]
    # Where only single numbers may be copied a warp reads one l at once, and 16 of them would be too many warps.
    whole = d <= _MOST_WHOLE or (d * size == 32 and min(x_bytes, y_bytes) > size)
    deep = d if whole else 8 if d * size < 32 else 32 // size
    shifted = whole and min(x_bytes, y_bytes) < 16
    read = math.gcd(deep, 16 // size)
    if shifted:
        read, x_bytes, y_bytes = math.gcd(read, x_bytes // size, y_bytes // size), 16, 16
    elif not whole:
        x_bytes, y_bytes = (math.gcd(each, size * d, size * deep) for each in (x_bytes, y_bytes))
    at, warps_j, warps_k = grid(range(len(_FRAGMENTS[read])), (1, 2, 4), (1, 2, 4))
    m, n = columns_of(_FRAGMENTS[read], at)
    warp, rest = (read, deep // read, m, warps_j, n, warps_k), (x_bytes, y_bytes, shifted, False, alone, products)
    tile = RowSumPlan(own.arch, dtype, whole, *warp, 1, 2, *rest)
    registers = 4 * read * m * n + 4 * read * (2 * m + n) + 8 * m + _OTHER_REGISTERS
    tile = masked(tile, tile.warps <= np.minimum(RowSumPlan.resident, REGISTERS // (32 * registers)))
    every = [replace(tile, steps=steps, stages=stages) for steps, stages in _STAGES]
    fits = np.stack([plan.shared <= own.shared_per_block for plan in every])
    each = np.where(fits, np.stack([plan.blocks_each(own) for plan in every]), 0)
    # Stages of 32 rows wait less for one another, unless fewer blocks share a multiprocessor.
    alike = fits & (each == each.max(0))
    wanted = alike & (np.array([[steps] for steps, _ in _STAGES]) == 1) if min(x_bytes, y_bytes) < 4 else alike
    last = len(_STAGES) - 1 - alike[::-1].argmax(0)
    chosen = np.array(_STAGES)[np.where(wanted.any(0), wanted.argmax(0), last)]
    return masked(replace(tile, steps=chosen[:, 0], stages=chosen[:, 1]), fits.any(0))


# Cycles of a product and of an instruction on a multiprocessor, those that a step waits, and bytes a second of the
# second-level cache, of memory, and of parts that are written and added; seconds to begin, and to begin to add parts.
_PRODUCT, _ISSUE, _WAIT, _LOADED = 3.2, 0.25, 350.0, 1400.0
_CACHE, _MEMORY, _PARTS, _START, _ADDED = 5.0e12, 4.0e12, 6e11, 3.5e-6, 3e-6
# Times of 62 sums of 18 patterns over this model on one H200 (decision 0060): where a block has all l of a column, and
# where it has some, whose rows are read in short runs.
_SHARES = {True: 1.4, False: 1.9}


def row_sum_seconds(plan: RowSumPlan, pattern: Pattern, batch: int, limits: DeviceLimits) -> Any:
    """Return what a plan should take for one group."""
    a, b, c, d = pattern
    columns, positions, deep = plan.extents
    size, split = BYTES[plan.dtype], plan.dtype == "f32"
    each, slots, tiles = plan.blocks_each(limits), plan.slots(pattern, 1, batch, limits), plan.tiles(pattern, 1)
    rounds = -(-tiles * slots // (limits.sm_count * each))
    steps = -(-batch // (slots * DEPTH))
    fragments, reads = plan.warp_l * plan.m * plan.n, 4 * (2 * plan.m + plan.n)
    multiplied = fragments * (plan.products if split else 1) * _PRODUCT
    access = plan.warp_l * size
    loaded = reads * max(1, access // 4)
    numbers = reads * plan.warp_l
    copied = DEPTH * deep * size * (columns / plan.y_bytes + positions / plan.x_bytes) / plan.threads
    issued = reads + numbers * (6 if split else 1) + 4 * fragments * (2 if split else 0) + 6 * copied + 80
    step = each * plan.warps * larger(larger(multiplied, loaded), issued * _ISSUE) + _WAIT
    step += _LOADED if min(plan.x_bytes, plan.y_bytes) < 4 else 0.0  # which no copy moves
    moved = size * batch * a * d * (b * -(-c // positions) + c * -(-b // columns)) / _CACHE
    memory = size * batch * a * d * (b + c) / _MEMORY
    parts = either(slots > 1, 4 * math.prod(pattern) * (slots + 1) / _PARTS, 0.0)
    worked = rounds * (steps * step + 3000) / CLOCK
    together = norm((worked, moved, memory), 3)
    return _START + _ADDED * (slots > 1) + parts + _SHARES[plan.full] * together


@lru_cache(maxsize=4096)
def row_sum_choice(
    pattern: Pattern, batch: int, dtype: str, x_bytes: int, y_bytes: int, products: int, limits: DeviceLimits
) -> tuple[float, RowSumPlan]:
    """Return the least seconds of a plan, and the plan, for rows of which so many bytes may be copied at once."""
    products = products if dtype == "f32" else 1
    table = candidates(pattern[3], batch >= LONG, dtype, x_bytes, y_bytes, products, limits)
    seconds, best = quickest_row(table, row_sum_seconds(table, pattern, batch, limits))
    return seconds, replace(best, whole=best.slots(pattern, 1, batch, limits) == 1)
