"""Plans of Kronecker passes by wgmma: square factors of 64 or 128 on arrays whose rows are whole vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...backends.cuda.tiles import DeviceLimits
from .mma_plan import SIZES
from .modes import Mode
from .passes import Pass
from .tensor_plan import MmaLayout, Tensor, TensorPlan

EXTENTS = (64, 128)
# Threads: eight warps that load, two groups of four that multiply; numbers of a piece of x, and of a row of results.
THREADS, PIECE, ROW = 512, 8192, 64
# Rings of more stages are no quicker.
MOST_STAGES = 8
# Bytes of a stage beside its numbers: two barriers, and what is noted of it.
NOTED, LARGEST = 16 + 48, 64
# Bytes between rows of results.
PADDING, WIDE_PADDING = 16, 32
# Factors that are multiplied out to one.
MOST_JOINED = 3
# Tiles for a multiprocessor below which factors take longer to prepare than is gained.
LEAST_TILES = 4


@dataclass(frozen=True)
class WgmmaPlan(TensorPlan):
    """A pass over one factor with columns to its right, or over the last two axes."""

    stages: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return THREADS

    @property
    def size(self) -> int:
        """Rows and columns of each factor."""
        return self.run.modes[0].columns

    @property
    def is_two(self) -> bool:
        """Return whether the pass applies two factors."""
        return len(self.run.modes) == 2

    @property
    def right(self) -> int:
        """Columns to the right of the run that a tile has."""
        return width_of(self.run.modes)

    @property
    def sets(self) -> int:
        """Sets of warps that load a piece each."""
        return _sets(self.run.modes, self.stored)

    @property
    def loader_registers(self) -> int:
        """Registers of a thread that loads."""
        return 88 if self.sets == 1 else 112

    @property
    def is_prefetched(self) -> bool:
        """Return whether what a set reads next comes into the second-level cache ahead.

        One factor of 64 takes 567 us instead of 606 so, of 128 1469 instead of 1655, two of 128 1941 instead of 2065;
        two of 64 take 679 instead of 560, and halves no less (float32, 64^3 and 128^3, H200).
        """
        return self.stored == "f32" and (not self.is_two or self.size == EXTENTS[1])

    @property
    def groups(self) -> int:
        """Tiles that a block takes at once: one for each group of warps that multiplies, or both share one."""
        return 2 if self.is_two and self.size == EXTENTS[0] else 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return _fixed(self.run.modes, self.stored, self.tensor) + self.stages * _stage(self.tensor)

    def count(self, entries: int, right: int) -> int:
        """Return the tiles of so many entries of the last batch axis, with so much to the right of the run."""
        return entries * (right // self.right)

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        return f"wgmma {self.size}x{self.size if self.is_two else self.right}"


def wgmma(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, limits: DeviceLimits
) -> WgmmaPlan:
    """Return the plan of a pass that :func:`suits`, with as many stages for each set as a block has memory for."""
    stages = min(MOST_STAGES, (limits.shared_per_block - _fixed(run.modes, stored, tensor)) // _stage(tensor))
    sets = _sets(run.modes, stored)
    return WgmmaPlan(run, shapes, stored, tensor, limits.arch, layout, stages // sets * sets)


def _sets(modes: Sequence[Mode], stored: str) -> int:
    """Return the sets of warps that load: for two factors of 128 in float32 by two 2259 us instead of 2065 (H200)."""
    if SIZES[stored] == 2:
        return 4
    return 1 if len(modes) == 2 and modes[0].columns == EXTENTS[1] else 2


def _parts(tensor: Tensor) -> int:
    """Return the halves that a number is made of."""
    return min(2, tensor.products)


def _stage(tensor: Tensor) -> int:
    """Return the bytes of a stage."""
    return 2 * _parts(tensor) * PIECE + NOTED


def _fixed(modes: Sequence[Mode], stored: str, tensor: Tensor) -> int:
    """Return the bytes beside the stages: two factors, or none, and 64 rows of results of groups that store rows."""
    factors = 4 * _parts(tensor) * modes[0].columns ** 2 if len(modes) == 2 else 0
    if len(modes) == 2 and not (stored == "f32" and modes[0].columns == EXTENTS[0]):
        return factors + LARGEST
    padded = WIDE_PADDING if stored == "f32" and len(modes) == 1 else PADDING
    return factors + 2 * ROW * (ROW * SIZES[stored] + padded) + LARGEST


def width_of(modes: Sequence[Mode]) -> int:
    """Return the columns to the right of the run in a tile."""
    return 1 if len(modes) == 2 else PIECE // modes[0].columns


def grouped(modes: Sequence[Mode]) -> list[tuple[int, ...]]:
    """Return the places of factors that make one or two of 64 or 128, neighbours multiplied out, or nothing."""
    total = math.prod(mode.columns for mode in modes)
    size = total if total in EXTENTS else math.isqrt(total)
    if size not in EXTENTS or total not in (size, size**2) or any(mode.columns != mode.rows for mode in modes):
        return []
    groups: list[tuple[int, ...]] = []
    extent = size
    for index in reversed(range(len(modes))):
        if extent == size:
            groups, extent = [(index,), *groups], modes[index].columns
        else:
            groups, extent = [(index, *groups[0]), *groups[1:]], extent * modes[index].columns
    whole = all(math.prod(modes[index].columns for index in group) == size for group in groups)
    return groups if whole and max(map(len, groups)) <= MOST_JOINED else []


def joined_pass(plain: Pass) -> Pass | None:
    """Return a pass with small neighbours multiplied out to factors of 64 or 128; None where they are none."""
    groups = grouped(plain.modes)
    if not groups:
        return None
    size = math.prod(plain.modes[index].columns for index in groups[0])
    return replace(
        plain,
        kind="mma",
        modes=tuple(Mode(size, size, number) for number in range(len(groups))),
        parts=tuple(tuple(plain.first + index for index in group) for group in groups),
    )


def suits(run: Pass, entries: int, right: int, tensor: Tensor, limits: DeviceLimits) -> bool:
    """Return whether a pass is one by wgmma, with enough tiles for its factors to be prepared.

    Not of float16 where factors are multiplied out, which it may not hold.
    """
    modes = run.modes
    is_joint = any(len(part) > 1 for part in run.parts) and tensor.half == "f16" and tensor.products == 1
    if not tensor.is_aligned or len(modes) not in (1, 2) or is_joint:
        return False
    size, width = modes[0].columns, width_of(modes)
    is_square = all(side == size for mode in modes for side in (mode.columns, mode.rows))
    if size not in EXTENTS or not is_square or (len(modes) == 2) != (right == 1) or right % width:
        return False
    return entries * (right // width) >= LEAST_TILES * limits.sm_count
