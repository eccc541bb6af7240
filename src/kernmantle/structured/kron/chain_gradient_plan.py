"""Plans of all gradients of neighbouring factors in one pass on a GPU, with all that comes between in shared memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ...backends.cuda.tiles import CLOCK, RESERVED_SHARED, DeviceLimits
from .cost import LAUNCH, memory_of
from .factor_gradient_plan import SIZES
from .gradient_groups import GroupedPlan, Groups, Size, whole

# Largest rows or columns of an axis, factors of one, and numbers of a tile that there are to be.
WIDEST, MOST_FACTORS, NUMBERS = 48, 12, 4096
# Columns beside the factors that a tile takes at most, of which there are that many at least.
ACROSS = 32
# Largest products of factors that are one axis; registers of a thread beside its sums and fibers.
_TOGETHER, _OWN = (48, 32, 16, 8), 40
# What an access may take longer for a tile of half the size.
_PAD = 3.0
# Instructions for a number that an axis costs more (H200, decision 0076).
_AXIS = 0.3
# Instructions of a warp: for fibers, to read and split a number, to read a half, and for a copy, alone or not.
_FIBERS, _SPLIT, _READ, _COPIED, _COPIED_ALONE = 12, 4, 2, 8, 10
# Times as long as its instructions a multiprocessor takes, and with one block, with few threads, with fibers that are
# listed, and with halves, whose copies are of 16 bytes or of single ones; cycles of a block for an axis of a tile, and
# seconds to begin (27 passes on one H200, decision 0076).
_SLOWER, _ALONE, _NARROW, _LISTED, _HALVES, _SINGLE, _TILE_CYCLES, _BEGIN = 1.87, 1.3, 1.5, 1.4, 1.3, 2.6, 2500, 1e-6
# Share of the time that bytes take which work does not hide (the same passes). Both are a tenth more than was measured:
# of 50 products those that took longer by such a pass were expected to take as long.
_MOVED = 0.66
_BANKS, _PADS, VECTOR = 32, 17, 16


@dataclass(frozen=True)
class ChainPlan(GroupedPlan):
    """A pass over all axes, whose tiles have ``across`` columns of what stands behind them too.

    There are others where it ``has_columns``; ``vector``: neighbours of a copy.
    """

    across: int
    has_columns: bool
    vector: int = 1
    threads: int = 256
    blocks: int = 2

    def extents(self, stage: int) -> tuple[int, ...]:
        """Return the extents of a value to which the factors of so many axes are applied."""
        return _extents(self.axes, stage)

    @cached_property
    def pitches(self) -> tuple[tuple[int, ...], ...]:
        """For each stage how far entries of an axis are apart in shared memory."""
        return _all_pitches(self.axes, self.across, SIZES[self.stored])

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Where values begin and end: x, with one factor applied and more, v, what its first factor leaves of it."""
        count = len(self.axes)
        stages = [(0,), *((stage, stage - 1) for stage in range(1, count)), (count,), *[(count - 1,)] * (count > 1)]
        found = [0]
        for own in stages:
            found.append(found[-1] + max(self._numbers(stage) for stage in own))
        return tuple(found)

    @property
    def operands(self) -> tuple[int, int]:
        """Where x and v begin."""
        return self.slots[0], self.slots[len(self.axes)]

    def _numbers(self, stage: int) -> int:
        size = self.items * self.pitches[stage][0] * self.extents(stage)[0]
        return -(-size // 8) * 8

    @cached_property
    def tables(self) -> tuple[tuple[int, int], ...]:
        """Where the factors of an axis and their transposes begin, and where values do behind all of them."""
        found, at, size = list[tuple[int, int]](), 0, 64 if SIZES[self.stored] == 2 else 128
        for axis, (rows, columns) in enumerate(self.axes):
            table = size * -(-rows // 8) * -(-columns // 8)
            forth = table if axis + 1 < len(self.axes) else 0
            found.append((at, at + forth))
            at += forth + table
        return (*found, (at, at))

    @property
    def is_square(self) -> bool:
        """Return whether all axes are."""
        return all(rows == columns for rows, columns in self.axes)

    @property
    def is_listed(self) -> bool:
        """Return whether shared memory says where fibers begin: digits take long to find but of powers of two."""
        return any(extent & (extent - 1) for axis in self.axes for extent in axis)

    @property
    def _fibers(self) -> int:
        """Lines of all axes, and of what has the factor applied where that lies otherwise."""
        count = self.items * self.across * (1 if self.is_square else 2)
        return sum(count * math.prod(self.extents(axis)) // columns for axis, (_, columns) in enumerate(self.axes))

    @cached_property
    def shared(self) -> int:
        """Bytes of shared memory."""
        values = 4 * self.tables[-1][0] + SIZES[self.stored] * self.slots[-1] + 2 * self._fibers * self.is_listed
        sums = [4 * (self.threads // 32 * _fragments(own) * 128 + own[0] * own[1]) for own in self.axes]
        return max(values, *sums)

    def tiles(self, items: int, width: int) -> int:
        """Return the tiles of so many entries before the factors and behind."""
        return -(-items // self.items) * (-(-width // self.across) if self.has_columns else 1)

    def __str__(self) -> str:
        return f"all gradients of {self.names} {self.stored}, {self.items} items by {self.across}"


def _extents(axes: Sequence[Size], stage: int) -> tuple[int, ...]:
    return tuple(size[0] if axis < stage else size[1] for axis, size in enumerate(axes))


def _all_pitches(axes: Sequence[Size], across: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(_pitches(_extents(axes, stage), across, size) for stage in range(len(axes) + 1))


def _fragments(axis: Size) -> int:
    return -(-axis[0] // 16) * -(-axis[1] // 8)


@lru_cache(maxsize=4096)
def _pitches(extents: tuple[int, ...], across: int, size: int) -> tuple[int, ...]:
    """Return pitches by which few of a warp's accesses meet in a bank, chosen from the inside."""
    found: list[int] = []
    for axis in reversed(range(len(extents))):
        least = found[0] * extents[axis + 1] if found else across
        options = [[least + pad, *found] for pad in range(_PADS if found or across > 1 else 1)]
        waits = [_waits(extents[axis:], own, across, size) + _PAD * (own[0] / least - 1) for own in options]
        found = options[waits.index(min(waits))]
    return tuple(found)


def _waits(extents: Sequence[int], pitches: Sequence[int], across: int, size: int) -> float:
    """Return how often a warp's access to shared memory takes, on average over the axes and kinds of access.

    Products read four entries of eight fibers and write every other one, sums read eight of four fibers.
    """
    total = 0
    for axis, pitch in enumerate(pitches):
        fibers: list[int] = []
        for fiber in range(8):
            at, rest = fiber % across, fiber // across
            for other in reversed(range(len(extents))):
                if other != axis:
                    at += rest % extents[other] * pitches[other]
                    rest //= extents[other]
            fibers.append(at + rest * pitches[0] * extents[0])
        read = _waves([fiber + entry * pitch for fiber in fibers for entry in range(min(4, extents[axis]))], size)
        written = _waves(
            [fiber + entry * pitch for fiber in fibers for entry in range(0, min(8, extents[axis]), 2)], size
        )
        summed = _waves([fiber + entry * pitch for fiber in fibers[:4] for entry in range(min(8, extents[axis]))], size)
        total += 2 * read + 2 * written + 2 * summed
    return total / (6 * len(extents))


def _waves(numbers: Sequence[int], size: int) -> int:
    banks = [0] * _BANKS
    for word in {number * size // 4 for number in numbers}:
        banks[word % _BANKS] += 1
    return max(banks)


def _applying(rows: int, columns: int, size: int) -> int:
    """Return instructions of a warp to apply a factor to 16 fibers."""
    steps, wide = -(-columns // 8), -(-rows // 8)
    return _FIBERS + 4 * steps * (_SPLIT if size == 4 else _READ) + steps * wide * (3 if size == 4 else 1) + 4 * wide


def _summing(rows: int, columns: int, size: int) -> int:
    """Return instructions of a warp to add the outer products of 8 fibers."""
    down, wide = -(-rows // 8), -(-columns // 8)
    own = 2 * (down + wide) * (_SPLIT if size == 4 else _READ)
    return _FIBERS + own + -(-down // 2) * wide * (3 if size == 4 else 1)


@lru_cache(maxsize=4096)
def grouped(sizes: tuple[Size, ...], most: int = WIDEST) -> Groups:
    """Return neighbours of up to ``most`` together that are one axis, by which a warp has fewest instructions.

    None where an axis is too wide.
    """
    best: list[tuple[float, Groups]] = [(0.0, ())]
    for stop in range(1, len(sizes) + 1):
        found: list[tuple[float, Groups]] = []
        for begin in range(stop):
            rows, columns = whole(sizes[begin:stop])
            if max(rows, columns) <= (WIDEST if stop - begin == 1 else most):
                own = (_applying(rows, columns, 4) / 8 + _summing(rows, columns, 4) / 8) / columns
                before = best[begin]
                found.append((before[0] + own + _AXIS, (*before[1], sizes[begin:stop])))
        if not found:
            return ()
        best.append(min(found))
    return best[-1][1]


@lru_cache(maxsize=4096)
def chain(sizes: tuple[Size, ...], items: int, right: int, stored: str, limits: DeviceLimits) -> ChainPlan | None:
    """Return the pass over axes with so many entries before them and behind; None where there is none."""
    if stored not in SIZES or len(sizes) > MOST_FACTORS:
        return None
    found = [
        plan
        for groups in dict.fromkeys(grouped(sizes, most) for most in _TOGETHER)
        if len(groups) > 1  # a sum that applies its factor takes less of one: 24 x 24 80 us, here 107 (H200)
        for plan in _candidates(groups, min(NUMBERS, _shares(items, right, limits)), right, stored, limits)
    ]
    return min(found, key=lambda own: seconds(own, items, right, limits), default=None)


def _shares(items: int, right: int, limits: DeviceLimits) -> int:
    """Return the items of a tile at most, so that each multiprocessor has one."""
    return max(1, items * -(-right // min(right, ACROSS)) // limits.sm_count)


@lru_cache(maxsize=4096)
def _candidates(groups: Groups, most: int, right: int, stored: str, limits: DeviceLimits) -> tuple[ChainPlan, ...]:
    """Return the passes over axes that fit, by threads and blocks, of tiles of so many items at most."""
    return tuple(_every(groups, most, right, stored, limits))


def _every(groups: Groups, share: int, right: int, stored: str, limits: DeviceLimits) -> Iterator[ChainPlan]:
    axes = [whole(group) for group in groups]
    widest = max(math.prod(_extents(axes, stage)) for stage in range(len(axes) + 1))
    if 2 * SIZES[stored] * widest * min(right, 8) > limits.shared_per_block:
        return
    across = min(right, ACROSS)
    vector, lengths = VECTOR // SIZES[stored], (across, right) if right > 1 else axes[-1]
    pitches = [pitch for own in _all_pitches(axes, across, SIZES[stored]) for pitch in (own if right > 1 else own[:-1])]
    vector = 1 if any(length % vector for length in (*lengths, *pitches)) else vector
    taken = min(max(1, NUMBERS // (widest * across)), share)
    registers = _OWN + 4 * sum(map(_fragments, axes)) + 8 * -(-max(map(max, axes)) // 8)
    for threads, blocks in ((512, 1), (256, 4), (256, 3), (256, 2), (256, 1)):  # the first one where they cost the same
        most = min(limits.shared_per_block, limits.shared_per_sm // blocks - RESERVED_SHARED)
        if registers > limits.registers_per_sm // (threads * blocks):
            continue
        plan = ChainPlan(groups, stored, limits.arch, taken, across, right > 1, vector, threads, blocks)
        while plan.shared > most and plan.items > 1:
            plan = replace(plan, items=plan.items // 2)
        while plan.shared > most and plan.across > 8:
            plan = replace(plan, across=plan.across // 2, vector=1)
        if plan.shared <= most:
            yield plan


def seconds(plan: ChainPlan, items: int, right: int, limits: DeviceLimits) -> float:
    """Return what the pass and the sum of its shares should take."""
    count, size, last = plan.items * plan.across, SIZES[plan.stored], len(plan.axes)
    numbers = [count * math.prod(plan.extents(stage)) for stage in range(last + 1)]
    copied = _COPIED if plan.vector > 1 else _COPIED_ALONE
    work = (numbers[0] + numbers[-1]) / (32 * plan.vector) * copied
    for axis, (rows, columns) in enumerate(plan.axes):
        forth, fibers = axis + 1 < last, numbers[axis] // columns
        forward, backward = _applying(rows, columns, size), _applying(columns, rows, size)
        work += -(-fibers // 16) * (forth * forward + backward) + -(-fibers // 8) * _summing(rows, columns, size)
    tiles, blocks = plan.tiles(items, right), plan.blocks * limits.sm_count
    is_alone = tiles <= limits.sm_count  # one block of a multiprocessor has work, however many there are
    slower = _SLOWER * (_ALONE if plan.blocks == 1 and not is_alone else 1.0)
    slower *= _NARROW if plan.threads * (1 if is_alone else plan.blocks) < 512 else 1.0
    slower *= (_LISTED if plan.is_listed else 1.0) * (1.0 if size == 4 else _HALVES if plan.vector > 1 else _SINGLE)
    waits = -(-tiles // blocks) * _TILE_CYCLES * last  # of one block after the other
    taken = max(-(-tiles // limits.sm_count) * slower * work / 4, waits) / CLOCK
    moved = float(size) * items * right * sum(math.prod(plan.extents(stage)) for stage in (0, 0, last))
    shares = 8.0 * min(tiles, blocks) * plan.parts / memory_of(limits)
    return 2 * LAUNCH + _BEGIN + taken + _MOVED * moved / memory_of(limits) + shares
