"""Passes of a Kronecker product over memory: which neighbouring factors share a pass, and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import permutations

from .modes import Mode, cheapest, steps

Limit = Callable[[Sequence[Mode], int], bool]
After = Callable[[tuple[tuple[int, ...], ...]], float]
"""Seconds of what follows a product, by the positions that are applied to each intermediate result."""
# Kinds of passes over one factor on any machine: by the vendor's matrix product, and by a CPU's tiles along one axis.
VENDOR, ALONG = "matmul", "along"
# Passes whose orders are all compared, and with the gradients that follow; factors that are multiplied out to a square
# one.
MOST_ORDERED, MOST_PERMUTED, MOST_JOINED = 4, 3, 3
# Share of the time of gradients that find intermediate results, beside those that make them again, by passes that take
# less than expected (16^4: 302 and 678 us, 194 and 834; H200, decision 0074).
_SAVED = 0.93


@dataclass(frozen=True)
class Pass:
    """Factors applied in one pass to the view (left, columns of the run, right) of the tensor.

    ``modes`` are the axes from ``first`` to before ``stop``; a mode's factor is a place in ``parts``, each part being
    positions of neighbouring factors that are multiplied out and taken as one. ``kind`` names the kernel. One over two
    axes that ``saves`` also writes what comes between its products, with the part of the last axis applied.
    """

    kind: str
    first: int
    stop: int
    modes: tuple[Mode, ...]
    parts: tuple[tuple[int, ...], ...]
    saves: bool = False

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Order of the modes."""
        return cheapest(self.modes)

    @cached_property
    def columns(self) -> int:
        """Extent of the run before the pass."""
        return math.prod(mode.columns for mode in self.modes)

    @cached_property
    def rows(self) -> int:
        """Extent of the run after the pass."""
        return math.prod(mode.rows for mode in self.modes)

    @cached_property
    def most(self) -> int:
        """Largest extent of the run on the way."""
        extents = [
            step.left * max(step.mode.columns, step.mode.rows) * step.right for step in steps(self.modes, self.order)
        ]
        return max([self.columns, self.rows, *extents])

    def __str__(self) -> str:
        return f"{self.kind}{' saving' * self.saves} {'*'.join(map(str, self.modes))}"


def between(passes: Sequence[Pass]) -> tuple[tuple[int, ...], ...]:
    """Return the positions whose factors are applied to what is left inside each pass and by each but the last one."""
    found, done = list[tuple[int, ...]](), tuple[int, ...]()
    for own in passes:
        if own.saves:
            found.append(tuple(sorted((*done, *own.parts[-1]))))
        done = tuple(sorted((*done, *(position for part in own.parts for position in part))))
        found.append(done)
    return tuple(found[:-1])


def following(passes: Sequence[Pass], after: After) -> float:
    """Return the seconds of what follows passes that may leave intermediate results to it."""
    return after(between(passes)) * (_SAVED if len(passes) > 1 else 1.0)


def plain_pass(kind: str, modes: Sequence[Mode], first: int, stop: int) -> Pass:
    """Return the pass over these axes without merged factors; axes without a factor at its ends are left out."""
    return _plain_pass(kind, tuple(modes), first, stop)


@lru_cache(maxsize=4096)
def _plain_pass(kind: str, modes: tuple[Mode, ...], first: int, stop: int) -> Pass:
    while first < stop and modes[first].factor is None:
        first += 1
    while first < stop and modes[stop - 1].factor is None:
        stop -= 1
    own: list[Mode] = []
    parts: list[tuple[int, ...]] = []
    for index in range(first, stop):
        mode = modes[index]
        own.append(Mode(mode.columns, mode.rows, None if mode.factor is None else len(parts)))
        if mode.factor is not None:
            parts.append((index,))
    return Pass(kind, first, stop, tuple(own), tuple(parts))


def square_groups(modes: Sequence[Mode], size: int, count: int) -> list[tuple[int, ...]]:
    """Return positions of neighbours that make ``count`` square factors of ``size`` rows multiplied out, or none."""
    if any(mode.columns != mode.rows or mode.columns < 2 for mode in modes):
        return []
    groups: list[tuple[int, ...]] = []
    extent = size
    for index, mode in enumerate(modes):
        if extent == size:
            groups, extent = [*groups, (index,)], mode.columns
        else:
            groups, extent = [*groups[:-1], (*groups[-1], index)], extent * mode.columns
    extents = (math.prod(modes[index].columns for index in group) for group in groups)
    is_whole = all(extent == size and len(group) <= MOST_JOINED for extent, group in zip(extents, groups, strict=True))
    return groups if is_whole and len(groups) == count else []


