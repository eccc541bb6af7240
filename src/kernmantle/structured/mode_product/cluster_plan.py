"""Plans for two Kronecker-sparse factors in one launch on a GPU, or in two that fit together, for a few rows.

An output of the second factor reads results of the first one with its own i and l. A cluster of blocks computes these
for some neighbouring l, stores them in shared memory, and multiplies them by the blocks of the second factor. For more
rows the first launch stores them as the second one reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .chain_plan import Pattern

DTYPES = ("f32", "f16", "bf16")
CLUSTER = 8  # blocks, the most that every device takes
_VECTOR = 16  # bytes
_MOST_ROWS, _MOST_SHARED = 16, 96 << 10  # of the batch, and bytes of shared memory of a block, by FMA instructions
_MOST_TILES, _MOST_SHARED_BY_MMA = 4, 160 << 10  # the same by tensor cores, a tile being 16 rows
_MOST_TILES_APART, _WARPS_APART = 16, 8  # tiles of 16 rows, and warps of a block, of two launches
_FILLED = 128  # blocks, about as many as multiprocessors; half of them where each cluster has all rows by tensor cores
# Seconds to begin, of a row and of a product that a block adds; bytes of weights a second that a block reads. Fitted to
# Monarch matrices of 32 and 64 blocks with 1, 4 and 16 rows in bfloat16 on one H200: by FMA instructions within 8 %
# (root mean square; decision 0042), by tensor cores in decision 0100.
_BY_FMA, _BY_MMA = (2.7e-6, 2.5e-7, 4.2e-11, 9.4e10), (2.6e-6, 5e-8, 4.5e-12, 4.1e10)
# Of two launches: seconds to begin; bytes a second that a multiprocessor reads in the first one, in the second one, and
# stores. Fitted to six chains with 1 to 128 rows in bfloat16 on one H200, within 9 % (root mean square; decision 0107).
_APART, _CARD = (3.4e-6, 1.75e10, 4.5e11, 2.45e9), 132
_NEXT = 4e-6  # seconds of the host for a launch more of a native call
_FOR_TILES = 1.3, 0.1  # times what follows the beginning, for clusters with tiles of the rows; more for each tile


@dataclass(frozen=True)
class ClusterPlan:
    """Template parameters, see ``kronsparse_chain.cuh``; ``split`` clusters share the rows j of the second factor.

    ``mma``: by tensor cores, see ``kronsparse_chain_mma.cuh``, each cluster for one of ``tiles`` of the rows.
    ``part``: "" for both factors, else the one that the launch is for; ``ranks`` blocks share the rows of the first.
    ``taken``: bytes of shared memory of a block that a launch takes without using them, as many as the next one uses: a
    multiprocessor divides its memory anew for another kernel only when it is idle, so that both would not overlap.
    """

    arch: str
    dtype: str
    first: Pattern
    second: Pattern
    rows: int
    split: int
    bias: bool
    activation: str
    tiles: int = 1
    mma: bool = False
    warps: int = 8
    part: str = ""
    ranks: int = CLUSTER
    taken: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        _, b, c, _ = self.second
        if not self.mma:
            return c * (self.rows | 1) * _VECTOR
        sets, tiles = min(math.ceil(c / 16), self.warps), math.ceil(math.ceil(b / (self.ranks * self.split)) / 8)
        sums = min(self.warps // sets, tiles) * sets * 8 * (8 * self.rows + 4)
        if self.part:
            return 0 if self.part == "first" else 4 * sums
        return c * (self.rows + 2) * _VECTOR + 4 * sums + _VECTOR

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        return self.ranks * self.tiles * self.split * _clusters(self.second, self.dtype)

    def __str__(self) -> str:
        shape = f"{self.rows} rows of {tuple(self.first)} and {tuple(self.second)}"
        if self.part:
            return f"kron sparse chain {self.arch} by mma, {shape}, {self.dtype}, the {self.part}"
        kind = " by mma" if self.mma else ""
        return f"kron sparse chain {self.arch} in clusters of {CLUSTER}{kind}, {shape}, {self.dtype}"


def cluster_seconds(plan: ClusterPlan, batch: int) -> float:
    """Return the predicted seconds of a launch."""
    start, row, added, rate = _BY_MMA if plan.mma else _BY_FMA
    blocks = plan.blocks / plan.tiles
    weights = (math.prod(plan.first) * plan.split + math.prod(plan.second)) / blocks
    own = (batch if plan.tiles == 1 else plan.rows) * (row + added * weights) + BYTES[plan.dtype] * weights / rate
    shared = 1.0 if plan.tiles == 1 else _FOR_TILES[0] + _FOR_TILES[1] * plan.tiles
    return start + own * shared * max(1.0, plan.blocks / _FILLED)


@lru_cache(maxsize=1024)
def cluster_plan(
    first: Pattern, second: Pattern, batch: int, dtype: str, bias: bool, activation: str, limits: DeviceLimits
) -> ClusterPlan | None:
    """Return the plan of a chain whose rows, and x, are whole vectors; None if each factor takes its own launch."""
    if batch <= 0 or not _fit(first, second, dtype, limits):
        return None
    shape, ends, clusters = (limits.arch, dtype, first, second), (bias, activation), _clusters(second, dtype)
    if dtype != "f32" and (tiles := math.ceil(batch / 16)) <= _MOST_TILES:
        split = _split(tiles * clusters, second[1], _FILLED if tiles > 1 else _FILLED // 2)
        warps = 16 if tiles == 1 else 8  # of which two blocks fit into a multiprocessor
        found = ClusterPlan(*shape, 8 if batch <= 8 else 16, split, *ends, tiles, True, warps)
        if found.shared <= min(_MOST_SHARED_BY_MMA, limits.shared_per_block):
            return found
    if batch > _MOST_ROWS:
        return None
    found = ClusterPlan(*shape, 1 << (batch - 1).bit_length(), _split(clusters, second[1], _FILLED), *ends)
    return found if found.shared <= _MOST_SHARED else None


@lru_cache(maxsize=1024)
def apart_plans(
    first: Pattern, second: Pattern, batch: int, dtype: str, bias: bool, activation: str, limits: DeviceLimits
) -> tuple[ClusterPlan, ClusterPlan] | None:
    """Return the plans of two launches of halves that fit together, where :func:`cluster_plan` may have one."""
    tiles = math.ceil(batch / 16)
    if dtype == "f32" or not 0 < tiles <= _MOST_TILES_APART or not _fit(first, second, dtype, limits):
        return None
    (_, b, c, _), shape = second, (limits.arch, dtype, first, second, 8 if batch <= 8 else 16)
    units, rest = tiles * _clusters(second, dtype), (tiles, True, _WARPS_APART)
    ranks, split = (_shared_among(units, most) for most in (max(1, c // _WARPS_APART), max(1, b // 8)))
    last = ClusterPlan(*shape, split, bias, activation, *rest, "second", 1)
    return ClusterPlan(*shape, 1, False, "", *rest, "first", ranks, last.shared), last


def plans_seconds(plans: Sequence[ClusterPlan], batch: int) -> float:
    """Return the predicted seconds of a launch, or of two that fit together."""
    if len(plans) == 1:
        return cluster_seconds(plans[0], batch)
    (first, second), (start, read, read_second, stored) = plans, _APART
    (_, _, wide, _), (a, b, c, d), size = first.first, first.second, BYTES[first.dtype]
    of_first = math.ceil(c / first.ranks) * wide * _VECTOR + first.rows * size * wide
    sectors = 2 if d * size > _VECTOR else 1  # of which a block uses half
    of_second = (sectors * math.ceil(b / second.split) + second.rows) * c * _VECTOR
    reads = max(1.0, first.blocks / _CARD) * of_first / read
    reads += max(1.0, second.blocks / _CARD) * of_second / read_second
    return start + reads + first.tiles * first.rows * a * b * d * size / _CARD / stored


def quickest_plans(
    first: Pattern, second: Pattern, batch: int, dtype: str, bias: bool, activation: str, limits: DeviceLimits,
    of_host: float = 0.0,
) -> tuple[ClusterPlan, ...] | None:  # fmt: skip
    """Return the plan of one launch, or those of two, whichever should be quicker; None if there is neither.

    ``of_host``: seconds of an eager call with one launch, which another one adds to.
    """
    one = cluster_plan(first, second, batch, dtype, bias, activation, limits)
    two = apart_plans(first, second, batch, dtype, bias, activation, limits)
    found = [plans for plans in (None if one is None else (one,), two) if plans is not None]

    def taken(plans: Sequence[ClusterPlan]) -> float:
        return max(plans_seconds(plans, batch), of_host and of_host + _NEXT * (len(plans) - 1))

    return min(found, key=taken, default=None)


def _fit(first: Pattern, second: Pattern, dtype: str, limits: DeviceLimits) -> bool:
    """Return whether the factors meet in as many numbers, and both rows of weights and l are whole vectors."""
    (a, b, c, d), (blocks, _, columns, steps), each = first, second, _VECTOR // BYTES.get(dtype, _VECTOR)
    if dtype not in DTYPES or not limits.has(("clusters",)) or d != 1 or a * b != blocks * columns * steps:
        return False
    return not any(extent % each for extent in (b, c, steps))


def _clusters(second: Pattern, dtype: str) -> int:
    """Return into how many parts the i and l of the second factor fall."""
    return second[0] * second[3] * BYTES[dtype] // _VECTOR


def _shared_among(units: int, most: int) -> int:
    """Return into how many parts units are divided for up to two blocks of a multiprocessor."""
    parts = 1
    while 2 * parts * units <= 2 * _CARD and 2 * parts <= most:
        parts *= 2
    return parts


def _split(clusters: int, rows: int, filled: int) -> int:
    """Return how many clusters share the rows of the second factor, so that there are as many blocks as asked for."""
    split = 1
    while 2 * CLUSTER * split * clusters <= filled and 2 * CLUSTER * split <= rows:
        split *= 2
    return split
