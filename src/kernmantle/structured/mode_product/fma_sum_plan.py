"""Plans of the gradient of weights on a GPU by FMA instructions; lanes lie along l, or along a batch that is last.

Where l interleave, or blocks are small, tiles of tensor cores are mostly empty, or their operands lie in short runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern
from .plan_table import TABLES, columns_of, either, grid, joined, larger, masked, norm, row_of, smaller
from .transpose_plan import ACCESS, pass_seconds
from .weight_gradient_plan import MOST_PART_BYTES

_MOST_THREADS, _MOST_SUMS, _MOST_SHARE = 256, 96, 8  # of a block; of a thread; threads that share the batch
_ALLOCATED, _MOST_RESIDENT = 128, 2048  # threads of a block by which registers are shared out, of a multiprocessor
_WARP, _WIDEST, _NARROWEST = 32, 128, 16  # lanes, and values of l of a block where lanes lie along them
_READ, _LEAST_ROWS = 12, 4  # words that a thread reads ahead, and its rows where others share the batch
_MOST_STEP, _MOST_ROWS = 2**26, 512  # numbers that steps within a block are counted to, rows that are transposed before
_ROWS_START = 6e-6  # seconds to begin with that (H200, decision 0078)
_MOST_REGISTERS, _OTHER_REGISTERS = 200, {True: 36, False: 48}  # by whether features lie together
_THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 32)  # of a block along an axis
_OWNS = 12, 8, 6, 4  # the most sums of a thread along an axis
_SHARES = np.array([1, 1, 2, 2, 4, 4, 4, 4, 8])  # the largest powers of two up to a number
_COVERS = 1.12  # times the extent of an axis that tiles may cover where fewer do not cover less (of 584 on an H200)


@dataclass(frozen=True)
class FmaSumPlan:
    """Template parameters, see ``kronsparse_fma_sums.cuh``, parts of the batch, and whether there is one alone."""

    arch: str
    dtype: str
    pattern: Pattern
    first: bool
    wide: int
    own_j: int
    own_k: int
    depth: int
    columns: int
    share: int
    vector: int
    rows: int
    slots: int = field(default=1, compare=False)  # no text has them
    whole: bool = False

    @property
    def own_l(self) -> int:
        """Values of l of a thread."""
        return self.vector if self.first else 1

    @property
    def owners(self) -> int:
        """Threads, or warps, of a block for one share of the batch."""
        return self.wide * self.columns * self.depth

    @property
    def threads(self) -> int:
        """Threads of a block."""
        count = self.owners * self.share
        return -(-count // _WARP) * _WARP if self.first else _WARP * count

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        read = -(-self.vector * BYTES[self.dtype] // 4) * self.rows * (self.own_j + self.own_k)
        return self.own_l * self.own_j * self.own_k + 2 * read + _OTHER_REGISTERS[self.first]

    @property
    def each(self) -> int:
        """Blocks that share a multiprocessor."""
        threads = -(-self.threads // _ALLOCATED) * _ALLOCATED
        registers = REGISTERS // (-(-self.registers // 8) * 8 * threads)
        return larger(1, smaller(registers, _MOST_RESIDENT // threads))

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        sums = self.own_j * self.own_k if not self.first else self.own_k * self.own_l if self.share > 1 else 0
        return 4 * self.share * self.owners * sums

    @property
    def tile(self) -> tuple[int, int, int]:
        """Columns j, positions k and values of l of a block."""
        return self.own_j * self.depth, self.own_k * self.columns, self.own_l * self.wide

    @property
    def tiles(self) -> int:
        """Blocks for one group and part of the batch."""
        (a, b, c, d), (high, span, deep) = self.pattern, self.tile
        return a * -(-b // high) * -(-c // span) * -(-d // deep)

    def __str__(self) -> str:
        order, tile = "l" if self.first else "the batch", " x ".join(map(str, self.tile))
        return (
            f"kron sparse gradient {self.arch} fma along {order}, {tile} of {tuple(self.pattern)}, "
            f"{self.own_j} x {self.own_k} x {self.vector} a thread, {self.threads} threads, {self.dtype}"
        )


@lru_cache(maxsize=4096)
def _splits(extent: int) -> tuple[tuple[int, int], ...]:
    """Return sums of a thread and threads along an axis, whose tiles cover it with little more."""
    found: dict[tuple[int, int], None] = {}
    for threads in _THREADS:
        every = [
            (-(-extent // (own * threads)) * own * threads / extent, own)
            for own in range(_OWNS[0], 0, -1)
            if own * threads <= extent
        ]
        if not every:
            break
        for most in _OWNS:
            covers = [one for one in every if one[1] <= most]
            limit = max(_COVERS, min(covers)[0])
            found[next(own for cover, own in covers if cover <= limit), threads] = None
    return tuple(found)


def candidates(pattern: Pattern, batch: int, dtype: str, first: bool, access: int, own: DeviceLimits) -> FmaSumPlan:
    """Return the table of tiles that fit, which batches of about one length share.

    So many bytes of neighbours in memory may be read in one ``access``.
    """
    most = max(1, math.gcd(access // BYTES[dtype], pattern[3] if first else batch))
    most_entries = _MOST_SHARE * (_LEAST_ROWS if first else 2 * _WARP * most)
    entries = batch if batch < _LEAST_ROWS else min(1 << (batch.bit_length() - 1), most_entries)
    return _table(pattern, entries, dtype, first, most, own.arch)


@lru_cache(maxsize=TABLES)
def _table(pattern: Pattern, batch: int, dtype: str, first: bool, most: int, arch: str) -> FmaSumPlan:
    """Return the table of the tiles for so many entries and at most so many neighbours at once."""
    (_, b, c, d), size, tables = pattern, BYTES[dtype], list[FmaSumPlan]()
    for vector in [1, 2][: 1 + (most > 1)] if first else sorted({1, most, max(1, most // 2)}):
        wides = _wides(d // vector) if first else [wide for wide in (1, 2, 4) if wide <= d]
        at_j, at_k, wide, shares = grid(range(len(_splits(b))), range(len(_splits(c))), wides, (False, True))
        (own_j, depth), (own_k, columns) = columns_of(_splits(b), at_j), columns_of(_splits(c), at_k)
        entries = max(1, batch // (_LEAST_ROWS if first else 2 * _WARP * vector))
        rows = np.maximum(1, np.minimum(min(4, batch), _READ // ((own_j + own_k) * -(-vector * size // 4))))
        alone = FmaSumPlan(arch, dtype, pattern, first, wide, own_j, own_k, depth, columns, 1, vector, rows)
        threads = alone.owners if first else _WARP * alone.owners
        share = _SHARES[np.minimum(_MOST_THREADS // threads, min(_MOST_SHARE, entries))]
        fits = (alone.own_l * own_j * own_k <= _MOST_SUMS) & (threads <= _MOST_THREADS)
        fits &= (alone.registers <= _MOST_REGISTERS) & (~shares | (share > 1))
        tables.append(masked(replace(alone, share=np.where(shares, share, 1)), fits))
    return joined(tables)


@lru_cache(maxsize=4096)
def _wides(threads: int) -> tuple[int, ...]:
    """Return threads of a block along l, of so many in all."""
    least = -(-threads // _WIDEST)
    most = max(least, min(threads // _NARROWEST, 4))
    return tuple(dict.fromkeys(-(-threads // count) for count in range(least, most + 1)))


@dataclass(frozen=True)
class Costs:
    """Cycles of a multiprocessor that a plan takes, and seconds where it says so.

    ``reached`` is the share of its instructions and accesses, ``apart`` what an access of a warp takes besides that
    begins at no multiple of 128 bytes, ``load`` and ``step`` instructions of a number that is read and of a step,
    ``wait`` what a thread waits for memory, ``block`` and ``end`` what a block takes besides, and for each sum that
    lanes add. ``cache``, ``memory`` and ``written`` are bytes a second of the second-level cache, of memory, and of
    sums, ``start`` and ``added`` seconds to begin, and to begin to add parts; what overlaps is added in a ``power``.
    """

    reached: float
    apart: float
    load: float
    step: float
    wait: float
    block: float
    end: float
    cache: float
    memory: float
    written: float
    start: float
    added: float
    power: float


# Fitted on one H200 to 584 tiles of 56 random sums within 21 % and 15 % (root mean square), 16 and 12 % on 100 tiles of
# others (decision 0078), where features lie together and where the batch does.
_COSTS = {
    True: Costs(0.76, 0.31, 1.9, 18.0, 380.0, 900.0, 0.0, 7.4e12, 5.8e12, 2e12, 2.8e-6, 1.4e-6, 1.6),
    False: Costs(0.58, 0.6, 1.0, 4.7, 360.0, 640.0, 5.7, 1.2e13, 4.7e12, 3e12, 2.2e-6, 2.2e-6, 2.1),
}
# Times as long for so many weights of blocks that are wide both ways, whose x and gradients are read again out of the
# second-level cache: 11 such sums of 16 rows and more took 1.3 to 1.6 times the model (H200, decision 0086).
_MANY, _WIDE, _LONG, _AGAIN = 4e6, 32, 16, 1.35


def fma_sum_seconds(plan: FmaSumPlan, batch: int, own: DeviceLimits) -> Any:
    """Return what a plan should take for one group."""
    (a, b, c, d), (high, span, deep), size, slots = plan.pattern, plan.tile, BYTES[plan.dtype], plan.slots
    loads, sums, costs = plan.own_j + plan.own_k, plan.own_j * plan.own_k, _COSTS[plan.first]
    each = -(-batch // slots)
    if plan.first:
        words, whole = plan.vector * size / 4, (deep * size % 128 == 0) & (d * size % 128 == 0)
        access = loads * (larger(1.0, words) + either(whole, 0.0, costs.apart))
        issued = plan.vector * sums + costs.load * loads * (1 + (size == 2) * plan.vector) + costs.step / plan.rows
        steps = each / plan.share
        waits = steps / plan.rows
    else:
        access = loads * max(1.0, size / 4)
        issued = sums + loads * ((size == 2) + 3 / plan.vector) + costs.step / (plan.rows * plan.vector)
        waits = -(-each // (_WARP * plan.share * plan.vector))
        steps, waits = waits * plan.vector, waits / plan.rows
    end = costs.end * sums
    block = plan.threads / _WARP * (steps * larger(access, issued / 4) / costs.reached + end)
    blocks = plan.tiles * slots
    waves = -(-blocks // (own.sm_count * plan.each))
    worked = -(-blocks // own.sm_count) * block + waves * costs.block
    worked = larger(worked, waves * (waits * costs.wait + costs.block + end)) / CLOCK
    moved = size * batch * a * d * (b * -(-c // span) + c * -(-b // high)) / costs.cache
    written = either(slots == 1, size, 8 * slots) * math.prod(plan.pattern) / costs.written
    memory = size * batch * a * d * (b + c) / costs.memory + written
    together = norm((worked, moved, memory), costs.power)
    together *= _AGAIN if min(b, c) >= _WIDE and math.prod(plan.pattern) >= _MANY and batch >= _LONG else 1.0
    return costs.start + either(slots > 1, costs.added, 0.0) + together


def _parts(table: FmaSumPlan, batch: int, own: DeviceLimits) -> np.ndarray[Any, Any]:
    """Return the parts of the batch that should be quickest for each plan, one of these rows."""
    least = (_LEAST_ROWS if table.first else _WARP * table.vector) * 2 * table.share
    most: Any = np.maximum(1, np.minimum(MOST_PART_BYTES // (4 * math.prod(table.pattern)), batch // least))
    full: Any = own.sm_count * table.each / table.tiles
    several = [np.minimum(np.maximum(1, (waves * full).astype(np.int64)), most) for waves in (0.5, 1, 2)]
    return np.stack((np.ones_like(most), *several))


@lru_cache(maxsize=4096)
def fma_sum_choice(
    pattern: Pattern, batch: int, dtype: str, first: bool, access: int, own: DeviceLimits
) -> tuple[float, FmaSumPlan] | None:
    """Return the least seconds of a plan, and the plan; None where steps within a block are no 32-bit numbers."""
    _, b, c, d = pattern
    if max(b, c) * d > _MOST_STEP:
        return None
    table = candidates(pattern, batch, dtype, first, access, own)
    slots = _parts(table, batch, own)
    taken = fma_sum_seconds(replace(table, slots=slots), batch, own)
    row = int(taken.min(0).argmin())
    column = int(taken[:, row].argmin())
    parts = int(slots[column, row])
    return float(taken[column, row]), replace(row_of(table, row), slots=parts, whole=parts == 1)


def least_seconds(pattern: Pattern, batch: int, own: DeviceLimits) -> float:
    """Return the seconds of the multiplications alone, which every plan takes."""
    return batch * math.prod(pattern) / (own.sm_count * 4 * _WARP * CLOCK)


def rows_seconds(pattern: Pattern, batch: int, dtype: str) -> float:
    """Return what it takes to bring features together of both arrays, whose batch is last; infinite of long batches."""
    if batch > _MOST_ROWS:
        return math.inf
    (a, b, c, d), size = pattern, BYTES[dtype]
    whole = batch * size % ACCESS == 0
    return _ROWS_START + sum(pass_seconds(a * extent * d, batch, 1, size, True, whole) for extent in (b, c))


@lru_cache(maxsize=4096)
def fma_seconds(pattern: Pattern, batch: int, dtype: str, last: bool, own: DeviceLimits) -> float:
    """Return what sums over arrays without gaps should take."""
    size, d = BYTES[dtype], pattern[3]
    direct = fma_sum_choice(pattern, batch, dtype, not last, math.gcd(ACCESS, size * (batch if last else d)), own)
    found = math.inf if direct is None else direct[0]
    if last and batch <= _MOST_ROWS:
        rows = fma_sum_choice(pattern, batch, dtype, True, math.gcd(ACCESS, size * d), own)
        if rows is not None:
            found = min(found, rows[0] + rows_seconds(pattern, batch, dtype))
    return found
