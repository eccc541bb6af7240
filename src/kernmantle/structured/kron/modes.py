"""Kronecker products as products along the axes of a tensor, and the order in which they cost least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


class Mode(NamedTuple):
    """One axis of the tensor: its length is ``columns`` before its factor and ``rows`` after it."""

    columns: int
    rows: int
    factor: int | None = None

    def __str__(self) -> str:
        return f"i{self.columns}" if self.factor is None else f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Step:
    """One factor on the view (left, columns, right) of the tensor, which becomes (left, rows, right)."""

    position: int
    left: int
    mode: Mode
    right: int

    @property
    def products(self) -> int:
        """Multiplications."""
        return self.left * self.mode.columns * self.mode.rows * self.right


def text_of(entries: Sequence[int | str]) -> str:
    """Return the canonical text of a product: numbers of factors in order, "i5" for an identity of size 5."""
    return " ".join(map(str, entries))


@lru_cache(maxsize=4096)
def parse(text: str, shapes: tuple[tuple[int, int], ...]) -> tuple[Mode, ...]:
    """Return modes of a text whose factors have these shapes."""
    modes: list[Mode] = []
    for entry in text.split(" "):
        if entry.startswith("i"):
            modes.append(Mode(int(entry[1:]), int(entry[1:])))
        else:
            rows, columns = shapes[int(entry)]
            modes.append(Mode(columns, rows, int(entry)))
    return tuple(modes)


def rows(modes: Sequence[Mode]) -> int:
    """Return the rows of the product."""
    return math.prod(mode.rows for mode in modes)


def columns(modes: Sequence[Mode]) -> int:
    """Return the columns of the product."""
    return math.prod(mode.columns for mode in modes)


def contracted(modes: Sequence[Mode]) -> tuple[int, ...]:
    """Return the positions that have a factor."""
    return tuple(position for position, mode in enumerate(modes) if mode.factor is not None)


def grouped(modes: Sequence[Mode], indices: Sequence[int], most: int) -> tuple[tuple[int, ...], ...]:
    """Return the positions in groups of neighbours whose product has at most so many rows and columns."""
    groups: list[tuple[int, ...]] = []
    for index in indices:
        joint = (*groups[-1], index) if groups and groups[-1][-1] + 1 == index else (index,)
        own = [modes[position] for position in joint]
        if len(joint) > 1 and max(columns(own), rows(own)) <= most:
            groups[-1] = joint
        else:
            groups.append((index,))
    return tuple(groups)


def cheapest(modes: Sequence[Mode]) -> tuple[int, ...]:
    """Return the positions with a factor in the order of fewest multiplications; ties are taken from the last.

    A factor changes the size of the tensor by r / c, so of two neighbours in time the one with the smaller
    1/c - 1/r comes first: exchanging them compares 1 + (r/c) s and (s/d) (1 + ...) term by term.
    """
    indices = [index for index in contracted(modes) if modes[index].rows and modes[index].columns]
    if len(indices) < len(contracted(modes)):
        return tuple(reversed(contracted(modes)))
    return tuple(sorted(indices, key=lambda index: (1 / modes[index].columns - 1 / modes[index].rows, -index)))


def steps(modes: Sequence[Mode], order: Sequence[int], right: int = 1) -> tuple[Step, ...]:
    """Return the products in that order, for a tensor with ``right`` more entries after its last axis."""
    extents = [mode.columns for mode in modes]
    found: list[Step] = []
    for position in order:
        left = math.prod(extents[:position])
        found.append(Step(position, left, modes[position], math.prod(extents[position + 1 :]) * right))
        extents[position] = modes[position].rows
    return tuple(found)


def products(modes: Sequence[Mode], order: Sequence[int]) -> int:
    """Return the multiplications for one column in that order."""
    return sum(step.products for step in steps(modes, order))
