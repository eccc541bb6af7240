"""A Kronecker-sparse product on a GPU and its plan: a tile, its shared memory, parts of the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from ...compiler.nest import BYTES
from .plan_table import either, gcd, larger, smaller

Pattern = tuple[int, int, int, int]
ACTIVATIONS = ("", "relu", "gelu", "silu")
REGISTERS = 65536  # of a multiprocessor
NEIGHBOURS = 32  # weights that are rearranged at a time where they lie together
MOST_EXTENT = 2**31 - 1  # of a pattern, which kernels count in 32 bits; features are counted in 64
_BUSY = 0.9  # share of the multiprocessors that blocks without a second wave should have
_MOST_PARTS = 16  # parts
_NAMED = 11  # numbers of a tile that its name has always


@dataclass(frozen=True)
class Problem:
    """One product as the kernel sees it.

    ``x_first`` and ``y_first`` say whether the features of x and y lie together in memory, else the batch does.
    ``x_bytes`` is the largest access that alignment and strides of the rows and blocks of x allow, ``y_run`` the most
    numbers of y that may be written at once. ``products`` is 3, or 1 for float32 in one pass.
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


def contiguous(pattern: Pattern, batch: int, dtype: str, first: bool) -> Problem:
    """Return the problem of arrays without gaps, features or batch together in both."""
    a, b, c, d = pattern
    size = BYTES[dtype]
    access = [math.gcd(16, size * (a * m * d if first else batch), size * m * d if first else 0) for m in (c, b)]
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
    each: int = 1

    @property
    def name(self) -> str:
        """Its numbers joined by dots, the key of measurements; without the last ones where a block shares nothing."""
        values = [int(value) for value in vars(self).values()]
        while len(values) > _NAMED and values[-1] == 1:
            values.pop()
        return ".".join(map(str, values))

    @staticmethod
    def of(name: str) -> Tile:
        """Return the tile of a name."""
        l, sharers, m, columns, chunk, stages, warps, resident, grouped, ahead, *rest = map(int, name.split("."))
        return Tile(l, sharers, m, columns, chunk, stages, warps, bool(resident), bool(grouped), bool(ahead), *rest)


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

    @cached_property
    def takes_neighbours(self) -> bool:
        """Whether a thread takes 4 neighbouring k with all their l, which are few or no power of two."""
        own = self.tile.l
        return self.x_first & (self.tile.sharers == 1) & ((own < 4) | (self.full & (own & (own - 1) != 0)))

    @cached_property
    def stores_runs(self) -> bool:
        """Whether warps bring all l of neighbouring columns together before they are written."""
        alone = (self.takes_neighbours & (self.tile.l > 2)) | (self.y_run * BYTES[self.dtype] < 16)
        shared = self.span & (self.span - 1) != 0
        return self.x_first & self.y_first & self.full & either(self.tile.sharers == 1, alone, shared)

    @cached_property
    def run_fragments(self) -> int:
        """Fragments of 8 columns that a warp brings together at a time, as ``RUN_N`` in ``kronsparse_tile.cuh``."""
        size, tile, span = BYTES[self.dtype], self.tile, self.span
        several, for_two = (2, 1) if self.split else (4, 2)
        together = either((tile.l >= 4) | (tile.sharers > 1), 1, either(tile.l == 2, for_two, several))
        fragments = tile.columns // tile.sides // 8
        put = either(tile.sharers == 1, gcd(2 * tile.l * size, 16), gcd(tile.l * size, gcd(span * size, 16)))
        skew = either(put < 16, 4 * put, either(2 * span * size // 16 % 2 == 1, 64, 16))

        def fits(count: Any) -> Any:
            pitch = (8 * count * span * size + 127 - skew) // 128 * 128 + skew
            return (count % together == 0) & (8 * tile.sides * pitch <= self.stage_bytes)

        half = fragments // 2
        return either(fits(fragments), fragments, either((fragments % 2 == 0) & fits(half), half, together))

    @cached_property
    def shifts(self) -> bool:
        """Whether rows of halves that begin between words are copied from there on, and moved as they are read."""
        return (self.x_bytes < 4) & (self.full | (not self.x_first))

    @property
    def stores_words(self) -> bool:
        """Whether columns of halves that begin between words are written in words."""
        return (not self.y_first) & (self.y_run * BYTES[self.dtype] < 4) & (self.tile.l == 1)

    @property
    def rows(self) -> int:
        """Rows of the batch in one tile of a block."""
        return 16 * self.tile.m * self.tile.warps // (self.tile.sharers * self.tile.sides)

    @cached_property
    def sectors(self) -> bool:
        """Whether the neighbouring numbers that two lanes store are whole sectors, of l."""
        size, tile = BYTES[self.dtype], self.tile
        alone = self.full & (tile.sharers == 1) & (tile.l >= 4)
        whole = (tile.l * size == 32) | (alone & (tile.l * size <= 16))
        return self.spread | ((self.y_run * size == 16) & whole)

    @cached_property
    def spread(self) -> bool:
        """Whether warps that share rows bring their values of l together before they are written."""
        size, tile = BYTES[self.dtype], self.tile
        aligned = self.x_first & self.y_first & (tile.sharers > 1) & (tile.sides == 1) & (self.y_run * size == 16)
        return aligned & ((self.span * size == 32) | (self.span * size == 64))

    def groups(self, problem: Problem) -> int:
        """Return the independent sets of columns, each for one block or more."""
        a, b, _, d = problem.pattern
        return problem.groups * a * -(-b // self.tile.columns) * -(-d // self.span)

    def chunks(self, problem: Problem) -> int:
        """Return chunks of k."""
        return -(-problem.pattern[2] // self.tile.chunk)

    def tiles(self, problem: Problem) -> int:
        """Return the tiles of rows."""
        return -(-problem.batch // self.rows)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the weights of one chunk."""
        return self.tile.chunk * self.span * self.tile.columns * (4 if self.split else 2)

    @cached_property
    def stage_bytes(self) -> int:
        """Bytes of one stage of x."""
        size, tile = BYTES[self.dtype], self.tile
        together = self.takes_neighbours
        count = either(together, 4 * tile.l, tile.l) if self.x_first else 2 * tile.m
        count = either(together | (tile.l < 8), count, smaller(count, 16 // size))
        access = either(count * size % 16 == 0, 16, either(count * size % 8 == 0, 8, 4))
        step = either(together, 4 * tile.l, self.span) * size
        run = tile.chunk * self.span * size if self.x_first else 16 * tile.m * size
        rows = 16 * tile.m if self.x_first else tile.chunk
        shifted = (run + 19) // 32 * 32 + 16 if self.x_first else (run + 35) // 64 * 64 + 32
        narrow = self.x_first & (access == 16) & (step == 32)
        lap, apart = either(narrow, 32, 128), either(narrow, 16, either(self.x_first & (access == 16), 64, 32))
        skewed = larger(0, (run + lap - 1 - apart) // lap) * lap + apart
        whole = (run % lap == 0) | ((not self.x_first) & (run == 64))
        return rows * either(self.shifts, shifted, either(whole, run, skewed))

    @property
    def _pipelines(self) -> int:
        return self.tile.warps // (self.tile.sharers * self.tile.sides)

    @property
    def pipeline_bytes(self) -> int:
        """Bytes of all stages of x of a block."""
        return self._pipelines * self.tile.stages * self.stage_bytes

    def shared(self, problem: Problem) -> int:
        """Return the bytes of shared memory of a block."""
        return self.shared_bytes(either(self.tile.resident, self.chunks(problem), self.tile.stages))

    def shared_bytes(self, chunks: int) -> int:
        """Bytes of shared memory of a block that holds the weights of so many chunks, as in ``kronsparse_tile.cuh``."""
        table = -(-(8 if self.bias else 4) * self.span * self.tile.columns // 256) * 256
        barriers = either((self.tile.grouped != 0) & (self.tile.resident == 0), 16 * self.tile.stages, 0)
        return table + chunks * self.chunk_bytes + self.pipeline_bytes + barriers

    def image_bytes(self, problem: Problem) -> int:
        """Return the bytes of the rearranged weights."""
        return self.groups(problem) * self.chunks(problem) * self.chunk_bytes

    def arrangement(self, problem: Problem) -> tuple[int | str | bool, ...]:
        """Return what the order of the rearranged weights depends on."""
        tile = self.tile
        own = (tile.l, tile.sharers, tile.columns, tile.chunk, tile.grouped)
        return (self.dtype, self.x_first, self.y_first, problem.groups, *own)

    def scales(self, problem: Problem) -> int:
        """Return the number of scales of columns, edges included."""
        a, b, _, d = problem.pattern
        padded = -(-b // self.tile.columns) * self.tile.columns * -(-d // self.span) * self.span
        return problem.groups * a * padded if self.split else 0

    def preparing_blocks(self, problem: Problem, sharing: int) -> int:
        """Return the blocks that rearrange the weights, of which ``sharing`` share 32 neighbours, or each takes one."""
        a, b, _, d = problem.pattern
        columns = -(-b // self.tile.columns) * self.tile.columns // (8 if self.split or self.tile.grouped else 16)
        deep = -(-d // self.span) * self.span
        sets = a * -(-deep // NEIGHBOURS) if d > 1 else deep * -(-a // NEIGHBOURS)
        return problem.groups * columns * (sets * sharing or a * deep)

    def slots(self, problem: Problem, limits: DeviceLimits) -> int:
        """Return the blocks among which the tiles of one set of columns are shared."""
        resident = larger(1, limits.sm_count * self.blocks_each(problem, limits))
        return slots_of(self.groups(problem), resident, self.tiles(problem))

    def blocks_each(self, problem: Problem, limits: DeviceLimits) -> int:
        """Return the blocks that share a multiprocessor."""
        by_memory = limits.shared_per_sm // (self.shared(problem) + RESERVED_SHARED)
        return larger(0, smaller(by_memory, limits.registers_per_sm // (self.threads * self.registers)))

    @property
    def registers(self) -> int:
        """Registers a thread may have."""
        return smaller(255, REGISTERS // (self.threads * self.tile.each) // 8 * 8)

    def __str__(self) -> str:
        tile = self.tile
        layouts = " to ".join("first" if first else "last" for first in (self.x_first, self.y_first))
        residency = "resident" if tile.resident else "streamed"
        kind = "3 x f16" if self.split and self.products == 3 else "f16" if self.split else self.dtype
        engine = "wgmma" if tile.grouped else "mma"
        shape = f"rows {self.rows} columns {tile.columns} x {self.span} chunk {tile.chunk} x {tile.stages}"
        return (
            f"kron sparse {self.arch} {engine} {shape}, {tile.warps} warps, weights {residency}, batch {layouts}, "
            f"{kind} {self.dtype}"
        )


def slots_of(groups: Any, resident: Any, tiles: Any) -> Any:
    """Return the blocks among which so many tiles of each set of columns are shared."""
    most = larger(1, resident // groups)
    busy = (_BUSY * resident < groups * most) & (groups * most <= resident)
    return smaller(tiles, either(busy, most, _even(groups, resident, tiles)))


def _even(groups: Any, resident: Any, tiles: Any) -> Any:
    """Return parts of the batch for which the waves of blocks end soonest; a block takes about one tile to begin."""
    slots = np.arange(1, _MOST_PARTS + 1)[:, None]
    rounds = -(-groups * slots // resident) * (-(-tiles // slots) + 1)
    found = 1 + rounds.argmin(0)
    return found if isinstance(groups * resident * tiles, np.ndarray) else int(found[0])
