"""Predicted time of a tile of the kernel for Kronecker-sparse products on a GPU, weights rearranged.

Fitted on H200s (decisions 0008 and 0037).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...compiler.nest import BYTES
from .plan import NEIGHBOURS, KronSparsePlan, Pattern, Problem, slots_of
from .plan_table import Column, Number, either, larger, norm, smaller, values_at

MOST_BLOCKS = 2**31  # of a launch
_WIDEST, _WORD = 16, 4  # bytes of an access
_WEIGHT_SECONDS = 2e-8  # to begin with a chunk of weights that stay
_UNGROUPED = 3.2  # times the cycles of a product of a warp group
_ALONE = 0.4  # share of a wait while few others read
_MOST_SCATTERED = 2.0
# Bytes of a line of memory, and times as long as estimated where blocks of float32 write a part of one each.
_TRANSACTION, _SHARED_TRANSACTIONS = 128, 1.14
# Bytes of x and y up to which the second-level cache has them still, and from which on it has not.
_CACHED_BYTES, _LOST_BYTES = 5e7, 7.5e7
# Seconds to start the kernel that rearranges the weights, and of a column of theirs, by whether numbers are split.
_REARRANGING = {True: (4e-7, 1.4e-8), False: (0.0, 6e-9)}
# Seconds to rearrange weights, fitted to 55 random ones on one H200 (decision 0136). In blocks of one l each: to begin,
# bytes a second of sectors, of which each number is read as one, each position of k by which columns are measured where
# numbers are split, and a block. By neighbours that lie together: to begin, 16 positions of k that are measured, and
# written, the blocks of a multiprocessor that wait for them at once, and bytes a second. These are taken where so many
# times their price is less, and where they fill a sector.
_SECTOR, _ONE_EACH, _TOGETHER = 32, (2.0e-6, 6.5e12, 1.3e-8, 8.7e-10), (2.9e-6, 1.2e-6, 1.3e-6, 2.2, 1.25e12)
_SURELY, _LAUNCH = 1.2, 2.0e-6  # seconds of the price that a product behind does not wait for


@dataclass(frozen=True)
class Costs:
    """Constants of one type and one order of x, times in seconds.

    ``memory`` and ``cache`` are bytes a second, where x is read in runs of fewer bytes than the ``run`` of each in as
    many times the time; bytes of weights count ``weights`` times. ``issue`` and ``multiply`` are cycles of an
    instruction and of a product, ``chunk`` instructions beside those of a chunk, those after all chunks count ``store``
    times. Fewer than ``hiding`` warps on a multiprocessor take ``(hiding / warps) ** hidden`` times as long. A chunk
    waits ``step / stages ** ahead * (numbers a lane reads / 64) ** deep``, and ``barrier`` where weights are not
    resident, a tile ``tile``. What overlaps is taken together by a norm of order ``norm``. Where the batch is in front
    and stores are not whole sectors, y counts ``broken`` more, and tiles of more than 32 columns of some values of l
    ``scattered`` for few chunks. Products hide ``overlap`` of what is made ready beside them. What
    the second-level cache has still comes ``again`` times as fast as from memory. All takes ``crowded`` longer for each
    64 KiB of x beyond the first that a multiprocessor has room for, but where 128 columns stay, which need it.
    """

    start: float
    memory: float
    cache: float
    run: float
    cache_run: float
    weights: float
    issue: float
    multiply: float
    chunk: float
    store: float
    hiding: float
    hidden: float
    step: float
    ahead: float
    deep: float
    barrier: float
    tile: float
    norm: float
    broken: float = 0.0
    scattered: float = 0.0
    overlap: float = 0.0
    again: float = 1.0
    crowded: float = 0.0


# Fitted on an H200 to 4281 tiles of 305 products and to 1080 products of the grid: by the batch last in
# memory, a block of all values of l, some of them, or less than 4. What is chosen takes 1.02 times the time of the
# best that was tried.
_COSTS: Mapping[str, Mapping[str, Costs]] = {
    "f32": {
        "last": Costs(
            4.39e-6, 4.8e12, 11.5e12, 61.8, 128, 0.996, 0.757, 4.6, 25, 3.82, 9.96,
            0.455, 0.783e-6, 0.345, 0.333, 0.61e-6, 0.835e-6, 2.95, again=1.2, crowded=0.02,
        ),
        "first": Costs(
            5e-6, 4.16e12, 12.5e12, 70, 90, 0.746, 1.66, 5.23, 25, 1.66, 8,
            0.348, 0.725e-6, 0.488, 1.04, 0.608e-6, 1.07e-6, 5.39, broken=0.3,
        ),
        "strided": Costs(
            5e-6, 8.06e12, 11.1e12, 32, 53.3, 0.442, 1.79, 2.88, 25, 2, 8,
            0.347, 0.774e-6, 0.372, 0.867, 0.462e-6, 0.908e-6, 1.58, broken=3.64, scattered=0.517,
        ),
        "narrow": Costs(
            3.41e-6, 4.36e12, 9.56e12, 70, 90, 0.781, 1.4, 2.9, 25, 1.46, 11,
            0.485, 0.776e-6, 0.468, 0.87, 0.926e-6, 0.769e-6, 5.39, broken=0.258,
        ),
    },
    "halves": {
        "last": Costs(
            3.56e-6, 4.09e12, 13e12, 39.8, 106, 1.12, 0.722, 5.71, 25, 4.36, 8,
            0.371, 2.09e-6, 1.35, 0.195, 0.717e-6, 0.626e-6, 4.44, overlap=0.0818, again=1.4, crowded=0.01,
        ),
        "first": Costs(
            3.4e-6, 4.97e12, 17.5e12, 70, 90, 0.781, 0.873, 1.53, 25, 2.87, 8,
            0.342, 0.654e-6, 0.358, 0.577, 0.445e-6, 0.163e-6, 2.16, broken=2.21, again=1.2,
        ),
        "strided": Costs(
            3.73e-6, 3.39e12, 9.16e12, 32, 49.1, 0.55, 1.34, 4.65, 25, 4.15, 10.6,
            0.366, 1.31e-6, 0.904, 0.68, 0.783e-6, 0.49e-6, 2.97, broken=3.62, scattered=0.5,
        ),
        "spread": Costs(
            3.4e-6, 4.97e12, 17.5e12, 60, 64, 0.781, 1.1, 0.2, 25, 2.87, 8,
            0.342, 0.9e-6, 0.358, 0.577, 0.445e-6, 0.163e-6, 2.16,
        ),
        "narrow": Costs(
            2.51e-6, 4.47e12, 9.99e12, 119, 146, 1.36, 1.03, 4.07, 25, 1.71, 9.32,
            0.361, 1.42e-6, 0.904, 0.235, 0.515e-6, 0.27e-6, 4.53, broken=0.281, crowded=0.01,
        ),
    },
}  # fmt: skip


# Seconds a byte of x and of y that are not moved 16 bytes at a time, by the bytes of an access, and of packed weights;
# fitted to 268 products of random patterns on one H100 (decision 0028).
_UNALIGNED: Mapping[tuple[bool, bool], tuple[Mapping[int, float], Mapping[int, float], float]] = {
    (True, True): ({4: 0.46e-12, 8: 0.4e-12}, {4: 1.7e-12, 8: 1.1e-12}, 0.58e-12),
    (True, False): ({4: 0.25e-12, 8: 0.3e-12}, {4: 0.25e-12, 8: 0.28e-12}, 0.25e-12),
    (False, True): ({2: 0.7e-12, 4: 0.14e-12, 8: 0.27e-12}, {2: 2.9e-12, 4: 3.6e-12, 8: 0.3e-12}, 0.28e-12),
    (False, False): ({4: 0.18e-12}, {4: 0.2e-12, 8: 0.4e-12}, 0.47e-12),
}
# The same where halves begin between words and the batch is last: a byte of x by the positions of k of a chunk, and one
# of y by the tiles of 16 rows of a warp, from so many rows of the batch on, or beyond whole tiles; a byte of runs of
# float32 by one tile, and of rows that runs of halves are made of; how many times as long as others blocks take that
# share a multiprocessor (one H200, decision 0067).
_WORD_COPIES = {16: 1e-13, 32: 1.3e-13, 48: 2e-13, 64: 3e-13}
_WORD_STORES, _EDGE_STORES, _WORD_ROWS = {1: 6e-13, 2: 3.3e-13, 4: 2.5e-13}, 9e-13, 64
_RUN_STORES, _RUN_COPIES, _SHARING = 3e-13, 3.5e-13, 0.85
# Seconds a byte of y takes more that leaves in words of halves, times the square of the words of a run, by which it is
# divided (one H200, decision 0120).
_SHORT_RUNS = 4.4e-10


# Times as long as estimated halves take whose warps share rows with all their l, no power of two, for columns of their
# own: of 60 random products on one H200 (decision 0092).
_SIDES = 1.1
# Values of l of a block in the fit; with more, no power of two, so many times that, by whether numbers are split.
_MOST_SPAN, _WIDER_SPAN = 12, {True: 1.6, False: 1.2}
# A few rows by narrow, deep blocks of halves take so many times as long.
_LEAST_ROWS, _NARROW, _DEEP, _SLOWER = 4, 16, 64, 2.0


def _copied(plan: KronSparsePlan, problem: Problem) -> Number:
    """Return the seconds that a byte of x takes more which is not copied in whole vectors."""
    found = values_at(_UNALIGNED[plan.split, problem.x_first][0], plan.x_bytes)
    if not problem.x_first:
        return either(plan.shifts, values_at(_WORD_COPIES, plan.tile.chunk), found)
    return found if plan.split else either(plan.stores_runs & (plan.x_bytes == 4), _RUN_COPIES, found)


def _stored(plan: KronSparsePlan, problem: Problem) -> Number:
    """Return the seconds that a byte of y takes more; where columns are stored in words, of rows beyond whole tiles."""
    run = plan.y_run if problem.y_first else problem.y_run  # neighbouring lanes of a warp store neighbours otherwise
    size = BYTES[problem.dtype]
    if plan.split:
        in_runs = either(run * size < _WIDEST, _RUN_STORES / plan.tile.m, 0.0)
    else:
        words = 4 * plan.run_fragments * plan.span + 1
        short = _SHORT_RUNS / (words * words)
        in_runs = either(run * size < _WORD, short, 0.0)
    found = values_at(_UNALIGNED[plan.split, problem.x_first][1], run * size)
    return either(plan.stores_words, _EDGE_STORES, either(plan.stores_runs, in_runs, found))


def quicker(ends: float, again: float) -> float:
    """Return how many times as fast as from memory so many bytes come that are read and written again and again."""
    return 1.0 + (again - 1.0) * min(1.0, max(0.0, (_LOST_BYTES - ends) / (_LOST_BYTES - _CACHED_BYTES)))


_KINDS = "last", "first", "strided", "narrow", "spread"


def _costs(plan: KronSparsePlan) -> Costs:
    """Return the constants of a plan, or columns of them."""
    own = _COSTS["f32" if plan.split else "halves"]
    if not plan.x_first:
        return own["last"]
    spread = plan.spread & (not plan.split) & (plan.tile.grouped == 0)
    narrow = plan.takes_neighbours | plan.stores_runs
    kind = either(spread, 4, either(narrow, 3, either(plan.full, 1, 2)))
    if not isinstance(kind, np.ndarray):
        return own[_KINDS[kind]]
    rows = np.array([astuple(own.get(name, own["last"])) for name in _KINDS])
    return Costs(*rows.T[:, kind])


def _instructions(plan: KronSparsePlan) -> tuple[float, float]:
    """Return instructions of a warp for one chunk, and for what follows all chunks of a tile."""
    size, tile = BYTES[plan.dtype], plan.tile
    numbers = 8 * tile.m * tile.l * tile.chunk / 16
    loads = numbers * size / either(tile.m * tile.l * size >= 4, 16, 4)
    columns = tile.columns / tile.sides
    sums = tile.m * tile.l * columns / 2
    steps = tile.chunk / 16 * tile.l * columns / 8
    copies = 16 * tile.m * tile.chunk * tile.l * size / 32 / plan.x_bytes / tile.sides
    chunk = 50 + loads + 5 * copies + (5 * numbers + sums if plan.split else 0.5 * numbers)
    chunk = either(tile.grouped, chunk, chunk + (steps + tile.m * steps * (plan.products if plan.split else 1)))
    return chunk, sums * (3 + (1 if plan.split else 0.5) + 4 / plan.y_run)


def _run_bytes(plan: KronSparsePlan) -> int:
    """Return the bytes of x that a warp takes from neighbouring addresses."""
    size, tile = BYTES[plan.dtype], plan.tile
    if not plan.x_first:
        return 16 * tile.m * size
    return plan.span * size * either(plan.full, tile.chunk, 1)


def _cycles(own: Costs, plan: KronSparsePlan, chunks: Number) -> Number:
    """Return the cycles of a warp for one tile."""
    tile = plan.tile
    products = tile.m * tile.l * (tile.columns // tile.sides // 8) * (tile.chunk // 16)
    products *= plan.products if plan.split else 1
    per_chunk, per_tile = _instructions(plan)
    issued = (chunks * (per_chunk + own.chunk) + per_tile * own.store) * own.issue
    multiplied = chunks * products * own.multiply * either(tile.grouped, 1, _UNGROUPED)
    return issued + multiplied - either(tile.ahead, own.overlap * smaller(issued, multiplied), 0.0)


def _rounds(plan: KronSparsePlan, problem: Problem, limits: DeviceLimits) -> tuple[int, int]:
    """Return the waves of blocks, and the tiles that come one after the other."""
    slots, each = plan.slots(problem, limits), plan.blocks_each(problem, limits)
    waves = -(-plan.groups(problem) * slots // (limits.sm_count * each))
    return waves, waves * -(-plan.tiles(problem) // slots)


@dataclass(frozen=True, eq=False)
class Price:
    """Amounts of a plan, or of all of a table, that do not depend on the batch, from which their seconds follow.

    ``memory`` and ``cache`` are bytes of an entry of the batch, ``weights`` those of all weights, ``cycles`` of a warp
    for a tile, ``step`` seconds of a chunk, ``times`` how many times as long what overlaps takes together, ``extra``
    seconds of a byte and ``begin`` of all of them. ``alike`` are groups, blocks of a multiprocessor and rows of a tile
    of which a table has several plans each, and which of them a plan has.
    """

    plan: KronSparsePlan
    costs: Costs
    groups: Number
    chunks: Number
    each: Number
    memory: Number
    cache: Number
    weights: Number
    cycles: Number
    step: Number
    times: Number
    extra: Number
    begin: Number
    alike: tuple[Column, Column, Column, Column] | None

    def _slots(self, problem: Problem, limits: DeviceLimits) -> tuple[Number, Number]:
        """Return the tiles of rows, and the blocks among which they are shared."""
        if self.alike is None:
            return self.plan.tiles(problem), self.plan.slots(problem, limits)
        groups, each, rows, which = self.alike
        tiles = -(-problem.batch // rows)
        return tiles[which], slots_of(groups, limits.sm_count * each, tiles)[which]

    def seconds(self, problem: Problem, limits: DeviceLimits) -> Number:
        """Return the seconds: start, and memory, cache, multiprocessors and the chain of its steps together."""
        (a, b, c, d), own, plan, tile = problem.pattern, self.costs, self.plan, self.plan.tile
        tiles, slots = self._slots(problem, limits)
        waves = -(-self.groups * slots // (limits.sm_count * self.each))
        rounds = waves * -(-tiles // slots)
        ends = BYTES[problem.dtype] * problem.groups * problem.batch * a * d
        memory = ends * self.memory / (own.memory * quicker(ends * (b + c), own.again))
        cache = (ends * self.cache + own.weights * (self.weights * either(tile.resident, slots, tiles))) / own.cache
        warps = tile.warps * smaller(self.each, -(-self.groups * slots // limits.sm_count))
        work = rounds * (warps / 4 * self.cycles / CLOCK * larger(1.0, own.hiding / warps) ** own.hidden)
        step = self.step * (_ALONE + (1 - _ALONE) * smaller(1.0, (rounds - 1) / 4))
        begun = either(tile.resident, waves * self.chunks * _WEIGHT_SECONDS, rounds * self.chunks * own.barrier)
        latency = begun + rounds * (self.chunks * step + own.tile)
        total = self.begin + norm((memory, cache, work, latency), own.norm) * self.times + ends * self.extra
        if not problem.y_first and problem.batch >= _WORD_ROWS:
            rest = problem.batch % (16 * tile.m) / problem.batch
            whole = either(plan.stores_words, values_at(_WORD_STORES, tile.m) - _EDGE_STORES, 0.0)
            total = total + ends * b * (1 - rest) * whole
        slow = problem.x_first and not plan.split and problem.batch <= _LEAST_ROWS and b < _NARROW and c >= _DEEP
        return either(self.groups * slots < MOST_BLOCKS, total * (_SLOWER if slow else 1.0), math.inf)


def price_of(plan: KronSparsePlan, problem: Problem, limits: DeviceLimits) -> Price:
    """Return the price of a plan, or of a table, for all batches that are aligned like that of a problem."""
    (a, b, c, d), size, own, tile = problem.pattern, BYTES[problem.dtype], _costs(plan), plan.tile
    groups, chunks, each = plan.groups(problem), plan.chunks(problem), plan.blocks_each(problem, limits)
    in_front = problem.x_first and problem.y_first
    broken = either(plan.sectors | plan.stores_runs | (not in_front), 0.0, own.broken)
    run = _run_bytes(plan)
    memory = c * larger(1.0, own.run / run) + b * (1 + broken)
    cache = c * -(-b // tile.columns) * larger(1.0, own.cache_run / run) + broken * b
    step = own.step / tile.stages**own.ahead * (tile.chunk * tile.m * tile.l / 64) ** own.deep
    scattered = smaller(_MOST_SCATTERED, 1 + own.scattered * larger(0, tile.columns - 32) / 32 / chunks)
    shared = plan.spread & plan.split & (BYTES[problem.dtype] * d >= _TRANSACTION)
    alone = in_front & (plan.full == 0) & (plan.sectors == 0)
    times = either(alone, scattered, either(shared, _SHARED_TRANSACTIONS, 1.0))
    times = times * either(tile.each > 1, _SHARING, 1.0)
    odd = tile.l & (tile.l - 1) != 0
    times = times * either(plan.full & (not plan.split) & (tile.sides > 1) & odd, _SIDES, 1.0)
    times = times * either(plan.stores_runs & (plan.span > _MOST_SPAN), _WIDER_SPAN[plan.split], 1.0)
    pressure = either(tile.resident & (tile.columns == 128), 0.0, each * plan.pipeline_bytes / 65536)
    times = times * (1 + own.crowded * larger(0, pressure - 1))
    weights = _UNALIGNED[plan.split, problem.x_first][2] * size * problem.groups * a * b * c * d
    return Price(
        plan, own, groups, chunks, each, memory, cache, groups * chunks * plan.chunk_bytes, _cycles(own, plan, chunks),
        step, times, c * _copied(plan, problem) + b * _stored(plan, problem), own.start + weights,
        _alike(groups, each, plan.rows),
    )  # fmt: skip


def _alike(groups: Number, each: Number, rows: Number) -> tuple[Column, Column, Column, Column] | None:
    """Return different ones of a table, and which of them each plan has; None of a single plan."""
    found: Any = np.broadcast_arrays(groups, each, rows)
    if not found[0].ndim:
        return None
    several, which = np.unique(np.stack(found), axis=1, return_inverse=True)
    return *several, which.reshape(-1)  # pyright: ignore


@dataclass(frozen=True)
class Waits:
    """Time of random products beside a ``share`` of their model, in seconds of steps one after the other.

    Of each chunk of a tile, by whether x is copied 16 bytes at a time or fewer, and of each l of a tile but one.
    """

    share: float
    whole: float
    narrow: float
    l: float = 0.0


# By whether numbers are split and the model's kinds of tiles, fitted on one H200 to 231 products of random patterns
# with the tiles that are chosen, within 22 % (root mean square), before 28 %, and to 240 of the grid; others of it are
# within 7 to 13 % as before (decision 0037).
_WAITS: Mapping[tuple[bool, str], Waits] = {
    (False, "first"): Waits(1.03, 0.0, 4.4e-7), (False, "last"): Waits(0.87, 1.35e-7, 4.0e-7),
    (False, "narrow"): Waits(0.92, 1.5e-7, 6.5e-7, 2.8e-7), (True, "first"): Waits(0.96, 1.4e-7, 3.0e-7),
    (True, "last"): Waits(0.86, 3.3e-7, 0.0), (True, "narrow"): Waits(0.96, 2.0e-7, 0.0, 5.5e-7),
}  # fmt: skip


def packed_seconds(taken: float, plan: KronSparsePlan, problem: Problem, limits: DeviceLimits) -> float:
    """Return the seconds of the plan that is chosen, of which its own are ``taken``, its weights rearranged before."""
    kind = "last" if not plan.x_first else "narrow" if plan.takes_neighbours or plan.stores_runs else "first"
    own, (_, rounds) = _WAITS[plan.split, kind], _rounds(plan, problem, limits)
    step = own.whole if plan.x_bytes == _WIDEST else own.narrow
    waits = rounds * (plan.chunks(problem) * step + (plan.tile.l - 1) * own.l)
    return own.share * taken + waits


def together_seconds(taken: float, plan: KronSparsePlan, problem: Problem, limits: DeviceLimits) -> float:
    """Return :func:`packed_seconds` with the start of the kernel that rearranges the weights, but not its work."""
    start, column = _REARRANGING[plan.split]
    return packed_seconds(taken, plan, problem, limits) + start + column * min(problem.pattern[2], 256)


def _together_seconds(
    pattern: Pattern, dtype: str, groups: int, units: int, steps: int, sharing: int, limits: DeviceLimits
) -> float:  # fmt: skip
    """Return the seconds in which so many blocks share each unit of neighbouring weights, of so many steps of k."""
    begin, measured, written, resident, rate = _TOGETHER
    waves = max(1.0, units * sharing / (resident * limits.sm_count))
    rounds = waves * (measured * -(-pattern[2] // 16) * (dtype == "f32") + written * -(-steps // sharing))
    return begin + norm((rounds, BYTES[dtype] * groups * math.prod(pattern) / rate), 3)


def sharing_of(plan: KronSparsePlan, problem: Problem, i_step: int, l_step: int, limits: DeviceLimits) -> int:
    """Return how many blocks should share neighbouring weights that are rearranged, 0 if each should take one l.

    ``i_step`` and ``l_step`` are the steps of the weights from one i, and one l, to the next one.
    """
    (a, _, c, d), groups = problem.pattern, problem.groups
    neighbours, step = (d, l_step) if d > 1 else (a, i_step)
    if step != 1 or neighbours * BYTES[plan.dtype] < _SECTOR:
        return 0
    begin, rate, each_k, each_block = _ONE_EACH
    numbers = groups * math.prod(problem.pattern)
    alone = begin + _SECTOR * numbers * (1 + plan.split) / rate + each_k * c * plan.split
    alone += each_block * plan.preparing_blocks(problem, 0)
    units, steps = plan.preparing_blocks(problem, 1), plan.chunks(problem) * plan.tile.chunk // 16
    own = problem.pattern, plan.dtype, groups, units, steps
    taken, sharing = min((_together_seconds(*own, parts, limits), parts) for parts in range(1, steps + 1))
    return sharing if _SURELY * taken < alone else 0


@lru_cache(maxsize=4096)
def neighbours_seconds(pattern: Pattern, dtype: str, limits: DeviceLimits) -> float:
    """Return what neighbouring weights of any tile should take to be rearranged before a product; or infinity."""
    a, b, c, d = pattern
    if d == 1 or dtype == "f64" or d * BYTES[dtype] < _SECTOR:
        return math.inf
    own = pattern, dtype, 1, a * -(-d // NEIGHBOURS) * -(-b // 8), -(-c // 16)
    return min(_together_seconds(*own, parts, limits) for parts in range(1, own[-1] + 1)) - _LAUNCH
