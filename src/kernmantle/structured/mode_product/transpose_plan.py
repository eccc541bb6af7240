"""Plans of products over transposed rows, in which the entries of a block are contiguous, for a batch that is first.

``y[n, i, j, l]`` of ``x[n, i, k, l]``: for each i the matrix of k and l is transposed, the d blocks of i are multiplied
as blocks on a diagonal, and the result is transposed back. That costs two more passes, and the product reads whole
vectors of memory: blocks of the intermediate array are zero-padded to vectors, whatever the extents and alignment of x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ...compiler.nest import BYTES
from .plan import Problem

ACCESS, SECTOR = 16, 32  # bytes
# Bytes a second of the pass before and of that after, for numbers of so many bytes, and seconds to begin with both
# (H200, decision 0042).
_BYTES_A_SECOND = {4: (3.4e12, 3.3e12), 2: (3.3e12, 3.2e12)}
_START_SECONDS = 5.2e-6
_LEAST_WEIGHTS = 1 << 20  # bytes of weights below which torch's copies take no longer
# Bytes of a tile at least, and along k; the widest l that a tile has whole, and that of others; warps of a tile
# (decision 0106).
_TILE_BYTES, _RUN_BYTES, _WIDEST, _NARROWER = 16384, 128, 256, 128
_TILE_WARPS, _WARPS, _WARP, _LANES = 8, 4, 32, 4
# Bytes a second of both passes, and seconds to begin with them, where squares are transposed in registers (H200).
_SQUARES, _SQUARES_START = 3.3e12, 5e-6


@dataclass(frozen=True)
class TransposePlan:
    """Template parameters, see ``kronsparse_transpose.cuh``; ``size`` are bytes of a number.

    ``lanes`` of a warp lie along a column where squares are transposed in registers, 0 for tiles in shared memory, of
    which a warp moves vectors of ``lanes_l`` neighbouring l. ``bias`` is the type of one that is added on the way back,
    empty for none.
    """

    arch: str
    size: int
    l: int
    tile_l: int
    tile_k: int
    units: int
    high: int
    pads: bool
    lanes_l: int = 0
    lanes: int = 0
    warps: int = _TILE_WARPS
    bias: str = ""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        if self.lanes:
            return 0
        vector, is_whole = ACCESS // self.size, self.tile_l == self.l
        run = (self.units * self.high or self.tile_k) * self.l if is_whole else self.tile_l
        return (1 if is_whole else self.tile_k) * ((run + 2 * vector - 2) // vector * vector) * self.size

    def tiles(self, matrices: int, high: int, pitch: int) -> int:
        """Return the tiles of so many matrices, one for a block, or for a warp in squares."""
        if self.lanes:
            return matrices * _tiles(high, self.l, self.size, self.pads, self.lanes)
        down = -(-(pitch if self.pads else high) // self.tile_k)
        return -(-matrices // self.units) * down * -(-self.l // self.tile_l)

    def __str__(self) -> str:
        name = "pad" if self.pads else "unpad"
        added = f", bias {self.bias}" if self.bias else ""
        if self.lanes:
            return f"{name} transposed rows of {self.size} bytes {self.arch} in squares, {self.lanes} lanes{added}"
        tile = f"{self.units}x{self.tile_k}x{self.tile_l} of {self.l}"
        return f"{name} transposed rows of {self.size} bytes {self.arch} tile {tile}{added}"


def padded(extent: int, size: int) -> int:
    """Return the extent rounded up to whole vectors, and to whole sectors where it is none and longer than one.

    Rows that begin within a sector are written at half the rate (decision 0106).
    """
    each = (SECTOR if extent * size % ACCESS and extent * size > ACCESS else ACCESS) // size
    return -(-extent // each) * each


def _squares(high: int, l: int, size: int, pads: bool) -> tuple[int, int]:
    """Return the squares along a column and along a row of what is read."""
    down, across = (-(-extent * size // ACCESS) for extent in ((high, l) if pads else (l, high)))
    return down, across


def _tiles(high: int, l: int, size: int, pads: bool, lanes: int) -> int:
    """Return the tiles of a matrix, of the squares of a warp with so many lanes along a column."""
    down, across = _squares(high, l, size, pads)
    return -(-down // lanes) * -(-across // (_WARP // lanes))


def _lanes(down: int, across: int) -> int:
    """Return how many lanes of a warp lie along a column."""
    lanes = _LANES
    while lanes > 1 and lanes >= 2 * down:
        lanes //= 2
    while lanes < _WARP and _WARP // lanes >= 2 * across:
        lanes *= 2
    return lanes


def in_squares(high: int, l: int, size: int) -> bool:
    """Return whether matrices are whole squares."""
    return not (high * size % ACCESS or l * size % ACCESS)


@lru_cache(maxsize=4096)
def transpose_plan(
    arch: str, size: int, high: int, l: int, pads: bool, in_one_piece: bool, aligned: bool = False, bias: str = ""
) -> TransposePlan:
    """The tile for matrices ``high`` x ``l`` in rows of x without gaps, ``in_one_piece``, that begin at vectors."""
    vector, pitch = ACCESS // size, padded(high, size)
    if aligned and in_squares(high, l, size):
        lanes = _lanes(*_squares(high, l, size, pads))
        return TransposePlan(arch, size, l, 0, 0, 1, 0, pads, 0, lanes, 2 * _WARPS, bias)
    tile_l = l if l <= _WIDEST else -(-l // -(-l // _NARROWER))
    run = _RUN_BYTES if tile_l <= _NARROWER else _RUN_BYTES // 2
    most = max(run, _TILE_BYTES // tile_l // ACCESS * ACCESS) // size
    parts = -(-pitch // most)
    tile_k = -(-pitch // (parts * vector)) * vector
    units = 1
    if tile_k == pitch and tile_l == l and in_one_piece:
        units = max(1, _TILE_BYTES // (size * high * l))
    lanes_l = _lanes_l(l if tile_l == l else 0, tile_k // vector)
    return TransposePlan(arch, size, l, tile_l, tile_k, units, high if units > 1 else 0, pads, lanes_l, bias=bias)


def _lanes_l(row: int, vectors: int) -> int:
    """Return how many neighbouring l a warp moves so that vectors of rows of so many numbers have no bank conflicts."""
    apart = 8 if row % 2 else 4 if row % 4 else 2
    while apart > vectors:
        apart //= 2
    return _WARP // apart


@dataclass(frozen=True)
class TransposeSumsPlan:
    """Template parameters, see ``kronsparse_transpose_sums.cuh``, of rows of a type.

    ``lanes`` of a warp lie along a column, ``tiles`` neighbouring tiles of squares belong to a block, which has them of
    several rows.
    """

    arch: str
    dtype: str
    lanes: int
    tiles: int
    warps: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARP * self.warps

    @property
    def rows(self) -> int:
        """Rows that a block has at once."""
        return self.warps // self.tiles

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 4 * self.threads * (ACCESS // BYTES[self.dtype]) if self.rows > 1 else 0

    def sets(self, a: int, high: int, l: int) -> int:
        """Return how many blocks have the tiles of a row."""
        return -(-a * _tiles(high, l, BYTES[self.dtype], True, self.lanes) // self.tiles)

    def parts(self, count: int, sets: int, processors: int) -> int:
        """Return the parts of so many rows, each of which has sums of its own: one block for a multiprocessor."""
        return max(1, min(-(-count // self.rows), processors // sets))

    def __str__(self) -> str:
        return f"pad transposed rows of {self.dtype} {self.arch} and sum them, {self.lanes} lanes, {self.tiles} tiles"


@lru_cache(maxsize=4096)
def transpose_sums_plan(arch: str, dtype: str, a: int, high: int, l: int) -> TransposeSumsPlan:
    """Return the plan of rows (a, ``high``, ``l``) of whole squares that begin at vectors."""
    size = BYTES[dtype]
    assert in_squares(high, l, size), "rows of whole squares"
    lanes, most = _lanes(*_squares(high, l, size, True)), 4 * _WARPS
    whole = a * _tiles(high, l, size, True, lanes)
    tiles = -(-whole // -(-whole // most))
    return TransposeSumsPlan(arch, dtype, lanes, tiles, most // tiles * tiles)


def inner(problem: Problem) -> Problem | None:
    """Return the product over transposed rows, with a group for each i; None if it is not transposed."""
    a, b, c, d = problem.pattern
    size = BYTES[problem.dtype]
    if not (problem.x_first and problem.y_first and problem.groups == 1) or size > 4 or d == 1:
        return None
    own = d, padded(b, size), padded(c, size), 1
    return replace(problem, pattern=own, groups=a, x_bytes=ACCESS, y_run=ACCESS // size)


def arranges(pattern: tuple[int, int, int, int], size: int) -> bool:
    """Return whether interleaved weights of this size are gathered into blocks by the pass that transposes rows."""
    return pattern[3] > 1 and size <= 4 and math.prod(pattern) * size >= _LEAST_WEIGHTS


def pass_seconds(high: int, l: int, rows: int, size: int, before: bool, aligned: bool) -> float:
    """Return the seconds to transpose so many matrices ``high`` x ``l``, padded, without the start of the pass."""
    if aligned and in_squares(high, l, size):
        rate = _SQUARES
    else:
        rate = _BYTES_A_SECOND[size][0 if before else 1]
    return size * rows * l * (high + padded(high, size)) / rate


def start_seconds(extents: tuple[int, int], l: int, size: int, aligned: bool) -> float:
    """Return the seconds to start two passes."""
    whole = aligned and all(in_squares(extent, l, size) for extent in extents)
    return _SQUARES_START if whole else _START_SECONDS