@lru_cache(maxsize=4096)
def square_pass(plain: Pass, size: int, count: int) -> Pass | None:
    """Return the pass on tensor cores over ``count`` square factors of ``size`` rows, or None where there are none."""
    groups = square_groups(plain.modes, size, count)
    if not groups:
        return None
    modes = tuple(Mode(size, size, number) for number in range(count))
    parts = tuple(tuple(plain.first + index for index in group) for group in groups)
    return replace(plain, kind="mma", modes=modes, parts=parts)


def merged(run: Pass, wanted: Callable[[Mode, Mode, bool], bool]) -> Pass:
    """Return a pass with neighbouring factors multiplied out, from the last, if ``wanted`` says so.

    ``wanted`` is called with the present factor, the merged one, and whether it is on the last axis.
    """
    modes: list[Mode] = []
    groups: list[tuple[int, ...]] = []
    for index in reversed(range(len(run.modes))):
        mode = run.modes[index]
        own = () if mode.factor is None else run.parts[mode.factor]
        last = modes[-1] if modes and modes[-1].factor is not None else None
        if own and last is not None:
            product = Mode(mode.columns * last.columns, mode.rows * last.rows, last.factor)
            if wanted(last, product, len(modes) == 1):
                modes[-1] = product
                groups[-1] = own + groups[-1]
                continue
        modes.append(Mode(mode.columns, mode.rows, len(groups) if own else None))
        if own:
            groups.append(own)
    return Pass(run.kind, run.first, run.stop, tuple(reversed(modes)), tuple(groups))


def runs(modes: Sequence[Mode], fits: Limit, alone: Callable[[Mode], bool]) -> list[tuple[int, int]]:
    """Return ranges of neighbouring axes, from the last, each extended while ``fits(modes, extent to the right)``.

    A mode for which ``alone`` holds shares its range with no other factor.
    """
    found: list[tuple[int, int]] = []
    stop = len(modes)
    while stop:
        first = stop
        right = math.prod(max(mode.columns, mode.rows) for mode in modes[stop:])
        while first:
            run = modes[first - 1 : stop]
            several = sum(mode.factor is not None for mode in run) > 1
            if first < stop and (
                not fits(run, right) or (several and any(mode.factor is not None and alone(mode) for mode in run))
            ):
                break
            first -= 1
        found.append((first, stop))
        stop = first
    return [(first, stop) for first, stop in found if any(mode.factor is not None for mode in modes[first:stop])]


@lru_cache(maxsize=4096)
def in_order(passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
    """Return the passes in the order of fewest multiplications."""
    whole = [Mode(run.columns, run.rows, index) for index, run in enumerate(passes)]
    indices = sorted(range(len(passes)), key=lambda index: -passes[index].first)
    arranged = [whole[index] for index in reversed(indices)]
    order = [arranged[position].factor for position in cheapest(arranged)]
    return tuple(passes[index] for index in order if index is not None)


def orders(passes: Sequence[Pass]) -> list[tuple[Pass, ...]]:
    """Return the orders of passes that may differ in time: those of few, one of which changes an extent."""
    is_square = all(run.columns == run.rows for run in passes)
    return [tuple(passes)] if is_square or len(passes) > MOST_ORDERED else list(permutations(passes))


def every_order(passes: Sequence[Pass]) -> list[tuple[Pass, ...]]:
    """Return all orders of few passes, of more that of fewest multiplications and the opposite one."""
    ordered = in_order(tuple(passes))
    return list(permutations(ordered)) if len(ordered) <= MOST_PERMUTED else [ordered, ordered[::-1]]


@dataclass(frozen=True)
class View:
    """The view of the tensor in a pass: (left, columns, right) before it and (left, rows, right) after it."""

    left: int
    right: int


def views(modes: Sequence[Mode], passes: Sequence[Pass]) -> list[View]:
    """Return the view of every pass, ``right`` without the columns of x."""
    extents = [mode.columns for mode in modes]
    found: list[View] = []
    for run in passes:
        found.append(View(math.prod(extents[: run.first]), math.prod(extents[run.stop :])))
        for index in range(run.first, run.stop):
            extents[index] = modes[index].rows
    return found


@lru_cache(maxsize=16384)
def surrounding(own: tuple[Mode, ...], others: tuple[Mode, ...]) -> int:
    """Return the extent of other axes during a pass: of those that shrink more, or grow less, after their own."""

    def grows(modes: Sequence[Mode]) -> float:
        return 1 / math.prod(mode.columns for mode in modes) - 1 / math.prod(mode.rows for mode in modes)

    run = plain_pass("", own, 0, len(own))
    most = grows(run.modes)
    return math.prod(mode.rows if grows([mode]) < most else mode.columns for mode in others)
