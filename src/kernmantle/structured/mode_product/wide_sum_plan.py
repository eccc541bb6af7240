"""Plans of the gradient of weights of wide blocks on a GPU by wgmma, over rows or over a batch that lies together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from ...compiler.nest import BYTES
from .plan import Pattern
from .plan_table import smaller
from .tiled_sum import TiledSum

ALIGNED = 16  # bytes at multiples of which rows begin that are not shifted
_LEAST_CHUNKS = 8  # of a part
_MOST_STAGES = 6


@dataclass(frozen=True)
class WideSumPlan(TiledSum):
    """Template parameters, see ``kronsparse_wide_sums.cuh``."""

    alone = True
    deep = 1
    arch: str
    dtype: str
    first: bool
    shifted: bool
    groups: int
    positions: int
    stages: int
    each: int
    whole: bool
    products: int

    @property
    def extents(self) -> tuple[int, int, int]:
        """Columns, positions of k and values of l of a block."""
        return 64 * self.groups, self.positions, 1

    @property
    def warps(self) -> int:
        """Warps of a block: those that multiply, and four that copy."""
        return 4 * (self.groups + 1)

    @property
    def resident(self) -> int:
        """Warps of a multiprocessor."""
        return self.each * self.warps

    @property
    def depth(self) -> int:
        """Entries of the batch in a stage."""
        return 128 // BYTES[self.dtype]

    @property
    def prepared(self) -> bool:
        """Whether what is copied is brought to where it is read."""
        return self.shifted or self.dtype == "f32"

    def _operand(self, features: int) -> int:
        """Return the bytes that products read of so many features."""
        return 128 * (-(-features // 64) * 64 if self.first else features)

    def _staged(self, features: int) -> int:
        """Return the bytes of so many features in a stage."""
        if not self.prepared:
            return self._operand(features)
        row = (BYTES[self.dtype] * features if self.first else 128) + (ALIGNED if self.shifted else 0)
        skew = 16 if self.shifted or not self.first else 32
        return (self.depth if self.first else features) * ((row + 127 - skew) // 128 * 128 + skew)

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return sum(map(self._staged, self.extents[:2]))

    @property
    def fixed(self) -> int:
        """Bytes of shared memory beside the stages and their barriers."""
        operands = 2 * sum(map(self._operand, self.extents[:2])) if self.prepared else 0
        return operands + (sum(self.extents[:2]) if self.dtype == "f32" else 0)

    @property
    def staged(self) -> int:
        """Bytes of shared memory."""
        return self.fixed + self.stages * (self.stage + 16)

    written = 0

    @property
    def least_part(self) -> int:
        """Entries of the batch that a part has at least."""
        return _LEAST_CHUNKS * self.depth

    def __str__(self) -> str:
        columns, positions, _ = self.extents
        return (
            f"kron sparse gradient {self.arch} wgmma over {'rows' if self.first else 'columns'}, {columns} x {positions}, "
            f"{self.warps} warps, {self.stages} stages of {self.depth} entries{' anywhere' if self.shifted else ''}, "
            f"{self.kind}"
        )


def tile(
    dtype: str, first: bool, shifted: bool, groups: int, positions: int, products: int, own: DeviceLimits, each: int = 0
) -> WideSumPlan | None:
    """Return the plan of a tile, with as many stages as fit; None where fewer than two do."""
    each = each or (2 if groups == 1 else 1)
    plan = WideSumPlan(own.arch, dtype, first, shifted, groups, positions, 1, each, False, products)
    room = smaller(own.shared_per_block, own.shared_per_sm // each - RESERVED_SHARED) - plan.fixed
    stages = min(_MOST_STAGES, room // (plan.stage + 16))
    return None if stages < 2 else replace(plan, stages=stages)
