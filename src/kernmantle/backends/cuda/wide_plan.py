"""Plans for rows of few numbers times many columns of v on Hopper's tensor cores: when they run, tile and memory.

Entries are made by FP32 instructions, as they are written, and taken apart in registers, see ``apply_wide.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...compiler.nest import batch_of
from ...compiler.row_reduce import PRODUCT, RowNest
from .gram_plan import is_heavy, staged
from .row_entries import has_powers
from .score_plan import POINTS, ScoreMemory
from .tiles import DeviceLimits, Tile

LIST_BYTES = 2048
MOST = 64
"""Most columns of v."""
_GROUPS = 3  # warpgroups of 64 rows
CHUNK = 64  # columns of the matrix whose entries are in registers
_MOST_STAGES = 6  # stages of shared memory
_DEEPEST = 8
"""Most numbers a point: more do not stay in registers."""
_LEAST_WIDTH, _FREE_WIDTH = 9, 8  # columns of v
_LEAST_ROWS, _MOST_ENTRIES = 192, 1 << 42
_LEAST_WORK = 1 << 31
"""Fewest pairs times columns of v beyond ``_FREE_WIDTH``, as many as cost no more elsewhere, for which what is saved is
more than its launches take (decisions 0019, 0057; NVIDIA H200)."""


def columns_of(width: int) -> int:
    """Return how many columns of v are multiplied at once."""
    return next(columns for columns in (16, 32, MOST) if width <= columns)


def side_bytes(depth: int, ends: int, powers: bool) -> int:
    """Return the bytes of 128 columns of the matrix: their numbers, the ends that entries read, levels of powers."""
    return 4 * POINTS * (depth + ends + powers) + 16 * powers


def value_bytes(columns: int) -> int:
    """Return the bytes of 128 rows of v in halves."""
    return 4 * POINTS * columns


def wide_tile(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, ends: int) -> Tile | None:
    """Return the tile; None if entries in registers times many columns are not faster."""
    nest, operands = rows.matrix, staged(rows.matrix)
    single = batch_of(sizes) == 1
    one = len(operands["rows"]) == len(operands["columns"]) == 1 and not operands["vectors"]
    plain = one and not any(buffer.roles == "mn" for buffer in nest.operands)
    precise = nest.compute == "f32" and nest.precision == "default" and not is_heavy(nest)
    wide = rows.how == PRODUCT and _LEAST_WIDTH <= sizes["l"] <= MOST and 1 <= sizes["k"] <= _DEEPEST
    entries = sizes["m"] * sizes["n"]
    worth = entries * (sizes["l"] - _FREE_WIDTH) >= _LEAST_WORK
    large = min(sizes["m"], sizes["n"]) >= _LEAST_ROWS and entries < _MOST_ENTRIES and worth
    if not limits.has(("wgmma",)) or not (single and plain and precise and wide and large):
        return None
    columns = columns_of(sizes["l"])
    stage = value_bytes(columns) + side_bytes(sizes["k"], ends, has_powers(rows)) + 16
    stages = min(_MOST_STAGES, limits.shared_per_block // stage)
    return Tile("apply wide", 32 * _GROUPS, 4, 2, 32, sizes["k"], 1, columns, 1, 1.0, "wide", stages)


def shared_bytes(tile: Tile, ends: int, powers: bool) -> int:
    """Return the dynamic shared memory of a block."""
    return tile.stages * (value_bytes(tile.unroll) + side_bytes(tile.depth, ends, powers) + 16)


def memory(tile: Tile, sizes: Mapping[str, int], ends: int, powers: bool) -> ScoreMemory:
    """Return the workspace of the list, v in halves and columns of the matrix."""
    across = -(-sizes["n"] // POINTS)
    return ScoreMemory.of(
        (LIST_BYTES, across * value_bytes(tile.unroll), across * side_bytes(tile.depth, ends, powers))
    )
