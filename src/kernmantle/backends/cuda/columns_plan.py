"""Plans for score tiles times many columns of v on Hopper's tensor cores: when they run, the tile and the memory.

Entries are made of products of float16 halves, as ``score_plan`` describes, and taken apart in registers for the
product with v, see ``apply_columns.cuh``, or of points of more numbers ``apply_deep.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...compiler.nest import Buffer, batch_of
from ...compiler.row_reduce import PRODUCT, RowNest
from ...ir.node import variables
from .score_plan import (
    MOST_ENTRIES,
    POINTS,
    SAMPLERS,
    ScoreMemory,
    blocks_of,
    is_score,
    multiplied,
    side_bytes,
    steps_of,
)
from .tiles import DeviceLimits, Tile

MOST = 256
"""Most columns of v, which bounds the work space of the blocks."""
LARGEST_AT = 256
"""Where the list holds the largest values of columns of v, in numbers of 4 bytes."""
TILES = (
    Tile("apply columns", 64, 4, 2, 32, 0, 1, 1, 1, 1.0, "columns"),
    Tile("apply columns narrow", 64, 4, 2, 16, 0, 1, 1, 1, 1.0, "columns"),
    Tile("apply columns narrow held", 64, 4, 2, 16, 0, 1, 1, 1, 1.0, "columns", fragments=True),
    Tile("apply columns high held", 96, 4, 2, 16, 0, 1, 1, 1, 1.0, "columns", fragments=True),
)
"""Two or three warpgroups of 64 rows, 64 or 128 columns of the matrix at once, rows in shared memory or registers."""
DEEP = Tile("apply deep", 64, 4, 2, 32, 64, 1, 4, 1, 1.0, "deep")
"""The tile of more numbers a point, of which 64 at a time are in shared memory."""
_COSTS = {
    "apply columns": (0.146, 0.69), "apply columns narrow": (0.162, 0.9), "apply columns narrow held": (0.162, 0.8),
    "apply columns high held": (0.144, 0.62), "apply deep": (0.17, 1.5),
}  # fmt: skip
"""Clocks of a multiprocessor at 1.755 GHz for an entry, and for each clock that its products take at the most of the
tensor cores' rate (decision 0031; NVIDIA H200)."""
_TWO_STAGES = 1.4
"""Factor of the time where there are two stages: no tile is on its way while both are used."""
_WIDTHS = (16, 24, 32, 64, 96, 128)  # columns of v
_REGISTERS = {2: 200, 3: 120}
"""Registers of a thread that accumulators and fragments may take, by the number of warpgroups that multiply."""
_MOST_STAGES, _LEAST_STAGES = 6, 2  # stages of shared memory
_LEAST_ROWS = 192
_LEAST_DEPTH, _SHALLOW, _DEEPEST = 16, 128, 4096
"""Fewest numbers a point; most for which a block has whole points in shared memory; most at all."""
_LEAST_WIDTH = 5  # columns of v
_LEAST_ENTRIES = 1 << 24
"""Fewest pairs for which it is faster."""


def columns_of(width: int) -> int:
    """Return how many columns of v are multiplied at once."""
    return next((columns for columns in _WIDTHS if width <= columns), _WIDTHS[-1])


