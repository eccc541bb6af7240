"""Which tile a Kronecker-sparse product takes on a GPU: of all that fit, the one that should be quickest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .fma_plan import fma_choice
from .narrow_plan import narrow_seconds
from .plan import REGISTERS, KronSparsePlan, Problem, Tile
from .plan_table import TABLES, either, gcd, grid, joined, masked, quickest_row, row_of, rows_of, smaller
from .tile_cost import MOST_BLOCKS, Price, packed_seconds, price_of, together_seconds
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


def _spans(problem: Problem, grouped: bool) -> tuple[tuple[int, int, int], ...]:
    """Return the values of l of a warp, and warps that share rows, for values of l of their own or for columns."""
    d = problem.pattern[3]
    if not problem.x_first or d == 1:
        return ((1, 1, 1),)
    if d < 4:
        return ((d, 1, 1),)
    if d & (d - 1) and problem.y_first:
        halves = problem.dtype != "f32"
        both = grouped and (halves or d < _LEAST_SHARED)
        alone = ((d, 1, 1), (d, 1, 2))[: 1 + both] if d <= _MOST_NEIGHBOURS[not halves] else ()
        return (*alone, *_shared(problem, grouped), *_several(problem, grouped))
    return _several(problem, grouped)


def _shared(problem: Problem, grouped: bool) -> tuple[tuple[int, int, int], ...]:
    """Return such spans of all values of l for warps that share rows: parts of these, or all with other columns."""
    d, split = problem.pattern[3], problem.dtype == "f32"
    if not grouped or d < _LEAST_SHARED:
        return ()
    if d > _MOST_NEIGHBOURS[True] or not split:
        count = _PARTS[split].get(d)
        return ((d // count, count, 1),) if count else ()
    return tuple((d // count, count, 1) for count in (2, 3) if d % count == 0) or ((d, 1, 2),)


def _several(problem: Problem, grouped: bool) -> tuple[tuple[int, int, int], ...]:
    """Return the spans of tiles that have some of the values of l."""
    d = problem.pattern[3]
    if problem.dtype == "f32":
        both = ((8, 2, 1),) if d == 16 and problem.pattern[1] <= 16 and problem.y_first else ()
        return ((4, 1, 1),) if d < 8 else ((4, 2, 1), (8, 1, 2), *both) if grouped else ((4, 2, 1),)
    if d < 16:
        return ((8, 1, 1), (4, 2, 1)) if d >= 8 else ((4, 1, 1),)
    spread = (_SPREAD,) if problem.y_first and problem.y_run == 8 and d % 16 == 0 else ()
    return ((8, 2, 1), (16, 1, 2), *spread) if grouped else ((8, 2, 1), *spread)


def _registers(tile: Tile, split: bool, x_first: bool) -> Any:
    """Return registers of a thread that a tile takes at least: sums, what is read, what is multiplied, and the rest."""
    whole = x_first and tile.l & (tile.l - 1) != 0
    columns, deep = tile.columns // tile.sides, tile.l if whole else min(tile.l, 4 if split else 8)
    sums = tile.m * tile.l * columns // 2
    read = tile.m * deep * tile.chunk // either((tile.m > 1) | (split or not x_first), 2, 4)
    if not tile.grouped:
        return sums + read * (3 if split and tile.l > 2 else 1) + (36 if split else 60)
    left = tile.m * tile.chunk // 2 if split else 0
    return sums + read + (left + tile.m * columns // 2 + (28 if x_first else 26) if split else 44 if x_first else 60)


def _ahead(tile: Tile, split: bool, x_first: bool) -> Any:
    """Return whether halves are made ready while the products before them run: where registers are left for both."""
    most = smaller(248, REGISTERS // (32 * tile.warps * tile.each))
    fits = _registers(tile, split, x_first) + tile.m * tile.chunk // 4 <= most + 4
    return tile.grouped & tile.resident & (not split and not x_first) & fits


def _tiles(problem: Problem, four: bool, span: tuple[int, int, int]) -> Tile | None:
    """Return the table of tiles with such values of l and warps that share rows; None without any."""
    (_, b, c, d), (l, sharers, sides), split = problem.pattern, span, problem.dtype == "f32"
    grouped = four and span != _SPREAD
    between = grouped and not split and l == d > 2 and d & (d - 1) != 0  # tiles of some eights of columns
    together = 8 * (1 if not problem.y_first or l >= 4 else (1 if split else 2) if l == 2 else (2 if split else 4))
    step, share = max(together, 1 if split or grouped else 16), sharers * sides
    begins_between = not problem.x_first and problem.x_bytes < 4  # words
    shortest = split and sides > 1 and l == d < _LEAST_SHARED  # with longer chunks they spill (decision 0106)
    m, columns, chunk, warps, stages, resident, each = grid(
        (1, 2) if split or problem.x_first else (1, 2, 4),
        [
            own
            for own in (*_WIDTHS, *_BETWEEN[: len(_BETWEEN) * between])
            if own % (step * sides) == own % ((8 if between else 16) * sides) == 0 and own >= 16 * sides
            and own < 2 * max(16, together, b)
        ],
        (16,) if shortest else [own for own in (48 if c % 48 == 0 and c % 64 else 64, 32, 16) if own < 2 * max(16, c)],
        [own for own in (16, 12, 8, 4) if own % (4 * share if grouped else share) == 0],
        (2,) if split and sides > 1 and not shortest else (4, 3, 2),
        (True,) if sides > 1 or span == _SPREAD else (True, False),
        (1, 2, 3, 4) if begins_between and problem.batch >= _SHARED_ROWS else (1,),
    )  # fmt: skip
    tile = Tile(l, sharers, m, columns, chunk, stages, warps, resident, grouped, False, sides, each)
    tile = replace(tile, ahead=_ahead(tile, split, problem.x_first))
    registers, uncounted = _registers(tile, split, problem.x_first), 0
    if split and grouped and sharers > 1 and l * sharers == d and d & (d - 1):
        uncounted = _UNCOUNTED
    fits = registers <= np.minimum(248, REGISTERS // (32 * warps)) + uncounted
    if problem.x_bytes < 4:
        fits &= (m < 4) | (columns <= 16)  # they spill
    if between:
        fits &= (warps <= _MOST_WARPS) | ((sides == 1) & ~np.isin(columns, _BETWEEN))
    if span == _SPREAD:
        fits &= (warps == 8) & (m == 1)
    short = (chunk == 32) | ((chunk == 16) & (c <= _SHORT))
    shares = short & (columns <= _SHARED_COLUMNS) & (registers <= REGISTERS // (32 * warps * each))
    fits &= (each == 1) | (shares & np.where(warps == 4, each > 2, (warps == 8) & (each == 2)))
    if grouped and not split and not problem.x_first:
        fits &= tile.ahead | (columns < 128)  # they spill else
    return masked(tile, fits) if np.any(fits) else None


@lru_cache(maxsize=TABLES)
def _table(problem: Problem, limits: DeviceLimits) -> tuple[KronSparsePlan, Price] | None:
    """Return the table of plans that fit, and their price; None without any."""
    four = limits.has(("measured",))
    tiles = [_tiles(problem, four, span) for span in _spans(problem, four)]
    every = [_with(tile, problem, limits) for tile in tiles if tile is not None]
    if not every:
        return None
    table = joined(every)
    fits = (table.shared(problem) <= limits.shared_per_block) & (table.blocks_each(problem, limits) >= 1)
    if not np.any(fits):
        return None
    found = masked(table, fits)
    return found, price_of(found, problem, limits)


def candidates(problem: Problem, limits: DeviceLimits) -> Iterator[KronSparsePlan]:
    """Yield the plan of every tile that fits."""
    found = _every(problem, limits)
    return iter(()) if found is None else rows_of(found[0])


def _every(problem: Problem, limits: DeviceLimits) -> tuple[KronSparsePlan, Price] | None:
    """Return the table of the tiles that fit, and its price, which all batches share but short ones."""
    return _table(replace(problem, batch=_SHARED_ROWS if problem.batch >= _SHARED_ROWS else 1), limits)


def _priced(problem: Problem, limits: DeviceLimits) -> tuple[KronSparsePlan, Any] | None:
    """Return the table of plans, and their seconds."""
    found = _every(problem, limits)
    if found is None:
        return None
    table, price = found
    return table, price.seconds(problem, limits)


@lru_cache(maxsize=4096)
def _choice(problem: Problem, limits: DeviceLimits) -> tuple[float, KronSparsePlan] | None:
    """Return the least seconds of a plan, and the plan; None if nothing fits into shared memory."""
    found = _priced(problem, limits)
    return None if found is None or found[1].min() == math.inf else quickest_row(*found)


def plan(problem: Problem, limits: DeviceLimits, tile: Tile | None = None) -> KronSparsePlan | None:
    """Return the plan that should be quickest, or that of a tile; None if nothing fits into shared memory."""
    if tile is not None:
        own = _with(tile, problem, limits)
        fits = own.shared(problem) <= limits.shared_per_block and own.blocks_each(problem, limits) >= 1
        return own if fits and own.groups(problem) * own.slots(problem, limits) < MOST_BLOCKS else None
    found = _choice(problem, limits)
    return None if found is None else found[1]


def tiles_to_try(problem: Problem, limits: DeviceLimits, count: int) -> list[Tile]:
    """Return the tiles that should be quickest, two at most of any rows and columns."""
    chosen: list[Tile] = []
    alike: Counter[tuple[int, ...]] = Counter()
    found = _priced(problem, limits)
    if found is None:
        return chosen
    table, seconds = found
    for index in seconds.argsort(kind="stable"):
        tile = row_of(table.tile, index)
        shape = tile.l, tile.m, tile.columns
        whole = *shape, tile.chunk, tile.warps, int(tile.resident)
        if seconds[index] < math.inf and alike[shape] < 2 and not alike[whole]:
            alike.update((shape, whole))
            chosen.append(tile)
    return chosen[:count]


@lru_cache(maxsize=4096)
def expected_seconds(problem: Problem, limits: DeviceLimits, packed: bool = False) -> float:
    """Return the seconds of the kernels, of rearranged weights if ``packed``; infinite if they do not take it."""
    fma = fma_choice(problem, limits)
    alone = math.inf if fma is None else fma[0]
    return min(tiled_seconds(problem, limits, packed), narrow_seconds(problem, limits), alone)


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
    chosen = _choice(problem, limits) if problem.dtype in _TYPES else None
    if chosen is None:
        return math.inf
    return (packed_seconds if packed else together_seconds)(*chosen, problem, limits)


def _with(tile: Tile, problem: Problem, limits: DeviceLimits) -> KronSparsePlan:
    """Return the plan of a tile, or of a table of tiles with the same values of l."""
    size, d, span = BYTES[problem.dtype], problem.pattern[3], tile.l * tile.sharers
    x_bytes, y_run, full = problem.x_bytes, problem.y_run, span == d
    if not full:
        x_bytes = math.gcd(x_bytes, size * d) if problem.x_first else x_bytes
        y_run = math.gcd(y_run, d) if problem.y_first else y_run
    along = 16 * tile.m if not problem.x_first else tile.chunk * span if full else span
    run: Any = 2 * tile.m
    if problem.y_first:
        alone = full and tile.sharers == 1 and (tile.l * size < 16 or tile.l & (tile.l - 1))
        run = y_run if alone else tile.l * (tile.sharers if span * size >= 32 else 1)
    return KronSparsePlan(
        limits.arch, problem.dtype, problem.x_first, problem.y_first, full, tile, gcd(x_bytes, along * size),
        gcd(smaller(run, y_run), y_run), problem.products if size == 4 else 1, problem.bias, problem.activation,
    )  # fmt: skip
