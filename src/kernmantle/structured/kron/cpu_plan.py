"""Plans of Kronecker products on a CPU: all factors of a pass through two buffers that stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

from .modes import Mode, Step, columns, steps
from .passes import Pass, in_order, merged, plain_pass, runs

BUFFER_BYTES = 256 << 10  # of one of both buffers, which the second-level cache holds
CHUNK_BYTES = 16 << 10  # of the part that several steps go over before the next one, in the first-level cache
JOINED_BYTES = 64 << 10  # of a block of several batch entries, which the tiles of a last factor go over together
TILE_ROWS = 8  # a block has so many batch entries, or a multiple of it
LEAST_RUN_BYTES = 128  # of what lies together in memory and a block reads
MERGED = 9  # rows or columns up to which two factors are multiplied out
SHORT = 8  # rows of the last factor below which it is multiplied out with its neighbour, up to the square of this
# Entries of a factor from which the vendor's matrix product is priced beside our kernel, and factors of which every
# combination is (decision 0129).
LARGE, MOST_PRICED = 1 << 10, 3
SLACK = 64
CACHE_ELEMENTS = 32
NARROWEST = 4
SIZES = {"f32": 4, "f64": 8}
ARRAYS = ("x", "y", "out")
BATCH = 3
# Fields of the integer arguments, then BATCH extents; per array BATCH batch strides, run and right; steps; pieces.
FIELDS = (
    "steps", "columns", "rows", "right", "width", "flat", "direct_in", "direct_out", "varies", "added",
    "pieces", "piece", "chunk", "chunk_room", "buffers", "buffer", "inner", "chunks", "chunk_in", "chunk_out",
)  # fmt: skip
STEP = ("left", "columns", "rows", "padded", "right", "pitch", "packed", "first", "stop")
PIECE = ("rows", "columns", "row_stride", "column_stride", "a", "b", "c")
LAYOUT_FIELDS = BATCH + 2


@dataclass(frozen=True)
class CpuKronPlan:
    """Passes for a machine with vectors of so many bytes."""

    passes: tuple[Pass, ...]
    compute: str
    eager: CpuKronPlan | None = None

    def __str__(self) -> str:
        return f"{self.compute}, {' then '.join(map(str, self.passes))}"


@lru_cache(maxsize=1024)
def plan(
    modes: tuple[Mode, ...], right: int, compute: str, fuse: bool, dense: frozenset[Mode] = frozenset()
) -> CpuKronPlan:
    """Return the passes for a tensor with ``right`` columns behind its last axis; ``dense`` are the vendor's."""
    size = SIZES[compute]

    def fits(run: Sequence[Mode], inner: int) -> bool:
        if not fuse and sum(mode.factor is not None for mode in run) > 1:
            return False
        own = plain_pass("", run, 0, len(run))
        least = 1 if inner * right == 1 else min(LEAST_RUN_BYTES, inner * right * size) // size
        return own.most * least * size <= BUFFER_BYTES

    found: list[Pass] = []
    for first, stop in runs(modes, fits, dense.__contains__):
        run = plain_pass("cache", modes, first, stop)
        if len(run.parts) == 1 and modes[run.first] in dense:
            found.append(plain_pass("matmul", modes, first, stop))
            continue
        tail = run.stop == len(modes) and right == 1
        found.append(
            merged(run, _worth_merging_last if tail else lambda _own, product, _last: _worth_merging(product))
            if fuse
            else run
        )
    return CpuKronPlan(in_order(tuple(found)), compute)


def _worth_merging(product: Mode) -> bool:
    """Return whether one larger factor is cheaper than two passes through the cache."""
    return max(product.columns, product.rows) <= MERGED


def _worth_merging_last(own: Mode, product: Mode, last: bool) -> bool:
    """Return what ``_worth_merging`` does; the last axis of memory also grows until vectors fit into it."""
    short = last and own.rows < SHORT and max(product.columns, product.rows) <= SHORT**2
    return short or _worth_merging(product)


def plans(modes: tuple[Mode, ...], right: int, compute: str, fuse: bool) -> list[CpuKronPlan]:
    """Return the plans to choose from: any of the largest factors by the vendor's matrix product."""
    large = [mode for mode in modes if mode.factor is not None and mode.rows * mode.columns >= LARGE]
    large = sorted(large, key=lambda mode: -mode.rows * mode.columns)[:MOST_PRICED]
    chosen = [frozenset(some) for count in range(len(large) + 1) for some in combinations(large, count)]
    return [plan(modes, right, compute, fuse, some) for some in chosen]


