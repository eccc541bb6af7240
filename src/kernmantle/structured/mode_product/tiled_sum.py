"""Tiles and parts that plans of sums to the gradient of weights share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from .plan import Pattern
from .plan_table import larger, smaller
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
        return larger(self.staged, written) if self.alone else self.staged + written

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
        by_memory = limits.shared_per_sm // (self.shared + RESERVED_SHARED)
        return larger(1, smaller(by_memory, self.resident // self.warps))

    def blocks(self, tiles: int, limits: DeviceLimits) -> int:
        """Return the blocks of a launch for the tiles of all parts."""
        return tiles if self.alone else min(tiles, limits.sm_count * self.blocks_each(limits))

    def slots(self, pattern: Pattern, groups: int, batch: int, limits: DeviceLimits) -> Any:
        """Return the parts of the batch, which are added at the end."""
        most = smaller(MOST_PART_BYTES // (4 * groups * math.prod(pattern)), batch // self.least_part)
        tiles, resident = self.tiles(pattern, groups), limits.sm_count * self.blocks_each(limits)
        several = larger(1, smaller(most, _WAVES * -(-resident // tiles)))
        # Of all parts that take as many waves the most are best; parts that even two waves out take four at most.
        every = [np.clip(count, 1, several) for count in (1, 2, *(waves * resident // tiles for waves in (1, 2, 3)))]
        parts = np.sort(np.stack(np.broadcast_arrays(*every, several)), axis=0)
        found = (-(-tiles * parts // resident) / parts).argmin(0)
        return int(parts[found]) if parts.ndim == 1 else parts[found, np.arange(parts.shape[1])]

    @property
    def kind(self) -> str:
        """Products and type, in words."""
        return {("f32", 3): "3 x f16 ", ("f32", 1): "f16 "}.get((self.dtype, self.products), "") + self.dtype
