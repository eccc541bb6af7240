"""Plans of Kronecker passes on tensor cores: fibers of which axes, by how many warps, in how much memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from ...backends.cuda.arch import ARCHS
from ...backends.cuda.tiles import DeviceLimits
from .modes import Mode
from .passes import Pass
from .tensor_plan import MmaLayout, Tensor, TensorPlan

NARROWEST = 8  # rows or columns of a factor; fewer are padded
LANES = 16  # fibers of a tile of a warp
# Longest fibers whose entries are swizzled in a stage; longer ones are padded: by this 128 take 2 to 7 % less time.
LONGEST_SWIZZLED = 64
# Fibers of more entries are swizzled too where they are 16 neighbouring columns, so that more warps fit.
WIDEST_PADDED = 128
# With fewer warps a multiprocessor waits for memory. Two factors of 128 by four warps take 4.2 ms where one and then
# the other take 3.4 (320 * 128 * 128 columns, H200).
LEAST, LEAST_WIDE, WIDE = 4, 8, 96
WARPS = (16, 12, 8, 6, 4, 2, 1)
# Warps from which more are only preferred, and none where halves of so many columns are alone: 68 x 68 to 96 x 96 take
# 0.76 to 0.98 times as long by eight as by twelve (H200).
ENOUGH, WIDE_ALONE = 8, 64
STAGES = (1, 2)
MOST = (4, 2, 1)
# Halves after which rows are in the same banks: 54 x 54 beside 60 x 60 takes 190 us as runs, 149 in rows apart (H200).
# Entries of a tile whose numbers have 16 bits.
ALIKE, CLOSE, LARGEST_OFFSET = 64, 4, 1 << 16
# Neighbours of the result that a lane has; columns along the last axis that come together.
MOST_NEIGHBOURS, TOGETHER = 4, 32
# Rows of float32 of which pairs come together too: 18 take 297 us so and 332 together, 110 90 and 45; and that come
# together whole: 2 x 129 takes 58 us so, 136 by 32 columns, 100 x 181 81 and 68 (H200, decision 0123).
LEAST_PAIRED, LONGEST_WHOLE = 64, 144
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
# Shared memory beside the dynamic one: largest entries and scales of the factors, and what aligns the rest.
STATIC_BYTES = 512
# Generations where float64 has tensor cores that are faster than additions.
DOUBLES = tuple(row.name for row in ARCHS.values() if "fp64_mma" in row.features)
# Registers of a thread in addition to its fibers and sums.
OWN_REGISTERS, RAGGED_REGISTERS, DOUBLE_REGISTERS = 72, 16, 104
# Steps of 16 entries of a fiber from which copies of several at a time take registers too: 190 x 190 of halves spilled.
LONG = 8


@dataclass(frozen=True)
class MmaPhase:
    """The factor of axis ``axis`` on ``fibers`` rows if it is the last axis, else on as many groups of 16 columns.

    A warp takes ``tiles`` times 16 fibers at a time. ``digits`` say, from the inside, which axes number the rows or
    groups: (axis, extent), where axis -1 are the items and the number of axes is what lies to the right.
    """

    axis: int
    mode: Mode
    last: bool
    digits: tuple[tuple[int, int], ...]
    tiles: int

    @property
    def fibers(self) -> int:
        """Rows, or groups of 16 columns."""
        return math.prod(extent for _, extent in self.digits)

    @property
    def together(self) -> int:
        """Return the groups of columns of a unit that lie beside each other in a row."""
        return 1 if self.last else math.gcd(self.tiles, self.digits[0][1])

    @property
    def units(self) -> int:
        """The number of times that a warp takes fibers."""
        return -(-self.fibers // (LANES * self.tiles if self.last else self.tiles))


@dataclass(frozen=True)
class MmaPlan(TensorPlan):
    """A pass on tensor cores: ``items`` of the last batch axis by ``right`` columns for each group of warps."""

    items: int
    right: int
    warps: int
    group: int
    stages: int
    most: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def groups(self) -> int:
        """Tiles that a block takes at once."""
        return self.warps // self.group

    @property
    def compute(self) -> str:
        """Type of sums."""
        return "f64" if self.stored == "f64" else "f32"

    @property
    def between(self) -> str:
        """Type of what lies between phases: halves are rounded for the next factor anyway."""
        return self.stored if SIZES[self.stored] == 2 else self.compute

    @cached_property
    def phases(self) -> tuple[MmaPhase, ...]:
        """The phases from the last axis to the first."""
        return _phases(self.run.modes, self.items, self.right, self.most, self.tensor)

    @property
    def swizzled_axis(self) -> int | None:
        """Axis whose rows lie beside each other, with columns that change places eight by eight.

        None where rows are further apart instead.
        """
        axis = len(self.run.modes) - (1 if self.right > 1 else 2)
        wide = self.right if self.right > 1 else rounded_up(self.run.modes[-1].rows)
        if self.tensor.products == 1 or axis < 0 or wide % 32:
            return None
        mode = self.run.modes[axis]
        return None if mode.columns % 4 or mode.rows % 4 else axis

    @cached_property
    def strides(self) -> dict[int, int]:
        """Strides in the tile of every axis, of the items (-1) and of what lies to the right."""
        modes, count, size = self.run.modes, len(self.run.modes), SIZES[self.between]
        found = {count: 1} if self.right > 1 else {count: 1, count - 1: 1}
        wide = self.right if self.right > 1 else rounded_up(modes[-1].rows)
        stride = _odd(wide, size) if self.swizzled_axis is None else wide
        for axis in reversed(range(count if self.right > 1 else count - 1)):
            found[axis] = stride
            extent = modes[axis].rows if axis == count - 1 else max(modes[axis].rows, modes[axis].columns)
            stride = _odd(stride * extent, size)
        found[-1] = stride
        return found

    @property
    def tile(self) -> int:
        """Entries of a tile between phases."""
        return 0 if len(self.phases) == 1 else self.strides[-1] * self.items

    @property
    def is_shifted(self) -> bool:
        """Return whether halves are copied as they lie, with what fills 16 bytes at either end of a run."""
        return SIZES[self.stored] == 2 and (self.layout.copy <= 4 or self.is_dense)

    @property
    def is_dense(self) -> bool:
        """Return whether rows are copied as one run: those that are no whole vectors, each in other banks."""
        columns, copy = self.run.modes[-1].columns, self.layout.copy
        is_odd = copy < 8 or (copy < 16 and min(columns % ALIKE, -columns % ALIKE) > CLOSE)
        return self.right == 1 and self.layout.is_dense and columns % LANES > 0 and is_odd and SIZES[self.stored] == 2

    @property
    def table(self) -> int:
        """Return the words of shared memory that say where fibers of the last axis go in the tile."""
        first = self.phases[0]
        is_short = len(self.phases) > 1 and self.tile <= LARGEST_OFFSET
        return -(-first.fibers // 64) * 32 if first.last and is_short else 0

    @property
    def pitch(self) -> int:
        """Entries from fiber to fiber, or along a column, in a stage."""
        if self.is_dense:
            return self.run.modes[-1].columns
        if self.is_shifted:
            chunks = ((self.run.modes[-1].columns if self.right == 1 else self.right) + 14) // 8
            return 8 * (chunks + (chunks % 2 == 0))
        wide = rounded_up(self.run.modes[-1].columns) if self.right == 1 else self.right
        swizzled_axis = self.stored == "f32" and self.run.modes[-1].columns <= LONGEST_SWIZZLED
        if swizzled_axis and (wide % 32 == 0 or (wide == LANES and self.right == 1)):
            return wide
        if self.stored == "f32" and self.right == LANES and self.run.modes[-1].columns > WIDEST_PADDED:
            return wide
        if SIZES[self.stored] >= 4:
            return _odd(wide, SIZES[self.stored])
        return wide + 16 if wide % 32 == 0 else wide

    @property
    def stage(self) -> int:
        """Entries of a stage of a warp."""
        first = self.phases[0]
        down = LANES * first.tiles if first.last else first.mode.columns
        if self.is_dense:
            each = 16 // SIZES[self.stored]
            return ((down * self.pitch + 2 * each - 2) // each + 1) * each
        return self.pitch * down + (rounded_up(down) if self.is_shifted else 0)

    @property
    def run_width(self) -> int:
        """Neighbours of a store where columns of a unit are whole rows of the last axis, one after the other."""
        last, extent = self.phases[-1], self.run.modes[-1].rows
        is_narrow = self.layout.out_width < MOST_NEIGHBOURS and SIZES[self.stored] == 2
        if self.right > 1 or len(self.phases) == 1 or not is_narrow or self.layout.added:
            return 0
        blocks = rounded_up(extent) // LANES
        if last.tiles % blocks or last.tiles == blocks or (last.fibers // self.items) % last.tiles:
            return 0
        return math.gcd(self.layout.run_width, last.tiles // blocks * extent)

    @property
    def is_coalesced(self) -> bool:
        """Return whether rows of the result come together in shared memory, which a lane has few bytes of."""
        last = self.phases[-1]
        if self.run_width:
            return True
        if self.layout.added or self.compute != "f32":
            return False
        is_half, is_alone = SIZES[self.stored] == 2, len(self.phases) == 1
        if last.last:
            width = self.layout.out_width
            return is_half or width == 1 or (width < MOST_NEIGHBOURS and last.mode.rows >= LEAST_PAIRED)
        # 48 x 48 beside 15 x 15 and others take 246 us so, else 349 (H200).
        is_short = is_alone or (self.right > 1 and self.run.modes[-1].rows % LANES > 0)
        return self.layout.out_width < MOST_NEIGHBOURS or (is_half and is_short and last.together > 1)

    @property
    def is_whole(self) -> bool:
        """Return whether all of these rows of a unit come together as they lie in memory: those of no whole vectors."""
        is_narrow = self.layout.out_width < MOST_NEIGHBOURS and self.phases[-1].last and self.is_coalesced
        return is_narrow and (SIZES[self.stored] == 2 or self.phases[-1].mode.rows <= LONGEST_WHOLE)

    @property
    def out_pitch(self) -> int:
        """Entries from row to row of these, so that neither writes nor reads have bank conflicts; 0 without them."""
        last = self.phases[-1]
        if not self.is_coalesced:
            return 0
        if self.run_width:
            return -(-last.tiles * LANES // 8) * 8 + 8
        return TOGETHER + 8 if last.last else LANES * (last.tiles + (last.tiles % 2 == 0))

    @property
    def out_stage(self) -> int:
        """Entries of all these rows of a warp: 16, or those of a unit along the last axis."""
        last = self.phases[-1]
        if self.is_whole:
            return LANES * last.tiles * last.mode.rows + 8
        return LANES * self.out_pitch * (last.tiles if last.last else 1)

    def words(self, mode: Mode) -> int:
        """Return the words of shared memory of a factor."""
        return (
            rounded_up(mode.columns)
            * rounded_up(mode.rows)
            * SIZES[self.tensor.half]
            * min(2, self.tensor.products)
            // 4
        )

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self._shared

    @cached_property
    def _shared(self) -> int:
        factors = sum(4 * self.words(mode) for mode in self.run.modes) + 4 * self.table
        tiles = self.warps // self.group * SIZES[self.between] * self.tile
        own = self.stages * self.stage + self.out_stage
        return factors + tiles + self.warps * own * SIZES[self.stored]

    @property
    def registers(self) -> int:
        """Registers that a thread should need."""
        return max(_registers(phase, self.tensor) for phase in self.phases)

    def count(self, entries: int, right: int) -> int:
        """Return the tiles of so many entries of the last batch axis, with so much to the right of the run."""
        return -(-entries // self.items) * -(-right // self.right)

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        return f"tile {self.items}x{self.right} warps {self.warps}/{self.group} stages {self.stages} lines {self.most}"


def rounded_up(count: int) -> int:
    """Least multiple of 16 that is not less."""
    return -(-count // LANES) * LANES


def _odd(count: int, size: int) -> int:
    """Least number of entries that is an odd multiple of 32 bytes: neither rows nor columns have bank conflicts."""
    unit = 32 // size
    return -(-(count - unit) // (2 * unit)) * 2 * unit + unit


def _fragments(mode: Mode, most: int, tensor: Tensor) -> int:
    """Return the fibers, in 16s, that a warp takes at a time."""
    return min(most, 4 if mode.columns <= (64 if tensor.is_rounded else 32) else 2)


def _registers(phase: MmaPhase, tensor: Tensor) -> int:
    deep = -(-phase.mode.columns // LANES)
    if tensor.half == "f64":
        return DOUBLE_REGISTERS + phase.tiles * 16 * (deep + 1)
    split = 2 if tensor.products > 1 else 1
    sums = (1 if deep <= 2 else split) + (deep > 4)
    ragged = RAGGED_REGISTERS * (phase.mode.columns % LANES > 0)
    ragged *= 4 if phase.last and split > 1 and deep > 4 and phase.tiles > 1 else 1
    moved = 4 * deep * (deep > LONG and phase.tiles > 1)
    return OWN_REGISTERS + ragged + moved + phase.tiles * (4 * deep * split + 8 * sums)


def _phases(modes: Sequence[Mode], items: int, right: int, most: int, tensor: Tensor) -> tuple[MmaPhase, ...]:
    count = len(modes)
    found: list[MmaPhase] = []
    for axis in reversed(range(count)):
        before = [(index, modes[index].columns) for index in reversed(range(axis))] + [(-1, items)]
        mode = modes[axis]
        if axis == count - 1 and right == 1:
            digits = before
        elif axis == count - 1:
            digits = [(count, right // LANES), *before]
        else:
            inner = rounded_up(modes[-1].rows) if right == 1 else right
            after = [(index, modes[index].rows) for index in reversed(range(axis + 1, count - (right == 1)))]
            digits = [(count, inner // LANES), *after, *before]
        fibers = math.prod(extent for _, extent in digits)
        last = axis == count - 1 and right == 1
        tiles = _fragments(mode, most, tensor)
        while tiles > 1 and (fibers // LANES if last else fibers) % tiles:
            tiles //= 2
        if axis == count - 1 and right > 1:
            tiles = right // LANES
        found.append(MmaPhase(axis, mode, last, tuple(digits), tiles))
    return tuple(found)


@lru_cache(maxsize=4096)
def mma_candidates(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, width: int,
    limits: DeviceLimits,
) -> tuple[MmaPlan, ...]:  # fmt: skip
    """Return the tile, warps and stages of a pass with ``width`` entries to its right, the preferred first."""
    found = [
        own
        for warps in WARPS
        for most in MOST
        for stages in STAGES
        if (own := _grouped(run, shapes, stored, tensor, layout, width, limits, (warps, stages, most))) is not None
    ]
    return tuple(sorted(found, key=_value, reverse=True))


def mma(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, width: int,
    limits: DeviceLimits,
) -> MmaPlan | None:  # fmt: skip
    """Return the preferred plan of a pass; None if a block cannot hold it."""
    return next(iter(mma_candidates(run, shapes, stored, tensor, layout, width, limits)), None)


def _grouped(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, width: int,
    limits: DeviceLimits, tile: tuple[int, int, int],
) -> MmaPlan | None:  # fmt: skip
    """Return the plan of so many warps, stages and fibers with as few warps to a tile as fit."""
    modes, (warps, stages, most) = run.modes, tile
    fragments = _fragments(modes[-1], most, tensor)
    right = 1 if width == 1 else min(LANES * fragments, 1 << max(4, (width - 1).bit_length()))
    items = 1 if right > 1 else max(1, LANES * fragments // math.prod(mode.columns for mode in modes[:-1]))
    for group in range(1, warps + 1):
        found = MmaPlan(run, shapes, stored, tensor, limits.arch, layout, items, right, warps, group, stages, most)
        if group > found.phases[0].units or found.registers > min(255, limits.registers_per_sm // found.threads):
            return None
        if warps % group == 0 and found.shared + STATIC_BYTES <= limits.shared_per_block:
            return found
    return None


def _value(plan: MmaPlan) -> tuple[int, int, int, int, int]:
    """Return what is preferred, as measured on an H200: eight warps, 32 lines for each, then more of both.

    Sixteen warps that wait for each other are slower than twelve; of those that go their own way through several
    phases, some wait for memory anyway while others do not. Of float32 rows that fill no 16 are taken 16 at a time: 19
    passes take 0.91 of the time with 32 or 64 (decision 0118).
    """
    tiles, warps = plan.phases[0].tiles, plan.warps if plan.group < WARPS[0] else WARPS[1] - 1
    last = plan.run.modes[-1]
    if SIZES[plan.stored] == 2 and len(plan.phases) == 1 < plan.right and plan.run.modes[0].columns > WIDE_ALONE:
        warps = ENOUGH - abs(warps - ENOUGH)
    if plan.stored == "f32" and plan.right == 1 and (last.rows % LANES or last.columns % LANES):
        tiles = -tiles
    alone = plan.group == 1 and plan.right == 1 and len(plan.phases) > 1 and plan.compute == "f32"
    return min(warps, ENOUGH), min(tiles, 2), warps, tiles, -plan.stages if alone else plan.stages