def width(run: Pass, right: int, compute: str) -> int:
    """Return the columns of a block: 1 where the run is the last axis of memory, else a multiple of a cache line."""
    if right == 1:
        return 1
    aligned = 64 // SIZES[compute]
    fitting = BUFFER_BYTES // (SIZES[compute] * run.most) // aligned * aligned
    return max(aligned, min(fitting, -(-right // aligned) * aligned))


def together(run: Pass, count: int, block: int, right: int, compute: str) -> int:
    """Return how many of so many batch entries next to each other are one block; 1 where each has several blocks."""
    most = JOINED_BYTES // (run.most * block * SIZES[compute]) if block >= right else 1
    return count if count <= most else max(1, most // TILE_ROWS * TILE_ROWS or most)


def joined(run: Pass, count: int) -> Pass:
    """Return the pass over so many batch entries as an axis before its own."""
    return replace(run, modes=(Mode(count, count), *run.modes)) if count > 1 else run


def lengthened(run: Pass, right: int, compute: str) -> Pass | None:
    """Return the pass with what is behind it as an axis of its own, for arrays without gaps; None for large ones."""
    if right == 1 or run.most * right * SIZES[compute] > BUFFER_BYTES:
        return None
    return replace(run, modes=(*run.modes, Mode(right, right)))


def padded(count: int) -> int:
    """Return a row of a packed factor: whole vectors of the widest kind."""
    return -(-count // 16) * 16


@dataclass(frozen=True)
class Scratch:
    """Elements of a thread's memory: packed factors, and in pairs: a factor multiplied out, chunks, blocks."""

    packed: int
    piece: int
    chunk: int
    buffer: int

    @property
    def chunks(self) -> int:
        """Return where the chunks begin."""
        return self.packed + 2 * self.piece

    @property
    def buffers(self) -> int:
        """Return where the blocks begin."""
        return self.chunks + 2 * self.chunk

    @property
    def elements(self) -> int:
        """All together."""
        return self.buffers + 2 * self.buffer


def scratch(run: Pass, block: int, compute: str) -> Scratch:
    """Return the memory of a pass on blocks of so many columns."""
    packed = sum(mode.columns * padded(mode.rows) for mode in run.modes if mode.factor is not None)
    piece = max((mode.columns * mode.rows for mode in run.modes if mode.factor is not None), default=0)
    inner = chunking(run, block, compute)
    sizes = (packed, piece, inner.most, run.most * block + inner.padding)
    return Scratch(*(-(-count // 16) * 16 + SLACK for count in sizes))


def run_steps(run: Pass, block: int) -> tuple[Step, ...]:
    """Return the steps of a pass on a block."""
    return steps(run.modes, run.order, block)


@dataclass(frozen=True)
class Chunking:
    """The first ``steps`` steps go over a block in ``count`` chunks, of so many elements before and after."""

    steps: int
    count: int
    before: int
    after: int
    most: int
    pitch: int

    @property
    def padding(self) -> int:
        """Elements by which the chunks of a block lie further apart than they are long."""
        return self.count * (self.pitch - self.after)


def chunking(run: Pass, block: int, compute: str) -> Chunking:
    """Return as many steps at the end of the run, if not one alone, as stay in the first cache, chunk by chunk."""
    taken = run_steps(run, block)
    for count in range(len(taken), 1, -1):
        indices = [step.position for step in taken[:count]]
        first = min(indices)
        own = plain_pass("", run.modes, first, len(run.modes))
        covers = all(mode.factor is None or index in indices for index, mode in enumerate(run.modes) if index >= first)
        if covers and len(own.modes) == len(run.modes) - first and own.most * block * SIZES[compute] <= CHUNK_BYTES:
            after = own.rows * block
            # The columns of the next factor must not all fall into the same sets of the cache.
            spread = count < len(taken) and taken[count].left == 1 and taken[count].right == after
            pitch = after + CACHE_ELEMENTS if spread and after % CACHE_ELEMENTS == 0 else after
            chunks = columns(run.modes[:first])
            share = _chunks_together(chunks, taken[0].left // chunks, own.most * block * SIZES[compute])
            share = share if pitch == after else 1
            before, most = own.columns * block * share, own.most * block * share
            return Chunking(count, chunks // share, before, after * share, most, pitch * share)
    after = run.rows * block
    return Chunking(len(taken), 1, run.columns * block, after, run.most * block, after)


def _chunks_together(chunks: int, rows: int, size: int) -> int:
    """Return how many chunks of so many rows and bytes are gone over together, as tiles have more rows: a divisor."""
    fitting = [part for part in range(1, min(CHUNK_BYTES // size, chunks) + 1) if chunks % part == 0]
    return next((part for part in fitting if part * rows >= TILE_ROWS), fitting[-1])


def is_exact(step: Step) -> bool:
    """Return whether a step reads and writes no vector beyond its arrays."""
    return step.right >= NARROWEST or (step.right == 1 and step.mode.rows >= NARROWEST)
