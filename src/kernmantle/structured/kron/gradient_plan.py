"""Plans of the gradients of two neighbouring axes of a Kronecker product on a GPU, in one pass over tiles of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.arch import arch as generation
from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from .cost import LAUNCH
from .factor_gradient_plan import SIZES
from .gradient_groups import GroupedPlan, Groups, Size, whole

ENTRIES = 4096  # entries of a tile
# Room for the first axis of a pass, and for the second where it is the last of the product.
EXTENTS, LAST = (8, 16, 32, 64), (16, 32, 64)
# Both axes where others stand behind them, of which a tile takes so many columns.
EDGE = 16
VECTOR = 16
# Seconds of a multiprocessor for a tile, and more for each entry that its axes have room for, by the bytes of a number
# and whether numbers are split: within 10 % of 45 passes (H200). Times as long as tiles take that are copied number by
# number, and where the axes have columns behind them.
TILE = {
    (4, True): (1.82e-6, 2.02e-8), (4, False): (1.2e-6, 6.7e-8), (2, True): (1.04e-6, 1.2e-8),
    (2, False): (1.1e-6, 2.4e-8),
}  # fmt: skip
SINGLE, WITH_COLUMNS = 1.9, 1.2


def padded(size: Size, extents: Sequence[int] = EXTENTS) -> int:
    """Return the least room that holds rows and columns; 0 where none does."""
    return min((own for own in extents if own >= max(size)), default=0)


@dataclass(frozen=True)
class BackPlan(GroupedPlan):
    """A pass over two axes, of at most two factors each.

    ``vector``: neighbours of a copy; ``has_columns``: others stand behind both axes; ``splits``: by halves, and rests
    of float32, with one power of two for a tile, which must not have entries of several rows of x then.
    """

    vector: int
    has_columns: bool = False
    splits: bool = False

    threads = 256

    @property
    def extents(self) -> tuple[int, int]:
        """Room of the axes."""
        return padded(self.axes[0]), padded(self.axes[1], LAST)

    @property
    def across(self) -> int:
        """Columns of a tile."""
        return EDGE if self.has_columns else self.extents[1]

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        rows_of_tile, (first, last) = ENTRIES // self.across, self.extents
        if self.splits:
            factors = first * (first + 8) + last * (last + 8)
        else:
            factors = max(16, first) * (first + 4) + 2 * last * (last + 4)
        size = 2 if self.splits and self.stored != "f32" else 4
        return size * (3 * (rows_of_tile * (self.across + 8) + 8 * first * self.has_columns) + factors)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor is to hold: more of those of halves whose tiles are full, by wide copies."""
        is_full = all(axis == (extent, extent) for axis, extent in zip(self.axes, self.extents, strict=True))
        is_full = is_full and self.vector * SIZES[self.stored] == VECTOR
        most = generation(self.arch).shared_per_sm // (self.shared + RESERVED_SHARED)
        return max(1, min(2 + (self.splits and self.stored != "f32" and is_full), most))

    def tiles(self, items: int, width: int) -> int:
        """Return the tiles of so many entries before the axes, and columns."""
        return -(-items // self.items) * (-(-width // self.across) if self.has_columns else 1)

    def __str__(self) -> str:
        details = " beside others" * self.has_columns + " by halves" * self.splits
        return f"gradients of {self.names} {self.stored}{details}, copies of {self.vector}, items {self.items}"


def _parted(sizes: tuple[Size, ...], has_columns: bool) -> Groups | None:
    """Return the factors of two axes of least room; None where they do not fit, or one axis has room for all."""
    last = EXTENTS if has_columns else LAST
    if len(sizes) <= 2 and padded(whole(sizes), last):
        return None
    found: list[tuple[int, Groups]] = []
    for at in range(max(1, len(sizes) - 2), min(2, len(sizes) - 1) + 1):
        groups = sizes[:at], sizes[at:]
        extents = padded(whole(groups[0])), padded(whole(groups[1]), last)
        if all(extents):
            found.append((sum(extents), groups))
    _, groups = min(found, key=lambda own: own[0], default=(0, None))
    if groups is None or (has_columns and any(padded(whole(group)) != EDGE for group in groups)):
        return None
    return groups


@lru_cache(maxsize=1024)
def back(
    sizes: tuple[Size, ...], sides: tuple[int, int], columns: int, stored: str, limits: DeviceLimits
) -> BackPlan | None:
    """Return the pass over factors with ``sides`` entries of a row of x before them and behind; None without one.

    x has so many ``columns``, each of which is a row of the product.
    """
    (before, right), groups = sides, _parted(sizes, sides[1] > 1)
    if stored not in SIZES or groups is None:
        return None
    widths = (right,) if right > 1 else whole(groups[1])
    plan = tiled(BackPlan(groups, stored, limits.arch, 1, _vector(widths, stored), right > 1))
    share = max(part for part in range(1, plan.items + 1) if before % part == 0)
    if columns == 1 and plan.extents[0] >= EDGE and 2 * share > plan.items:
        plan = replace(plan, splits=True, items=share)
    return plan if plan.shared <= limits.shared_per_block else None


def tiled(plan: BackPlan) -> BackPlan:
    """Return the plan with as many entries of what stands before its axes as a tile has room for."""
    first, last = plan.extents
    return replace(plan, items=max(1, ENTRIES // (plan.across * first * (last if plan.has_columns else 1))))


def back_seconds(plan: BackPlan, items: int, width: int, limits: DeviceLimits) -> float:
    """Return what the pass should take on so many entries before and behind its axes."""
    begin, more = TILE[SIZES[plan.stored], plan.splits]
    slower = (SINGLE if plan.vector == 1 else 1.0) * (WITH_COLUMNS if plan.has_columns else 1.0)
    tile = slower * (begin + more * sum(plan.extents))
    return 2 * LAUNCH + -(-plan.tiles(items, width) // limits.sm_count) * tile


def _vector(widths: Sequence[int], stored: str) -> int:
    """Return neighbours of a copy from lines of these lengths."""
    width = VECTOR // SIZES[stored]
    while any(own % width for own in widths):
        width //= 2
    return width
