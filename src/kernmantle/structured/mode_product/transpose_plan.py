"""When a product with the batch in front goes over transposed rows, where the entries of a block lie together.

``y[n, i, j, l]`` of ``x[n, i, k, l]``: for each i the matrix of k and l is transposed, the d blocks of i are multiplied
as blocks on a diagonal, and the result is transposed back. Two more passes, for a product that reads whole vectors of
memory: blocks of the array between are padded to them by zeros, whatever the extents and alignment of x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ...compiler.nest import BYTES
from .plan import Problem

ACCESS = 16
# Bytes a second of the pass before and of that after, for numbers of so many bytes; a third less where l is wide.
_BYTES_A_SECOND = {4: (2.1e12, 1.65e12), 2: (1.0e12, 1.5e12)}
_WIDE_SHARE, _START_SECONDS = 0.65, 1e-5
_WIDEST, _TILE_BYTES, _LEAST_BYTES, _MOST_BYTES = 64, 4096, 64, 512
_WARPS, _WARP, _LANES = 8, 32, 4
# Bytes a second of both passes, and seconds to begin with them, where squares are transposed in registers (H200).
_SQUARES, _SQUARES_START = 3.3e12, 5e-6


@dataclass(frozen=True)
class TransposePlan:
    """Template parameters, see ``kronsparse_transpose.cuh``; ``size`` are bytes of a number.

    ``lanes`` of a warp lie along a column where squares are transposed in registers, 0 for tiles in shared memory.
    """

    arch: str
    size: int
    l: int
    tile_l: int
    tile_k: int
    units: int
    high: int
    pads: bool
    lanes: int = 0
    warps: int = _WARPS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        if self.lanes:
            return 0
        row = self.l if self.tile_l == self.l else self.tile_l | 1
        matrix = self.high * self.l if self.units > 1 else self.tile_k * row
        return self.warps * ((self.units * matrix + 15) // 8 * 8) * self.size

    def tiles(self, matrices: int, high: int, pitch: int) -> int:
        """Return the tiles of so many matrices, one for a warp."""
        if self.lanes:
            down, across = _squares(high, self.l, self.size, self.pads)
            return matrices * -(-down // self.lanes) * -(-across // (_WARP // self.lanes))
        down = -(-(pitch if self.pads else high) // self.tile_k)
        return -(-matrices // self.units) * down * -(-self.l // self.tile_l)

    def __str__(self) -> str:
        name = "pad" if self.pads else "unpad"
        if self.lanes:
            return f"{name} transposed rows of {self.size} bytes {self.arch} in squares, {self.lanes} lanes"
        tile = f"{self.units}x{self.tile_k}x{self.tile_l} of {self.l}"
        return f"{name} transposed rows of {self.size} bytes {self.arch} tile {tile}"


def padded(extent: int, size: int) -> int:
    """Return the least extent of whole vectors that is not less."""
    each = ACCESS // size
    return -(-extent // each) * each


def _squares(high: int, l: int, size: int, pads: bool) -> tuple[int, int]:
    """Return the squares along a column and along a row of what is read."""
    down, across = (-(-extent * size // ACCESS) for extent in ((high, l) if pads else (l, high)))
    return down, across


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
    arch: str, size: int, high: int, l: int, pads: bool, in_one_piece: bool, aligned: bool = False
) -> TransposePlan:
    """The tile for matrices ``high`` x ``l`` in rows of x without gaps, ``in_one_piece``, that begin at vectors."""
    vector, pitch = ACCESS // size, padded(high, size)
    if aligned and in_squares(high, l, size):
        return TransposePlan(arch, size, l, 0, 0, 1, 0, pads, _lanes(*_squares(high, l, size, pads)))
    tile_l = -(-l // -(-l // _WIDEST))
    most = max(_LEAST_BYTES // size, min(_MOST_BYTES // size, _TILE_BYTES // (size * tile_l) // vector * vector))
    parts = -(-pitch // most)
    tile_k = -(-pitch // (parts * vector)) * vector
    units = 1
    if tile_k == pitch and tile_l == l and in_one_piece:
        units = max(1, _TILE_BYTES // (size * tile_k * tile_l))
    return TransposePlan(arch, size, l, tile_l, tile_k, units, high if units > 1 else 0, pads)


def inner(problem: Problem) -> Problem | None:
    """Return the product over transposed rows, a group for each i; None for what is not transposed."""
    a, b, c, d = problem.pattern
    size = BYTES[problem.dtype]
    if not (problem.x_first and problem.y_first and problem.groups == 1) or size > 4 or d == 1:
        return None
    own = d, padded(b, size), padded(c, size), 1
    return replace(problem, pattern=own, groups=a, x_bytes=ACCESS, y_run=ACCESS // size)


def pass_seconds(high: int, l: int, rows: int, size: int, before: bool, aligned: bool) -> float:
    """Return what it should take to move so many matrices ``high`` x ``l`` and their padded transposes, once begun."""
    if aligned and in_squares(high, l, size):
        rate = _SQUARES
    else:
        rate = _BYTES_A_SECOND[size][0 if before else 1] * (1.0 if l <= _WIDEST else _WIDE_SHARE)
    return size * rows * l * (high + padded(high, size)) / rate


def start_seconds(extents: tuple[int, int], l: int, size: int, aligned: bool) -> float:
    """Return what two passes take to begin."""
    whole = aligned and all(in_squares(extent, l, size) for extent in extents)
    return _SQUARES_START if whole else _START_SECONDS
