"""How a GPU runs a Kronecker-sparse product: which tile, what stays in shared memory, how the batch is cut up."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from .cuda_tiles import DeviceLimits
from .kronsparse_narrow import narrow_plan
from .nest import BYTES

Pattern = tuple[int, int, int, int]
ACTIVATIONS = ("", "relu", "gelu", "silu")
_WIDTHS = (128, 96, 64, 48, 32, 16)
_REGISTERS = 65536
_RESERVE = 1024
_GROUPED_ARCHS = ("sm_90",)
# Fitted to 349 tiles of 40 products on an H200: predictions are within 15 % (root mean square, near the best more than
# elsewhere), and the tile chosen by them takes 1.04 times the time of the best that was tried.
_CLOCK = 1.7e9
_BYTES_A_SECOND = 4.0e12
_CACHE_BYTES_A_SECOND = 6.0e12
_MEMORY_RUN, _CACHE_RUN = 80, 77
_ISSUED = {"f32": 1.7, "f16": 2.1, "bf16": 2.1}
_MMA_CYCLES = 24.0
_GROUPED_CYCLES = 7.4
_HIDING_WARPS, _HIDDEN = 10.5, 0.85
_START_SECONDS = 4.9e-6
_STEP_SECONDS, _BARRIER_SECONDS = 0.5e-6, 0.2e-6
_BY_L = {1: 0.9, 2: 0.9, 3: 1.0, 4: 1.1, 8: 1.1}  # where features lie together
_SECTORS, _SERIAL, _AHEAD, _BY_CHUNK = 0.23, 1.1, 0.88, {16: 1.08, 64: 0.93}
_SCATTERED, _MOST_SCATTERED = 3.6, 2.0  # wide tiles that store 16 or 32 bytes at a time, for few chunks of k
# With the weights rearranged before, fitted to 84 products: start, share of the above with the batch last, and what is
# saved for each number of a column; shares with the batch first for d = 1, 2 or 3, 4, and more than a tile has.
_KEPT = {"f32": (5.9e-6, 0.92, 3.5e-8), "f16": (4.6e-6, 0.95, 9e-9), "bf16": (4.6e-6, 0.95, 9e-9)}
_KEPT_FIRST = {"f32": (0.96, 1.05, 1.05, 0.9), "f16": (0.95, 0.94, 1.0, 0.9), "bf16": (0.95, 0.94, 1.0, 0.9)}
_MOST_SAVED = 256
_NARROW_START_SECONDS = 3e-6
_NARROW_BYTES_A_SECOND = {True: 3.0e12, False: 3.5e12}


@dataclass(frozen=True)
class Problem:
    """One product as the kernel sees it.

    ``x_first`` and ``y_first`` say whether the features of x and y lie together in memory, else the batch does.
    ``x_bytes`` is the largest access that alignment and strides of x allow, ``y_run`` the most numbers of y that may
    be written at once. ``products`` is 3, or 1 for float32 in one pass.
    """

    pattern: Pattern
    groups: int
    batch: int
    dtype: str
    x_first: bool
    y_first: bool
    x_bytes: int
    y_run: int
    products: int = 3
    bias: bool = False
    activation: str = ""


def neighbours(block: int, d: int, size: int) -> int:
    """Bytes of the features of which a warp takes all that lie together."""
    return size * d * (block if d < 4 or size * d == 8 else 1)


def contiguous(pattern: Pattern, batch: int, dtype: str, first: bool) -> Problem:
    """The problem of arrays without gaps, features or batch together in both."""
    a, b, c, d = pattern
    size = BYTES[dtype]
    access = [
        math.gcd(16, size * (a * m * d if first else batch), neighbours(m, d, size) if first else 0) for m in (c, b)
    ]
    return Problem(pattern, 1, batch, dtype, first, first, access[0], access[1] // size)


@dataclass(frozen=True)
class Tile:
    """Template parameters, see ``kronsparse.cuh``."""

    l: int
    sharers: int
    m: int
    columns: int
    chunk: int
    stages: int
    warps: int
    resident: bool
    grouped: bool
    ahead: bool = False
    sides: int = 1

    @property
    def name(self) -> str:
        """What it is kept under."""
        return ".".join(str(int(value)) for value in vars(self).values())

    @staticmethod
    def of(name: str) -> Tile:
        """The tile of a name."""
        *sizes, resident, grouped, ahead, sides = map(int, name.split("."))
        l, sharers, m, columns, chunk, stages, warps = sizes
        return Tile(l, sharers, m, columns, chunk, stages, warps, bool(resident), bool(grouped), bool(ahead), sides)


@dataclass(frozen=True)
class KronSparsePlan:
    """Everything the emitter needs, and nothing of the sizes but what decides the tile."""

    arch: str
    dtype: str
    x_first: bool
    y_first: bool
    full: bool
    tile: Tile
    x_bytes: int
    y_run: int
    products: int
    bias: bool
    activation: str

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.tile.warps

    @property
    def split(self) -> bool:
        """Whether numbers are taken apart into halves."""
        return self.dtype == "f32"

    @property
    def span(self) -> int:
        """Values of l that a block owns."""
        return self.tile.l * self.tile.sharers

    @property
    def rows(self) -> int:
        """Rows of the batch in one tile of a block."""
        return 16 * self.tile.m * self.tile.warps // (self.tile.sharers * self.tile.sides)

    @property
    def sectors(self) -> bool:
        """Whether the neighbouring numbers that two lanes store are whole sectors, of l."""
        size, tile = BYTES[self.dtype], self.tile
        alone = self.full and tile.sharers == 1 and tile.l >= 4
        return self.y_run * size == 16 and (tile.l * size == 32 or (alone and tile.l * size <= 16))

    def groups(self, problem: Problem) -> int:
        """Independent sets of columns, each for one block or more."""
        a, b, _, d = problem.pattern
        return problem.groups * a * -(-b // self.tile.columns) * -(-d // self.span)

    def chunks(self, problem: Problem) -> int:
        """Chunks of k."""
        return -(-problem.pattern[2] // self.tile.chunk)

    def tiles(self, problem: Problem) -> int:
        """Tiles of rows."""
        return -(-problem.batch // self.rows)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the weights of one chunk."""
        return self.tile.chunk * self.span * self.tile.columns * (4 if self.split else 2)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage of x."""
        size, tile = BYTES[self.dtype], self.tile
        together = self.x_first and tile.l < 4
        count = 2 * tile.m if not self.x_first else 4 * tile.l if together else tile.l
        count = min(count, 16 // size) if tile.l >= 8 else count
        access = 16 if count * size % 16 == 0 else 8 if count * size % 8 == 0 else 4
        step = (4 * tile.l if together else self.span) * size
        run = tile.chunk * self.span * size if self.x_first else 16 * tile.m * size
        lap = 32 if self.x_first and access == 16 and step == 32 else 128
        apart = 16 if lap == 32 else 64 if self.x_first and access == 16 else 32
        pitch = (
            run
            if run % lap == 0 or (run == 64 and not self.x_first)
            else max(0, (run + lap - 1 - apart) // lap) * lap + apart
        )
        return (16 * tile.m if self.x_first else tile.chunk) * pitch

    def shared(self, problem: Problem) -> int:
        """Bytes of shared memory of a block."""
        rings = self.tile.warps // (self.tile.sharers * self.tile.sides)
        held = self.chunks(problem) if self.tile.resident else self.tile.stages
        table = -(-(8 if self.bias else 4) * self.span * self.tile.columns // 256) * 256
        threes = (
            self.x_first and self.y_first and self.full and self.tile.l == 3 and self.y_run * BYTES[self.dtype] == 16
        )
        table += 1536 * self.tile.warps if threes else 0
        return table + held * self.chunk_bytes + rings * self.tile.stages * self.stage_bytes

    def image_bytes(self, problem: Problem) -> int:
        """Bytes of the rearranged weights."""
        return self.groups(problem) * self.chunks(problem) * self.chunk_bytes

    def arrangement(self, problem: Problem) -> tuple[int | str | bool, ...]:
        """What the order of the rearranged weights depends on."""
        tile = self.tile
        own = (tile.l, tile.sharers, tile.columns, tile.chunk, tile.grouped)
        return (self.dtype, self.x_first, self.y_first, problem.groups, *own)

    def scales(self, problem: Problem) -> int:
        """Number of scales of columns, edges included."""
        a, b, _, d = problem.pattern
        padded = -(-b // self.tile.columns) * self.tile.columns * -(-d // self.span) * self.span
        return problem.groups * a * padded if self.split else 0

    def preparing_warps(self, problem: Problem) -> int:
        """Warps that rearrange the weights."""
        return self.groups(problem) * self.span * self.tile.columns // (8 if self.split or self.tile.grouped else 16)

    def slots(self, problem: Problem, limits: DeviceLimits) -> int:
        """Blocks among which the tiles of one set of columns are shared."""
        tiles, groups = self.tiles(problem), self.groups(problem)
        resident = max(1, limits.sm_count * self.blocks_each(problem, limits))
        if groups >= resident:
            return min(tiles, _even(groups, resident))
        return max(1, min(tiles, resident // groups))

    def blocks_each(self, problem: Problem, limits: DeviceLimits) -> int:
        """Blocks that share a multiprocessor."""
        by_memory = limits.shared_per_sm // (self.shared(problem) + _RESERVE)
        return max(0, min(by_memory, limits.registers_per_sm // (self.threads * self.registers)))

    @property
    def registers(self) -> int:
        """Registers a thread may have."""
        return min(255, _REGISTERS // self.threads // 8 * 8)

    def __str__(self) -> str:
        tile = self.tile
        ways = " to ".join("first" if first else "last" for first in (self.x_first, self.y_first))
        held = "resident" if tile.resident else "streamed"
        kind = "3 x f16" if self.split and self.products == 3 else "f16" if self.split else self.dtype
        engine = "wgmma" if tile.grouped else "mma"
        shape = f"rows {self.rows} columns {tile.columns} x {self.span} chunk {tile.chunk} x {tile.stages}"
        return (
            f"kron sparse {self.arch} {engine} {shape}, {tile.warps} warps, weights {held}, batch {ways}, "
            f"{kind} {self.dtype}"
        )


def _even(groups: int, resident: int) -> int:
    """Parts of the batch for which the waves of blocks come out most even."""
    return min(range(1, 9), key=lambda slots: (round(-(-groups * slots // resident) / slots, 3), slots))


def _spans(problem: Problem, grouped: bool) -> tuple[tuple[int, int, int], ...]:
    """Values of l of a warp, and warps that share rows, for values of l of their own or for columns."""
    d = problem.pattern[3]
    if not problem.x_first or d == 1:
        return ((1, 1, 1),)
    if d < 4:
        return ((d, 1, 1),)
    if problem.dtype == "f32":
        return ((4, 1, 1),) if d < 8 else ((4, 2, 1), (8, 1, 2)) if grouped else ((4, 2, 1),)
    if d < 16:
        return ((8, 1, 1), (4, 2, 1)) if d >= 8 else ((4, 1, 1),)
    return ((8, 2, 1), (16, 1, 2)) if grouped else ((8, 2, 1),)


def _registers(tile: Tile, split: bool, x_first: bool) -> int:
    """Registers of a thread that a tile takes at least: sums, what is read, what is multiplied, and the rest."""
    columns, deep = tile.columns // tile.sides, min(tile.l, 4 if split else 8)
    sums = tile.m * tile.l * columns // 2
    read = tile.m * deep * tile.chunk // (2 if split or not x_first or tile.m > 1 else 4)
    if not tile.grouped:
        return sums + read + (36 if split else 60)
    left = tile.m * tile.chunk // 2 if split else 0
    return sums + read + (left + tile.m * columns // 2 + 28 if split else 44 if x_first else 60)


def _ahead(tile: Tile, split: bool, x_first: bool) -> bool:
    """Whether halves are made ready while the products before them run: where registers are left for both."""
    most = min(248, _REGISTERS // (32 * tile.warps))
    return (
        tile.grouped and tile.resident and not split and not x_first
        and _registers(tile, split, x_first) + tile.m * tile.chunk // 4 <= most + 4
    )  # fmt: skip


def _tiles(problem: Problem, grouped: bool) -> Iterator[Tile]:
    _, b, c, _ = problem.pattern
    split = problem.dtype == "f32"
    for (l, sharers, sides), m, columns in itertools.product(_spans(problem, grouped), (1, 2, 4), _WIDTHS):
        together = 8 * (1 if not problem.y_first or l >= 4 else (1 if split else 2) if l == 2 else (2 if split else 4))
        step = max(together, 1 if split or grouped else 16)
        if columns % step or columns >= 2 * max(16, together, b) or (m == 4 and (split or problem.x_first)):
            continue
        for chunk, warps in itertools.product((48 if c % 48 == 0 and c % 64 else 64, 32, 16), (16, 12, 8, 4)):
            share = sharers * sides
            if chunk >= 2 * max(16, c) or (grouped and warps % (4 * share)) or warps % share or columns % (16 * sides):
                continue
            fits = Tile(l, sharers, m, columns, chunk, 2, warps, True, grouped, False, sides)
            if _registers(fits, split, problem.x_first) > min(248, _REGISTERS // (32 * warps)):
                continue
            depths, held = ((2,) if split else (4, 3, 2), (True,)) if sides > 1 else ((4, 3, 2), (True, False))
            for stages, resident in itertools.product(depths, held):
                one = replace(fits, stages=stages, resident=resident)
                yield replace(one, ahead=_ahead(one, split, problem.x_first))


def _instructions(plan: KronSparsePlan) -> tuple[float, float]:
    """Instructions of a warp for one chunk, and for what follows all chunks of a tile."""
    size, tile = BYTES[plan.dtype], plan.tile
    numbers = 8 * tile.m * tile.l * tile.chunk / 16
    loads = numbers * size / (16 if tile.m * tile.l * size >= 4 else 4)
    columns = tile.columns / tile.sides
    sums = tile.m * tile.l * columns / 2
    steps = tile.chunk / 16 * tile.l * columns / 8
    copies = 16 * tile.m * tile.chunk * tile.l * size / 32 / plan.x_bytes / tile.sides
    chunk = 50 + loads + 5 * copies + (5 * numbers + sums if plan.split else 0.5 * numbers)
    if not tile.grouped:
        chunk += steps + tile.m * steps * (plan.products if plan.split else 1)
    return chunk, sums * (3 + (1 if plan.split else 0.5) + 4 / plan.y_run)


def _run_bytes(plan: KronSparsePlan) -> int:
    """Bytes of x that a warp takes from neighbouring addresses."""
    size, tile = BYTES[plan.dtype], plan.tile
    if not plan.x_first:
        return 16 * tile.m * size
    return plan.span * size * (tile.chunk if plan.full else 1)


def _share(plan: KronSparsePlan, c: int) -> float:
    """What tiles take of the time below: numbers that are stored in whole sectors, and what few registers cost."""
    tile = plan.tile
    if plan.x_first:
        found = _BY_L[min(tile.l, 8)] * (1 - _SECTORS * min(1.0, 64 / c) * (plan.sectors and plan.y_first))
    else:
        found = 1.0 if plan.split else _SERIAL if tile.columns == 128 and not tile.ahead else _AHEAD
    return found * (_BY_CHUNK.get(tile.chunk, 1.0) if plan.split else 1.0)


def _seconds(plan: KronSparsePlan, problem: Problem, limits: DeviceLimits) -> float:
    """What a plan should take: its start, and memory, cache, multiprocessors and the chain of its steps together."""
    a, b, c, d = problem.pattern
    size, tile = BYTES[problem.dtype], plan.tile
    groups, chunks, tiles = plan.groups(problem), plan.chunks(problem), plan.tiles(problem)
    slots, each = plan.slots(problem, limits), plan.blocks_each(problem, limits)
    ends, run = size * problem.groups * problem.batch * a * d, _run_bytes(plan)
    memory = ends * (c * max(1.0, _MEMORY_RUN / run) + b) / _BYTES_A_SECOND
    x_bytes = ends * c * -(-b // tile.columns) * max(1.0, _CACHE_RUN / run)
    weight_bytes = groups * chunks * plan.chunk_bytes * (slots if tile.resident else tiles)
    cache = (x_bytes + weight_bytes) / _CACHE_BYTES_A_SECOND
    products = tile.m * tile.l * (tile.columns // tile.sides // 8) * (tile.chunk // 16)
    products *= plan.products if plan.split else 1
    per_chunk, per_tile = _instructions(plan)
    issued = (chunks * per_chunk + per_tile) * _ISSUED[problem.dtype]
    multiplied = chunks * products * (_GROUPED_CYCLES if tile.grouped else _MMA_CYCLES)
    blocks = groups * slots
    waves = -(-blocks // (limits.sm_count * each))
    beside = min(each, -(-blocks // limits.sm_count))
    rounds = waves * -(-tiles // slots)
    hidden = _HIDDEN * min(1.0, tile.warps * beside / _HIDING_WARPS)
    cycles = max(issued, multiplied) + (1 - hidden) * min(issued, multiplied)
    work = rounds * beside * tile.warps / 4 * cycles / _CLOCK
    step = _STEP_SECONDS / math.sqrt(tile.stages) + (0 if tile.resident else _BARRIER_SECONDS)
    latency = waves * (chunks if tile.resident else 0) * 2e-8 + rounds * chunks * step
    together = math.hypot(memory, cache, work, latency) * _share(plan, c)
    if problem.x_first and problem.y_first and not (plan.full or plan.sectors):
        together *= min(_MOST_SCATTERED, 1 + _SCATTERED * max(0, tile.columns - 32) / 32 / chunks)
    return _START_SECONDS + together


def _plans(problem: Problem, limits: DeviceLimits, tile: Tile | None = None) -> Iterator[tuple[float, KronSparsePlan]]:
    """What each tile that fits should take, or one of them."""
    for candidate in [tile] if tile else _tiles(problem, limits.arch in _GROUPED_ARCHS):
        own = _with(candidate, problem, limits)
        if own.shared(problem) > limits.shared_per_block or own.blocks_each(problem, limits) < 1:
            continue
        if own.groups(problem) * own.slots(problem, limits) < 2**31:
            yield _seconds(own, problem, limits), own


@lru_cache(maxsize=4096)
def plan(problem: Problem, limits: DeviceLimits, tile: Tile | None = None) -> KronSparsePlan | None:
    """The plan that should be quickest, or that of a tile; None if nothing fits into shared memory."""
    found = min(_plans(problem, limits, tile), key=lambda pair: pair[0], default=None)
    return None if found is None else found[1]


def tiles_to_try(problem: Problem, limits: DeviceLimits, count: int) -> list[Tile]:
    """The tiles that should be quickest, two at most of any rows and columns."""
    kept: list[Tile] = []
    alike: Counter[tuple[int, ...]] = Counter()
    for _, own in sorted(_plans(problem, limits), key=lambda pair: pair[0]):
        tile = own.tile
        shape = tile.l, tile.m, tile.columns
        whole = *shape, tile.chunk, tile.warps, int(tile.resident)
        if alike[shape] < 2 and not alike[whole]:
            alike.update((shape, whole))
            kept.append(tile)
    return kept[:count]


@lru_cache(maxsize=4096)
def expected_seconds(problem: Problem, limits: DeviceLimits, kept: bool = False) -> float:
    """What the kernels should take, the weights rearranged before if ``kept``; infinite if they do not take it."""
    a, b, c, d = problem.pattern
    if narrow_plan(problem, limits) is not None:
        moved = BYTES[problem.dtype] * problem.groups * problem.batch * a * d * (b + c)
        return _NARROW_START_SECONDS + moved / _NARROW_BYTES_A_SECOND[problem.x_first]
    chosen = plan(problem, limits) if problem.dtype in _ISSUED else None
    if chosen is None:
        return math.inf
    given = _seconds(chosen, problem, limits)
    return _kept_seconds(given - _START_SECONDS, chosen, problem) if kept else given


def _kept_seconds(work: float, plan: KronSparsePlan, problem: Problem) -> float:
    (_, _, c, d), (start, share, saved) = problem.pattern, _KEPT[problem.dtype]
    if problem.x_first:
        share = _KEPT_FIRST[problem.dtype][3 if not plan.full else min(d, 4) // 2]
    return start + share * work - saved * min(c, _MOST_SAVED)


def _with(tile: Tile, problem: Problem, limits: DeviceLimits) -> KronSparsePlan:
    size = BYTES[problem.dtype]
    x_bytes = problem.x_bytes
    along = (tile.chunk if problem.x_first else 1) * tile.l * tile.sharers if problem.x_first else 16 * tile.m
    full = tile.l * tile.sharers == problem.pattern[3]
    if problem.x_first and not full:
        along = tile.l * tile.sharers
    while along * size % x_bytes:
        x_bytes //= 2
    run = (
        tile.l
        if problem.y_first and not (full and tile.sharers == 1 and tile.l * size < 16)
        else 2 * tile.m
        if not problem.y_first
        else problem.y_run
    )
    return KronSparsePlan(
        limits.arch, problem.dtype, problem.x_first, problem.y_first, full, tile, x_bytes,
        math.gcd(min(run, problem.y_run), problem.y_run), problem.products if size == 4 else 1, problem.bias,
        problem.activation,
    )  # fmt: skip
