"""Plans of the gradient of one axis of a Kronecker product by wgmma, with columns behind it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .back_wgmma_plan import EXTENT, separating
from .cost import LAUNCH, memory_of
from .gradient_groups import Size, SlottedPlan, whole

# Threads that multiply, and that load x, as many as v; stages, tiles that are copied ahead, and numbers of a copy.
MULTIPLYING, LOADERS, STAGES, COPIES, COPIED = 256, 256, 3, 3, 4
# Least rows or columns of a factor: bytes are what narrow ones take, and a sum that applies its factor takes less.
NARROWEST = 20
# Seconds to begin, and of a multiprocessor for a tile; times what bytes take (17 passes on one H200, decision 0091).
_BEGIN, _TILE, _MOVED = 1e-6, 1.86e-6, 1.0


@dataclass(frozen=True)
class BackAxisPlan(SlottedPlan):
    """A pass over one axis; a tile takes ``items`` runs of 64 columns."""

    side, blocks, multiplying, loaders, stages, copies = EXTENT, 1, MULTIPLYING, LOADERS, STAGES, COPIES

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return MULTIPLYING + 2 * LOADERS

    @property
    def slots(self) -> Size:
        """Rows and columns from run to run in a tile."""
        return max(self.axes[0]), EXTENT

    @property
    def grid(self) -> Size:
        """Runs down and across a tile."""
        return self.items, 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the factor, stages and copies of two matrices each, sums, barriers."""
        barriers = self.stages * (16 + 8) + max(self.threads, 4 * self.loaders) // 8
        return 4 * EXTENT * EXTENT * (1 + 2 * self.stages + 2 * self.copies + 1) + barriers

    def tiles(self, items: int, width: int) -> int:
        """Return the tiles of so many entries before the axis, and columns."""
        return items * -(-width // (EXTENT * self.items))

    def __str__(self) -> str:
        return f"gradient of {self.names} {self.stored} by wgmma beside others, {self.items} runs"


@lru_cache(maxsize=4096)
def back_axis(sizes: tuple[Size, ...], width: int, stored: str, limits: DeviceLimits) -> BackAxisPlan | None:
    """Return the pass over the product of some factors as one axis, None where there is none.

    Halves have none: a sum that applies its factor takes 429 us of 64 rows where this took 604 (H200).
    """
    if stored != "f32" or "wgmma" not in limits.generation.features or width % COPIED:
        return None
    most = max(whole(sizes))
    if not NARROWEST <= most <= EXTENT or width < EXTENT:
        return None
    return BackAxisPlan((sizes,), stored, limits.arch, min(EXTENT // most, -(-width // EXTENT)), COPIED)


def back_axis_seconds(plan: BackAxisPlan, items: int, width: int, limits: DeviceLimits) -> float:
    """Return what the pass and the sum of its shares should take."""
    rows, columns = plan.axes[0]
    tiles = plan.tiles(items, width)
    moved = 4.0 * items * width * (2 * columns + rows) / memory_of(limits)
    shares = 8.0 * min(tiles, limits.sm_count) * plan.parts / memory_of(limits)
    work = max(-(-tiles // limits.sm_count) * _TILE, _MOVED * moved)
    return 2 * LAUNCH + _BEGIN + work + shares + separating(plan.groups[0], MULTIPLYING)
