"""Tiles and parts that plans of sums to the gradient of weights share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from .plan import Pattern
from .weight_gradient_plan import MOST_PART_BYTES

_WAVES = 2  # of blocks, up to which parts even them out
LONG = 512  # entries of the batch from which on a block has one tile


class TiledSum(ABC):
    """Plan whose blocks have columns, positions of k and values of l, and share the batch in parts."""

    resident: int
    """Warps of a multiprocessor, among which its registers are shared."""
    dtype: str
    alone: bool
    products: int
    m: int
    n: int
    """Fragments of 16 columns, and of 8 positions of k, of a warp."""
    warps_l: int
    warps_j: int
    warps_k: int
    """Warps of a block along each."""

    @property
    @abstractmethod
    def deep(self) -> int:
        """Values of l of a block."""

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.warps_l * self.warps_j * self.warps_k

    @property
    def extents(self) -> tuple[int, int, int]:
        """Columns, positions of k and values of l of a block."""
        return 16 * self.m * self.warps_j, 8 * self.n * self.warps_k, self.deep

    @property
    @abstractmethod
    def staged(self) -> int:
        """Bytes of the stages of a block."""

    @property
    @abstractmethod
    def written(self) -> int:
        """Numbers of the sums that are brought together before they are written."""

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        written = -(-4 * self.written // 16) * 16
        return max(self.staged, written) if self.alone else self.staged + written

    @property
    @abstractmethod
    def least_part(self) -> int:
        """Entries of the batch that a part has at least."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def tiles(self, pattern: Pattern, groups: int) -> int:
        """Return the blocks for one part of the batch."""
        a, b, c, d = pattern
        columns, positions, deep = self.extents
        return groups * a * -(-b // columns) * -(-c // positions) * -(-d // deep)

    def blocks_each(self, limits: DeviceLimits) -> int:
        """Return the blocks that share a multiprocessor."""
        return max(1, min(limits.shared_per_sm // (self.shared + RESERVED_SHARED), self.resident // self.warps))

    def blocks(self, tiles: int, limits: DeviceLimits) -> int:
        """Return the blocks of a launch for the tiles of all parts."""
        return tiles if self.alone else min(tiles, limits.sm_count * self.blocks_each(limits))

    def slots(self, pattern: Pattern, groups: int, batch: int, limits: DeviceLimits) -> int:
        """Return the parts of the batch, which are added at the end."""
        most = min(MOST_PART_BYTES // (4 * groups * math.prod(pattern)), batch // self.least_part)
        tiles, resident = self.tiles(pattern, groups), limits.sm_count * self.blocks_each(limits)
        several = max(1, min(most, _WAVES * -(-resident // tiles)))
        return min(range(1, several + 1), key=lambda slots: (-(-tiles * slots // resident) / slots, slots))

    @property
    def kind(self) -> str:
        """Products and type, in words."""
        return {("f32", 3): "3 x f16 ", ("f32", 1): "f16 "}.get((self.dtype, self.products), "") + self.dtype
