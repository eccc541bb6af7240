"""How a GPU sums over the batch to the gradient of a Kronecker-sparse product's weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits

EDGE, DEPTH = 64, 32
_MOST_L = 4
_PITCH_BYTES, _APART_BYTES = 80, 64
_LEAST_CHUNKS, _WAVES = 8, 4
_MOST_PART_BYTES = 2**26
_BLOCKS = {1: 3, 2: 2, 3: 1, 4: 1}  # on one multiprocessor
DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class SumPlan:
    """Template parameters, see ``kronsparse_weight_grad.cuh``; ``x_first``, ``y_first``: features lie together."""

    arch: str
    dtype: str
    x_first: bool
    y_first: bool
    l: int
    products: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.l

    @property
    def blocks_each(self) -> int:
        """Blocks that share a multiprocessor."""
        return _BLOCKS[self.l]

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        planes = 2 if self.dtype == "f32" else 1
        staged = self.l * (EDGE * _PITCH_BYTES + (_APART_BYTES if self.l > 1 else 0))
        return 2 * planes * staged + 2 * 4 * self.l * 4

    def tiles(self, pattern: tuple[int, int, int, int], groups: int) -> int:
        """Blocks for one part of the batch."""
        a, b, c, d = pattern
        return groups * a * -(-b // EDGE) * -(-c // EDGE) * -(-d // self.l)

    def slots(self, pattern: tuple[int, int, int, int], groups: int, batch: int, limits: DeviceLimits) -> int:
        """Parts of the batch, which are added at the end."""
        part_bytes = 4 * groups * math.prod(pattern)
        most = min(_MOST_PART_BYTES // part_bytes, batch // (DEPTH * _LEAST_CHUNKS))
        return _even(self.tiles(pattern, groups), limits.sm_count * self.blocks_each, most)

    def __str__(self) -> str:
        layouts = " and ".join("first" if first else "last" for first in (self.x_first, self.y_first))
        kind = {("f32", 3): "3 x f16 ", ("f32", 1): "f16 "}.get((self.dtype, self.products), "")
        return f"kron sparse gradient {self.arch} mma {EDGE} x {EDGE} x {self.l}, batch {layouts}, {kind}{self.dtype}"


@lru_cache(maxsize=4096)
def _even(tiles: int, resident: int, most: int) -> int:
    """The fewest parts for which the waves of blocks come out about as even as they can."""
    several = max(1, min(most, _WAVES * -(-resident // tiles)))
    return min(
        range(1, several + 1),
        key=lambda slots: (round(-(-tiles * slots // resident) / slots * resident / tiles, 1), slots),
    )


def sum_plan(arch: str, d: int, dtype: str, x_first: bool, y_first: bool, products: int = 3) -> SumPlan:
    """The plan for a pattern's d; neighbours along l are read together where features lie together."""
    l = min(d, _MOST_L) if x_first or y_first else 1
    return SumPlan(arch, dtype, x_first, y_first, l, products if dtype == "f32" else 1)
