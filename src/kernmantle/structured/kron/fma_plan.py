"""Plans of a pass of small factors by FMA instructions: the tile, its phases, and the ways in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from .modes import Mode, cheapest
from .passes import Pass

SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
VALUES = {"f32": 64, "f64": 32}  # of a thread in registers
TILE = {"f32": 8192, "f64": 4096}  # entries of a block in shared memory
WIDEST = 32  # rows and columns of a factor that FMA instructions take
RIGHT = 32  # entries to the right of the factors that a block takes at least
COALESCED = 8  # neighbouring entries from which on global memory is read and written without shared memory between
# Entries of a factor that a thread copies at once, so that a small pass waits for memory once.
COPIED = 4
SHARED = (8, 4, 3, 2, 1)  # slices that share what is read of a factor
OWN_REGISTERS, VALUE_REGISTERS = 60, 2  # of a thread beside its entries, and for each of them


@dataclass(frozen=True)
class FmaLayout:
    """Properties of a call's arrays: neighbours in one access on the way in and out, a y, batched factors."""

    in_width: int
    out_width: int
    added: bool
    varies: bool


@dataclass(frozen=True)
class Phase:
    """Axes ``first`` to before ``stop`` of the run in registers, for ``across`` x ``along`` neighbours at once."""

    first: int
    stop: int
    across: int
    along: int


@dataclass(frozen=True)
class Instructions:
    """Multiplications of a thread one after the other in a tile; and of all its threads, reads of 16 bytes of a factor.

    Accesses of global memory, between shared memory and it, and between registers and it.
    """

    chain: float
    factors: float
    staged: float
    direct: float