def columns_tiles(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> list[tuple[Tile, int]]:
    """Return the tiles that fit and their columns of v at once, the one predicted to be fastest first."""
    single = batch_of(sizes) == 1
    deep = sizes["k"] > _SHALLOW
    wide = rows.how == PRODUCT and (1 if deep else _LEAST_WIDTH) <= sizes["l"] <= MOST
    suits = single and wide and _LEAST_DEPTH <= sizes["k"] <= _DEEPEST
    large = min(sizes["m"], sizes["n"]) >= _LEAST_ROWS and _LEAST_ENTRIES <= sizes["m"] * sizes["n"] < MOST_ENTRIES
    if not (limits.has(("wgmma",)) and suits and large and is_score(rows.matrix)):
        return []
    ends, most = len(column_ends(rows)), columns_of(sizes["l"])
    found: list[tuple[Tile, int]] = []
    for columns in (width for width in _WIDTHS if width <= most):
        for tile in [DEEP] if deep else TILES:
            own = tile if deep else _with_points(tile, sizes["k"])
            free = limits.shared_per_block - _fixed_bytes(own, columns, ends)
            stages = min(_MOST_STAGES, free // _stage_bytes(own, columns, ends))
            if stages >= _LEAST_STAGES and (deep or registers(own, columns) <= _REGISTERS[own.threads // 128]):
                found.append((replace(own, stages=stages), columns))
    return sorted(found, key=lambda each: clocks(each[0], each[1], sizes))


def _with_points(tile: Tile, depth: int) -> Tile:
    positions, steps = steps_of(depth)
    return replace(tile, depth=positions, unroll=steps)


def column_ends(rows: RowNest) -> tuple[Buffer, ...]:
    """Return the operands that entries read for one column."""
    used = set(variables(rows.matrix.outputs))
    return tuple(buffer for buffer in rows.matrix.operands if buffer.roles == "n" and buffer.name in used)


def registers(tile: Tile, columns: int) -> int:
    """Return the registers of products, entries, sums, and points of rows that stay in them."""
    return tile.n + columns + (tile.depth // 2 if tile.fragments else 0)


def clocks(tile: Tile, columns: int, sizes: Mapping[str, int]) -> float:
    """Return the time of a pair in clocks of a multiprocessor, by a model fitted to the times of all tiles."""
    deep = tile.schema == "deep"
    products = ((-(-sizes["k"] // 64) * 192 if deep else multiplied(tile)) + 3 * columns) / 2048
    fixed, share = _COSTS[tile.name]
    waits = _TWO_STAGES if tile.stages < 3 and not deep else 1.0
    return passes(columns, sizes) * waits * (fixed + share * products)


def columns_tile(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> tuple[Tile, int] | None:
    """Return the tile and its columns of v at once; None if another form is faster."""
    return next(iter(columns_tiles(rows, sizes, limits)), None)


def _fixed_bytes(tile: Tile, columns: int, ends: int) -> int:
    """Return the shared bytes besides the stages: points of rows, or rows of v and data of columns, two barriers."""
    if tile.schema == "deep":
        return 4 * tile.n * columns + side_bytes(ends, 0) + 16
    return (0 if tile.fragments else 4 * tile.depth * POINTS) + 16


def _stage_bytes(tile: Tile, columns: int, ends: int) -> int:
    if tile.schema == "deep":
        return 8 * tile.depth * POINTS + 20
    return 4 * tile.n * (tile.depth + columns) + side_bytes(ends, 0) + 20


def shared_bytes(tile: Tile, columns: int, ends: int) -> int:
    """Return the dynamic shared memory of a block."""
    return _fixed_bytes(tile, columns, ends) + tile.stages * _stage_bytes(tile, columns, ends)


def list_bytes(width: int) -> int:
    """Return the bytes of the counts and of the largest values of so many columns of v."""
    return 4 * (LARGEST_AT + width)


def passes(columns: int, sizes: Mapping[str, int]) -> int:
    """Return the passes over the columns of v."""
    return -(-sizes["l"] // columns)


def splitters(tile: Tile, columns: int, sizes: Mapping[str, int]) -> int:
    """Return the blocks that sample pairs, split points and split v."""
    down, across = blocks_of(tile, sizes)
    return SAMPLERS + down + across + passes(columns, sizes) * across


def memory(tile: Tile, columns: int, sizes: Mapping[str, int], ends: int) -> ScoreMemory:
    """Return the workspace of the list, points in halves, norms, columns of the matrix and v in halves."""
    down, across = blocks_of(tile, sizes)
    deep = -(-sizes["k"] // tile.depth) if tile.schema == "deep" else 1
    split, values = deep * 4 * tile.depth * POINTS, 4 * columns * POINTS
    pieces = (
        list_bytes(sizes["l"]), down * split, across * split, 8 * down * POINTS, across * side_bytes(ends, 0),
        passes(columns, sizes) * across * values,
    )  # fmt: skip
    return ScoreMemory.of(pieces)
