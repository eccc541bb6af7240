"""Which tile a Kronecker-sparse product takes on a GPU: of all that fit, the one that should be quickest."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .fma_plan import fma_choice
from .narrow_plan import narrow_plan
from .plan import REGISTERS, KronSparsePlan, Problem, Tile
from .tile_cost import packed_seconds, tile_seconds, together_seconds
from .transpose_plan import ACCESS

_WIDTHS = (128, 96, 64, 48, 32, 16)
# Columns of halves of all values of l, no power of two, in blocks of at most so many warps: with more they spill.
_BETWEEN, _MOST_WARPS = (112, 80, 56, 40, 24), 8
_MOST_NEIGHBOURS = {True: 12, False: 19}  # values of l, no power of two, that a thread takes, by whether it splits
# The warps that share rows, by the values of l of which each has as many, whole words (decisions 0064 and 0067).
_PARTS = {True: {14: 2, 15: 3, 18: 3, 21: 3}, False: {12: 3, 18: 3, 24: 3}}
_LEAST_SHARED = 9  # values of l, no power of two, of which a warp alone takes too few columns in float32
# Registers by which warps that share rows of float32 for parts of l may exceed what is counted: they spill up to 130
# bytes, which costs less than narrower tiles (decision 0092).
_UNCOUNTED = 20
_SHARING = {4: (3, 4), 8: (2,)}  # blocks that share a multiprocessor, by their warps, with fewer registers
# The most columns of theirs, the least rows of the batch, and the most positions of k in chunks of 16 (decision 0067).
_SHARED_COLUMNS, _SHARED_ROWS, _SHORT = 48, 256, 128
_SPREAD = (4, 4, 1)  # of halves; each warp multiplies by itself
_TYPES = ("f32", "f16", "bf16")
# Seconds to begin with a copy of x to whole vectors, and bytes a second that it reads and writes (H200, decision 0106);
# it pays where features begin between words, as many blocks of columns read x again a word at a time.
_COPYING, _COPIED, _WORD = 3e-6, 2.5e12, 4
# Of products of narrow blocks, by whether the features of x are together (H200, decision 0008).
_NARROW_START_SECONDS = 3e-6
_NARROW_BYTES_A_SECOND = {True: 3.0e12, False: 3.5e12}


def _spans(problem: Problem, grouped: bool) -> tuple[tuple[int, int, int], ...]:
    """Return the values of l of a warp, and warps that share rows, for values of l of their own or for columns."""
    d = problem.pattern[3]
    if not problem.x_first or d == 1:
        return ((1, 1, 1),)
    if d < 4:
        return ((d, 1, 1),)
    if d & (d - 1) and problem.y_first:
        halves = problem.dtype != "f32"
        alone = ((d, 1, 1), (d, 1, 2))[: 1 + (grouped and halves)] if d <= _MOST_NEIGHBOURS[not halves] else ()
        return (*alone, *_shared(problem, grouped), *_several(problem, grouped))
    return _several(problem, grouped)


def _shared(problem: Problem, grouped: bool) -> tuple[tuple[int, int, int], ...]:
    """Return the same of all values of l for warps that share rows: parts of them, or all with other columns."""
    d, split = problem.pattern[3], problem.dtype == "f32"
    if not grouped or d < _LEAST_SHARED:
        return ()
    if d > _MOST_NEIGHBOURS[True] or not split:
        count = _PARTS[split].get(d)
        return ((d // count, count, 1),) if count else ()
    return tuple((d // count, count, 1) for count in (2, 3) if d % count == 0) or ((d, 1, 2),)


def _several(problem: Problem, grouped: bool) -> tuple[tuple[int, int, int], ...]:
    """Return the same of some of the values of l."""
    d = problem.pattern[3]
    if problem.dtype == "f32":
        both = ((8, 2, 1),) if d == 16 and problem.pattern[1] <= 16 and problem.y_first else ()
        return ((4, 1, 1),) if d < 8 else ((4, 2, 1), (8, 1, 2), *both) if grouped else ((4, 2, 1),)
    if d < 16:
        return ((8, 1, 1), (4, 2, 1)) if d >= 8 else ((4, 1, 1),)
    spread = (_SPREAD,) if problem.y_first and problem.y_run == 8 and d % 16 == 0 else ()
    return ((8, 2, 1), (16, 1, 2), *spread) if grouped else ((8, 2, 1), *spread)


def _registers(tile: Tile, split: bool, x_first: bool) -> int:
    """Return registers of a thread that a tile takes at least: sums, what is read, what is multiplied, and the rest."""
    whole = x_first and tile.l & (tile.l - 1) != 0
    columns, deep = tile.columns // tile.sides, tile.l if whole else min(tile.l, 4 if split else 8)
    sums = tile.m * tile.l * columns // 2
    read = tile.m * deep * tile.chunk // (2 if split or not x_first or tile.m > 1 else 4)
    if not tile.grouped:
        return sums + read * (3 if split and tile.l > 2 else 1) + (36 if split else 60)
    left = tile.m * tile.chunk // 2 if split else 0
    return sums + read + (left + tile.m * columns // 2 + (28 if x_first else 26) if split else 44 if x_first else 60)


def _ahead(tile: Tile, split: bool, x_first: bool) -> bool:
    """Return whether halves are made ready while the products before them run: where registers are left for both."""
    most = min(248, REGISTERS // (32 * tile.warps * tile.each))
    return (
        tile.grouped and tile.resident and not split and not x_first
        and _registers(tile, split, x_first) + tile.m * tile.chunk // 4 <= most + 4
    )  # fmt: skip


def _tiles(problem: Problem, four: bool) -> Iterator[Tile]:
    _, b, c, d = problem.pattern
    split = problem.dtype == "f32"
    for (l, sharers, sides), m, columns in itertools.product(_spans(problem, four), (1, 2, 4), (*_WIDTHS, *_BETWEEN)):
        grouped = four and (l, sharers, sides) != _SPREAD
        between = grouped and not split and l == d > 2 and d & (d - 1) != 0  # tiles of some eights of columns
        together = 8 * (1 if not problem.y_first or l >= 4 else (1 if split else 2) if l == 2 else (2 if split else 4))
        step = max(together, 1 if split or grouped else 16)
        if columns % (step * sides) or (columns in _BETWEEN and not between) or columns < 16 * sides:
            continue
        if columns % ((8 if between else 16) * sides) or columns >= 2 * max(16, together, b):
            continue
        if m == 4 and (split or problem.x_first):
            continue
        if m == 4 and columns > 16 and problem.x_bytes < 4:  # they spill
            continue
        for chunk, warps in itertools.product((48 if c % 48 == 0 and c % 64 else 64, 32, 16), (16, 12, 8, 4)):
            share = sharers * sides
            if chunk >= 2 * max(16, c) or (grouped and warps % (4 * share)) or warps % share:
                continue
            if between and (sides > 1 or columns in _BETWEEN) and warps > _MOST_WARPS:
                continue
            if (l, sharers, sides) == _SPREAD and (warps, m) != (8, 1):
                continue
            fits = Tile(l, sharers, m, columns, chunk, 2, warps, True, grouped, False, sides)
            uncounted = _UNCOUNTED if split and grouped and sharers > 1 and l * sharers == d and d & (d - 1) else 0
            if _registers(fits, split, problem.x_first) > min(248, REGISTERS // (32 * warps)) + uncounted:
                continue
            depths = (2,) if split and sides > 1 else (4, 3, 2)
            residency = (True,) if sides > 1 or (l, sharers, sides) == _SPREAD else (True, False)
            begins_between = not problem.x_first and problem.x_bytes < 4  # words
            short = chunk == 32 or (chunk == 16 and c <= _SHORT)
            shares = begins_between and short and columns <= _SHARED_COLUMNS and problem.batch >= _SHARED_ROWS
            sharing = (1, *(_SHARING.get(warps, ()) if shares else ()))
            for stages, resident, each in itertools.product(depths, residency, sharing):
                one = replace(fits, stages=stages, resident=resident, each=each)
                if each > 1 and _registers(one, split, problem.x_first) > REGISTERS // (32 * warps * each):
                    continue
                own = replace(one, ahead=_ahead(one, split, problem.x_first))
                if own.ahead or columns < 128 or not grouped or split or problem.x_first:  # they spill else
                    yield own


def _plans(problem: Problem, limits: DeviceLimits, tile: Tile | None = None) -> Iterator[tuple[float, KronSparsePlan]]:
    """Yield what each tile that fits should take, or one of them."""
    for candidate in [tile] if tile else _tiles(problem, limits.has(("measured",))):
        own = _with(candidate, problem, limits)
        if own.shared(problem) > limits.shared_per_block or own.blocks_each(problem, limits) < 1:
            continue
        if own.groups(problem) * own.slots(problem, limits) < 2**31:
            yield tile_seconds(own, problem, limits), own


@lru_cache(maxsize=4096)
def plan(problem: Problem, limits: DeviceLimits, tile: Tile | None = None) -> KronSparsePlan | None:
    """Return the plan that should be quickest, or that of a tile; None if nothing fits into shared memory."""
    found = min(_plans(problem, limits, tile), key=lambda candidate: candidate[0], default=None)
    return None if found is None else found[1]


def tiles_to_try(problem: Problem, limits: DeviceLimits, count: int) -> list[Tile]:
    """Return the tiles that should be quickest, two at most of any rows and columns."""
    chosen: list[Tile] = []
    alike: Counter[tuple[int, ...]] = Counter()
    for _, own in sorted(_plans(problem, limits), key=lambda candidate: candidate[0]):
        tile = own.tile
        shape = tile.l, tile.m, tile.columns
        whole = *shape, tile.chunk, tile.warps, int(tile.resident)
        if alike[shape] < 2 and not alike[whole]:
            alike.update((shape, whole))
            chosen.append(tile)
    return chosen[:count]


@lru_cache(maxsize=4096)
def expected_seconds(problem: Problem, limits: DeviceLimits, packed: bool = False) -> float:
    """Return the seconds of the kernels, of rearranged weights if ``packed``; infinite if they do not take it."""
    a, b, c, d = problem.pattern
    if narrow_plan(problem, limits) is not None:
        moved = BYTES[problem.dtype] * problem.groups * problem.batch * a * d * (b + c)
        return _NARROW_START_SECONDS + moved / _NARROW_BYTES_A_SECOND[problem.x_first]
    fma = fma_choice(problem, limits)
    return min(tiled_seconds(problem, limits, packed), math.inf if fma is None else fma[0])


def tiled_seconds(problem: Problem, limits: DeviceLimits, packed: bool = False) -> float:
    """Return the seconds of the quickest tile, of rearranged weights if ``packed``; infinite if there is none."""
    return as_multiplied(problem, limits, packed)[1]


@lru_cache(maxsize=4096)
def as_multiplied(problem: Problem, limits: DeviceLimits, packed: bool = False) -> tuple[Problem, float]:
    """Return the problem of the quickest tile, x where it lies or copied to whole vectors before, and its seconds."""
    found = problem, _tile_seconds(problem, limits, packed)
    if problem.x_first or problem.x_bytes >= _WORD or problem.groups > 1:
        return found
    a, _, c, d = problem.pattern
    over = replace(problem, x_bytes=ACCESS)
    copied = _COPYING + 2 * BYTES[problem.dtype] * problem.batch * a * c * d / _COPIED
    return min(found, (over, copied + _tile_seconds(over, limits, packed)), key=lambda one: one[1])


def _tile_seconds(problem: Problem, limits: DeviceLimits, packed: bool) -> float:
    chosen = plan(problem, limits) if problem.dtype in _TYPES else None
    if chosen is None:
        return math.inf
    return (packed_seconds if packed else together_seconds)(chosen, problem, limits)


def _with(tile: Tile, problem: Problem, limits: DeviceLimits) -> KronSparsePlan:
    size, d = BYTES[problem.dtype], problem.pattern[3]
    x_bytes, y_run = problem.x_bytes, problem.y_run
    if tile.l * tile.sharers != d:
        x_bytes = math.gcd(x_bytes, size * d) if problem.x_first else x_bytes
        y_run = math.gcd(y_run, d) if problem.y_first else y_run
    along = (tile.chunk if problem.x_first else 1) * tile.l * tile.sharers if problem.x_first else 16 * tile.m
    full = tile.l * tile.sharers == problem.pattern[3]
    if problem.x_first and not full:
        along = tile.l * tile.sharers
    while along * size % x_bytes:
        x_bytes //= 2
    run = (
        tile.l * (tile.sharers if tile.l * tile.sharers * size >= 32 else 1)
        if problem.y_first and not (full and tile.sharers == 1 and (tile.l * size < 16 or tile.l & (tile.l - 1)))
        else 2 * tile.m
        if not problem.y_first
        else y_run
    )
    return KronSparsePlan(
        limits.arch, problem.dtype, problem.x_first, problem.y_first, full, tile, x_bytes,
        math.gcd(min(run, y_run), y_run), problem.products if size == 4 else 1, problem.bias,
        problem.activation,
    )  # fmt: skip
