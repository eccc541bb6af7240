"""Plans of Kronecker passes by wgmma over the last two factors, of 64 or 128, of rows that are whole vectors."""

from __future__ import annotations

from dataclasses import dataclass

from ...backends.cuda.tiles import DeviceLimits
from .mma_plan import SIZES
from .passes import Pass, square_pass
from .tensor_plan import MmaLayout, Tensor, TensorPlan

EXTENTS = (64, 128)  # rows and columns of both factors
# Threads: eight warps that load, two groups of four that multiply; bytes of a piece of x in halves; numbers of a row of
# results.
THREADS, PIECE, ROW = 512, 1 << 14, 64
# Rings of more stages are no quicker.
MOST_STAGES = 8
# Bytes of a stage beside its numbers: two barriers, and what is noted of it.
NOTED, LARGEST = 16 + 48, 64
# Bytes between rows of results.
PADDING = 16
# Tiles for a multiprocessor below which factors take longer to prepare than is gained.
LEAST_TILES = 4


@dataclass(frozen=True)
class WgmmaPlan(TensorPlan):
    """A pass over the last two axes, with ``stages`` pieces of x in shared memory."""

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
    def sets(self) -> int:
        """Sets of warps that load a piece each."""
        return _sets(self.size, self.stored)

    @property
    def loader_registers(self) -> int:
        """Registers of a thread that loads."""
        return 88 if self.sets == 1 else 112

    @property
    def is_prefetched(self) -> bool:
        """Return whether what a set reads next comes into the second-level cache ahead.

        Two factors of 128 take 1941 us instead of 2065 so; two of 64 take 679 instead of 560, and halves no less
        (float32, 64^3 and 128^3, H200).
        """
        return self.stored == "f32" and self.size == EXTENTS[1]

    @property
    def groups(self) -> int:
        """Tiles that a block takes at once: one for each group of warps that multiplies, or both share one."""
        return 2 if self.size == EXTENTS[0] else 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return _fixed(self.size, self.stored, self.tensor) + self.stages * _stage(self.tensor)

    def count(self, entries: int, right: int) -> int:
        """Return the tiles of so many entries of the last batch axis."""
        return entries * right

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        return f"wgmma {self.size}x{self.size}"


def wgmma(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, limits: DeviceLimits
) -> WgmmaPlan:
    """Return the plan of a pass that :func:`suits`, with as many stages for each set as a block has memory for."""
    size = run.modes[0].columns
    stages = min(MOST_STAGES, (limits.shared_per_block - _fixed(size, stored, tensor)) // _stage(tensor))
    sets = _sets(size, stored)
    return WgmmaPlan(run, shapes, stored, tensor, limits.arch, layout, stages // sets * sets)


def _sets(size: int, stored: str) -> int:
    """Return the sets of warps that load: for two factors of 128 in float32 by two 2259 us instead of 2065 (H200)."""
    if SIZES[stored] == 2:
        return 4
    return 1 if size == EXTENTS[1] else 2


def _parts(tensor: Tensor) -> int:
    """Return the halves that a number is made of."""
    return min(2, tensor.products)


def _stage(tensor: Tensor) -> int:
    """Return the bytes of a stage."""
    return _parts(tensor) * PIECE + NOTED


def _fixed(size: int, stored: str, tensor: Tensor) -> int:
    """Return the bytes beside the stages: both factors, and 64 rows of results of groups that store rows."""
    factors, are_rows = 4 * _parts(tensor) * size**2, stored == "f32" and size == EXTENTS[0]
    return factors + LARGEST + (2 * ROW * (ROW * SIZES[stored] + PADDING) if are_rows else 0)


def joined_pass(plain: Pass) -> Pass | None:
    """Return a pass with small neighbours multiplied out to two factors of 64 or of 128; None where they are none."""
    found = (square_pass(plain, size, 2) for size in EXTENTS)
    return next((own for own in found if own is not None), None)


def suits(run: Pass, entries: int, right: int, tensor: Tensor, limits: DeviceLimits) -> bool:
    """Return whether a pass is one by wgmma, with enough tiles for its factors to be prepared."""
    modes, size = run.modes, run.modes[0].columns
    fits = tensor.holds_products or all(len(part) == 1 for part in run.parts)
    is_square = all(side == size for mode in modes for side in (mode.columns, mode.rows))
    if not tensor.is_aligned or len(modes) != 2 or right > 1 or not fits or size not in EXTENTS or not is_square:
        return False
    return entries >= LEAST_TILES * limits.sm_count
