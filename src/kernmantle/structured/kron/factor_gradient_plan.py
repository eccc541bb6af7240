"""Plans of the gradient of a Kronecker factor on a GPU: a sum of outer products on tensor cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.arch import arch as generation

SIZES = {"f16": 2, "bf16": 2, "f32": 4}
# Largest rows or columns.
WIDEST = 256
STAGES = 3
# Fewest positions that follow each other in memory for copies along them: shorter runs are copied as they lie.
RUN = 16
# Chunks of a sum that one block takes alone: more are shared, and shares are added up by one more kernel.
ALONE = 4
# Threads of the kernel that adds shares, and entries of its blocks.
TOTAL_THREADS, TOTAL_ENTRIES = 256, 32
WARPS = 8
# Rows or columns of a tile, by the bytes of a number; a warp has up to 32 of each.
_CAPACITIES = {2: (16, 32, 64, 128), 4: (16, 32, 64, 96, 128)}
# Positions of a step of the tensor cores.
_STEP = 16
# Bytes of shared memory that tiles of 128 x 128 take: of halves three stages of 64 positions, padded, and the sum.
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
        size = SIZES[self.stored]
        most = max(_CAPACITIES[size]) if generation(self.arch).shared_per_block >= _WIDE_SHARED else 64
        return _capacity(self.rows, size, most), _capacity(self.columns, size, most)

    @property
    def fragments(self) -> tuple[int, int]:
        """Rows in 16s and columns in 8s of a warp."""
        down, across = self.capacities
        return min(32, down) // 16, min(32, across) // 8

    @property
    def warps(self) -> tuple[int, int, int]:
        """Warps down, across and along the sum."""
        (down, across), (rows, columns) = self.capacities, self.fragments
        down, across = down // (16 * rows), across // (8 * columns)
        if SIZES[self.stored] == 4:
            is_wide = generation(self.arch).shared_per_block >= _WIDE_SHARED
            return down, across, 4 if is_wide and down * across == 1 else 2 if down * across <= 9 else 1
        return down, across, max(1, WARPS // (down * across))

    @property
    def deep(self) -> int:
        """Positions of a stage."""
        return max(32 if SIZES[self.stored] == 4 else 64, _STEP * self.warps[2])

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * math.prod(self.warps)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor is to hold."""
        fits = SIZES[self.stored] == 2 or 2 * self._shared(STAGES) <= generation(self.arch).shared_per_block
        return 2 if fits and self.threads <= 32 * WARPS else 1

    @property
    def tiles(self) -> int:
        """Tiles of the result."""
        down, across = self.capacities
        return -(-self.rows // down) * -(-self.columns // across)

    @property
    def stages(self) -> int:
        """Stages of the pipeline: of float32 one more where shared memory has room for it."""
        most = generation(self.arch).shared_per_block
        return STAGES + (SIZES[self.stored] == 4 and self.blocks * self._shared(STAGES + 1) <= most)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self._shared(self.stages)

    def _shared(self, stages: int) -> int:
        size, (down, across) = SIZES[self.stored], self.capacities
        copied, sums = stages * size * self._stage(size), 4 * self.warps[2] * down * across
        if size == 2:
            return copied + sums
        return max(copied + 4 * SIZES["f16"] * self._stage(SIZES["f16"]), sums)

    def _stage(self, size: int) -> int:
        """Return the numbers of a stage, of so many bytes each."""
        down, across = self.capacities
        if self.order == "along":
            return (down + across) * (self.deep + 16 // size)
        return self.deep * (down + across + 16)

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


def _capacity(extent: int, size: int, most: int) -> int:
    """Return the extent of a tile, of which there are as few as can be."""
    own = -(-extent // -(-extent // most)) if size == 4 else min(extent, most)
    return min(capacity for capacity in _CAPACITIES[size] if capacity >= own)


@lru_cache(maxsize=1024)
def gram(rows: int, columns: int, right: int, stored: str, aligned: bool, arch: str) -> GramPlan | None:
    """Return the plan of a gradient; None where the vendor's product is taken."""
    if stored not in SIZES or max(rows, columns) > WIDEST:
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
