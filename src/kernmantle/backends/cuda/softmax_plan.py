"""When softmax-weighted sums of rows, and their gradients, are made in one pass on Hopper's tensor cores.

Entries are made of inner products, see ``apply_softmax.cuh`` and ``pull_softmax.cuh``. Halves are multiplied as they
are, float32 as three products of halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...compiler.nest import Nest
from ...compiler.patterns import inner_product
from ...compiler.row_reduce import RowNest
from ...compiler.softmax import GRADIENTS
from ...ir.node import postorder
from .gram_plan import staged
from .score_plan import ScoreMemory
from .tiles import DeviceLimits, Tile

PIECE = 64
"""Rows of a warpgroup, and halves of a row that lie together."""
WIDEST = 128
"""Most numbers a row of q, k and v."""
_MOST_STAGES, _MOST_ROWS = 8, 1 << 30
_BARRIERS = 16
_SIMPLE = 3
"""Nodes of entries that leave registers for a third warpgroup: a sum times a number."""
_LEAST_ENTRIES = 1 << 18
"""Fewest pairs of rows for which it is faster (decision 0025)."""


def piece(width: int) -> int:
    """Return the positions that so many numbers take."""
    return PIECE if width <= PIECE else WIDEST


def is_split(rows: RowNest) -> bool:
    """Return whether numbers are taken apart into high and low halves."""
    return rows.matrix.operands[0].dtype == "f32"


def weighs(nest: Nest) -> bool:
    """Return whether its entries are made of inner products of two operands of one floating-point type."""
    groups = staged(nest)
    one = len(groups["rows"]) == len(groups["columns"]) == 1 and not groups["cells"] and not groups["vectors"]
    if not one or not inner_product(nest):
        return False
    stored = {port.dtype for kind in ("rows", "columns") for port in groups[kind]}
    return len(stored) == 1 and stored <= {"f16", "bf16", "f32"}


def softmax_tile(
    rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, row_ends: int, column_ends: int
) -> Tile | None:
    """Return the tile, where this form is both right and faster; ``ends`` are the operands that entries read."""
    v, pulled = rows.v, rows.how == GRADIENTS
    assert v is not None
    same = v.dtype == rows.matrix.operands[0].dtype
    narrow = 1 <= sizes["k"] <= WIDEST and 1 <= sizes["l"] <= WIDEST
    count = sizes["a"] * sizes["b"] * sizes["c"] * max(sizes["m"], sizes["n"])
    large = sizes["a"] * sizes["b"] * sizes["c"] * sizes["m"] * sizes["n"] >= _LEAST_ENTRIES and count < _MOST_ROWS
    if not (limits.has(("wgmma",)) and same and narrow and large and weighs(rows.matrix)):
        return None
    first, second, split = piece(sizes["k"]), piece(sizes["l"]), is_split(rows)
    slim = first == second == PIECE
    if pulled and not slim:  # accumulators do not stay in registers
        return None
    tabled = any(port.roles == "mn" for port in rows.matrix.operands)
    simple = not (tabled or row_ends + column_ends) and len(postorder(rows.matrix.outputs)) <= _SIMPLE
    groups = 3 if slim and simple and not (split or pulled or rows.causal) else 2
    columns = 64 if pulled or (split and (tabled or not slim)) else 128
    tile = Tile("apply softmax", 32 * groups, 4, 2, columns // 4, first, 1, second, 1, 1.0, "softmax")
    own, stage = _bytes(tile, split, pulled, row_ends, column_ends)
    return replace(tile, stages=min(_MOST_STAGES, (limits.shared_per_block - own - _BARRIERS) // stage))


def shared_bytes(rows: RowNest, tile: Tile, row_ends: int, column_ends: int) -> int:
    """Return the dynamic shared memory of a block."""
    own, stage = _bytes(tile, is_split(rows), rows.how == GRADIENTS, row_ends, column_ends)
    return own + tile.stages * stage + _BARRIERS


def _bytes(tile: Tile, split: bool, pulled: bool, row_ends: int, column_ends: int) -> tuple[int, int]:
    """Return the bytes that rows take which stay, and those of a stage of columns."""
    planes, groups = 1 + split, tile.m // PIECE
    moved = 2 * planes * tile.n * (tile.depth + tile.unroll)
    if not pulled:
        side = tile.n * column_ends + (tile.unroll + 4) * split
        return 2 * planes * tile.m * tile.depth, moved + 4 * side + 16
    side = max(PIECE * (2 + row_ends), PIECE * column_ends) + 4
    return groups * moved * split, moved + 4 * side + 16


def memory(rows: RowNest, tile: Tile, sizes: Mapping[str, int], row_ends: int, column_ends: int) -> ScoreMemory:
    """Return where everything lies that the kernels hand to each other."""
    planes, pulled = 1 + is_split(rows), rows.how == GRADIENTS
    batch = sizes["a"] * sizes["b"] * sizes["c"]
    down, across = blocks_of(rows, tile, sizes)
    row = 2 * planes * PIECE * tile.depth
    pieces: tuple[int, ...]
    if pulled:
        value = 2 * planes * PIECE * tile.unroll
        sides = 4 * (PIECE * (2 + row_ends) + 4), 4 * (PIECE * column_ends + 4)
        pieces = (down * row, down * value, across * row, across * value, down * sides[0], across * sides[1])
    else:
        side = 4 * (tile.n * column_ends + (tile.unroll + 4) * is_split(rows))
        across_bytes = 2 * planes * tile.n
        pieces = (down * row, across * across_bytes * tile.depth, across * across_bytes * tile.unroll, 4 * down)
        pieces = (*pieces, across * side)
    return ScoreMemory.of([batch * size for size in pieces])


def blocks_of(rows: RowNest, tile: Tile, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return how many pieces rows and columns of one matrix are packed into."""
    groups = tile.m // PIECE
    down = -(-sizes["m"] // tile.m) * groups
    if rows.how == GRADIENTS:
        return down, -(-sizes["n"] // tile.m) * groups
    return down, -(-sizes["n"] // tile.n)
