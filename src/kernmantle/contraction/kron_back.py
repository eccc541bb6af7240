"""Plans of all gradients of a Kronecker product of square factors on a GPU: a few passes that apply and sum at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .kron_gram import SIZES

THREADS = 256
ENTRIES = 4096
# Extents of an axis before the last one of a pass and of the last one, and how far lines without one are taken.
EXTENTS, LAST, ACROSS = (8, 16, 32, 64), (16, 32, 64), 64
# Two such axes go into one pass wherever they stand, by so many columns.
PAIR = 16
VECTOR = 16


@dataclass(frozen=True)
class BackPlan:
    """A pass over lines: factors of axis ``first``, at most two, and of that behind it, ``last``, where it has some.

    ``beside``: others stand behind those two; ``splits``: by halves, and rests of float32, with one power of
    two for a tile, which must not have entries of several rows of x then.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    stored: str
    arch: str
    beside: bool = False
    splits: bool = False

    @property
    def extent(self) -> int:
        """Of the first axis."""
        return math.prod(self.first)

    @property
    def across(self) -> int:
        """Columns of a tile."""
        if self.beside and self.last:
            return PAIR
        return math.prod(self.last) if self.last else ACROSS

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        lines, tiles, last = ENTRIES // self.across, 3 if self.last else 2, math.prod(self.last)
        if self.splits:
            factors = self.extent * (self.extent + 8) + last * (last + 8) * bool(self.last)
        else:
            factors = max(16, self.extent) * (self.extent + 4) + 2 * last * (last + 4) * bool(self.last)
        gaps = 8 * self.extent * (self.beside and bool(self.last))
        size = 2 if self.splits and self.stored != "f32" else 4
        return size * (tiles * (lines * (self.across + 8) + gaps) + factors)

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor is to hold: more of those that have few sums."""
        if self.last:
            return 3 if self.splits and self.stored != "f32" else 2
        return 4 if self.extent < PAIR else 3

    @property
    def items(self) -> int:
        """Entries of the axes before its own that a tile has."""
        return max(1, ENTRIES // (self.across * self.extent * (math.prod(self.last) if self.beside else 1)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of the factors whose gradients a block writes one after the other."""
        return self.first + self.last

    @property
    def parts(self) -> int:
        """Entries that a block writes of all gradients."""
        return sum(size * size for size in self.sizes)

    def tiles(self, lines: int, width: int) -> int:
        """Tiles of so many lines of that length."""
        return -(-lines // (ENTRIES // self.across)) * -(-width // self.across)

    def __str__(self) -> str:
        names = ["*".join(map(str, group)) for group in (self.first, self.last) if group]
        ways = " beside others" * self.beside + " by halves" * self.splits
        return f"gradients of {' then '.join(names)} {self.stored}{ways}"


Groups = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def grouped(extents: tuple[int, ...], beside: bool) -> Groups | None:
    """Neighbouring places that a pass takes as one axis, as few groups as there can be; None where some fit nowhere.

    With columns ``beside`` the product no axis is the last of a pass.
    """
    best: list[tuple[int, int, Groups] | None] = [(0, 0, ())]
    count = len(extents)
    for stop in range(1, count + 1):
        found: list[tuple[int, int, Groups]] = []
        for begin in range(max(0, stop - 2), stop):
            size, before = math.prod(extents[begin:stop]), best[begin]
            allowed = LAST if stop == count and not beside else EXTENTS
            if before is not None and size in allowed:
                found.append((before[0] + 1, before[1] + size, (*before[2], tuple(range(begin, stop)))))
        best.append(min(found, default=None))
    whole = best[count]
    return None if whole is None or len(whole[2]) < 2 - beside else whole[2]


@lru_cache(maxsize=1024)
def back(
    extents: tuple[int, ...], right: int, stored: str, arch: str, room: int, before: int = 1, columns: int = 0
) -> tuple[tuple[BackPlan, Groups], ...]:
    """Passes and the places of the factors of each; none where others are better.

    ``right`` entries lie behind the factors and ``before`` in a row of x before them, which has ``columns`` others
    beside it, ``right`` where that is not said; ``room``: bytes of shared memory that a block may have.
    """
    groups = grouped(extents, right > 1)
    if stored not in SIZES or groups is None or right * SIZES[stored] % VECTOR * (right > 1):
        return ()
    found: list[tuple[BackPlan, Groups]] = []
    leading, done = list(groups), before
    while leading:
        own = [leading.pop(0)]
        at_end = right == 1 and len(leading) == 1
        pairs = leading and (right > 1 or len(leading) > 2)
        if at_end or (pairs and [_own(extents, group) for group in (*own, leading[0])] == [(PAIR,), (PAIR,)]):
            own.append(leading.pop(0))
        first, last = _own(extents, own[0]), _own(extents, own[1]) if len(own) > 1 else ()
        plan = BackPlan(first, last, stored, arch, not at_end)
        wide = (columns or right) == 1 and plan.extent >= PAIR
        found.append((replace(plan, splits=wide and done % plan.items == 0), tuple(own)))
        done *= math.prod(plan.sizes)
    return tuple(found) if all(plan.shared <= room for plan, _ in found) else ()


def _own(extents: Sequence[int], group: Sequence[int]) -> tuple[int, ...]:
    return tuple(extents[place] for place in group)
