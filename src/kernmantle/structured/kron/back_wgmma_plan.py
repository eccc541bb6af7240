"""Plans of the gradients of the last two axes of a Kronecker product by wgmma, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .cost import LAUNCH, memory_of
from .factor_gradient_plan import SIZES
from .gradient_groups import Size, SlottedPlan, slots, whole

# Rows and columns of a tile, stages of the pipeline by the bytes of a number, tiles that the copy engine brings ahead,
# and bytes of the widest load.
EXTENT, STAGES, COPIES, VECTOR = 64, {4: 3, 2: 6}, 2, 16
# Threads that multiply, and that load x, as many as v.
MULTIPLYING, LOADERS = 384, 128
# Bytes of a matrix of halves, and numbers from row to row of results.
_MATRIX, _PITCH = 2 * EXTENT * EXTENT, 72
# Seconds to begin; of a multiprocessor for a tile, by the bytes of a number and how many of them are stored at once;
# more without the copy engine; of a warp for an entry of factors of one axis, and for 32 of its terms; times what bytes
# take (34 passes on one H200, decisions 0084 and 0091).
_BEGIN, _ALONE, _ENTRY, _TERMS, _MOVED = 1e-6, 0.6e-6, 1e-7, 5e-8, 1.15
_TILE = {4: {1: 6.1e-6, 2: 2.5e-6, 4: 2.5e-6}, 2: {1: 4.2e-6, 2: 2.5e-6, 4: 1.2e-6, 8: 1.2e-6}}


@dataclass(frozen=True)
class BackWgmmaPlan(SlottedPlan):
    """A pass over two axes."""

    side, blocks, multiplying, loaders = EXTENT, 1, MULTIPLYING, LOADERS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return MULTIPLYING + 2 * LOADERS

    @property
    def pack(self) -> int:
        """Numbers of a load that follow each other in a row of a tile."""
        return math.gcd(self.vector, *self.axes[1])

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return STAGES[SIZES[self.stored]]

    @property
    def copies(self) -> int:
        """Tiles that the copy engine brings ahead, where they are whole vectors."""
        return COPIES if self.vector * SIZES[self.stored] == VECTOR else 0

    @property
    def shared(self) -> int:
        """Bytes of shared memory: sums over the factors, stages and copies of two matrices each, results, barriers."""
        barriers = self.stages * (16 + 8) + 16 * self.copies + self.threads // 32 * 4
        staged = SIZES[self.stored] * _MATRIX * (self.stages + self.copies)
        return 8 * EXTENT * EXTENT + staged + 4 * EXTENT * _PITCH + barriers

    def tiles(self, items: int, _: int) -> int:
        """Return the tiles of so many entries before the axes."""
        return items // self.items

    def __str__(self) -> str:
        return f"gradients of {self.names} {self.stored} by wgmma, {self.items} items, loads of {self.vector}"


def back_wgmma_candidates(sizes: tuple[Size, ...], before: int, stored: str, arch: str) -> Iterator[BackWgmmaPlan]:
    """Yield the passes, by where the factors are parted; ``before`` entries of a row of x lie in front of them."""
    most = VECTOR // SIZES[stored]
    for at in range(1, len(sizes)):
        groups = sizes[:at], sizes[at:]
        axes = tuple(map(whole, groups))
        if max(map(max, axes)) > EXTENT:
            continue
        down, across = slots(axes, math.gcd(most, *axes[1]))
        count = EXTENT // down * (EXTENT // across)
        items = max(part for part in range(1, count + 1) if before % part == 0)
        vector = math.gcd(most, *(items * math.prod(axis[side] for axis in axes) for side in (0, 1)))
        yield BackWgmmaPlan(groups, stored, arch, items, vector)


@lru_cache(maxsize=4096)
def back_wgmma(sizes: tuple[Size, ...], before: int, stored: str, limits: DeviceLimits) -> BackWgmmaPlan | None:
    """Return the pass over the last factors, None where there is none.

    In a row of x ``before`` entries lie in front of the factors; a tile, with one power of two, takes those of one row.
    """
    if stored not in SIZES or "wgmma" not in limits.generation.features:
        return None
    found = list(back_wgmma_candidates(sizes, before, stored, limits.arch))
    return min(found, key=lambda plan: back_wgmma_seconds(plan, before, limits), default=None)


def back_wgmma_seconds(plan: BackWgmmaPlan, items: int, limits: DeviceLimits) -> float:
    """Return what the pass and the sum of its shares should take."""
    (q0, p0), (q1, p1) = plan.axes
    tiles, size = plan.tiles(items, 1), SIZES[plan.stored]
    moved = float(size) * items * (2 * p0 * p1 + q0 * q1) / memory_of(limits)
    tile = _TILE[size][plan.pack] + _ALONE * (not plan.copies and plan.pack > 1)
    shares = 8.0 * min(tiles, limits.sm_count) * plan.parts / memory_of(limits)
    work = max(-(-tiles // limits.sm_count) * tile, _MOVED * moved)
    return 2 * LAUNCH + _BEGIN + work + shares + sum(separating(group, MULTIPLYING) for group in plan.groups)


def separating(group: Sequence[Size], threads: int) -> float:
    """Return what the gradients of several factors take from that of their product, by so many threads."""
    if len(group) == 1:
        return 0.0
    entries = math.prod(map(math.prod, group))
    found = 0.0
    for rows, columns in group:
        rounds = -(-rows * columns // (threads // 32))
        found += rounds * (_ENTRY + _TERMS * -(-entries // (rows * columns * 32)))
    return found
