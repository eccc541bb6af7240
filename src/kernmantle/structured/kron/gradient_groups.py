"""Groups of neighbouring factors of a Kronecker product whose gradients one pass finds, each of them one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

Size = tuple[int, int]
"""Rows and columns of a factor."""
Groups = tuple[tuple[Size, ...], ...]


def whole(sizes: Sequence[Size]) -> Size:
    """Return the rows and columns of the product of factors."""
    return math.prod(rows for rows, _ in sizes), math.prod(columns for _, columns in sizes)


@dataclass(frozen=True)
class GroupedPlan:
    """A pass over the axes of ``groups`` of factors, the product of each along its axis.

    A tile has ``items`` entries of what stands before them.
    """

    groups: Groups
    stored: str
    arch: str
    items: int

    @cached_property
    def axes(self) -> tuple[Size, ...]:
        """Rows and columns of the axes."""
        return tuple(map(whole, self.groups))

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The factors whose gradients a block writes one after the other."""
        return sum(self.groups, ())

    @property
    def parts(self) -> int:
        """Entries that a block writes of all gradients."""
        return sum(rows * columns for rows, columns in self.sizes)

    @property
    def names(self) -> str:
        """The factors of each axis."""
        return " then ".join("*".join(f"{q}x{p}" for q, p in group) for group in self.groups)


@dataclass(frozen=True)
class SlottedPlan(GroupedPlan):
    """A pass over matrices of ``side`` x ``side``, in which short axes have several items, and factors repeat.

    ``vector``: numbers of an access to memory.
    """

    vector: int

    side: ClassVar[int]

    @property
    def pack(self) -> int:
        """Numbers of an access that follow each other in a row of a matrix."""
        return self.vector

    @property
    def slots(self) -> Size:
        """Rows and columns from item to item."""
        return slots(self.axes, self.pack)

    @property
    def grid(self) -> Size:
        """Items down and across."""
        return self.side // self.slots[0], self.side // self.slots[1]


def slots(axes: Sequence[Size], pack: int) -> Size:
    """Return the rows and columns from item to item of two axes, the second in whole packs."""
    first, second = map(max, axes)
    return first, -(-second // pack) * pack
