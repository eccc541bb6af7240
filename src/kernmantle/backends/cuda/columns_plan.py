"""When score tiles are multiplied with many columns of v on Hopper's tensor cores, in which tile and memory.

Entries are made of products of float16 halves, as ``score_plan`` describes, and taken apart in registers for the
product with v, see ``apply_columns.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...compiler.nest import Port
from ...compiler.row_reduce import PRODUCT, RowNest
from ...ir.node import variables
from .score_plan import MOST_ENTRIES, POINTS, SAMPLERS, ScoreMemory, blocks_of, is_score, positions, side_bytes
from .tiles import DeviceLimits, Tile

MOST = 256
"""Most columns of v, so that blocks have the work space that they need."""
LARGEST_AT = 256
"""Where the list holds the largest values of columns of v, in numbers of 4 bytes."""
TILES = (
    Tile("apply columns", 64, 4, 2, 32, 0, 1, 1, 1, 1.0, "columns"),
    Tile("apply columns held", 64, 4, 2, 32, 0, 1, 1, 1, 1.0, "columns", fragments=True),
    Tile("apply columns narrow", 64, 4, 2, 16, 0, 1, 1, 1, 0.9, "columns"),
    Tile("apply columns narrow held", 64, 4, 2, 16, 0, 1, 1, 1, 0.95, "columns", fragments=True),
    Tile("apply columns high held", 96, 4, 2, 16, 0, 1, 1, 1, 0.95, "columns", fragments=True),
)
"""Two or three warpgroups of 64 rows, 64 or 128 columns of the matrix at once, rows in shared memory or registers."""
_WIDTHS = (16, 32, 64, 96, 128)
_REGISTERS = {2: 200, 3: 132}
"""Registers that accumulators and fragments may take, by how many warpgroups multiply."""
_WHOLE = 96
"""Most columns of v whose products are under way together: more are taken in two parts, with points of at most"""
_WHOLE_DEPTH = 64
"""so many positions, as the compiler serialises products of more."""
_MOST_STAGES, _LEAST_STAGES = 6, 2
_ALIGNED = 1024
_LEAST_ROWS = 192
_LEAST_DEPTH, _DEEPEST = 16, 128
_LEAST_WIDTH = 9
_LEAST_ENTRIES = 1 << 24
"""Fewest pairs for which it is faster."""


def columns_of(width: int) -> int:
    """Return how many columns of v are multiplied at once."""
    return next((columns for columns in _WIDTHS if width <= columns), _WIDTHS[-1])


def columns_tiles(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> list[tuple[Tile, int]]:
    """Return the tiles in which it is possible with how many columns of v at once, the one believed fastest first."""
    single = sizes["a"] == sizes["b"] == sizes["c"] == 1
    wide = rows.how == PRODUCT and _LEAST_WIDTH <= sizes["l"] <= MOST
    deep = _LEAST_DEPTH <= sizes["k"] <= _DEEPEST
    large = min(sizes["m"], sizes["n"]) >= _LEAST_ROWS and _LEAST_ENTRIES <= sizes["m"] * sizes["n"] < MOST_ENTRIES
    if not (limits.has(("wgmma",)) and single and wide and deep and large and is_score(rows.matrix)):
        return []
    found: list[tuple[Tile, int]] = []
    ends = len(column_ends(rows))
    for columns in _WIDTHS:
        if columns > columns_of(sizes["l"]):
            break
        for tile in TILES:
            own = replace(tile, depth=positions(sizes["k"]), unroll=-(-sizes["k"] // 16))
            stages = min(_MOST_STAGES, _stages(own, columns, ends, limits))
            if columns > _WHOLE and (tile.fragments or tile.n > POINTS // 2 or own.depth > _WHOLE_DEPTH):
                continue
            if stages >= _LEAST_STAGES and registers(own, columns) <= _REGISTERS[own.threads // 128]:
                found.append((replace(own, stages=stages), columns))
    return sorted(found, key=lambda each: clocks(each[0], each[1], sizes))


def column_ends(rows: RowNest) -> tuple[Port, ...]:
    """Return the operands that entries read of one column."""
    used = set(variables(rows.matrix.outputs))
    return tuple(port for port in rows.matrix.operands if port.roles == "n" and port.name in used)


def registers(tile: Tile, columns: int) -> int:
    """Return the registers of products, entries, sums, and points of rows that stay in them."""
    products = columns // 4 if columns > _WHOLE else columns // 2
    return tile.n + columns // 2 + products + (tile.depth // 2 if tile.fragments else 0)


def clocks(tile: Tile, columns: int, sizes: Mapping[str, int]) -> float:
    """Return the time of a pair by a coarse model, in clocks of a multiprocessor."""
    products = 3 * (16 * tile.unroll + columns) / 2048
    return -(-sizes["l"] // columns) * max(products, 0.06) / tile.efficiency


def columns_tile(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> tuple[Tile, int] | None:
    """Return the tile and how many columns of v are multiplied at once, where it is faster."""
    return next(iter(columns_tiles(rows, sizes, limits)), None)


def _row_bytes(tile: Tile) -> int:
    return 0 if tile.fragments else 4 * tile.depth * POINTS


def _stage_bytes(tile: Tile, columns: int, ends: int) -> int:
    return 4 * tile.n * (tile.depth + columns) + side_bytes(ends, 0) + 20


def _stages(tile: Tile, columns: int, ends: int, limits: DeviceLimits) -> int:
    return (limits.shared_per_block - _row_bytes(tile) - 16) // _stage_bytes(tile, columns, ends)


def shared_bytes(tile: Tile, columns: int, ends: int) -> int:
    """Return the dynamic shared memory of a block."""
    return _row_bytes(tile) + tile.stages * _stage_bytes(tile, columns, ends) + 16


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
    """Return where the list, points in halves, norms, columns of the matrix and v in halves lie."""
    down, across = blocks_of(tile, sizes)
    split, values = 4 * tile.depth * POINTS, 4 * columns * POINTS
    pieces = (
        list_bytes(sizes["l"]), down * split, across * split, 8 * down * POINTS, across * side_bytes(ends, 0),
        passes(columns, sizes) * across * values,
    )  # fmt: skip
    offsets: list[int] = []
    end = 0
    for piece in pieces:
        offsets.append(end)
        end = -(-(end + piece) // _ALIGNED) * _ALIGNED
    return ScoreMemory(tuple(offsets), end)
