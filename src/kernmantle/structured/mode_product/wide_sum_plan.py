"""Plans of the gradient of weights of wide blocks on a GPU by wgmma, over rows or over a batch that lies together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from ...compiler.nest import BYTES
from .plan import Pattern
from .plan_table import norm
from .tiled_sum import TiledSum

ALIGNED = 16  # bytes at multiples of which rows begin that are not shifted
_LEAST_CHUNKS = 8  # of a part
_MOST_STAGES = 6
_LEAST_POSITIONS, _MOST_POSITIONS, _MOST_SPLIT_POSITIONS, _MOST_GROUPS = 32, 128, 96, 3
_PREPARE, _STAGE, _BLOCK, _CLOCK, _CACHE, _MEMORY, _WRITTEN = 3.0, 300.0, 6000.0, 1.7e9, 5.5e12, 4.0e12, 5e-12
_START, _ADDED, _PARTS, _SURELY = 2.5e-6, 2e-6, 6e11, 1.1


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
    blocks_apart: bool
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
            f"kron sparse gradient {self.arch} wgmma over {'rows' if self.first else 'columns'}, "
            f"{columns} x {positions}, {self.warps} warps, {self.stages} stages of {self.depth} entries"
            f"{' anywhere' if self.shifted else ''}, {self.kind}"
        )


def tile(
    dtype: str, first: bool, shifted: bool, groups: int, positions: int, products: int, own: DeviceLimits
) -> WideSumPlan | None:
    """Return the plan of a tile, with as many stages as fit; None where fewer than two do."""
    each = 2 if groups == 1 else 1
    plan = WideSumPlan(own.arch, dtype, first, shifted, groups, positions, 1, each, False, False, products)
    room = min(own.shared_per_block, own.shared_per_sm // each - RESERVED_SHARED) - plan.fixed
    stages = min(_MOST_STAGES, room // (plan.stage + 16))
    return None if stages < 2 else replace(plan, stages=stages)


def candidates(
    pattern: Pattern, dtype: str, first: bool, shifted: bool, products: int, own: DeviceLimits
) -> Iterator[WideSumPlan]:
    """Yield the plans of every tile that fits a pattern; ``shifted``: rows begin anywhere."""
    _, b, c, d = pattern
    if not own.has(("wgmma",)) or (first and d > 1):
        return
    few = -(-c // _MOST_POSITIONS)
    spans = {max(_LEAST_POSITIONS, -(-c // (16 * tiles)) * 16) for tiles in (few, few + 1)}
    for groups in range(1, min(_MOST_GROUPS, -(-b // 64)) + 1):
        for positions in sorted(spans):
            if dtype == "f32" and groups == _MOST_GROUPS and positions > _MOST_SPLIT_POSITIONS:
                continue  # whose threads have registers for no more
            plan = tile(dtype, first, shifted, groups, positions, products, own)
            if plan is not None:
                yield plan


def wide_sum_seconds(plan: WideSumPlan, pattern: Pattern, batch: int, limits: DeviceLimits) -> float:
    """Return what a plan should take for one group."""
    a, b, c, d = pattern
    columns, positions, _ = plan.extents
    size, each = BYTES[plan.dtype], plan.each
    slots, tiles = plan.slots(pattern, 1, batch, limits), plan.tiles(pattern, 1)
    rounds = -(-tiles * slots // (limits.sm_count * each))
    chunks = -(-batch // (slots * plan.depth))
    multiplied = columns * positions * plan.depth * (plan.products if plan.dtype == "f32" else 1) / 2048
    prepared = (columns + positions) * plan.prepared * _PREPARE
    chunk = each * (multiplied + prepared) + _STAGE
    worked = rounds * (chunks * chunk + _BLOCK) / _CLOCK
    out = size if slots == 1 else 4
    moved = size * batch * a * d * (b * -(-c // positions) + c * -(-b // columns)) / _CACHE
    weights = math.prod(pattern) * slots
    memory = (size * batch * a * d * (b + c) + out * weights) / _MEMORY
    written = weights * _WRITTEN * (d > 1)
    parts = _ADDED + 4 * (weights + math.prod(pattern)) / _PARTS if slots > 1 else 0.0
    return _START + parts + norm((worked, moved, memory, written), 3)


@lru_cache(maxsize=4096)
def wide_sum_choice(
    pattern: Pattern, batch: int, dtype: str, first: bool, x_bytes: int, y_bytes: int, products: int,
    own: DeviceLimits,
) -> tuple[float, WideSumPlan | None]:  # fmt: skip
    """Return the least seconds of a plan, and the plan, for rows of which so many bytes may be copied at once."""
    shifted = min(x_bytes, y_bytes) < ALIGNED
    plans = candidates(pattern, dtype, first, shifted, products if dtype == "f32" else 1, own)
    priced = [(wide_sum_seconds(plan, pattern, batch, own), plan) for plan in plans]
    seconds, best = min(priced, key=lambda one: one[0], default=(math.inf, None))
    if best is None:
        return seconds, None
    return _SURELY * seconds, replace(best, whole=best.slots(pattern, 1, batch, own) == 1)


@lru_cache(maxsize=4096)
def wide_sums_seconds(pattern: Pattern, batch: int, dtype: str, first: bool, own: DeviceLimits) -> float:
    """Return what sums over arrays without gaps should take; infinite where there is no plan."""
    _, b, c, d = pattern
    access = [math.gcd(ALIGNED, BYTES[dtype] * (extent * d if first else batch)) for extent in (c, b)]
    return wide_sum_choice(pattern, batch, dtype, first, access[0], access[1], 3, own)[0]
