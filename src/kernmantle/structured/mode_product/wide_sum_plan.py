"""Plans of the gradient of weights of wide blocks on a GPU by wgmma, over rows or over a batch that lies together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import CLOCK, RESERVED_SHARED, DeviceLimits
from ...compiler.nest import BYTES
from .plan import Pattern
from .plan_table import norm
from .tiled_sum import TiledSum
from .transpose_plan import ACCESS, pass_seconds

WORD = 4  # bytes at multiples of which rows begin that are not shifted
_LEAST_CHUNKS = 8  # of a part
_MOST_STAGES = 4
_NARROWEST = 16  # extent of blocks, of which none below took less time by a tile
_TILES = ((1, 64), (2, 64), (2, 96), (2, 128), (3, 64))  # groups of 64 columns, and positions
# Cycles of a chunk that waits for its loads, for each cycle of its products, and of a feature; of a block beside its
# chunks; bytes a second of memory and of parts that are added; seconds to begin, to begin to add parts, and of the pass
# that arranges blocks, with how many times its model it takes. Fitted on one H200 to 218 sums of 60 patterns within 10
# % (root mean square; decision 0131).
_CHUNK, _MULTIPLIED, _LOADED = 1290.0, 0.84, {"f32": 2.25, "halves": 0.2, "shifted": 3.5}
_BLOCK, _MEMORY, _PARTS, _START, _ADDED, _ARRANGED = 2940.0, 2.9e12, 3e12, 4.1e-6, 1.6e-6, (1.9e-6, 1.65)
_SURELY = 1.2  # times what is expected, so that these sums are chosen where they are quicker for sure


@dataclass(frozen=True)
class WideSumPlan(TiledSum):
    """Template parameters, see ``kronsparse_wide_sums.cuh``."""

    alone = True
    arch: str
    dtype: str
    first: bool
    shifted: bool
    groups: int
    positions: int
    stages: int
    resident: int
    whole: bool
    products: int

    @property
    def deep(self) -> int:
        """Values of l of a block."""
        return 1

    @property
    def extents(self) -> tuple[int, int, int]:
        """Columns, positions of k and values of l of a block."""
        return 64 * self.groups, self.positions, 1

    @property
    def warps(self) -> int:
        """Warps of a block: four for each group, and one that loads for each 32 features, in groups of four too."""
        halves = self.first and self.dtype != "f32"  # of which a warp has half of the entries of 64
        loading = 2 * self.groups + (self._whole(self.positions) // 32 if halves else -(-self.positions // 32))
        return 4 * self.groups + -(-loading // 4) * 4

    @property
    def each(self) -> int:
        """Blocks that share a multiprocessor."""
        return self.resident // self.warps

    @property
    def depth(self) -> int:
        """Entries of the batch in a stage."""
        return 128 // BYTES[self.dtype]

    def _whole(self, features: int) -> int:
        """Return so many features as whole blocks."""
        block = 32 if self.first and self.dtype == "f32" else 64
        return -(-features // block) * block

    @property
    def staged(self) -> int:
        """Bytes of shared memory: stages, the scales of their features, and their barriers."""
        features = 64 * self.groups + self._whole(self.positions)
        return self.stages * (features * (128 + (4 if self.dtype == "f32" else 0)) + 16)

    @property
    def written(self) -> int:
        """Numbers of the sums that are brought together before they are written: none."""
        return 0

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
) -> WideSumPlan:
    """Return the plan of a tile, with as many stages as fit."""
    each = 2 if groups == 1 else 1
    plan = WideSumPlan(own.arch, dtype, first, shifted, groups, positions, 1, 0, False, products)
    shared = min(own.shared_per_block, own.shared_per_sm // each - RESERVED_SHARED)
    return replace(plan, stages=min(_MOST_STAGES, shared // plan.staged), resident=each * plan.warps)


def candidates(
    pattern: Pattern, dtype: str, first: bool, shifted: bool, products: int, own: DeviceLimits
) -> Iterator[WideSumPlan]:
    """Yield the plans of every tile that fits a pattern; ``shifted``: rows of halves begin between words."""
    _, b, c, d = pattern
    if not own.has(("wgmma",)) or (first and d > 1) or min(b, c) < _NARROWEST:
        return
    for groups, positions in _TILES:
        if 64 * (groups - 1) < b and (positions == _TILES[0][1] or positions < 2 * c):
            yield tile(dtype, first, shifted, groups, positions, products, own)


def wide_sum_seconds(plan: WideSumPlan, pattern: Pattern, batch: int, limits: DeviceLimits) -> float:
    """Return what a plan should take for one group, blocks brought into the order of weights included."""
    a, b, c, d = pattern
    columns, positions, _ = plan.extents
    size, split = BYTES[plan.dtype], plan.dtype == "f32"
    slots = plan.slots(pattern, 1, batch, limits)
    rounds = -(-plan.tiles(pattern, 1) * slots // (limits.sm_count * plan.each))
    chunks = -(-batch // (slots * plan.depth))
    multiplied = columns * positions * plan.depth * (plan.products if split else 1) / limits.generation.half_products
    loaded = (columns + positions) * _LOADED["f32" if split else "shifted" if plan.shifted else "halves"]
    chunk = _CHUNK + plan.each * (_MULTIPLIED * multiplied + loaded)
    worked = rounds * (chunks * chunk + _BLOCK) / CLOCK
    weights = math.prod(pattern)
    moved = size * batch * a * d * (b + c) + (size if slots == 1 else 4) * slots * weights
    parts = _ADDED + 4 * weights * (slots + 1) / _PARTS if slots > 1 else 0.0
    whole = b * c * size % ACCESS == 0
    arranged = 0.0 if d == 1 else _ARRANGED[0] + _ARRANGED[1] * pass_seconds(b * c, d, a, size, False, whole)
    return _START + norm((worked, moved / _MEMORY), 3) + parts + arranged


@lru_cache(maxsize=4096)
def wide_sum_choice(
    pattern: Pattern, batch: int, dtype: str, first: bool, x_bytes: int, y_bytes: int, products: int,
    own: DeviceLimits,
) -> tuple[float, WideSumPlan | None]:  # fmt: skip
    """Return the least seconds of a plan, and the plan, for rows of which so many bytes may be copied at once."""
    shifted = min(x_bytes, y_bytes) < WORD
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
    access = [math.gcd(WORD, BYTES[dtype] * (extent * d if first else batch)) for extent in (c, b)]
    return wide_sum_choice(pattern, batch, dtype, first, access[0], access[1], 3, own)[0]
