"""Which factors tensor cores take, and which small neighbours are multiplied out to one for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .mma_plan import NARROWEST, rounded_up
from .modes import Mode
from .passes import Pass, plain_pass
from .tensor_plan import WIDEST, Tensor

# What a phase costs in entries of a line, and one of a factor too small for tensor cores beside.
PHASE, PADDED = 48, 64


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
def joint_run(plain: Pass, tensor: Tensor, most_shared: int) -> tuple[Pass, int] | None:
    """Return a pass whose small neighbours are multiplied out, and the most factors of one; None without a kernel."""
    groups = joined(plain.modes, tensor)
    axes = [group.mode for group in groups]
    entries = math.prod(max(mode.columns, mode.rows) for mode in axes)
    if not all(takes(mode, tensor) for mode in axes) or 4 * entries > most_shared:
        return None
    if len(axes) == 1 and max(axes[0].columns, axes[0].rows) < NARROWEST:  # additions are as quick as memory
        return None
    run = plain_pass("mma", axes, 0, len(axes))
    parts = tuple(tuple(plain.first + position for position in groups[index].indices) for (index,) in run.parts)
    return replace(run, first=plain.first, stop=plain.stop, parts=parts), max(len(group.indices) for group in groups)
