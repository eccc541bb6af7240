"""Plans for nearest columns from score tiles on Hopper's tensor cores: when they run, the tile and the memory.

One product of halves bounds every squared distance from below. The smallest bound of each 16 columns is stored, and
columns that can still be among the nearest are compared by differences, so the result is that of differences, see
``apply_select.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...compiler.monotone import Order, order
from ...compiler.nest import batch_of
from ...compiler.patterns import squared_differences
from ...compiler.row_reduce import RowNest
from ...ir.node import variables
from .gram_plan import has_one_operand_a_side
from .row_entries import folded_entry
from .score_plan import POINTS, ScoreMemory
from .tiles import DeviceLimits, Tile

SIDES, MOST = 8, 32
"""Tiles whose norms are under way, and most columns that are selected: one a lane."""
_MOST_IN_PARTS, _SHARE = 256, 4
"""Most columns that are selected from those of parts, and how many times more a part selects than it needs."""
BAND_BYTES = 256 << 20
"""Most bytes of minima at a time."""
ROWS_A_BLOCK, SELECTORS, LIST_BYTES = 8, 256, 1024
_RESIDENT = {32: 3, 64: 3, 128: 2}
"""Blocks of the kernel that selects for each multiprocessor, by positions of a point; 2 where they come in pieces."""
_STAGES = {32: 8, 64: 8, 128: 6}
_PIECE, _DEEPEST = 64, 4096
"""Positions of a point in a stage, and most of them, where points have more than a block has whole ones of."""
_DEEP_STAGES = {0: 4, 3: 5, 4: 4, 5: 4, 6: 4}
"""Stages by how many pieces of the rows stay in shared memory, 0 where they come with the columns."""
_SIDES_DEEP = 2
_SIDE_BYTES = 4 * (POINTS + 4)
_GROUP = 16
_MOST_COLUMNS = 1 << 31
_LEAST_DEPTH = 2
"""Fewest numbers a point: of one, products tell too little among many columns (NVIDIA H200, decision 0018)."""
_LEAST_COLUMNS, _LEAST_ROWS, _LEAST_ENTRIES = 2048, 16, 1 << 19
"""Fewest columns, rows and pairs for which it is faster, whole calls by the wall clock (NVIDIA H200, decision 0018)."""


def selection_order(rows: RowNest) -> Order | None:
    """Return how the order of entries follows from squared distances; None if they depend on anything else."""
    nest = rows.matrix
    used = set(variables(nest.outputs))
    plain = has_one_operand_a_side(nest) and not any(buffer.roles and buffer.name in used for buffer in nest.operands)
    suits = rows.selects and plain and nest.precision == "default" and squared_differences(nest) is not None
    if not suits:
        return None
    return order(*folded_entry(nest))


def wanted_sign(rows: RowNest) -> int:
    """Return the order in which the nearest columns are the ones that are selected."""
    return -1 if rows.how == "largest" else 1


def part_count(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> int:
    """Return the number of parts of the columns if more than ``MOST`` are selected, 0 if parts do not apply.

    An odd number, so that columns that repeat themselves every so often are in several parts. Of columns without order
    a part has a quarter of ``MOST``, on average: all of ``MOST`` once in 10^10 parts.
    """
    parts = 2 * -(-sizes["l"] * _SHARE // (2 * MOST)) + 1
    part = {**sizes, "n": sizes["n"] // parts, "l": MOST}
    many = rows.selects and MOST < sizes["l"] <= _MOST_IN_PARTS
    return parts if many and select_tile(replace(rows, count=MOST), part, limits) is not None else 0


def select_tile(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> Tile | None:
    """Return the tile; None if selections by score tiles are not faster."""
    single = batch_of(sizes) == 1
    deep = _LEAST_DEPTH <= sizes["k"] <= _DEEPEST
    large = sizes["m"] >= _LEAST_ROWS and _LEAST_COLUMNS <= sizes["n"] < _MOST_COLUMNS
    large = large and sizes["m"] * sizes["n"] >= _LEAST_ENTRIES
    suits = limits.has(("wgmma",)) and single and deep and large and sizes["l"] <= MOST
    found = selection_order(rows) if suits else None
    if found is None or (found.factor is None and found.sign != wanted_sign(rows)):
        return None
    if sizes["k"] > max(_STAGES):
        pieces = -(-sizes["k"] // _PIECE)
        resident = pieces if pieces in _DEEP_STAGES else 0
        return Tile("apply select deep", 64, 4, 2, 64, _PIECE, 1, resident, 1, 1.0, "select", _DEEP_STAGES[resident])
    size = next(size for size in _STAGES if sizes["k"] <= size)
    return Tile("apply select", 64, 4, 4, 32, size, 1, -(-sizes["k"] // 16), 1, 1.0, "select", _STAGES[size])


def is_deep(tile: Tile) -> bool:
    """Return whether points come in pieces, and columns in pairs of tiles."""
    return tile.n > POINTS


def shared_bytes(tile: Tile) -> int:
    """Return the dynamic shared memory of a block."""
    piece = 2 * tile.depth * POINTS
    if not is_deep(tile):
        return tile.stages * (piece + 16) + SIDES * (_SIDE_BYTES + 8)
    stage = piece * (2 if tile.unroll else 3)
    return tile.unroll * piece + tile.stages * (stage + 16) + _SIDES_DEEP * (2 * _SIDE_BYTES + 8) + 16


def resident_selectors(tile: Tile) -> int:
    """Return how many blocks of the kernel that selects a multiprocessor shall hold."""
    return 2 if is_deep(tile) else _RESIDENT[tile.depth]


def template_of(tile: Tile) -> tuple[str, tuple[int, ...]]:
    """Return the name of the tile's template and what it is instantiated with."""
    if is_deep(tile):
        return "DeepSelectTile", (tile.unroll, tile.stages, _SIDES_DEEP)
    return "SelectTile", (tile.depth, tile.unroll, tile.threads // 128, tile.rows // 2, tile.stages, SIDES)


def tiles_of(tile: Tile, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return how many tiles of points rows and columns are split into."""
    return -(-sizes["m"] // tile.m) * tile.m // POINTS, -(-sizes["n"] // tile.n) * tile.n // POINTS


def band_rows(tile: Tile, sizes: Mapping[str, int]) -> int:
    """Return the rows whose minima are held at a time."""
    row = 4 * tiles_of(tile, sizes)[1] * POINTS // _GROUP
    return min(-(-sizes["m"] // tile.m), max(1, BAND_BYTES // (row * tile.m))) * tile.m


def memory(tile: Tile, sizes: Mapping[str, int]) -> ScoreMemory:
    """Return the workspace of the list, halves of both operands, data of rows, columns and groups, and minima."""
    down, across = tiles_of(tile, sizes)
    pieces = -(-sizes["k"] // tile.depth) if is_deep(tile) else 1
    split, groups = 2 * tile.depth * POINTS * pieces, POINTS // _GROUP
    parts = (
        LIST_BYTES, down * split, across * split, 16 * down * POINTS, across * _SIDE_BYTES, 8 * across * groups,
        4 * band_rows(tile, sizes) * across * groups,
    )  # fmt: skip
    return ScoreMemory.of(parts)
