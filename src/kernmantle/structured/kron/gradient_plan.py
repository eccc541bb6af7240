"""Plans of all gradients of a Kronecker product on a GPU: a few passes that apply and sum at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .cost import LAUNCH, memory_of
from .factor_gradient_plan import SIZES
from .gradient_groups import Size, whole

THREADS = 256
ENTRIES = 4096  # entries of a tile
# Room for an axis before the last one of a pass and for the last one, and how far lines without one are taken.
EXTENTS, LAST, ACROSS = (8, 16, 32, 64), (16, 32, 64), 64
# Two such axes go into one pass wherever they stand, by so many columns.
EDGE = 16
VECTOR = 16
# Seconds of a multiprocessor for a tile, and more for each entry that its axes have room for, by the bytes of a number,
# whether numbers are split and whether there are two axes: within 10 % of 45 passes (H200). Times as long as tiles take
# that are copied number by number, and where two axes have columns behind them; times as long as memory takes that
# products and sums one by one take (1.5 to 1.8).
TILE = {
    (4, True, False): (1.6e-6, 1.72e-8), (4, True, True): (1.82e-6, 2.02e-8),
    (4, False, False): (1.65e-6, 3.5e-8), (4, False, True): (1.2e-6, 6.7e-8),
    (2, True, False): (1.28e-6, 6.3e-9), (2, True, True): (1.04e-6, 1.2e-8),
    (2, False, False): (1.1e-6, 1.35e-8), (2, False, True): (1.1e-6, 2.4e-8),
}  # fmt: skip
SINGLE, WITH_COLUMNS = 1.9, 1.2
MOVED = 1.7


def padded(size: Size, extents: Sequence[int] = EXTENTS) -> int:
    """Return the least room that holds rows and columns; 0 where none does."""
    return min((own for own in extents if own >= max(size)), default=0)


@dataclass(frozen=True)
class BackPlan:
    """A pass over lines: factors of axis ``first``, at most two, and of that behind it, ``last``, where it has some.

    ``vector``: neighbours of a copy; ``used``: how many entries of the axes before them a tile takes; ``has_columns``:
    others stand behind those two; ``splits``: by halves, and rests of float32, with one power of two for a tile, which
    must not have entries of several rows of x then.
    """

    first: tuple[Size, ...]
    last: tuple[Size, ...]
    stored: str
    arch: str
    vector: int
    used: int
    has_columns: bool = False
    splits: bool = False

    @property
    def extent(self) -> int:
        """Room of the first axis."""
        return padded(whole(self.first))

    @property
    def last_extent(self) -> int:
        """Room of the axis behind it, 0 where there is none."""
        return padded(whole(self.last), LAST) if self.last else 0

    @property
    def across(self) -> int:
        """Columns of a tile."""
        if self.has_columns and self.last:
            return EDGE
        return self.last_extent or ACROSS

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        rows_of_tile, tiles, last = ENTRIES // self.across, 3 if self.last else 2, self.last_extent
        if self.splits:
            factors = self.extent * (self.extent + 8) + last * (last + 8)
        else:
            factors = max(16, self.extent) * (self.extent + 4) + 2 * last * (last + 4)
        gaps = 8 * self.extent * (self.has_columns and bool(self.last))
        size = 2 if self.splits and self.stored != "f32" else 4
        return size * (tiles * (rows_of_tile * (self.across + 8) + gaps) + factors)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor is to hold: more of those that have few sums, and whose tiles are full."""
        if self.last:
            return 2 + (self.splits and self.stored != "f32" and self.is_full)
        return 2 + (self.extent < EDGE) + self.is_full

    @property
    def is_full(self) -> bool:
        """Return whether every axis fills its room, by the widest copies."""
        extents = [(self.extent, self.first), (self.last_extent, self.last)]
        fits = all(whole(group) == (extent, extent) for extent, group in extents if group)
        return fits and self.vector * SIZES[self.stored] == VECTOR

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The factors whose gradients a block writes one after the other."""
        return self.first + self.last

    @property
    def parts(self) -> int:
        """Entries that a block writes of all gradients."""
        return sum(rows * columns for rows, columns in self.sizes)

    def tiles(self, items: int, width: int) -> int:
        """Return the tiles of so many entries of the axes before its own and lines of that length."""
        return -(-items // self.used) * (-(-width // self.across) if self.has_columns else 1)

    @property
    def tile_seconds(self) -> float:
        """Seconds of a multiprocessor for a tile."""
        begin, more = TILE[SIZES[self.stored], self.splits, bool(self.last)]
        slower = (SINGLE if self.vector == 1 else 1.0) * (WITH_COLUMNS if self.last and self.has_columns else 1.0)
        return slower * (begin + more * (self.extent + self.last_extent))

    def __str__(self) -> str:
        names = ["*".join(f"{q}x{p}" for q, p in group) for group in (self.first, self.last) if group]
        details = " beside others" * self.has_columns + " by halves" * self.splits
        return f"gradients of {' then '.join(names)} {self.stored}{details}, copies of {self.vector}, items {self.used}"


Groups = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def grouped(sizes: tuple[Size, ...], has_columns: bool) -> Groups | None:
    """Neighbouring places that a pass takes as one axis, as few groups as there can be; None where some fit nowhere.

    With columns ``has_columns`` the product no axis is the last of a pass.
    """
    best: list[tuple[int, int, Groups] | None] = [(0, 0, ())]
    count = len(sizes)
    for stop in range(1, count + 1):
        found: list[tuple[int, int, Groups]] = []
        for begin in range(max(0, stop - 2), stop):
            extents = LAST if stop == count and not has_columns else EXTENTS
            own, before = padded(whole(sizes[begin:stop]), extents), best[begin]
            if before is not None and own:
                found.append((before[0] + 1, before[1] + own, (*before[2], tuple(range(begin, stop)))))
        best.append(min(found, default=None))
    chosen = best[count]
    return None if chosen is None or len(chosen[2]) < 2 - has_columns else chosen[2]


@lru_cache(maxsize=1024)
def back(
    sizes: tuple[Size, ...], right: int, stored: str, arch: str, shared: int, before: int = 1, columns: int = 0
) -> tuple[tuple[BackPlan, Groups], ...]:
    """Return the passes and the places of the factors of each; none where others are better.

    ``right`` entries lie behind the factors and ``before`` in a row of x before them, which has ``columns`` others
    beside it, ``right`` where that is not said; ``shared``: bytes of shared memory that a block may have.
    """
    groups = grouped(sizes, right > 1)
    if stored not in SIZES or groups is None:
        return ()
    found: list[tuple[BackPlan, Groups]] = []
    leading, done = list(groups), before
    while leading:
        own = [leading.pop(0)]
        at_end = right == 1 and len(leading) == 1
        is_followed = leading and (right > 1 or len(leading) > 2)
        if at_end or (is_followed and all(padded(whole(_own(sizes, group))) == EDGE for group in (*own, leading[0]))):
            own.append(leading.pop(0))
        first, last = _own(sizes, own[0]), _own(sizes, own[1]) if len(own) > 1 else ()
        widths = whole(last) if at_end else (math.prod(sizes[n][0] for group in leading for n in group) * right,)
        plan = tiled(BackPlan(first, last, stored, arch, _vector(widths, stored), 1, not at_end))
        share = max(part for part in range(1, plan.used + 1) if done % part == 0)
        if (columns or right) == 1 and plan.extent >= EDGE and 2 * share > plan.used:
            plan = replace(plan, splits=True, used=share)
        found.append((plan, tuple(own)))
        done *= whole(plan.sizes)[1]
    return tuple(found) if all(plan.shared <= shared for plan, _ in found) else ()


def tiled(plan: BackPlan) -> BackPlan:
    """Return the plan with as many entries of the axes before its own as a tile has room for."""
    taken = plan.across * plan.extent * (plan.last_extent if plan.has_columns and plan.last else 1)
    return replace(plan, used=max(1, ENTRIES // taken))


def seconds(
    chosen: Sequence[tuple[BackPlan, Groups]], sizes: Sequence[Size], call: tuple[int, int], limits: DeviceLimits
) -> float:
    """Return what the passes should take on ``call`` entries before and behind the factors."""
    items, right = call
    entries, total, stored = items * right * max(whole(sizes)), 0.0, chosen[0][0].stored
    moved = MOVED * SIZES[stored] * entries / memory_of(limits)
    for plan, own in chosen:
        positions = [position for group in own for position in group]
        width = right * whole(sizes[positions[-1] + 1 :])[0]
        tile = plan.tile_seconds
        total += 2 * LAUNCH + -(-plan.tiles(items, width) // limits.sm_count) * tile
        items *= whole(plan.sizes)[1]
    return total + (len(chosen) - 1) * (LAUNCH + 2 * moved)


def _vector(widths: Sequence[int], stored: str) -> int:
    """Return neighbours of a copy from lines of these lengths."""
    width = VECTOR // SIZES[stored]
    while any(own % width for own in widths):
        width //= 2
    return width


def _own(sizes: Sequence[Size], group: Sequence[int]) -> tuple[Size, ...]:
    return tuple(sizes[index] for index in group)
