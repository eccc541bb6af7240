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
from .kronsparse_seconds import tile_seconds, together_seconds
from .nest import BYTES

Pattern = tuple[int, int, int, int]
ACTIVATIONS = ("", "relu", "gelu", "silu")
_WIDTHS = (128, 96, 64, 48, 32, 16)
_REGISTERS = 65536
_RESERVE = 1024
_BUSY = 0.9  # share of the multiprocessors that blocks without a second wave should have
_MOST_PARTS = 16
_SPREAD = (4, 4, 1)  # of halves; each warp multiplies by itself
_GROUPED_ARCHS = ("sm_90",)
_TYPES = ("f32", "f16", "bf16")
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
        return self.spread or (self.y_run * size == 16 and (tile.l * size == 32 or (alone and tile.l * size <= 16)))

    @property
    def spread(self) -> bool:
        """Whether warps that share rows bring their values of l together before they are written."""
        size, tile = BYTES[self.dtype], self.tile
        near = self.x_first and self.y_first and tile.sharers > 1 and tile.sides == 1 and self.y_run * size == 16
        return near and self.span * size in (32, 64)

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
        together = self.x_first and tile.l < 4 and tile.sharers == 1
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

    @property
    def _rings(self) -> int:
        return self.tile.warps // (self.tile.sharers * self.tile.sides)

    @property
    def ring_bytes(self) -> int:
        """Bytes of all stages of x of a block."""
        return self._rings * self.tile.stages * self.stage_bytes

    def shared(self, problem: Problem) -> int:
        """Bytes of shared memory of a block."""
        held = self.chunks(problem) if self.tile.resident else self.tile.stages
        table = -(-(8 if self.bias else 4) * self.span * self.tile.columns // 256) * 256
        threes = (
            self.x_first and self.y_first and self.full and self.tile.l == 3 and self.y_run * BYTES[self.dtype] == 16
        )
        table += 1536 * self.tile.warps if threes else 0
        return table + held * self.chunk_bytes + self.ring_bytes

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

    def preparing_units(self, problem: Problem) -> int:
        """Blocks that rearrange the weights."""
        return self.groups(problem) * self.span * self.tile.columns // (8 if self.split or self.tile.grouped else 16)

    def slots(self, problem: Problem, limits: DeviceLimits) -> int:
        """Blocks among which the tiles of one set of columns are shared."""
        tiles, groups = self.tiles(problem), self.groups(problem)
        resident = max(1, limits.sm_count * self.blocks_each(problem, limits))
        most = max(1, resident // groups)
        busy = _BUSY * resident < groups * most <= resident
        return min(tiles, most if busy else _even(groups, resident, tiles))

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


def _even(groups: int, resident: int, tiles: int) -> int:
    """Parts of the batch for which the waves of blocks end soonest; a block takes about one tile to begin."""

    def rounds(slots: int) -> int:
        return -(-groups * slots // resident) * (-(-tiles // slots) + 1)

    return min(range(1, _MOST_PARTS + 1), key=rounds)


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
    spread = (_SPREAD,) if problem.y_first and problem.y_run == 8 and d % 16 == 0 else ()
    return ((8, 2, 1), (16, 1, 2), *spread) if grouped else ((8, 2, 1), *spread)


def _registers(tile: Tile, split: bool, x_first: bool) -> int:
    """Registers of a thread that a tile takes at least: sums, what is read, what is multiplied, and the rest."""
    columns, deep = tile.columns // tile.sides, min(tile.l, 4 if split else 8)
    sums = tile.m * tile.l * columns // 2
    read = tile.m * deep * tile.chunk // (2 if split or not x_first or tile.m > 1 else 4)
    if not tile.grouped:
        return sums + read * (3 if split and tile.l > 2 else 1) + (36 if split else 60)
    left = tile.m * tile.chunk // 2 if split else 0
    return sums + read + (left + tile.m * columns // 2 + (28 if x_first else 26) if split else 44 if x_first else 60)


def _ahead(tile: Tile, split: bool, x_first: bool) -> bool:
    """Whether halves are made ready while the products before them run: where registers are left for both."""
    most = min(248, _REGISTERS // (32 * tile.warps))
    return (
        tile.grouped and tile.resident and not split and not x_first
        and _registers(tile, split, x_first) + tile.m * tile.chunk // 4 <= most + 4
    )  # fmt: skip


def _tiles(problem: Problem, four: bool) -> Iterator[Tile]:
    _, b, c, _ = problem.pattern
    split = problem.dtype == "f32"
    for (l, sharers, sides), m, columns in itertools.product(_spans(problem, four), (1, 2, 4), _WIDTHS):
        grouped = four and (l, sharers, sides) != _SPREAD
        together = 8 * (1 if not problem.y_first or l >= 4 else (1 if split else 2) if l == 2 else (2 if split else 4))
        step = max(together, 1 if split or grouped else 16)
        if columns % step or columns >= 2 * max(16, together, b) or (m == 4 and (split or problem.x_first)):
            continue
        for chunk, warps in itertools.product((48 if c % 48 == 0 and c % 64 else 64, 32, 16), (16, 12, 8, 4)):
            share = sharers * sides
            if chunk >= 2 * max(16, c) or (grouped and warps % (4 * share)) or warps % share or columns % (16 * sides):
                continue
            if (l, sharers, sides) == _SPREAD and (warps, m) != (8, 1):
                continue
            fits = Tile(l, sharers, m, columns, chunk, 2, warps, True, grouped, False, sides)
            if _registers(fits, split, problem.x_first) > min(248, _REGISTERS // (32 * warps)):
                continue
            depths = (2,) if split and sides > 1 else (4, 3, 2)
            held = (True,) if sides > 1 or (l, sharers, sides) == _SPREAD else (True, False)
            for stages, resident in itertools.product(depths, held):
                one = replace(fits, stages=stages, resident=resident)
                own = replace(one, ahead=_ahead(one, split, problem.x_first))
                if own.ahead or columns < 128 or not grouped or split or problem.x_first:  # they spill else
                    yield own


def _plans(problem: Problem, limits: DeviceLimits, tile: Tile | None = None) -> Iterator[tuple[float, KronSparsePlan]]:
    """What each tile that fits should take, or one of them."""
    for candidate in [tile] if tile else _tiles(problem, limits.arch in _GROUPED_ARCHS):
        own = _with(candidate, problem, limits)
        if own.shared(problem) > limits.shared_per_block or own.blocks_each(problem, limits) < 1:
            continue
        if own.groups(problem) * own.slots(problem, limits) < 2**31:
            yield tile_seconds(own, problem, limits), own


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
    chosen = plan(problem, limits) if problem.dtype in _TYPES else None
    if chosen is None:
        return math.inf
    return (tile_seconds if kept else together_seconds)(chosen, problem, limits)


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
        tile.l * (tile.sharers if tile.l * tile.sharers * size >= 32 else 1)
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
