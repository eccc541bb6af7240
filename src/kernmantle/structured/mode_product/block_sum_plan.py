"""Plans of the gradient of weights of halves on a GPU over transposed rows, which is written in the order of weights.

Its cost is fitted on one H200 (decision 0099).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.arch import arch
from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern
from .plan_table import TABLES, columns_of, count_of, grid, masked, norm, quickest_row
from .tiled_sum import TiledSum
from .transpose_plan import ACCESS, padded, pass_seconds, start_seconds

DEPTH = 16  # rows of a product
_OTHER_REGISTERS = 56  # of a thread, besides sums and fragments
_MOST_ROWS, _MOST_L = 256, 128  # of the batch; values of l of a pattern
_FRAGMENTS = ((1, 2), (1, 4), (2, 2), (2, 4), (1, 8))  # of 16 columns and of 8 positions of k of a warp
_STAGES = ((4, 3), (2, 4), (2, 3), (1, 4), (1, 3), (1, 2))  # products of 16 rows of a stage, and stages


@dataclass(frozen=True)
class BlockSumPlan(TiledSum):
    """Template parameters, see ``kronsparse_block_sums.cuh``."""

    resident = 16
    alone = False
    products = 1
    whole = True
    arch: str
    dtype: str
    d: int
    warp_l: int
    warps_l: int
    m: int
    warps_j: int
    n: int
    warps_k: int
    steps: int
    stages: int

    @property
    def deep(self) -> int:
        """Values of l of a block."""
        return self.d

    @property
    def staged(self) -> int:
        """Bytes of the stages of a block."""
        columns, positions, _ = self.extents
        size = BYTES[self.dtype]
        rows = self.warp_l * self.warps_l * DEPTH * self.steps
        return self.stages * rows * ((columns + positions) * size + 2 * ACCESS)

    @property
    def written(self) -> int:
        """Numbers of four bytes of memory where the sums are brought together before they are written."""
        columns, positions, deep = self.extents
        return columns * (-(-positions * deep * BYTES[self.dtype] // 128) * 128 + 16) // 4

    @property
    def least_part(self) -> int:
        """Entries of the batch that a part has at least: all."""
        return _MOST_ROWS

    def __str__(self) -> str:
        columns, positions, deep = self.extents
        return (
            f"kron sparse gradient {self.arch} mma over transposed rows, {columns} x {positions} x {deep}, "
            f"{self.warp_l * self.warps_l} of l at once, {self.warps} warps, {self.stages} stages of "
            f"{DEPTH * self.steps} rows, {self.kind}"
        )


def candidates(d: int, batch: int, dtype: str, own: DeviceLimits) -> BlockSumPlan | None:
    """Return the table of every tile that fits, for few rows; None without any."""
    taken = 1 < d <= _MOST_L and batch <= _MOST_ROWS and BYTES[dtype] == 2
    if not taken or "warp_specialized" not in arch(own.arch).features:
        return None
    table = _table(d, min(-(-batch // DEPTH), _STAGES[0][0]), dtype, own)
    return table if count_of(table) else None


@lru_cache(maxsize=TABLES)
def _table(d: int, steps: int, dtype: str, own: DeviceLimits) -> BlockSumPlan:
    """Return the table of tiles whose stages have at most so many steps."""
    lanes = [own for own in (1, 2, 4) if d % own == 0]
    stages = [stage for stage in _STAGES if stage[0] <= max(1, steps)]
    at, warps_j, warps_k, warp_l, warps_l, stage = grid(
        range(len(_FRAGMENTS)), (1, 2, 4), (1, 2, 4), lanes, (1, 2, 4, 8), range(len(stages))
    )
    m, n = columns_of(_FRAGMENTS, at)
    table = BlockSumPlan(own.arch, dtype, d, warp_l, warps_l, m, warps_j, n, warps_k, *columns_of(stages, stage))
    registers = 4 * m * n * warp_l + 4 * m + 2 * n + _OTHER_REGISTERS
    most = np.minimum(12, REGISTERS // (32 * registers))
    fits = (warp_l * warps_l <= 2 * d) & (table.warps >= 4) & (table.warps <= most)
    return masked(table, fits & (table.shared <= own.shared_per_block))


# Cycles that a stage and a tile wait, of an asynchronous copy of a warp and of the sums of a fragment on a
# multiprocessor; bytes a second of the second-level cache, most of whose rows are short, and of memory; seconds to
# begin. Fitted to 198 tiles of 22 random patterns (30 %, root mean square; decision 0099).
_WAIT, _TILE, _COPY, _PUT = 1030.0, 3700.0, 23.0, 1.05
_CACHE, _MEMORY, _START = 1.65e12, 3.5e12, 1.7e-6
_PASS = 1.5e-6  # of each array over transposed rows, besides its bytes: 2.5 us more for both than the model of passes
_SURELY = 1.1  # times what is expected, so that these sums are chosen where they are quicker for sure


def block_sum_seconds(plan: BlockSumPlan, pattern: Pattern, batch: int, limits: DeviceLimits) -> Any:
    """Return what a plan should take for one group."""
    a, b, c, d = pattern
    columns, positions, _ = plan.extents
    size, each, at_once = BYTES[plan.dtype], plan.blocks_each(limits), plan.warp_l * plan.warps_l
    rounds = -(-plan.tiles(pattern, 1) // (limits.sm_count * each))
    chunks, groups = -(-batch // (DEPTH * plan.steps)), -(-d // at_once)
    copies = at_once * DEPTH * plan.steps * (columns + positions) * size / ACCESS / plan.threads
    resident = each * plan.warps
    stage, put = _WAIT + resident * _COPY * copies, resident * _PUT * plan.warp_l * plan.m * plan.n
    worked = rounds * (groups * (chunks * stage + put) + _TILE) / CLOCK
    read = padded(b, size) * -(-c // positions) + padded(c, size) * -(-b // columns)
    weights = size * math.prod(pattern)
    moved = (size * batch * a * d * read + weights) / _CACHE
    memory = (size * batch * a * d * (b + c) + weights) / _MEMORY
    return _START + norm((worked, moved, memory), 3)


@lru_cache(maxsize=4096)
def block_sum_choice(
    pattern: Pattern, batch: int, dtype: str, limits: DeviceLimits
) -> tuple[float, BlockSumPlan] | None:
    """Return the least seconds of a plan, and the plan; None where there is none."""
    table = candidates(pattern[3], batch, dtype, limits)
    return None if table is None else quickest_row(table, block_sum_seconds(table, pattern, batch, limits))


def block_sum_plan(pattern: Pattern, batch: int, dtype: str, limits: DeviceLimits) -> BlockSumPlan | None:
    """Return the plan that should be quickest; None where there is none."""
    found = block_sum_choice(pattern, batch, dtype, limits)
    return None if found is None else found[1]


@lru_cache(maxsize=4096)
def block_sums_seconds(pattern: Pattern, batch: int, dtype: str, limits: DeviceLimits) -> float:
    """Return what the plan and both arrays over transposed rows should take; infinite where there is no plan."""
    found = block_sum_choice(pattern, batch, dtype, limits)
    if found is None:
        return math.inf
    (a, b, c, d), size = pattern, BYTES[dtype]
    passes = start_seconds((b, c), d * batch, size, False) + 2 * _PASS
    passes += sum(pass_seconds(extent, d * batch, a, size, True, False) for extent in (b, c))
    return _SURELY * (passes + found[0])
