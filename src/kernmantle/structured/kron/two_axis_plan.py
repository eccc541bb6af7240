"""Plans of Kronecker passes over the last two axes, whose first product stays in the registers of a warp."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .mma_plan import LANES, SIZES
from .modes import Mode
from .passes import Pass
from .tensor_plan import MmaLayout, Tensor, TensorPlan

# Rows and columns of the largest factor, and of both together, of halves and of float32: more take longer to multiply
# than memory takes.
WIDEST, WIDEST_TOGETHER, WIDEST_SPLIT = 256, 320, 192
# Numbers of float32 in a vector, and rows of a fragment for which mma.sync wastes nothing.
VECTOR, WHOLE = 4, 64
# Bytes of a copy, and numbers behind a tile that are read and left out.
ACCESS, SLACK = 16, 24
# Registers of a thread beside operands and sums, and those that factors take which stay in registers.
OWN_REGISTERS, MOST_BLOCKS = 64, 6
LAST_STAYS, FIRST_STAYS = 8, 9
# Warps of a block by the registers that a thread may have.
WARPS = (16, 12, 8)
# Numbers of a tile that a warp is to have at least, and bytes that a multiprocessor is to have under way.
LEAST_NUMBERS, LEAST_AHEAD = 768, 24576
# Tiles that are copied ahead, and tiles of results that leave: one where what comes between leaves before.
STAGES = ((4, 2), (3, 2), (2, 2), (3, 1), (2, 1))
SAVING_STAGES = ((4, 1), (3, 1), (2, 1))
# Cycles of a multiprocessor for a byte, a product, a load of a factor, another instruction, a cycle of shared memory of
# each warp, and a tile of each warp of it, of halves and of float32 (H200, 876 plans within 15 and 12 %, root mean
# square; decision 0083), and cycles of an instruction of a warp that waits for each.
CYCLES = {2: (0.0328, 1.13, 0.81, 0.222, 2.08, 38.9), 4: (0.0350, 0.96, 0.92, 0.224, 4.54, 6.7)}
WAITING = {2: 4, 4: 6}


@dataclass(frozen=True)
class TwoAxisPlan(TensorPlan):
    """A pass over the last two axes of halves or of float32.

    A warp takes ``blocks`` times 16 rows of the last factor and ``together`` entries of the batch at a time, of which
    the products of ``at_once`` times 16 columns are under way at once; ``group`` warps share a tile of ``items``
    entries, of ``stages`` that are copied ahead and ``outs`` whose results are taken away. Whether the last factor
    stays in registers, and the first, say ``stays``.
    """

    items: int
    blocks: int
    together: int
    at_once: int
    warps: int
    group: int
    stages: int
    outs: int
    stays: tuple[bool, bool]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def groups(self) -> int:
        """Tiles that a block takes at once."""
        return self.warps // self.group

    @property
    def first(self) -> Mode:
        """The first axis."""
        return self.run.modes[0]

    @property
    def last(self) -> Mode:
        """The last axis."""
        return self.run.modes[1]

    @property
    def vector(self) -> int:
        """Numbers of which the beginnings of rows are multiples."""
        return self.layout.copy // SIZES[self.stored]

    @property
    def pitch(self) -> int:
        """Numbers from row to row in shared memory: more where rows of whole vectors would be in the same banks."""
        columns, is_half = self.last.columns, SIZES[self.stored] == 2
        return columns + self.each if is_half and self.vector == self.each and columns % 32 == 0 else columns

    @property
    def each(self) -> int:
        """Numbers of a copy."""
        return ACCESS // SIZES[self.stored]

    @property
    def stage(self) -> int:
        """Numbers of a stage."""
        return _rounded(self.items * self.first.columns * self.pitch + self.each - 1 + SLACK, self.each) + self.each

    @property
    def out_stage(self) -> int:
        """Numbers of results that leave together."""
        return _rounded(self.items * self.run.rows + self.each - 1, self.each)

    @property
    def saved_width(self) -> int:
        """Numbers of which the beginnings of rows of what comes between the products are multiples."""
        return math.gcd(self.last.rows, self.each)

    @property
    def saved_stage(self) -> int:
        """Numbers of what comes between the products that leave together, none where it is not saved."""
        count = self.items * self.first.columns * self.last.rows
        return _rounded(count + self.each - 1, self.each) if self.run.saves else 0

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        own = self.stages * self.stage + self.outs * self.out_stage + self.saved_stage
        return _factor_bytes(self.run, self.tensor) + self.groups * own * SIZES[self.stored]

    @property
    def static(self) -> int:
        """Bytes of shared memory beside those: largest entries of each warp, and barriers of stages."""
        return 8 * (self.warps + 1) + 8 * self.groups * self.stages

    def count(self, entries: int, _right: int) -> int:
        """Return the tiles of so many entries of the last batch axis."""
        return -(-entries // self.items)

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        own = f"{self.items} of {self.blocks}x{self.together}/{self.at_once}{'s' * sum(self.stays)}"
        return f"two axes {own} warps {self.warps}/{self.group} stages {self.stages}"


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _deep(count: int) -> int:
    """Return how many times 16 it is, rounded up."""
    return -(-count // LANES)


def _factor_bytes(run: Pass, tensor: Tensor) -> int:
    """Return the bytes of shared memory of both factors."""
    return sum(512 * min(2, tensor.products) * _deep(mode.columns) * _deep(mode.rows) for mode in run.modes)


def _registers(plan: TwoAxisPlan) -> int:
    """Return the registers that a thread should need."""
    first, last = plan.run.modes
    parts, deep, down = min(2, plan.tensor.products), _deep(last.columns), _deep(first.columns)
    between = 4 * parts * plan.together * down * plan.blocks
    stays = 4 * parts * plan.blocks * (deep if plan.stays[0] else 1)
    stays += 4 * parts * (down * _deep(first.rows) if plan.stays[1] else 1)
    sums = 8 * plan.at_once * plan.blocks * (parts + (parts > 1 and deep > 4)) + 4 * parts
    others = 8 * plan.together * plan.blocks * (2 if parts > 1 and down > 4 else 1)
    return OWN_REGISTERS + between + stays + max(sums, others)


def _unit(plan: TwoAxisPlan) -> tuple[int, int, float, float]:
    """Return of a unit the products, the loads of factors, other instructions, and the cycles of shared memory.

    Products are of 16 x 8 x 16.
    """
    first, last = plan.run.modes
    blocks, together, is_half = plan.blocks, plan.together, SIZES[plan.stored] == 2
    steps, wide = together * _deep(first.columns), _deep(first.rows)
    read = together * -(-first.columns // 8) * _deep(last.columns)
    products = (read * blocks + together * wide * _deep(first.columns) * 2 * blocks) * plan.tensor.products
    factors = 0 if plan.stays[0] else -(-steps // plan.at_once) * _deep(last.columns) * blocks * (1 if is_half else 2)
    factors += 0 if plan.stays[1] else wide * _deep(first.columns) * (1 if is_half else 3)
    stored, out = together * 2 * wide * blocks, plan.layout.out_width
    saved = together * -(-first.columns // 8) * blocks if plan.run.saves else 0
    if is_half:
        single = read * (5 if plan.vector == 1 else min(2, 4 // plan.vector)) + steps * 4 * blocks
        single += stored * (6 + (6 if out == 1 else max(1, 2 // out)))
        banks = read * min(3, 4 // plan.vector + 1) + stored * (4 if out == 1 else 2)
        out = plan.saved_width
        single += saved * (8 + (6 if out == 1 else max(1, 2 // out)))
        return products, factors, single, banks + saved * (4 if out == 1 else 2)
    scanned = together * first.columns * last.columns / 32
    single = read * (16 + 4 // plan.vector) + 2 * scanned + steps * 32 * blocks + stored * (4 + 4 // out)
    return products, factors, single + 16 * saved, 4 * (read + stored + 2 * saved) + scanned


def units_of(plan: TwoAxisPlan) -> int:
    """Return what warps of a group take in turns of a tile."""
    return plan.items // plan.together * -(-_deep(plan.last.rows) // plan.blocks)


def tile_cycles(plan: TwoAxisPlan) -> float:
    """Return the cycles of a multiprocessor for a tile: of its bytes and of its units, which do not overlap."""
    units, own = units_of(plan), _unit(plan)
    uneven = -(-units // plan.group) * plan.group / units
    copied, *each, tile = CYCLES[SIZES[plan.stored]]
    shares = (uneven, uneven, 1.0, uneven / plan.warps)
    worked = sum(cycles * share * count for cycles, share, count in zip(each, shares, own, strict=True))
    moved = SIZES[plan.stored] * (plan.items * (plan.run.columns + plan.run.rows) + plan.saved_stage)
    return copied * moved + tile * plan.group + units * worked


def tile_latency(plan: TwoAxisPlan) -> float:
    """Return the cycles of a tile from its first product to its last result, by a warp that waits for each."""
    return WAITING[SIZES[plan.stored]] * -(-units_of(plan) // plan.group) * sum(_unit(plan)[:3])


def pass_cycles(plan: TwoAxisPlan, entries: int, processors: int) -> float:
    """Return the cycles of a pass over so many entries: those of the busiest multiprocessor, and of its last tile."""
    return -(-plan.count(entries, 1) // processors) * tile_cycles(plan) + tile_latency(plan)


def plan_of(run: Pass, entries: int, stored: str, tensor: Tensor, limits: DeviceLimits) -> TwoAxisPlan | None:
    """Return the plan by which a pass over rows that follow each other is priced; None where no block can hold it."""
    each = ACCESS // SIZES[stored]
    columns, rows = (math.gcd(side, each) for side in (run.modes[1].columns, run.modes[1].rows))
    shapes = tuple((1, 1) for part in run.parts for _ in part)
    layout = MmaLayout(columns * SIZES[stored], rows, False, True)
    if stored == "f32":  # tiles of many entries say what few ones take: of one each they are priced too low
        return next(iter(two_axis_candidates(run, shapes, stored, tensor, layout, limits)), None)
    return next(iter(two_axis_plans(run, entries, shapes, stored, tensor, layout, limits)), None)


def two_axis_passes(plain: Pass, stored: str) -> list[Pass]:
    """Return the axes of a pass brought together as two, in every way whose products are cheap enough.

    None where mma.sync wastes nothing: 32 x 32 twice takes 26 us so and 29 by this pass, 64 x 64 of bfloat16 46 and 62,
    60 x 60 of float32 23.2 and 25.8 (H200).
    """
    modes, found = plain.modes, list[Pass]()
    if SIZES[stored] > 4 or any(mode.factor is None for mode in modes):
        return found
    most = WIDEST_TOGETHER if SIZES[stored] == 2 else WIDEST_SPLIT
    for cut in range(1, len(modes)):
        whole = tuple(
            Mode(math.prod(mode.columns for mode in own), math.prod(mode.rows for mode in own), index)
            for index, own in enumerate((modes[:cut], modes[cut:]))
        )
        sides = [side for mode in whole for side in (mode.columns, mode.rows)]
        if all(side % LANES == 0 or side & (side - 1) == 0 for side in sides):
            continue
        if stored == "f32" and all(map(fills_fragments, sides)):
            continue
        extents = [max(mode.columns, mode.rows) for mode in whole]
        if min(min(mode.columns, mode.rows) for mode in whole) > 1 and max(extents) <= WIDEST and sum(extents) <= most:
            parts = (tuple(range(plain.first, plain.first + cut)), tuple(range(plain.first + cut, plain.stop)))
            found.append(Pass("two_axis", plain.first, plain.stop, whole, parts))
    return found


def fills_fragments(extent: int) -> bool:
    """Return whether an axis of float32 fills fragments of 64 rows, but for one vector of 16 bytes at most."""
    return extent % VECTOR == 0 and -extent % WHOLE <= VECTOR


def two_axis_plans(
    run: Pass, entries: int, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout,
    limits: DeviceLimits,
) -> tuple[TwoAxisPlan, ...]:  # fmt: skip
    """Return the plans of a pass over so many entries, the preferred first.

    Where tiles of the preferred one would leave warps idle, the one that should take least of those that share tiles
    among more warps.
    """
    found = two_axis_candidates(run, shapes, stored, tensor, layout, limits)
    if not found or found[0].count(entries, 1) >= found[0].groups * limits.sm_count:
        return found
    rounds: dict[TwoAxisPlan, float] = {}
    for own, cycles, latency in _shared_out(run, shapes, stored, tensor, layout, limits):
        rounds[own] = -(-own.count(entries, 1) // limits.sm_count) * cycles + latency
    return tuple(sorted(rounds, key=rounds.__getitem__))


@lru_cache(maxsize=4096)
def two_axis_candidates(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, limits: DeviceLimits
) -> tuple[TwoAxisPlan, ...]:
    """Return the plans of a pass over many entries, the preferred first."""
    fitted = (_fitted(own, limits) for own in _units(run, shapes, stored, tensor, layout, limits))
    found = [(tile_cycles(own) / own.items, own) for own in fitted if own is not None]
    return tuple(plan for _, plan in sorted(found, key=lambda one: one[0]))


@lru_cache(maxsize=1024)
def _shared_out(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, limits: DeviceLimits
) -> tuple[tuple[TwoAxisPlan, float, float], ...]:
    """Return the plans with one entry to a tile, by any number of warps, and the cycles of a tile.

    The cycles of a multiprocessor, and those in which the tile is done.
    """
    every = (
        _in_stages(replace(unit, group=group), limits)
        for unit in _units(run, shapes, stored, tensor, layout, limits)
        for group in _groups(unit)
        if unit.items == 1 and group < 2 * units_of(unit)
    )
    return tuple((own, tile_cycles(own), tile_latency(own)) for own in every if own is not None)


def _units(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, limits: DeviceLimits
) -> Iterator[TwoAxisPlan]:
    """Yield what a warp may take at a time, with as many warps to a block as have the registers."""
    first, last = run.modes
    wide, down, parts = _deep(last.rows), _deep(first.columns), min(2, tensor.products)
    for blocks in sorted({min(wide, most) for most in (1, 2, 3, 4, -(-wide // 2), -(-wide // 3))}):
        last_stays = blocks == wide and blocks * _deep(last.columns) * parts <= LAST_STAYS
        first_stays = (True, False) if down * _deep(first.rows) * parts <= FIRST_STAYS else (False,)
        for together, keeps in itertools.product((1, 2, 4) if layout.is_dense else (1,), first_stays):
            for at_once in sorted({1, *(min(most, together * down) for most in (2, 3, 4))}):
                own = TwoAxisPlan(
                    run, shapes, stored, tensor, limits.arch, layout, together, blocks, together, at_once, WARPS[0], 1,
                    1, 1, (last_stays, keeps),
                )  # fmt: skip
                needed = _registers(own)
                warps = next((many for many in WARPS if 32 * many * needed <= limits.registers_per_sm), 0)
                if blocks <= MOST_BLOCKS and warps:
                    yield replace(own, warps=warps)


def _groups(unit: TwoAxisPlan) -> list[int]:
    """Return the numbers of warps that may share a tile."""
    return [own for own in range(1, unit.warps + 1) if unit.warps % own == 0]


def _fitted(unit: TwoAxisPlan, limits: DeviceLimits) -> TwoAxisPlan | None:
    """Return the plan of such units whose tiles fit in shared memory, with as few warps to a tile as do."""
    longest = max(unit.run.columns, unit.run.rows)
    for group in _groups(unit):
        least = max(1, -(-LEAST_NUMBERS * group // longest))
        items = unit.together * -(-least // unit.together) if unit.layout.is_dense else 1
        own = replace(unit, group=group, items=items)
        if group <= units_of(own) and (fitted := _in_stages(own, limits)) is not None:
            return fitted
    return None


def _in_stages(plan: TwoAxisPlan, limits: DeviceLimits) -> TwoAxisPlan | None:
    """Return a plan with as many tiles ahead as fit in shared memory, None where too few do."""
    for stages, outs in SAVING_STAGES if plan.run.saves else STAGES:
        own = replace(plan, stages=stages, outs=outs)
        ahead = own.groups * (stages - 1) * own.items * own.run.columns * SIZES[own.stored]
        is_enough = own.group in (1, own.warps) or stages > 2 or ahead >= LEAST_AHEAD
        if own.shared + own.static <= limits.shared_per_block and is_enough:
            return own
    return None