@dataclass(frozen=True)
class FmaPlan:
    """A pass of small factors by fused multiply-adds.

    ``direct_in`` and ``direct_out``: no shared memory on that way; ``slices``: how many share what is read of a
    factor, as registers allow; ``ahead``: entries of the next tile that are copied while one is multiplied.
    """

    run: Pass
    stored: str
    compute: str
    arch: str
    items: int
    right: int
    threads: int
    phases: tuple[Phase, ...]
    layout: FmaLayout
    direct_in: bool
    direct_out: bool
    slices: int
    ahead: int = 0

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Room of every axis of the run."""
        return tuple(max(mode.columns, mode.rows) for mode in self.run.modes)

    @property
    def elements(self) -> int:
        """Entries of a tile."""
        return self.items * math.prod(self.extents) * self.right

    @property
    def gap(self) -> tuple[int, int] | None:
        """Return after how many entries of a tile how many are left out."""
        groups = [(phase.first, phase.stop) for phase in self.phases]
        return _gap(groups, self.extents, self.right, self.compute)

    def pitch(self, mode: Mode) -> int:
        """Return the length of a line of a factor in shared memory."""
        return _pitch(mode, self.compute)

    @property
    def factor_words(self) -> int:
        """Entries of shared memory for the factors."""
        used = sum(mode.columns * self.pitch(mode) for mode in self.run.modes if mode.factor is not None)
        return -(-used // 32) * 32

    @property
    def tile(self) -> int:
        """Entries of a tile that pass through shared memory: none where one phase reads and writes global memory."""
        return 0 if self.direct_in and self.direct_out and len(self.phases) == 1 else self.elements

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        tile, gap = self.tile, self.gap
        words = self.factor_words + tile + (tile // gap[0] * gap[1] if gap else 0)
        return SIZES[self.compute] * words + SIZES[self.stored] * self.ahead

    def slices_of(self, mode: Mode) -> int:
        """Return how many slices of an axis share at most what is read of its factor."""
        return max(1, min(self.slices, max(32, 8 * self.slices) // mode.rows))

    @property
    def registers(self) -> int:
        """Registers that a thread should need."""
        values = max(self._values(phase) for phase in self.phases) * SIZES[self.compute] // 4
        return min(255, OWN_REGISTERS + VALUE_REGISTERS * values)

    def _values(self, phase: Phase) -> int:
        """Return the entries that a thread has in a phase."""
        return math.prod(self.extents[phase.first : phase.stop]) * phase.across * phase.along

    @property
    def instructions(self) -> Instructions:
        """Instructions of a tile."""
        chain = factors = 0.0
        for phase in self.phases:
            values = self._values(phase)
            shares = self.elements / values
            for index in range(phase.first, phase.stop):
                mode, slices = self.run.modes[index], values // self.extents[index]
                most = self.slices_of(mode)
                shared = next(count for count in SHARED if count <= most and slices % count == 0)
                vectors = self.pitch(mode) * SIZES[self.compute] / 16
                chain += math.ceil(shares / self.threads) * slices * mode.columns * mode.rows
                factors += shares * slices / shared * mode.columns * vectors
        ends, layout = self.items * self.right, self.layout
        sides = (
            (self.direct_in, self.run.columns, layout.in_width, self.phases[0]),
            (self.direct_out, self.run.rows, layout.out_width, self.phases[-1]),
        )
        staged = sum(ends * extent / width for is_direct, extent, width, _ in sides if not is_direct)
        direct = sum(self.elements / phase.along for is_direct, _, _, phase in sides if is_direct)
        return Instructions(chain, factors, staged, direct)

    def count(self, entries: int, right: int) -> int:
        """Return the tiles of so many entries of the last batch axis, with so much to the right of the run."""
        return -(-entries // self.items) * -(-right // self.right)

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        ahead = f" ahead {self.ahead}" * (self.ahead > 0)
        return f"tile {self.items}x{self.right} threads {self.threads} slices {self.slices}{ahead}"

    def __str__(self) -> str:
        access = " direct" * (self.direct_in or self.direct_out)
        return f"{self.run} {self.stored} {self.tile_name}{access}"


def power(count: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << max(0, count - 1).bit_length()


def _divisor(count: int, most: int) -> int:
    return max(divisor for divisor in range(1, max(1, min(count, most)) + 1) if count % divisor == 0)


@lru_cache(maxsize=4096)
def fma_candidates(
    run: Pass, stored: str, compute: str, layout: FmaLayout, entries: int, columns: int, limits: DeviceLimits
) -> tuple[FmaPlan, ...]:
    """Return the plans of a pass of small factors, the preferred first."""
    first = fma(run, stored, compute, layout, entries, columns, limits)
    found = [first]
    for threads in (128, 256, 512):
        for slices in (2, 4, 8):
            if threads <= max(128, 2 * first.threads):
                own = fma(run, stored, compute, layout, entries, columns, limits, threads, slices)
                found += [own] * (own not in found)
    return tuple(found)


def plan_of(run: Pass, stored: str, entries: int, columns: int, limits: DeviceLimits) -> FmaPlan:
    """Return the plan of a pass over arrays that lie in order."""
    compute = "f64" if stored == "f64" else "f32"
    before, after = [mode.columns for mode in run.modes], [mode.rows for mode in run.modes]
    into, out = (_width(own, columns, before == after, compute) for own in (before, after))
    return fma(run, stored, compute, FmaLayout(into, out, False, False), entries, columns, limits)


def _width(extents: Sequence[int], columns: int, is_square: bool, compute: str) -> int:
    """Return the neighbours of one access of arrays that lie in order."""
    along = columns if columns > 1 else math.prod(extents) if is_square else extents[-1]
    vector = 16 // SIZES[compute]
    return vector if along % vector == 0 else 1


@lru_cache(maxsize=4096)
def fma(
    run: Pass, stored: str, compute: str, layout: FmaLayout, entries: int, columns: int, limits: DeviceLimits,
    threads: int = 0, slices: int = 0,
) -> FmaPlan:  # fmt: skip
    """Return the tile and phases of a pass of small factors on that many ``entries`` of the last batch axis.

    ``columns`` entries lie to the right of the axes of the factors.
    """
    extents = [max(mode.columns, mode.rows) for mode in run.modes]
    whole = math.prod(extents)
    widest = max(RIGHT, power(TILE[compute] // whole + 1) // 2)
    right = 1 if columns == 1 else min(power(columns), widest)
    items = 1
    if not layout.varies and right * whole < TILE[compute]:
        items = min(power(entries), power(TILE[compute] // (right * whole) + 1) // 2)
        while items > 1 and -(-entries // items) * -(-columns // right) < 2 * limits.sm_count:
            items //= 2
    elements = items * right * whole
    copied = sum(mode.columns * _pitch(mode, compute) for mode in run.modes if mode.factor is not None) // COPIED
    threads = threads or min(256, max(32, elements // 16 // 32 * 32, -(-copied // 32) * 32))
    ordered = _ordered(_groups(extents, run.modes, VALUES[compute]), run.modes)
    right_of = {group: math.prod(extents[group[1] :]) * right for group in ordered}
    square_in = all(mode.columns >= mode.rows for mode in run.modes)
    square_out = all(mode.rows >= mode.columns for mode in run.modes)
    direct_in = square_in and right_of[ordered[0]] >= COALESCED
    direct_out = square_out and right_of[ordered[-1]] >= COALESCED
    widest_access = [16 // SIZES[compute]] * len(ordered)
    if direct_in:
        widest_access[0] = min(widest_access[0], layout.in_width)
    if direct_out:
        widest_access[-1] = min(widest_access[-1], layout.out_width)
    phases = tuple(
        _phase(group, math.prod(extents[slice(*group)]), right_of[group], elements, elements // threads, most, compute)
        for group, most in zip(ordered, widest_access, strict=True)
    )
    found = FmaPlan(
        run, stored, compute, limits.arch, items, right, threads, phases, layout, direct_in, direct_out, slices or 4
    )
    return replace(found, ahead=_ahead(found, entries, limits))


def _phase(group: tuple[int, int], own: int, right: int, elements: int, each: int, widest: int, compute: str) -> Phase:
    """Return the phase of axes of ``own`` entries with so many to their right, for ``each`` entries of a thread."""
    slices = min(VALUES[compute], each) // own
    most = max(1, min(widest, slices))
    width = math.gcd(right, 1 << (most.bit_length() - 1))
    return Phase(*group, _divisor(elements // own, slices) if right == 1 else 1, width)


def _ahead(own: FmaPlan, tiles: int, limits: DeviceLimits) -> int:
    """Return how much of the next tile is copied ahead: whole lines of the first phase, where one block is alone.

    A multiprocessor that holds a single block reads nothing else while its threads wait for each other.
    """
    span = math.prod(own.extents[own.phases[0].stop :])
    is_alone = 2 * (own.shared + RESERVED_SHARED) > limits.shared_per_sm and tiles > limits.sm_count
    in_order = own.direct_in and own.phases[0].first == 0 and own.items == own.right == 1 and len(own.phases) > 1
    if not (is_alone and in_order) or SIZES[own.stored] * own.layout.in_width < 16 or span % own.layout.in_width:
        return 0
    available = limits.shared_per_block - own.shared - 16
    return min(available // (SIZES[own.stored] * span) * span, math.prod(own.extents))


def fits(modes: tuple[Mode, ...], right_columns: int, stored: str, limits: DeviceLimits) -> bool:
    """Return whether a block can hold these axes with so many columns to their right."""
    least = 1 if right_columns == 1 else min(RIGHT, power(right_columns))
    kind = "f64" if stored == "f64" else "f32"
    return SIZES[kind] * _tile_words(modes, least, kind) <= limits.shared_per_block


def _pitch(mode: Mode, compute: str) -> int:
    """Return the length of a line of a factor in shared memory."""
    vector = 16 // SIZES[compute]
    return -(-mode.rows // vector) * vector


def _gap(groups: Sequence[tuple[int, int]], extents: Sequence[int], right: int, compute: str) -> tuple[int, int] | None:
    """Return after how many entries of a tile how many are left out, so that threads hit different banks."""
    vector = 16 // SIZES[compute]
    for first, stop in groups:
        own = math.prod(extents[first:stop])
        if right * math.prod(extents[stop:]) == 1 and own % (2 * vector) == 0:
            return own, vector
    return None


@lru_cache(maxsize=4096)
def _tile_words(modes: tuple[Mode, ...], right: int, compute: str) -> int:
    """Return the entries of shared memory that a tile of one run takes with its factors."""
    factors = sum(mode.columns * _pitch(mode, compute) for mode in modes if mode.factor is not None)
    extents = [max(mode.columns, mode.rows) for mode in modes]
    whole = math.prod(extents) * right
    if not any(mode.factor is not None for mode in modes):
        return whole
    gap = _gap(_groups(extents, modes, VALUES[compute]), extents, right, compute)
    return -(-factors // 32) * 32 + whole + (whole // gap[0] * gap[1] if gap else 0)


def is_wide(mode: Mode) -> bool:
    """Return whether a thread's registers cannot hold the axis of a factor."""
    return max(mode.columns, mode.rows) > WIDEST


