"""Plans of the sum over the batch for the gradient of Kronecker-sparse weights on a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits

EDGE, DEPTH = 64, 32
_MOST_L = 4
_PITCH_BYTES, _APART_BYTES = 80, 64
_LEAST_CHUNKS, _WAVES = 8, 4
MOST_PART_BYTES = 2**26
_BLOCKS = {1: 3, 2: 2, 3: 1, 4: 1}  # on one multiprocessor
DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class SumPlan:
    """Template parameters, see ``kronsparse_weight_grad.cuh``; ``x_first``, ``y_first``: features lie together."""

    arch: str
    dtype: str
    x_first: bool
    y_first: bool
    l: int
    products: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.l

    @property
    def blocks_each(self) -> int:
        """Blocks that share a multiprocessor."""
        return _BLOCKS[self.l]

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        planes = 2 if self.dtype == "f32" else 1
        staged = self.l * (EDGE * _PITCH_BYTES + (_APART_BYTES if self.l > 1 else 0))
        return 2 * planes * staged + 2 * 4 * self.l * 4

    def tiles(self, pattern: tuple[int, int, int, int], groups: int) -> int:
        """Return the blocks for one part of the batch."""
        a, b, c, d = pattern
        return groups * a * -(-b // EDGE) * -(-c // EDGE) * -(-d // self.l)

    def slots(self, pattern: tuple[int, int, int, int], groups: int, batch: int, limits: DeviceLimits) -> int:
        """Return the parts of the batch, which are added at the end."""
        part_bytes = 4 * groups * math.prod(pattern)
        most = min(MOST_PART_BYTES // part_bytes, batch // (DEPTH * _LEAST_CHUNKS))
        return _even(self.tiles(pattern, groups), limits.sm_count * self.blocks_each, most)

    def __str__(self) -> str:
        layouts = " and ".join("first" if first else "last" for first in (self.x_first, self.y_first))
        kind = {("f32", 3): "3 x f16 ", ("f32", 1): "f16 "}.get((self.dtype, self.products), "")
        return f"kron sparse gradient {self.arch} mma {EDGE} x {EDGE} x {self.l}, batch {layouts}, {kind}{self.dtype}"


@dataclass(frozen=True)
class PartsPlan:
    """Plan of the kernel that adds partial sums, see ``kronsparse_add_parts.cuh``: ``rows`` threads share an entry."""

    arch: str
    dtype: str
    rows: int

    threads = 256

    def blocks(self, count: int) -> int:
        """Return the blocks for so many entries."""
        return -(-count // (4 * self.threads // self.rows))

    def __str__(self) -> str:
        return f"kron sparse parts {self.arch} of gradients, {self.rows} threads an entry, {self.dtype}"


def parts_plan(arch: str, dtype: str, slots: int) -> PartsPlan:
    """Return the plan that adds so many parts."""
    return PartsPlan(arch, dtype, 1 if slots < 8 else 4 if slots < 32 else 16)


@dataclass(frozen=True)
class SumCosts:
    """Microseconds: to begin, to add parts, of a step of a wave, of a wave, of a step of each l.

    ``written`` and ``read`` are seconds of a terabyte of the parts and their sum, and of x and of the gradient.
    """

    start: float
    parts: float
    step: float
    wave: float
    l_step: float
    written: float
    read: float


# Fitted to 268 sums of random patterns on one H100 within 11 to 16 % (root mean square; decision 0028), by halves and
# by features together in memory.
_COSTS = {
    (False, True): SumCosts(3.2, 3.4, 0.68, 1.6, 0.67, 1.2, 0.17),
    (False, False): SumCosts(0.4, 3.9, 2.04, 3.5, 0.0, 0.47, 0.29),
    (True, True): SumCosts(4.5, 5.0, 0.07, 2.5, 0.48, 0.87, 0.26),
    (True, False): SumCosts(4.2, 5.6, 1.33, 1.6, 0.0, 1.7, 0.39),
}


def sum_seconds(plan: SumPlan, pattern: tuple[int, int, int, int], batch: int, limits: DeviceLimits) -> float:
    """Return the predicted seconds of a plan for one group."""
    a, b, c, d = pattern
    size = 4 if plan.dtype == "f32" else 2
    own, slots = _COSTS[size == 2, plan.x_first], plan.slots(pattern, 1, batch, limits)
    waves = -(-plan.tiles(pattern, 1) * slots // (limits.sm_count * plan.blocks_each))
    steps = -(-batch // (slots * DEPTH))
    read = size * batch * a * d * (b * -(-c // EDGE) + c * -(-b // EDGE))
    issued = waves * (steps * (own.step + plan.l * own.l_step) + own.wave)
    moved = 4 * 1e-12 * math.prod(pattern) * (slots + 1) * own.written + 1e-12 * read * own.read
    return 1e-6 * (own.start + own.parts * (slots > 1) + issued) + moved


@lru_cache(maxsize=4096)
def _even(tiles: int, resident: int, most: int) -> int:
    """Return the fewest parts of the batch for which the last wave of blocks is nearly full."""
    several = max(1, min(most, _WAVES * -(-resident // tiles)))
    return min(
        range(1, several + 1),
        key=lambda slots: (round(-(-tiles * slots // resident) / slots * resident / tiles, 1), slots),
    )


def sum_plan(arch: str, d: int, dtype: str, x_first: bool, y_first: bool, products: int = 3) -> SumPlan:
    """Return the plan for a pattern's d; neighbours along l are read together where features lie together."""
    l = min(d, _MOST_L) if x_first or y_first else 1
    return SumPlan(arch, dtype, x_first, y_first, l, products if dtype == "f32" else 1)
