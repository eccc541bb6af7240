"""Plans of the gradient of a Kronecker factor on a GPU: a sum of outer products on tensor cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.arch import arch as generation

SIZES = {"f16": 2, "bf16": 2, "f32": 4}
# Largest rows or columns, by the bytes of a number.
WIDEST = {2: 256, 4: 128}
STAGES = 3
# Fewest positions that follow each other in memory for copies along them: shorter runs are copied as they lie.
RUN = 16
# Chunks of a sum that one block takes alone: more are shared, and shares are added up by one more kernel.
ALONE = 4
# Threads of the kernel that adds shares, and entries of its blocks.
TOTAL_THREADS, TOTAL_ENTRIES = 256, 32
WARPS = 8
# float32, by the tile: columns in 8s of a warp, warps down, across and along the sum.
_SHAPES = {16: (2, 1, 1, 8), 32: (4, 2, 1, 4), 64: (4, 4, 2, 1)}
_CAPACITIES = (16, 32, 64, 128)
# Bytes of shared memory that tiles of 128 x 128 take: three stages of 64 positions, padded, and the sum.
_WIDE_SHARED = STAGES * (128 + 128) * (64 + 8) * 2 + 4 * 128 * 128


@dataclass(frozen=True)
class GramPlan:
    """The sum of v[l, q, r] u[l, p, r] over l and r for a factor of q = ``rows`` and p = ``columns``.

    ``order``: "along" where positions r follow each other in long runs, "rows" where there is one, "flat" where the
    entries of an l are copied as they lie, ``right`` positions each; ``vec_v`` and ``vec_u``: neighbours of a copy.
    """

    rows: int
    columns: int
    stored: str
    arch: str
    order: str
    right: int
    vec_v: int
    vec_u: int

    @property
    def capacities(self) -> tuple[int, int]:
        """Rows and columns of a block's tile."""
        if SIZES[self.stored] == 4:
            tile = _capacity(max(self.rows, self.columns), max(_SHAPES))
            return tile, tile
        most = max(_CAPACITIES) if generation(self.arch).shared_per_block >= _WIDE_SHARED else 64
        return _capacity(self.rows, most), _capacity(self.columns, most)

    @property
    def fragments(self) -> tuple[int, int]:
        """Rows in 16s and columns in 8s of a warp."""
        down, across = self.capacities
        if SIZES[self.stored] == 4:
            return 1, _SHAPES[down][0]
        return min(32, down) // 16, min(32, across) // 8

    @property
    def warps(self) -> tuple[int, int, int]:
        """Warps down, across and along the sum."""
        (down, across), (rows, columns) = self.capacities, self.fragments
        if SIZES[self.stored] == 4:
            return _SHAPES[down][1:]
        down, across = down // (16 * rows), across // (8 * columns)
        return down, across, max(1, WARPS // (down * across))

    @property
    def deep(self) -> int:
        """Positions of a stage."""
        return 2048 // self.capacities[0] if SIZES[self.stored] == 4 else max(64, 16 * self.warps[2])

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * math.prod(self.warps)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor is to hold."""
        return 2 if self.threads <= 32 * WARPS else 1

    @property
    def tiles(self) -> int:
        """Tiles of the result."""
        down, across = self.capacities
        return -(-self.rows // down) * -(-self.columns // across)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        size, (down, across) = SIZES[self.stored], self.capacities
        if self.order == "along":
            stage = (down + across) * (self.deep + 16 // size)
        else:
            stage = self.deep * (down + across + 16)
        sums = 4 * self.warps[2] * down * across
        return STAGES * stage * size + sums if size == 2 else max(STAGES * stage * size, sums)

    def chunks(self, count: int, right: int) -> int:
        """Return the stages that a sum over ``count`` x ``right`` takes."""
        return -(-count // (self.deep // self.right)) if self.order == "flat" else -(-count * right // self.deep)

    def shares(self, count: int, right: int, resident: int) -> int:
        """Return the shares of the sum for so many blocks that run at once."""
        chunks = self.chunks(count, right)
        return 1 if chunks <= ALONE else max(1, min(chunks, resident // self.tiles))

    def __str__(self) -> str:
        copies = f"copies of {self.vec_v} and {self.vec_u}"
        return f"gradient of {self.rows}x{self.columns} {self.stored} {self.order}, {copies}"


def _capacity(extent: int, most: int) -> int:
    return min((own for own in _CAPACITIES if own >= extent), default=most) if extent <= most else most


@lru_cache(maxsize=1024)
def gram(rows: int, columns: int, right: int, stored: str, aligned: bool, arch: str) -> GramPlan | None:
    """Return the plan of a gradient; None where the vendor's product is taken."""
    if stored not in SIZES or max(rows, columns) > WIDEST[SIZES[stored]]:
        return None
    size = SIZES[stored]
    most = 16 // size if aligned else 1
    if right >= RUN:
        vec = _width(right, most)
        return GramPlan(rows, columns, stored, arch, "along", 1, vec, vec)
    vec_v, vec_u = (_width(length * right, most) for length in (rows, columns))
    if right == 1 and min(vec_v, vec_u) * size >= 4:
        return GramPlan(rows, columns, stored, arch, "rows", 1, vec_v, vec_u)
    return GramPlan(rows, columns, stored, arch, "flat", right, *((1, 1) if size == 4 else (vec_v, vec_u)))


def _width(length: int, most: int) -> int:
    width = most
    while length % width:
        width //= 2
    return width