def _groups(extents: Sequence[int], modes: Sequence[Mode], most: int) -> list[tuple[int, int]]:
    """Return the ranges of neighbouring factors that registers hold: one at the end, then from the first axis on."""
    indices = [index for index, mode in enumerate(modes) if mode.factor is not None]
    first = stop = indices[-1] + 1
    while first - 1 in indices and math.prod(extents[first - 1 : stop]) <= max(most, extents[stop - 1]):
        first -= 1
    found = [(first, stop)]
    begin = 0
    while begin < first:
        if begin not in indices:
            begin += 1
            continue
        end = begin + 1
        while end < first and end in indices and math.prod(extents[begin : end + 1]) <= most:
            end += 1
        found.append((begin, end))
        begin = end
    return found


def _ordered(groups: Sequence[tuple[int, int]], modes: Sequence[Mode]) -> list[tuple[int, int]]:
    """Order of the phases: fewest multiplications; where all are square, the last axes neither first nor last."""
    if all(mode.rows == mode.columns for mode in modes):
        last, *rest = groups
        return [rest[0], last, *rest[1:]] if rest else [last]
    whole = [
        Mode(math.prod(m.columns for m in modes[a:b]), math.prod(m.rows for m in modes[a:b]), index)
        for index, (a, b) in enumerate(groups)
    ]
    by_position = sorted(whole, key=lambda mode: groups[mode.factor or 0])
    return [groups[by_position[position].factor or 0] for position in cheapest(by_position)]
