"""Plans for reductions of rows from score tiles on Hopper's tensor cores: when they run, the tile and the memory.

Squared distances and inner products of up to 128 numbers a point come from products of float16 halves; pairs that lose
digits there are taken by differences, and where these are too many another kernel runs, see ``apply_score.cuh``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from ...compiler.nest import Nest, batch_of
from ...compiler.patterns import inner_product, squared_differences
from ...compiler.row_reduce import PRODUCT, RowNest
from ...ir.node import variables
from .gram_plan import has_one_operand_a_side, staged
from .tiles import DeviceLimits, Tile

SIDES, SAMPLERS, GROUP = 8, 128, 4
"""Tiles whose norms and columns of v are under way, blocks that sample pairs, most columns of v at a time."""
POINTS = 128  # columns of a tile of scores
_WIDEST = 8  # columns of v
_LIST_BYTES, _ALIGNED = 1024, 1024
_STAGES = {16: 12, 32: 8, 64: 6, 96: 4, 128: 3}
_PACKED_STAGES = {32: 8, 64: 6, 80: 5}
"""Stages by positions of a point in a plane: of three products, of one where three halves of a number lie in a row."""
_LEAST_ROWS = 192
MOST_ENTRIES = 1 << 41  # scores of a call
_LEAST_DEPTH = 16
"""Fewest numbers a point: below, pairs that lose digits are too many (decision 0017; NVIDIA H200)."""
_LEAST_ENTRIES = 1 << 24
"""Fewest pairs for which it is faster (decision 0017; NVIDIA H200)."""


@dataclass(frozen=True)
class ScoreMemory:
    """Workspace: offsets in bytes of counts, tiles of both operands, data of rows and of columns; and its size."""

    offsets: tuple[int, ...]
    size: int

    @staticmethod
    def of(pieces: Iterable[int]) -> ScoreMemory:
        """Return a workspace of pieces of so many bytes, each aligned."""
        *offsets, end = accumulate((-(-piece // _ALIGNED) * _ALIGNED for piece in pieces), initial=0)
        return ScoreMemory(tuple(offsets), end)


def is_score(nest: Nest) -> bool:
    """Return whether its entries are made of squared distances or inner products of float32."""
    groups = staged(nest)
    stored = all(buffer.dtype == "f32" for kind in ("rows", "columns") for buffer in groups[kind])
    used = set(variables(nest.outputs))
    tabled = any(buffer.roles == "mn" and buffer.name in used for buffer in nest.operands)
    products = squared_differences(nest) is not None or inner_product(nest)
    return nest.precision == "default" and has_one_operand_a_side(nest) and stored and not tabled and products


def positions(depth: int) -> int:
    """Return how many positions of a point are stored."""
    return next(size for size in _STAGES if depth <= size)


def steps_of(depth: int) -> tuple[int, int]:
    """Return positions of a point that are stored, and steps of 16 of each product.

    Of one product with three halves of a number in a row, where its steps are two fewer than those of three products.
    """
    single, steps = -(-depth // 16), -(-3 * depth // 16)
    size = next((size for size in _PACKED_STAGES if size < 16 * steps <= 2 * size), None)
    return (positions(depth), single) if size is None or steps > 3 * single - 2 else (size, steps)


def score_tile(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> Tile | None:
    """Return the tile; None if score tiles are not applicable or not faster."""
    single = batch_of(sizes) == 1
    narrow = rows.how != PRODUCT or sizes["l"] <= _WIDEST
    suits = limits.has(("wgmma",)) and single and narrow and not rows.selects
    deep = _LEAST_DEPTH <= sizes["k"] <= max(_STAGES)
    large = min(sizes["m"], sizes["n"]) >= _LEAST_ROWS and _LEAST_ENTRIES <= sizes["m"] * sizes["n"] < MOST_ENTRIES
    if not (suits and deep and large and is_score(rows.matrix)):
        return None
    size, steps = steps_of(sizes["k"])
    stages = (_PACKED_STAGES if 16 * steps > size else _STAGES)[size]
    return Tile("apply score", 96, 4, 2, 32, size, 1, steps, 1, 1.0, "score", stages)


def multiplied(tile: Tile) -> int:
    """Return the positions of a pair that are multiplied."""
    return 16 * tile.unroll * (1 if 16 * tile.unroll > tile.depth else 3)


def side_bytes(ends: int, columns: int) -> int:
    """Bytes that travel with a tile of columns: norms, the ends that entries read, columns of v, four numbers."""
    return 4 * (POINTS * (1 + ends + columns) + 4)


def shared_bytes(tile: Tile, ends: int, columns: int) -> int:
    """Return the dynamic shared memory of a block."""
    return tile.stages * (4 * tile.depth * POINTS + 20) + SIDES * (side_bytes(ends, columns) + 8)


def blocks_of(tile: Tile, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the tiles of points that rows and columns are split into."""
    return -(-(-(-sizes["m"] // tile.m) * tile.m) // POINTS), -(-sizes["n"] // POINTS)


def memory(tile: Tile, sizes: Mapping[str, int], ends: int, columns: int) -> ScoreMemory:
    """Return the workspace of the kernels."""
    down, across = blocks_of(tile, sizes)
    parts = -(-sizes["l"] // columns) if columns else 1
    split = 4 * tile.depth * POINTS
    pieces = (_LIST_BYTES, down * split, across * split, 8 * down * POINTS, parts * across * side_bytes(ends, columns))
    return ScoreMemory.of(pieces)
