"""Which factors tensor cores take, small neighbours multiplied out, and the tile of a pass over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import DeviceLimits
from .mma_plan import (
    LANES,
    LEAST,
    LEAST_WIDE,
    MOST_NEIGHBOURS,
    NARROWEST,
    SIZES,
    WIDE,
    MmaPlan,
    mma_candidates,
    rounded_up,
)
from .modes import Mode
from .passes import Pass, plain_pass
from .tensor_plan import WIDEST, MmaLayout, Tensor

# Cycles of a warp that waits for each step itself: for a unit, to read 16 positions, of a product of 16 x 16 x 16, to
# store 16 rows; of a multiprocessor for each of these by its warps together, where results of the last phase are stored
# one by one; and of a block for each round of the entries of a factor, 4 words of each thread (estimates).
_UNIT, _READ, _PRODUCT, _STORE = 200, 40, 16, 50
_READ_TOGETHER, _PRODUCT_TOGETHER, _STORE_TOGETHER, _STORE_ALONE = 14, 5, 10, 40
_ROUND, _WORDS = 700, 4
# What a phase costs in entries of a fiber, and one whose factor is too small for tensor cores in addition.
PHASE, PADDED = 48, 64


def preparing_cycles(plan: MmaPlan) -> int:
    """Return the cycles in which a block prepares its factors."""
    words = [-(-phase.mode.columns // LANES) * -(-phase.mode.rows // LANES) * 128 for phase in plan.phases]
    rounds = sum(-(-own // (_WORDS * plan.threads)) for own in words)
    return rounds * (1 + (plan.tensor.products > 1)) * _ROUND


def waiting_cycles(plan: MmaPlan, tiles: int, processors: int) -> float:
    """Return the cycles of a pass over few tiles: those in which warps wait, or those of the busiest multiprocessor."""
    return -(-tiles * plan.group // (plan.warps * processors)) * _wave_cycles(plan)


def _wave_cycles(plan: MmaPlan) -> float:
    """Return the cycles of a tile on a multiprocessor that has others."""
    chain, work, products = 0, 0.0, plan.tensor.products
    for phase in plan.phases:
        deep, wide = -(-phase.mode.columns // LANES), -(-phase.mode.rows // LANES)
        own = deep * _READ * min(2, products) + deep * wide * products * _PRODUCT + wide * _STORE
        chain += -(-phase.units // plan.group) * (_UNIT + phase.tiles * own)
        store = _STORE_ALONE / plan.layout.out_width if phase is plan.phases[-1] else _STORE_TOGETHER
        own = deep * _READ_TOGETHER * min(2, products) + deep * wide * products * _PRODUCT_TOGETHER + wide * store
        work += phase.units * phase.tiles * own
    return max(chain, plan.warps // plan.group * work)


def spread(plans: tuple[MmaPlan, ...], entries: int, right: int, processors: int) -> tuple[MmaPlan, ...]:
    """Return the plans of a pass over so many entries, with so much behind the run, the preferred first.

    Where blocks of the first one would leave multiprocessors idle, those by which warps wait least: with more warps to
    a tile, and fewer tiles to a block.
    """
    if not plans or not is_small(plans[0], plans[0].count(entries, right), processors):
        return plans
    found = _variants(plans)
    return tuple([found.plans[index] for index in found.cycles(entries, right, processors).argsort(kind="stable")])


@dataclass(frozen=True, eq=False)
class _Variants:
    """Plans that share tiles among more warps, and columns with their extents and cycles."""

    plans: tuple[MmaPlan, ...]
    items: Any
    right: Any
    group: Any
    warps: Any
    preparing: Any
    wave: Any

    def cycles(self, entries: int, right: int, processors: int) -> Any:
        """Return the cycles of a pass over so many entries by each plan."""
        tiles = -(-entries // self.items) * -(-right // self.right)
        return self.preparing + -(-tiles * self.group // (self.warps * processors)) * self.wave


@lru_cache(maxsize=1024)
def _variants(plans: tuple[MmaPlan, ...]) -> _Variants:
    """Return the variants of the plans of a pass."""
    found = [
        replace(own, group=group)
        for other in plans
        for own in dict.fromkeys((other, replace(other, items=1)))
        for group in range(own.group, own.warps + 1)
        if own.warps % group == 0 and group <= own.phases[0].units
    ]
    columns = [
        np.array(column)
        for column in zip(
            *((own.items, own.right, own.group, own.warps, preparing_cycles(own), _wave_cycles(own)) for own in found),
            strict=True,
        )
    ]
    return _Variants(tuple(found), *columns)


def is_small(plan: MmaPlan, tiles: int, processors: int) -> bool:
    """Return whether blocks of a plan leave multiprocessors idle, or some with twice the work of others."""
    return tiles * plan.group < 2 * processors * plan.warps


def plan_of(
    modes: Sequence[Mode], stored: str, tensor: Tensor, width: int, entries: int, limits: DeviceLimits
) -> MmaPlan | None:
    """Return the plan of one pass that applies these factors with enough warps; None where there is none."""
    key = tuple(modes), stored, tensor, width, limits
    plans = _enough(*key)
    if not plans or not is_small(plans[0], plans[0].count(entries, width), limits.sm_count):
        return plans[0] if plans else None
    found = _enough_variants(*key)  # by the arguments, as many plans take longer to hash than to price
    return found.plans[found.cycles(entries, width, limits.sm_count).argmin()]


@lru_cache(maxsize=4096)
def _enough_variants(
    modes: tuple[Mode, ...], stored: str, tensor: Tensor, width: int, limits: DeviceLimits
) -> _Variants:
    """Return the variants of the same plans."""
    return _variants(_enough(modes, stored, tensor, width, limits))


@lru_cache(maxsize=4096)
def _enough(
    modes: tuple[Mode, ...], stored: str, tensor: Tensor, width: int, limits: DeviceLimits
) -> tuple[MmaPlan, ...]:
    """Return the plans of the same pass, the preferred first; none where that has too few warps."""
    run = plain_pass("mma", modes, 0, len(modes))
    along = modes[-1].rows if width == 1 else 1 if SIZES[stored] == 2 else MOST_NEIGHBOURS
    layout = MmaLayout(8, math.gcd(along, MOST_NEIGHBOURS), False)
    found = mma_candidates(run, (), stored, tensor, layout, width, limits)
    wide = len(modes) > 1 and any(max(mode.columns, mode.rows) > WIDE for mode in modes)
    if not found or found[0].warps < (LEAST_WIDE if wide else LEAST):
        return ()
    return found


def suits(mode: Mode, widest: int = WIDEST) -> bool:
    """Return whether tensor cores pay for a factor."""
    return min(mode.columns, mode.rows) >= NARROWEST and max(mode.columns, mode.rows) <= widest


def takes(mode: Mode, tensor: Tensor) -> bool:
    """Return whether there is a kernel for a factor: also for a few rows or columns, which are padded."""
    is_narrow = tensor.half != "f64" and max(mode.columns, mode.rows) <= tensor.widest
    return suits(mode, tensor.widest) or (is_narrow and min(mode.columns, mode.rows) > 1)


@dataclass(frozen=True)
class Joined:
    """Neighbouring factors that are multiplied out, at these places, as one axis."""

    mode: Mode
    indices: tuple[int, ...]


@lru_cache(maxsize=4096)
def joined(modes: tuple[Mode, ...], tensor: Tensor) -> tuple[Joined, ...]:
    """Return the axes with small neighbours joined so that the tensor cores have least to do."""
    costs: list[float] = [0.0]
    begins: list[int] = [0]
    for stop in range(1, len(modes) + 1):
        found = [(costs[first] + _cost(modes[first:stop], tensor.joined), first) for first in reversed(range(stop))]
        best = min(found)
        costs.append(best[0])
        begins.append(best[1])
    groups: list[Joined] = []
    stop = len(modes)
    while stop:
        own = modes[begins[stop] : stop]
        whole = Mode(math.prod(mode.columns for mode in own), math.prod(mode.rows for mode in own), own[0].factor)
        groups.append(Joined(whole, tuple(range(begins[stop], stop))))
        stop = begins[stop]
    return tuple(reversed(groups))


def _cost(modes: Sequence[Mode], most: int) -> float:
    """Work for every entry of a factor of these, and what a phase costs beside; one alone is always there."""
    columns, rows = math.prod(mode.columns for mode in modes), math.prod(mode.rows for mode in modes)
    whole = Mode(columns, rows, 0)
    if len(modes) > 1:
        has_identity = any(mode.factor is None for mode in modes)
        if has_identity or not suits(whole) or max(columns, rows) > most:
            return math.inf
    return PHASE + max(rounded_up(columns), rounded_up(rows)) + (0 if suits(whole) else PADDED)


@lru_cache(maxsize=4096)
def joint_runs(plain: Pass, tensor: Tensor, most_shared: int) -> tuple[tuple[Pass, int], ...]:
    """Return passes whose small neighbours are multiplied out, and the most factors of one; none without a kernel.

    So that there is least to do and, of halves, all to one where that is small enough.
    """
    every = [joined(plain.modes, tensor)]
    if len(every[0]) > 1 and tensor.is_rounded and _cost(plain.modes, tensor.joined) < math.inf:
        whole = Mode(plain.columns, plain.rows, plain.modes[0].factor)
        every.append((Joined(whole, tuple(range(len(plain.modes)))),))
    found = (_joint_run(plain, groups, tensor, most_shared) for groups in every)
    return tuple(own for own in found if own is not None)


def _joint_run(
    plain: Pass, groups: tuple[Joined, ...], tensor: Tensor, most_shared: int
) -> tuple[Pass, int] | None:  # fmt: skip
    """Return the pass over such groups, and the most factors of one; None without a kernel."""
    axes = [group.mode for group in groups]
    entries = math.prod(max(mode.columns, mode.rows) for mode in axes)
    if not all(takes(mode, tensor) for mode in axes) or 4 * entries > most_shared:
        return None
    if len(axes) == 1 and max(axes[0].columns, axes[0].rows) < NARROWEST:  # additions are as quick as memory
        return None
    run = plain_pass("mma", axes, 0, len(axes))
    parts = tuple(tuple(plain.first + position for position in groups[index].indices) for (index,) in run.parts)
    return replace(run, first=plain.first, stop=plain.stop, parts=parts), max(len(group.indices) for group in groups)
