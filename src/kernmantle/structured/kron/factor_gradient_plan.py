"""Plans of the gradients of Kronecker factors on a GPU: sums of outer products on tensor cores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.arch import arch as generation
from .gradient_groups import Size

SIZES = {"f16": 2, "bf16": 2, "f32": 4}  # bytes
# Largest rows or columns.
WIDEST = 256
STAGES = 3
# Stages at least where the factor is applied too, and its most rows or columns on tensor cores.
LEAST_STAGES, WIDEST_APPLIED = 2, 64
# The same of halves whose runs are copied as they lie, which takes more registers.
WIDEST_FLAT = 32
# Factors that such a kernel multiplies out.
MOST_APPLIED = 4
# Fewest positions that follow each other in memory for copies along them: shorter runs are copied as they lie.
RUN = 16
# Entries of a factor of which one thread keeps all sums, by the bytes of a number, and with what it reads, for two
# blocks of a multiprocessor. 9 x 9 of halves take 80 us so, 67 on tensor cores; 10 x 10 of float32 208 and 310 (H200).
REGISTER_ENTRIES, _TWO_BLOCKS = {2: 64, 4: 100}, 104
# Chunks of a sum that one block takes alone: more are shared, and shares are added up by one more kernel.
ALONE = 4
# Threads of the kernel that adds shares, and entries of its blocks.
TOTAL_THREADS, TOTAL_ENTRIES = 1024, 32
WARPS = 8
# Fragments of a warp, of two blocks of a multiprocessor.
FRAGMENTS = 8
# Rows or columns of a tile, of which a warp has up to 32, and of one of halves that are copied one by one. 84 x 84 of
# bfloat16 take 96 us in 96 x 96 and 113 in 128 x 128 (H200, decision 0119).
CAPACITY = 128
_CAPACITIES, _SINGLE_CAPACITIES = (16, 32, 64, 96, CAPACITY), (16, 32, 64, CAPACITY)
# Of float32: rows and columns, more than and up to, for which warps have larger tiles. 96 x 96 and 144 x 144 take 0.80
# and 0.64 times as long so as with tiles of 32 x 32 for a warp (H200).
_SPLIT_TILES = (
    ((32, 48), (32, 48), (3, 1, 2), (1, 6)),
    ((64, 96), (64, 96), (3, 2, 2), (2, 6)),
    ((64, 96), (128, 144), (3, 3, 1), (2, 6)),
    ((64, 96), (144, 192), (3, 4, 1), (2, 6)),
    ((128, 192), (64, 96), (3, 2, 1), (2, 6)),
    ((128, 192), (128, 144), (3, 3, 1), (2, 6)),
    ((128, 192), (144, 192), (3, 4, 1), (2, 6)),
    ((96, 128), (96, 128), (4, 2, 1), (2, 8)),
    ((192, 256), (192, 256), (4, 2, 1), (2, 8)),
)
# Of halves that are not copied one by one: rows and columns, more than and up to, in which order, and the warps,
# fragments and positions of a stage. One tile has 150 x 150 or 180 x 180 in 0.53 or 0.56 of the time that four of
# 128 x 128 take, and larger ones are quicker in these by fewer warps (0.93; H200, decision 0124).
_HALF_TILES = (
    ((128, 160), (96, 160), ("rows", "along"), (5, 5, 1), (2, 4), 32),
    ((96, 160), (128, 160), ("rows", "along"), (5, 5, 1), (2, 4), 32),
    ((128, 192), (128, 192), ("rows",), (3, 6, 1), (4, 4), 32),
    ((128, 192), (128, 192), ("along",), (3, 3, 1), (2, 8), 64),
    ((192, 256), (96, 256), ("rows", "along"), (2, 4, 1), (4, 4), 64),
    ((96, 256), (192, 256), ("rows", "along"), (2, 4, 1), (4, 4), 64),
)
# Rows of a fragment, and positions of a step of the tensor cores.
LANES = 16
# Bytes of shared memory that tiles of 128 x 128 take: of halves three stages of 64 positions, padded, and the sum.
_WIDE_SHARED = STAGES * (128 + 128) * (64 + 8) * 2 + 4 * 128 * 128


@dataclass(frozen=True)
class GramPlan:
    """The sum of v[l, q, r] u[l, p, r] over l and r for a factor of q = ``rows`` and p = ``columns``.

    ``order``: "along" where positions r follow each other in long runs, "rows" where there is one, "flat" where the
    entries of an l are copied as they lie, ``right`` positions each; ``vec_v`` and ``vec_u``: neighbours of a copy.
    ``warps`` are those of a block down, across and along the sum, ``fragments`` rows in 16s and columns in 8s of a
    warp, ``deep`` the positions of a stage. ``factors``: sizes of those whose product's transpose is applied to
    v on the way, none where it is not.
    """

    rows: int
    columns: int
    stored: str
    arch: str
    order: str
    right: int
    vec_v: int
    vec_u: int
    warps: tuple[int, int, int]
    fragments: tuple[int, int]
    deep: int
    factors: tuple[Size, ...] = ()

    @property
    def capacities(self) -> tuple[int, int]:
        """Rows and columns of a block's tile."""
        return LANES * self.fragments[0] * self.warps[0], LANES // 2 * self.fragments[1] * self.warps[1]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * math.prod(self.warps)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor is to hold."""
        is_small = SIZES[self.stored] == 2 and not self.factors
        least = LEAST_STAGES if self.factors else STAGES
        fits = is_small or 2 * self._shared(least) <= generation(self.arch).shared_per_block
        return 2 if fits and self.threads <= 32 * WARPS and math.prod(self.fragments) <= FRAGMENTS else 1

    @property
    def tiles(self) -> int:
        """Tiles of the result."""
        down, across = self.capacities
        return -(-self.rows // down) * -(-self.columns // across)

    @property
    def stages(self) -> int:
        """Stages of the pipeline: of float32 one more where shared memory has room for it."""
        if SIZES[self.stored] == 2:
            return STAGES
        most, least = generation(self.arch).shared_per_block, LEAST_STAGES if self.factors else STAGES
        fits = (own for own in range(STAGES + 1, least, -1) if self.blocks * self._shared(own) <= most)
        return next(fits, least)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self._shared(self.stages)

    def _shared(self, stages: int) -> int:
        size, (down, across) = SIZES[self.stored], self.capacities
        copied, sums = stages * size * self._copied(size), 4 * self.warps[2] * down * across
        if size == 2:
            return copied + sums + self._applying
        return max(copied + 4 * SIZES["f16"] * self._stage(SIZES["f16"]) + self._applying, sums)

    @property
    def _applying(self) -> int:
        """Return the bytes of the factor, in halves, and of the results of a stage."""
        if not self.factors:
            return 0
        size, (_, across) = SIZES[self.stored], self.capacities
        down, steps = (-(-extent // LANES) for extent in (self.columns, self.rows))
        table = SIZES["f16"] * (2 if size == 4 else 1) * LANES * down * (LANES * steps + 8)
        if self.order == "flat" and size == 4 and self.vec_v == 4:
            return table + size * self._run(self.columns)
        return table + size * (across * (self.deep + 16 // size) if self.order == "along" else self.deep * (across + 8))

    def _run(self, extent: int) -> int:
        """Return the numbers of a stage of float32 as they lie, and of what is copied before and behind them."""
        return (self.deep // self.right * self.right * extent + 6) // 4 * 4

    def _copied(self, size: int) -> int:
        """Return the numbers of a stage as they are copied."""
        if self.order == "flat" and size == 4 and self.vec_v == 4:
            return self._run(self.rows) + self._run(self.columns)
        return self._stage(size)

    def _stage(self, size: int) -> int:
        """Return the numbers of a stage, of so many bytes each."""
        down, across = self.capacities
        if self.order == "along":
            return (down + across) * (self.deep + 16 // size)
        return self.deep * (down + across + 16)

    def chunks(self, count: int, right: int) -> int:
        """Return the stages that a sum over ``count`` x ``right`` takes."""
        if self.order == "flat":
            return -(-count // (self.deep // self.right))
        return -(-count * right // self.deep)

    def shares(self, count: int, right: int, resident: int) -> int:
        """Return the shares of the sum for so many blocks that run at once."""
        chunks = self.chunks(count, right)
        return 1 if chunks <= ALONE else max(1, min(chunks, resident // self.tiles))

    def __str__(self) -> str:
        copies = f"copies of {self.vec_v} and {self.vec_u}"
        applies = ", applied" * bool(self.factors)
        return f"gradient of {self.rows}x{self.columns} {self.stored} {self.order}, {copies}{applies}"


@dataclass(frozen=True)
class RegisterGramPlan:
    """The same by additions, where a thread keeps all sums in registers: ``vec`` positions at a time.

    ``order``: "along" where positions follow each other, else "rows", of which an access has ``vec_v`` or ``vec_u``
    entries. ``factors``: sizes of those whose product's transpose is applied to v on the way, none where it is not.
    """

    rows: int
    columns: int
    stored: str
    arch: str
    order: str
    vec: int
    vec_v: int
    vec_u: int
    factors: tuple[Size, ...] = ()

    threads = 256
    tiles = 1

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor is to hold."""
        values = self.rows * self.columns + self.vec * (self.rows + self.columns)
        if self.factors and "bounded_registers" not in generation(self.arch).features:
            values += self.vec * self.columns  # as results of the factor take registers of their own
        return 2 if values <= _TWO_BLOCKS else 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        pitch = -(-self.rows // 4) * 4 if self.factors else 0
        return 4 * (self.threads // 32 * self.rows * self.columns + pitch * self.columns)

    def chunks(self, count: int, right: int) -> int:
        """Return how often a block reads for a sum over ``count`` x ``right``."""
        return -(-count * right // (self.vec * self.threads))

    def shares(self, count: int, right: int, resident: int) -> int:
        """Return the shares of the sum for so many blocks that run at once."""
        chunks = self.chunks(count, right)
        return 1 if chunks <= ALONE else max(1, min(chunks // 2, resident))

    def __str__(self) -> str:
        copies = f"{self.vec} positions, accesses of {self.vec_v} and {self.vec_u}"
        applies = ", applied" * bool(self.factors)
        return f"gradient of {self.rows}x{self.columns} {self.stored} by additions {self.order}, {copies}{applies}"


def _is_wide(arch: str) -> bool:
    """Return whether a block has room for the largest tiles."""
    return generation(arch).shared_per_block >= _WIDE_SHARED


def _tile(
    rows: int, columns: int, stored: str, arch: str, vec: int, order: str
) -> tuple[tuple[int, int, int], tuple[int, int], int]:
    """Return the warps of a block, the fragments of a warp and the positions of a stage, for copies of ``vec``."""
    size, is_wide = SIZES[stored], _is_wide(arch)
    if size == 2 and is_wide and vec > 1:
        for (least_rows, most_rows), (least, most), orders, warps, fragments, deep in _HALF_TILES:
            if order in orders and least_rows < rows <= most_rows and least < columns <= most:
                return warps, fragments, deep
    if size == 4 and is_wide:
        for (least_rows, most_rows), (least, most), warps, fragments in _SPLIT_TILES:
            if least_rows < rows <= most_rows and least < columns <= most:
                return warps, fragments, 32
    most = CAPACITY if is_wide else 64
    high, wide = (_capacity(extent, size, most, vec) for extent in (rows, columns))
    fragments = min(32, high) // LANES, min(32, wide) // (LANES // 2)
    down, across = high // (LANES * fragments[0]), wide // (LANES // 2 * fragments[1])
    along = max(1, WARPS // (down * across))
    if size == 4:
        along = 4 if is_wide and down * across == 1 else 2 if down * across < 9 else 1
    return (down, across, along), fragments, max(32 if size == 4 else 64, LANES * along)


def _capacity(extent: int, size: int, most: int, vec: int) -> int:
    """Return the extent of a tile, of which there are as few as can be."""
    own = -(-extent // -(-extent // most)) if size == 4 else min(extent, most)
    return min(capacity for capacity in (_SINGLE_CAPACITIES if size * vec == 2 else _CAPACITIES) if capacity >= own)


@lru_cache(maxsize=1024)
def gram(
    rows: int, columns: int, right: int, stored: str, aligned: bool, arch: str, factors: tuple[Size, ...] = ()
) -> GramPlan | RegisterGramPlan | None:
    """Return the plan of a gradient; None where the vendor's product is taken.

    With ``factors``, whose product has so many rows and columns, it is that of a kernel that applies them too.
    """
    found = _gram(rows, columns, right, stored, aligned, arch, factors)
    return found if found is None or found.shared <= generation(arch).shared_per_block else None


def _gram(
    rows: int, columns: int, right: int, stored: str, aligned: bool, arch: str, factors: tuple[Size, ...]
) -> GramPlan | RegisterGramPlan | None:
    if stored not in SIZES or max(rows, columns) > WIDEST:
        return None
    size = SIZES[stored]
    if rows * columns <= REGISTER_ENTRIES[size]:
        return replace(register_gram(rows, columns, right, stored, aligned, arch), factors=factors)
    if factors and max(rows, columns) > WIDEST_APPLIED:
        return None
    most = 16 // size if aligned else 1
    if right >= RUN:
        vec = _width(right, most)
        tile = _tile(rows, columns, stored, arch, vec, "along")
        return GramPlan(rows, columns, stored, arch, "along", 1, vec, vec, *tile, factors)
    vec_v, vec_u = (_width(length * right, most) for length in (rows, columns))
    if right == 1 and min(vec_v, vec_u) * size >= 4:
        tile = _tile(rows, columns, stored, arch, min(vec_v, vec_u), "rows")
        return GramPlan(rows, columns, stored, arch, "rows", 1, vec_v, vec_u, *tile, factors)
    if size == 2 and factors and max(rows, columns) > WIDEST_FLAT:
        return None
    if size == 4:  # in one piece, unless there are several tiles
        vec_v = vec_u = 4 if aligned and max(rows, columns) <= CAPACITY else 1
    tile = _tile(rows, columns, stored, arch, 1, "flat")  # what is set apart is stored one by one
    found = GramPlan(rows, columns, stored, arch, "flat", right, vec_v, vec_u, *tile, factors)
    return found if size == 2 or found.tiles == 1 else replace(found, vec_v=1, vec_u=1)


def register_gram(rows: int, columns: int, right: int, stored: str, aligned: bool, arch: str) -> RegisterGramPlan:
    """Return the plan of a gradient of few entries."""
    most = min(4, 16 // SIZES[stored]) if aligned else 1
    if right == 1:
        return RegisterGramPlan(rows, columns, stored, arch, "rows", 1, _width(rows, most), _width(columns, most))
    while most > 1 and rows * columns + most * (rows + columns) > _TWO_BLOCKS:
        most //= 2
    vec = _width(right, most)
    return RegisterGramPlan(rows, columns, stored, arch, "along", vec, vec, vec)


def _width(length: int, most: int) -> int:
    width = most
    while length % width:
        width //= 2
    return width
