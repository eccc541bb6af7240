"""Plans of Kronecker passes by wgmma over one factor of up to 256 rows and columns with others to its right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .mma_plan import LANES, NARROWEST, SIZES
from .modes import Mode
from .passes import Pass
from .tensor_plan import MmaLayout, Tensor, TensorPlan

WIDEST = 256  # rows or columns of the factor
# Rows of the factor in a block, and columns of a piece.
ROWS, COLUMNS = 128, 128
# Threads: eight warps that load, two groups of four that multiply 64 rows of the factor each.
THREADS, GROUP = 512, 64
# Columns up to which a group takes 128 lines, by bytes of a number (27 x 27 of float32 takes 92 us with 64 and 111 with
# 128, 20 x 20 of float16 94 and 82, H200); words of a piece that a thread has, and where they are no whole vectors of
# 16 bytes, or rows of halves.
SHORT_COLUMNS = {2: 32, 4: 24}
MOST_WORDS, MOST_ODD, MOST_CHUNKS = 64, 48, 32
MOST_STAGES = 8
# What plans have as the columns to the right where these are not few.
MANY = 256
# Times as many columns as there are that tiles of one entry of the batch may have.
MOST_PADDED = 1.04
# Registers of a thread that loads up to so many words, and more.
LEAST_WORDS, LEAST_REGISTERS, REGISTERS = 32, 104, 120
# Bytes between rows of results, and of largest entries.
PADDING, WIDE_PADDING, LARGEST = 16, 32, 64
# Factors that are multiplied out to one.
MOST_JOINED = 4
# Registers of a thread that loads by copies, of one chunk and of two; bytes of a word of all threads, and of what is
# noted of a piece; copies ahead and stages, the preferred first.
COPIED_REGISTERS = ((128, 80), (160, 96), (192, 80), (224, 64), (256, 56))
COPIED, NOTE = 1024, 16
COPIES = ((2, 1, 2), (1, 2, 2))
# Columns to the right by bytes of a number, fewer of which come and leave in short runs: 3 x 65 beside 2 in float32
# takes some 80 us where 20 were expected, 165 x 165 beside 2 in float16 60 instead of 30 (H200).
LEAST_RIGHT = {2: 4, 4: 8}
# Tiles for a multiprocessor below which a factor takes longer to prepare than is gained.
LEAST_TILES = 4


@dataclass(frozen=True)
class AxisPlan(TensorPlan):
    """A pass over one factor with ``right`` columns to its right.

    A group of warps multiplies ``blocks`` times 64 lines at a time; ``sets`` of warps load a piece each, and where it
    ``is_prefetched``, what they read next comes into the second-level cache ahead.
    """

    right: int
    blocks: int
    sets: int
    stages: int
    is_prefetched: bool
    copies: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS

    @property
    def groups(self) -> int:
        """Tiles that a block takes at once."""
        return 1

    @property
    def packed(self) -> int:
        """Columns to the right where a tile has those of several entries of the batch, else 0."""
        return packed_of(self.right, self.fibers)

    @property
    def mode(self) -> Mode:
        """The axis."""
        return self.run.modes[0]

    @property
    def fibers(self) -> int:
        """Lines of a tile."""
        return fibers_of(self.mode, self.blocks)

    @property
    def sharing(self) -> int:
        """Blocks that have the rows of the factor between them."""
        return -(-self.mode.rows // ROWS)

    @property
    def vector(self) -> int:
        """Numbers of a load."""
        return self.layout.copy // SIZES[self.stored]

    @property
    def words(self) -> int:
        """Words of a piece that a thread loads."""
        return _words(self.mode, self.stored, self.vector, self.blocks, self.sets)

    @property
    def loader_registers(self) -> int:
        """Registers of a thread that loads."""
        if self.copies:
            return next(own for most, own in COPIED_REGISTERS if _chunks(self.mode) * _deep(self.mode) <= most)
        return LEAST_REGISTERS if self.words <= LEAST_WORDS else REGISTERS

    @property
    def is_scaled(self) -> bool:
        """Return whether the factor is multiplied by a power of two: what float16 may not hold."""
        return self.tensor.half == "f16" and (self.tensor.products > 1 or len(self.shapes) > 1)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        own = self.stages * _stage(self.mode, self.tensor, self.blocks, self.tops > 0)
        fixed = _fixed(self.mode, self.stored, self.tops)
        return fixed + own + self.copies * (COPIED * self.words + NOTE * self.sets)

    @property
    def tops(self) -> int:
        """Largest entries of columns that warps have in shared memory."""
        return _tops(self.right, self.fibers, self.stored, self.copies > 0)

    def count(self, entries: int, right: int) -> int:
        """Return the tiles of so many entries of the last batch axis, with so much to the right of the run."""
        return self.sharing * tiles_of(entries, right, self.fibers)

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        return f"wgmma axis {self.fibers} stages {self.stages}/{self.sets}"


def fibers_of(mode: Mode, blocks: int) -> int:
    """Return the lines of a tile: of both groups, or the same for both where the factor is larger than 64."""
    return GROUP * blocks * (1 if max(mode.rows, mode.columns) > GROUP else 2)


def blocks_of(mode: Mode, right: int, stored: str) -> int:
    """Return how many times 64 lines a group takes at a time: more of few columns, which leave registers for them."""
    return 2 if mode.columns <= SHORT_COLUMNS[SIZES[stored]] and right >= 4 * GROUP else 1


def packed_of(right: int, fibers: int) -> int:
    """Return the columns to the right where tiles of so many take those of several entries one after another, else 0.

    Where tiles of one entry would have many columns that are not there: all entries together have whole tiles.
    """
    return right if -(-right // fibers) * fibers > MOST_PADDED * right else 0


def tiles_of(entries: int, right: int, fibers: int) -> int:
    """Return the tiles of so many lines over so many entries of the batch, with so much to the right."""
    if packed_of(right, fibers):
        return -(-entries * right // fibers)
    return entries * -(-right // fibers)


def _words(mode: Mode, stored: str, vector: int, blocks: int, sets: int) -> int:
    """Return the words of a piece that each thread of so many sets loads."""
    fibers, unit, loaders = fibers_of(mode, blocks), max(2, vector), 8 // sets
    columns = mode.columns if _chunks(mode) == 1 else _deep(mode)
    units = fibers // unit
    lanes = next((lanes for lanes in (4, 8, 16) if units <= lanes), 32)
    down = -(-columns // (loaders * 32 // lanes))
    alone = 2 if SIZES[stored] == 2 and vector == 1 else 1
    return down * -(-units // lanes) * unit * SIZES[stored] * alone // 4


def _is_copied(mode: Mode, stored: str) -> bool:
    """Return whether loaders wait for numbers in shared memory, not in registers."""
    return stored == "f32" and max(mode.columns, mode.rows) > ROWS


def _tops(right: int, fibers: int, stored: str, is_copied: bool) -> int:
    """Return the largest entries of columns that warps have where each column of float32 has its own power of two."""
    return 16 * fibers if stored == "f32" and (is_copied or packed_of(right, fibers)) else 0


def _parts(tensor: Tensor) -> int:
    """Return the halves that a number is made of."""
    return min(2, tensor.products)


def _stage(mode: Mode, tensor: Tensor, blocks: int, is_alone: bool) -> int:
    """Return the bytes of a stage: a piece, two barriers and what is noted of it."""
    fibers, deep = fibers_of(mode, blocks), _deep(mode)
    scales = fibers if is_alone else 1
    return 128 * _parts(tensor) * fibers // GROUP * deep + 16 + (4 * scales + 8 + 7) // 8 * 8 + 8


def _fixed(mode: Mode, stored: str, tops: int) -> int:
    """Return the bytes beside the stages: 64 rows of results of each group, and largest entries."""
    padded = WIDE_PADDING if stored == "f32" and _chunks(mode) == 1 else PADDING
    return 2 * GROUP * (GROUP * SIZES[stored] + padded) + max(LARGEST, 4 * tops)


def _chunks(mode: Mode) -> int:
    """Return the pieces that a tile comes in."""
    return -(-mode.columns // COLUMNS)


def _deep(mode: Mode) -> int:
    """Return the columns of a piece, rounded up."""
    return -(-mode.columns // (LANES * _chunks(mode))) * LANES


def axis_pass(plain: Pass, entries: int, right: int, stored: str, limits: DeviceLimits) -> Pass | None:
    """Return a pass with all its factors multiplied out to one on so many entries, with so much to its right.

    None where it is too large, they are too many, it has too few tiles for its factor to be prepared, nothing or little
    lies to its right, or factors of halves would make one of two chunks.
    """
    modes = plain.modes
    whole = Mode(plain.columns, plain.rows, 0)
    is_whole = all(mode.factor is not None for mode in modes) and len(modes) <= MOST_JOINED
    sides = (whole.columns, whole.rows)
    if not is_whole or max(sides) > WIDEST or min(sides) < 2 or max(sides) < NARROWEST:
        return None
    if right < LEAST_RIGHT[SIZES[stored]] or (len(modes) > 1 and SIZES[stored] == 2 and max(sides) > COLUMNS):
        return None
    if pieces_of(whole, entries, right, stored) < LEAST_TILES * limits.sm_count:
        return None
    return replace(plain, kind="axis", modes=(whole,), parts=(tuple(range(plain.first, plain.stop)),))


def pieces_of(mode: Mode, entries: int, right: int, stored: str) -> int:
    """Return the pieces of a pass over so many entries of its batch, with so much to its right."""
    tiles = tiles_of(entries, right, fibers_of(mode, blocks_of(mode, right, stored)))
    return tiles * -(-mode.rows // ROWS) * _chunks(mode)


@lru_cache(maxsize=4096)
def axis(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, right: int,
    limits: DeviceLimits,
) -> AxisPlan:  # fmt: skip
    """Return the plan of a pass that :func:`fits`, with as many stages as a block has memory for."""
    mode = run.modes[0]
    blocks, vector = blocks_of(mode, right, stored), layout.copy // SIZES[stored]
    fibers = fibers_of(mode, blocks)
    width = right if packed_of(right, fibers) else MANY
    is_copied = _is_copied(mode, stored)
    tops = _tops(right, fibers, stored, is_copied)
    free = limits.shared_per_block - _fixed(mode, stored, tops)
    stage = _stage(mode, tensor, blocks, tops > 0)
    if is_copied:
        for sets, copies, stages in COPIES:
            copied = COPIED * _words(mode, stored, vector, blocks, sets) + NOTE * sets
            if copies * copied + stages * stage <= free:
                return AxisPlan(
                    run, shapes, stored, tensor, limits.arch, layout, width, blocks, sets, stages, False, copies
                )
    stages = free // stage
    is_short = mode.columns <= GROUP or SIZES[stored] == 2
    most = MOST_WORDS if layout.copy == 16 and is_short else MOST_ODD
    most = MOST_CHUNKS // (4 // SIZES[stored]) if _chunks(mode) > 1 else most
    allowed = [sets for sets in (4, 2) if sets <= stages and _words(mode, stored, vector, blocks, sets) <= most]
    sets = allowed[0] if allowed else 1
    return AxisPlan(
        run, shapes, stored, tensor, limits.arch, layout, width, blocks, sets,
        min(MOST_STAGES, stages // sets * sets), stored == "f32", 0,
    )  # fmt: skip
