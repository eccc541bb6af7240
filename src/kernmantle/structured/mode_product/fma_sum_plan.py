"""Plans of the gradient of weights on a GPU by FMA instructions; lanes lie along l, or along a batch that is last.

Where l interleave, or blocks are small, tiles of tensor cores are mostly empty, or their operands lie in short runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern
from .transpose_plan import ACCESS, pass_seconds
from .weight_gradient_plan import MOST_PART_BYTES

_MOST_THREADS, _MOST_SUMS, _MOST_SHARE = 256, 96, 8
_ALLOCATED, _MOST_RESIDENT = 128, 2048  # threads of a block by which registers are shared out, of a multiprocessor
_WARP, _WIDEST, _NARROWEST = 32, 128, 16  # lanes, and values of l of a block where lanes lie along them
_READ, _LEAST_ROWS = 12, 4  # words that a thread reads ahead, and its rows where others share the batch
_MOST_STEP, _MOST_ROWS = 2**26, 512  # numbers that steps within a block are counted to, rows that are transposed before
_ROWS_START = 6e-6  # seconds to begin with that (H200, decision 0078)
_MOST_REGISTERS, _OTHER_REGISTERS = 200, {True: 36, False: 48}  # by whether features lie together
_THREADS = (1, 2, 3, 4, 6, 8, 12, 16, 32)  # of a block along an axis
_OWNS = 12, 8, 6, 4  # the most sums of a thread along an axis
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
    slots: int = 1
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
        return max(1, min(REGISTERS // (-(-self.registers // 8) * 8 * threads), _MOST_RESIDENT // threads))

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


def candidates(
    pattern: Pattern, batch: int, dtype: str, first: bool, access: int, own: DeviceLimits
) -> Iterator[FmaSumPlan]:
    """Yield the tiles that fit, for neighbours in memory of which so many bytes may be read in one ``access``."""
    (_, b, c, d), size, unit = pattern, BYTES[dtype], 1 if first else _WARP
    most = max(1, math.gcd(access // size, d if first else batch))
    vectors = [1, 2][: 1 + (most > 1)] if first else sorted({1, most, max(1, most // 2)})
    for vector, (own_j, depth), (own_k, columns) in itertools.product(vectors, _splits(b), _splits(c)):
        if (vector if first else 1) * own_j * own_k > _MOST_SUMS:
            continue
        for wide in _wides(d // vector) if first else [wide for wide in (1, 2, 4) if wide <= d]:
            owners = unit * wide * depth * columns
            if owners > _MOST_THREADS:
                continue
            entries = max(1, batch // (_LEAST_ROWS if first else 2 * _WARP * vector))
            top = min(_MOST_SHARE, _MOST_THREADS // owners, entries)
            rows = max(1, min(4, _READ // ((own_j + own_k) * -(-vector * size // 4)), batch))
            for share in sorted({1, 1 << (top.bit_length() - 1)}):
                found = FmaSumPlan(
                    own.arch, dtype, pattern, first, wide, own_j, own_k, depth, columns, share, vector, rows
                )  # fmt: skip
                if found.registers <= _MOST_REGISTERS:
                    yield found


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
_CLOCK = 1.7e9  # cycles a second
# Times as long for so many weights of blocks that are wide both ways, whose x and gradients are read again out of the
# second-level cache: 11 such sums of 16 rows and more took 1.3 to 1.6 times the model (H200, decision 0086).
_MANY, _WIDE, _LONG, _AGAIN = 4e6, 32, 16, 1.35


def fma_sum_seconds(plan: FmaSumPlan, batch: int, own: DeviceLimits) -> float:
    """Return what a plan should take for one group."""
    (a, b, c, d), (high, span, deep), size, slots = plan.pattern, plan.tile, BYTES[plan.dtype], plan.slots
    loads, sums, costs = plan.own_j + plan.own_k, plan.own_j * plan.own_k, _COSTS[plan.first]
    each = -(-batch // slots)
    if plan.first:
        words = plan.vector * size / 4
        access = loads * (max(1.0, words) + (costs.apart if deep * size % 128 or d * size % 128 else 0.0))
        issued = plan.vector * sums + costs.load * loads * (1 + (size == 2) * plan.vector) + costs.step / plan.rows
        steps = each / plan.share
        waits = steps / plan.rows
    else:
        access = loads * max(1.0, size / 4)
        issued = sums + loads * ((size == 2) + 3 / plan.vector) + costs.step / (plan.rows * plan.vector)
        waits = -(-each // (_WARP * plan.share * plan.vector))
        steps, waits = waits * plan.vector, waits / plan.rows
    end = costs.end * sums
    block = plan.threads / _WARP * (steps * max(access, issued / 4) / costs.reached + end)
    blocks = plan.tiles * slots
    waves = -(-blocks // (own.sm_count * plan.each))
    worked = -(-blocks // own.sm_count) * block + waves * costs.block
    worked = max(worked, waves * (waits * costs.wait + costs.block + end)) / _CLOCK
    moved = size * batch * a * d * (b * -(-c // span) + c * -(-b // high)) / costs.cache
    written = (size if slots == 1 else 8 * slots) * math.prod(plan.pattern) / costs.written
    memory = size * batch * a * d * (b + c) / costs.memory + written
    together = sum(part**costs.power for part in (worked, moved, memory)) ** (1 / costs.power)
    together *= _AGAIN if min(b, c) >= _WIDE and math.prod(plan.pattern) >= _MANY and batch >= _LONG else 1.0
    return costs.start + (costs.added if slots > 1 else 0.0) + together


def _in_parts(plan: FmaSumPlan, batch: int, own: DeviceLimits) -> FmaSumPlan:
    """Return the plan with as many parts of the batch as should be quickest."""
    least = (_LEAST_ROWS if plan.first else _WARP * plan.vector) * 2 * plan.share
    most = max(1, min(MOST_PART_BYTES // (4 * math.prod(plan.pattern)), batch // least))
    full = own.sm_count * plan.each / plan.tiles
    several = {1, *(max(1, min(most, int(waves * full))) for waves in (0.5, 1, 2))}
    return min((replace(plan, slots=slots) for slots in several), key=lambda one: fma_sum_seconds(one, batch, own))


@lru_cache(maxsize=4096)
def fma_sum_plan(
    pattern: Pattern, batch: int, dtype: str, first: bool, access: int, own: DeviceLimits
) -> FmaSumPlan | None:
    """Return the plan that should be quickest; None where steps within a block are no 32-bit numbers."""
    _, b, c, d = pattern
    if max(b, c) * d > _MOST_STEP:
        return None
    every = (_in_parts(plan, batch, own) for plan in candidates(pattern, batch, dtype, first, access, own))
    best = min(every, key=lambda plan: fma_sum_seconds(plan, batch, own))
    return replace(best, whole=best.slots == 1)


def least_seconds(pattern: Pattern, batch: int, own: DeviceLimits) -> float:
    """Return what the products take that no plan does without."""
    return batch * math.prod(pattern) / (own.sm_count * 4 * _WARP * _CLOCK)


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
    direct = fma_sum_plan(pattern, batch, dtype, not last, math.gcd(ACCESS, size * (batch if last else d)), own)
    found = math.inf if direct is None else fma_sum_seconds(direct, batch, own)
    if last and batch <= _MOST_ROWS:
        rows = fma_sum_plan(pattern, batch, dtype, True, math.gcd(ACCESS, size * d), own)
        if rows is not None:
            found = min(found, fma_sum_seconds(rows, batch, own) + rows_seconds(pattern, batch, dtype))
    return found
