"""Plans of Kronecker passes by wgmma over one wide factor in shared memory, with positions beside its axis as rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .axis_plan import MOST_JOINED
from .mma_plan import LANES, SIZES
from .modes import Mode
from .passes import Pass
from .tensor_plan import MmaLayout, Tensor, TensorPlan

# Rows or columns of the factor, at least and at most; rows of a factor of float32 in a block.
NARROW, WIDEST, ROWS = 64, 256, 144
# Positions of a tile, and bytes of a copy.
POSITIONS, ACCESS = 64, 16
# Registers of a thread beside sums, and groups of warps by those that a thread may have.
OWN_REGISTERS, GROUPS = 100, ((128, 4), (168, 3), (255, 2))
MOST_AHEAD = 2
# Rows of the largest small factor that is applied to results, and rows or columns of the wide one, at least.
SMALL, NARROW_WITH_SMALL = 24, 32
# Rounds of reads of shared memory that are few.
MOST_ROUNDS = 4
# Banks of shared memory, and bytes to which operands are aligned there.
BANKS, ALIGNMENT = 32, 1024


@dataclass(frozen=True)
class WidePlan(TensorPlan):
    """A pass over one factor, with ``span`` positions beside its axis in each of ``items`` entries of the batch.

    These are all columns to its right or, where they are the axis of a small factor, rows to its left. ``teams`` of
    four warps take tiles of which so many are ``ahead``; with none, results take the place of x. In shared memory
    entries of the batch are ``apart`` numbers apart, runs of results ``out_run``; ``spread`` entries along the axis lie
    between those of neighbouring lanes.
    """

    items: int
    span: int
    apart: int
    out_run: int
    spread: int
    teams: int
    ahead: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.teams

    @property
    def groups(self) -> int:
        """Blocks get tiles first, groups of warps then."""
        return 1

    @property
    def mode(self) -> Mode:
        """The axis of the wide factor."""
        return self.run.modes[wide_part(self.run)]

    @property
    def is_left(self) -> bool:
        """Return whether positions are rows to the left of the axis."""
        return wide_part(self.run) == 1

    @property
    def has_small(self) -> bool:
        """Return whether a small factor is applied to results before they leave."""
        return len(self.run.modes) > 1

    @property
    def sharing(self) -> int:
        """Blocks that have the rows of the factor between them."""
        return sharing_of(self.mode, self.stored)

    @property
    def wide(self) -> int:
        """Rows of the factor in a block."""
        return wide_of(self.mode, self.stored)

    @property
    def is_scaled(self) -> bool:
        """Return whether the factor is multiplied by a power of two."""
        return self.tensor.half == "f16" and (self.tensor.products > 1 or len(self.run.parts[wide_part(self.run)]) > 1)

    @property
    def is_dense(self) -> bool:
        """Return whether x of a tile is copied as one run: lanes meet in few banks then."""
        return read_rounds(self.run, self.span, self.mode.columns * self.span, self.spread, self.stored) <= MOST_ROUNDS

    @property
    def merges(self) -> bool:
        """Return whether all results of a tile are one run where they are in memory."""
        is_by_position = self.is_left or self.span == 1
        is_in_one_bank = is_by_position and self.mode.rows * SIZES[self.stored] % 64 == 0
        return self.sharing == 1 and not (is_in_one_bank or is_transposed(self.run))

    @property
    def out(self) -> int:
        """Numbers of the results of a tile."""
        each = ACCESS // SIZES[self.stored]
        is_by_position = self.is_left or self.span == 1 or is_transposed(self.run)
        runs = self.items * (self.span if is_by_position else 1)
        whole = self.items * self.span * self.mode.rows + each if self.merges else 0
        return _rounded(max(runs * self.out_run, whole), each)

    @property
    def stage(self) -> int:
        """Numbers of a tile."""
        return self.items * self.apart if self.ahead else max(self.items * self.apart, self.out)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        deep = -(-self.mode.columns // (4 * LANES))
        factor = min(2, self.tensor.products) * deep * 128 * self.wide
        own = self.ahead * self.stage + self.out if self.ahead else self.stage
        return factor + self.teams * own * SIZES[self.stored]

    @property
    def static(self) -> int:
        """Bytes of shared memory beside those: where results go, barriers, largest entries, and a small factor."""
        small = 4 * self.span * _rounded(self.span, 4) if self.has_small else 0
        own = self.teams * (4 * POSITIONS + 8 * max(1, self.ahead) + 16) + small + 16
        return _rounded(own, ALIGNMENT)

    def count(self, entries: int, _right: int) -> int:
        """Return the tiles of so many entries of the last batch axis, with so much to the right of the run."""
        return self.sharing * -(-entries // self.items)

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        return f"wgmma wide {self.items} of {self.span} by {self.teams} ahead {self.ahead}"


def sharing_of(mode: Mode, stored: str) -> int:
    """Return how many blocks have the rows of a factor between them."""
    return -(-mode.rows // ROWS) if stored == "f32" else 1


def wide_of(mode: Mode, stored: str) -> int:
    """Return the rows of a factor in a block, a multiple of 16."""
    return _rounded(-(-mode.rows // sharing_of(mode, stored)), LANES)


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def wide_part(run: Pass) -> int:
    """Return which factor of a pass is the wide one, the only one or the larger of two."""
    return int(len(run.modes) > 1 and run.modes[1].columns > run.modes[0].columns)


def span_of(run: Pass, right: int) -> int:
    """Return the positions beside the axis of the wide factor in an entry of the batch."""
    return run.modes[1 - wide_part(run)].columns if len(run.modes) > 1 else right


def is_transposed(run: Pass) -> bool:
    """Return whether results are turned round on their way to memory: columns of an even small factor share banks."""
    return len(run.modes) > 1 and wide_part(run) == 0 and run.modes[1].columns % 2 == 0


def wide_passes(plain: Pass, right: int, stored: str) -> list[Pass]:
    """Return passes whose factors are multiplied out to a wide one, all or all but a small one at an end of memory."""
    modes, count = plain.modes, len(plain.modes)
    if SIZES[stored] > 4 or right > POSITIONS or not all(mode.factor is not None for mode in modes):
        return []
    cuts = [(range(count),)]
    if right == 1 and count > 1:
        cuts += [(range(1), range(1, count)), (range(count - 1), range(count - 1, count))]
    found = (_joined(plain, cut) for cut in dict.fromkeys(cuts))
    return [own for own in found if own is not None]


def _joined(plain: Pass, cut: tuple[range, ...]) -> Pass | None:
    """Return the pass with the factors of each range multiplied out to one, None where that is no wide one."""
    whole = tuple(
        Mode(math.prod(plain.modes[at].columns for at in own), math.prod(plain.modes[at].rows for at in own), index)
        for index, own in enumerate(cut)
    )
    run = replace(
        plain, kind="wide", modes=whole, parts=tuple(tuple(plain.first + at for at in own) for own in cut)
    )  # fmt: skip
    wide = whole[wide_part(run)]
    is_small = all(mode.columns == mode.rows <= SMALL for mode in whole if mode is not wide)
    least = NARROW if len(whole) == 1 else NARROW_WITH_SMALL
    sides = (wide.columns, wide.rows)
    is_wide = least < max(sides) <= WIDEST and min(sides) >= LANES
    return run if is_small and is_wide and max(map(len, cut)) <= MOST_JOINED else None


@lru_cache(maxsize=4096)
def read_rounds(run: Pass, span: int, apart: int, spread: int, stored: str) -> int:
    """Return how many rounds shared memory takes to serve a warp, of which four lanes read each of eight positions."""
    mode, is_left = run.modes[wide_part(run)], wide_part(run) == 1
    pitch, step = (1, mode.columns) if is_left else (span, 1)
    banks: dict[int, set[int]] = {}
    for position, four in itertools.product(range(8), range(4)):
        at = position // span * apart + position % span * step + four * spread * pitch
        word = at * SIZES[stored] // 4
        banks.setdefault(word % BANKS, set()).add(word)
    return max(map(len, banks.values()))


@lru_cache(maxsize=4096)
def wide(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, right: int,
    limits: DeviceLimits,
) -> WidePlan:  # fmt: skip
    """Return the plan of a pass, with as many groups of warps as have the registers, and then tiles ahead."""
    mode, size, is_left = run.modes[wide_part(run)], SIZES[stored], wide_part(run) == 1
    span, each, rows = span_of(run, right), ACCESS // size, wide_of(mode, stored)
    items = POSITIONS // span
    apart = _rounded(mode.columns * span + each - 1, each)
    _, apart, spread = min(
        (read_rounds(run, span, own, spread, stored), own, spread)
        for own in range(apart, apart + 3 * each, each)
        for spread in (1, 2, 4)
    )
    own_rows = min(rows, mode.rows)
    if is_transposed(run):  # eight lanes with a position each meet in no bank
        out_run = own_rows + (8 * 4 // size - own_rows) % (BANKS * 4 // size)
    else:
        out_run = _rounded(own_rows * (1 if is_left else span) + each - 1, each)
        out_run += each * (out_run // each % 2 == 0)  # neighbouring runs begin in other banks
    sums = rows // (1 if size == 4 else 2)
    most = next(teams for registers, teams in GROUPS if sums + OWN_REGISTERS <= registers)
    plans = (
        WidePlan(run, shapes, stored, tensor, limits.arch, layout, items, span, apart, out_run, spread, teams, ahead)
        for teams, ahead in itertools.product(range(most, 0, -1), range(MOST_AHEAD, -1, -1))
    )
    return next(plan for plan in plans if plan.shared + plan.static <= limits.shared_per_block)


@lru_cache(maxsize=4096)
def wide_plans(
    plain: Pass, right: int, stored: str, tensor: Tensor, limits: DeviceLimits
) -> tuple[WidePlan, ...]:  # fmt: skip
    """Return the plans by which passes over one wide factor are priced.

    None by one group of warps: 256 x 256 of float32 takes 3.5 times its bytes so (H200).
    """
    layout = MmaLayout(SIZES[stored], 1, False)
    every = (wide(own, (), stored, tensor, layout, right, limits) for own in wide_passes(plain, right, stored))
    return tuple(own for own in every if own.teams > 1)
