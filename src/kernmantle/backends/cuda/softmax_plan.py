"""Plans for softmax-weighted sums of rows, their gradients and tangents in one pass on Hopper's tensor cores.

Entries are made of inner products or of squared distances, see ``apply_softmax.cuh``, ``vjp_softmax.cuh`` and
``jvp_softmax.cuh``. Halves are multiplied as they are, float32 as three products of halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...compiler.nest import Nest, batch_of
from ...compiler.patterns import inner_product, squared_differences
from ...compiler.row_reduce import RowNest
from ...compiler.softmax import DUALS, GRADIENTS, TANGENTS, slope
from ...ir.node import postorder, variables
from .gram_plan import has_one_operand_a_side, staged
from .score_plan import ScoreMemory
from .tiles import DeviceLimits, Tile

FORWARD = (TANGENTS, DUALS)
"""Passes of forward mode."""
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
    """Return whether its entries are made of products or distances of two operands of one floating-point type."""
    groups = staged(nest)
    one = has_one_operand_a_side(nest) and not groups["vectors"]
    squares = squared_differences(nest)
    if not one or not (inner_product(nest) or (squares is not None and squares.weight is None)):
        return False
    stored = {buffer.dtype for kind in ("rows", "columns") for buffer in groups[kind]}
    return len(stored) == 1 and stored <= {"f16", "bf16", "f32"}


def _is_linear(rows: RowNest) -> bool:
    """Return whether all entries have the same derivative by their sums."""
    same = {*rows.matrix.numbers, *(buffer.name for buffer in rows.matrix.operands if not buffer.roles)}
    return set(variables([slope(rows)])) <= same


def softmax_tile(
    rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, row_ends: int, column_ends: int
) -> Tile | None:
    """Return the tile, None if this form does not apply or is not faster; both ``ends`` count operands of entries."""
    v, derived = rows.v, rows.how in (GRADIENTS, *FORWARD)
    assert v is not None
    same = v.dtype == rows.matrix.operands[0].dtype
    narrow = 1 <= sizes["k"] <= WIDEST and 1 <= sizes["l"] <= WIDEST
    count = batch_of(sizes) * max(sizes["m"], sizes["n"])
    large = batch_of(sizes) * sizes["m"] * sizes["n"] >= _LEAST_ENTRIES and count < _MOST_ROWS
    if not (limits.has(("wgmma",)) and same and narrow and large and weighs(rows.matrix)):
        return None
    first, second, split = piece(sizes["k"]), piece(sizes["l"]), is_split(rows)
    slim = first == second == PIECE
    tabled = any(buffer.roles == "mn" for buffer in rows.matrix.operands)
    squares = squared_differences(rows.matrix) is not None
    simple = not (tabled or squares or row_ends + column_ends) and len(postorder(rows.matrix.outputs)) <= _SIMPLE
    if rows.how == DUALS and (split or not slim or tabled or squares or not _is_linear(rows)):
        return None  # registers hold both sums and nothing more
    alone = split and derived and not slim  # one warpgroup has registers and shared memory for these
    groups = 1 if alone else 3 if slim and simple and not (split or derived or rows.causal) else 2
    columns = 64 if derived or (split and (tabled or squares or not slim)) else 128
    tile = Tile("apply softmax", 32 * groups, 4, 2, columns // 4, first, 1, second, 1, 1.0, "softmax")
    own, stage = _bytes(rows, tile, row_ends, column_ends)
    stages = min(_MOST_STAGES, (limits.shared_per_block - own - _BARRIERS) // stage)
    return replace(tile, stages=stages) if stages > 0 else None


def shared_bytes(rows: RowNest, tile: Tile, row_ends: int, column_ends: int) -> int:
    """Return the dynamic shared memory of a block."""
    own, stage = _bytes(rows, tile, row_ends, column_ends)
    return own + tile.stages * stage + _BARRIERS


def _sides(rows: RowNest, tile: Tile, row_ends: int, column_ends: int) -> tuple[int, int]:
    """Return the bytes of what goes with a piece of rows, and with a piece or a tile of columns."""
    units, squares = is_split(rows), squared_differences(rows.matrix) is not None
    row_ends, column_ends = row_ends + squares, column_ends + squares
    if rows.how == GRADIENTS:
        return 4 * (PIECE * (2 + row_ends) + 4), 4 * (PIECE * column_ends + 4)
    if rows.how in FORWARD:
        row_ends, column_ends = row_ends + squares, column_ends + squares
        return 4 * (PIECE * (1 + row_ends) + 4), 4 * (PIECE * column_ends + (2 * tile.unroll + 4) * units)
    return 4 + 4 * (PIECE + 3) * squares, 4 * (tile.n * column_ends + (tile.unroll + 4) * units)


def by_columns_at_once(rows: RowNest, tile: Tile) -> bool:
    """Return whether one kernel makes the gradients by x1 and v: whether registers hold both."""
    return tile.depth + tile.unroll <= (2 if is_split(rows) else 3) * PIECE


def _bytes(rows: RowNest, tile: Tile, row_ends: int, column_ends: int) -> tuple[int, int]:
    """Return the bytes that rows take which stay, and those of a stage of columns."""
    split, groups = is_split(rows), tile.m // PIECE
    planes, sides = 1 + split, _sides(rows, tile, row_ends, column_ends)
    moved = 2 * planes * tile.n * (tile.depth + tile.unroll)
    if rows.how == GRADIENTS:
        in_registers = not split and tile.depth == tile.unroll == PIECE
        return groups * moved * (not in_registers), moved + max(sides) + 16
    if rows.how in FORWARD:
        in_registers = not split and tile.depth == PIECE
        return 4 * planes * tile.m * tile.depth * (not in_registers), 2 * moved + sides[1] + 16
    return 2 * planes * tile.m * tile.depth, moved + sides[1] + 16


def memory(rows: RowNest, tile: Tile, sizes: Mapping[str, int], row_ends: int, column_ends: int) -> ScoreMemory:
    """Return the workspace of the kernels."""
    batch = batch_of(sizes)
    down, across = blocks_of(rows, tile, sizes)
    copies = (1 + is_split(rows)) * (1 + (rows.how in FORWARD))
    first, second = 2 * copies * tile.depth, 2 * copies * tile.unroll  # bytes of a row of q or k, and of v
    row_side, column_side = _sides(rows, tile, row_ends, column_ends)
    own = (down * PIECE * first, down * PIECE * second) if rows.how == GRADIENTS else (down * PIECE * first,)
    pieces = (*own, across * tile.n * first, across * tile.n * second, down * row_side, across * column_side)
    return ScoreMemory.of([batch * size for size in pieces])


def blocks_of(rows: RowNest, tile: Tile, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return how many pieces rows and columns of one matrix are packed into."""
    groups = tile.m // PIECE
    down = -(-sizes["m"] // tile.m) * groups
    if rows.how == GRADIENTS:
        return down, -(-sizes["n"] // tile.m) * groups
    return down, -(-sizes["n"] // tile.n)
