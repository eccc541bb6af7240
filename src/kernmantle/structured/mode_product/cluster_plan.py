"""Plans for two Kronecker-sparse factors in one launch on a GPU, for a few rows of the batch.

An output of the second factor reads results of the first one with its own i and l. A cluster of blocks computes these
for some neighbouring l, stores them in shared memory, and multiplies them by the blocks of the second factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .chain_plan import Pattern

DTYPES = ("f32", "f16", "bf16")
CLUSTER = 8
_VECTOR = 16  # bytes
_MOST_ROWS, _MOST_SHARED = 16, 96 << 10
_MOST_TILES, _MOST_SHARED_BY_MMA = 4, 160 << 10
_FILLED = 128  # blocks, about as many as multiprocessors; half of them where each cluster has all rows by tensor cores
# Seconds to begin, of a row and of a product that a block adds; bytes of weights a second that a block reads. Fitted to
# Monarch matrices of 32 and 64 blocks with 1, 4 and 16 rows in bfloat16 on one H200: by FMA instructions within 8 %
# (root mean square; decision 0042), by tensor cores in decision 0100.
_BY_FMA, _BY_MMA = (2.7e-6, 2.5e-7, 4.2e-11, 9.4e10), (2.6e-6, 5e-8, 4.5e-12, 4.1e10)
_FOR_TILES = 1.5, 0.125  # times what follows the beginning, for clusters with tiles of the rows; more for each tile


@dataclass(frozen=True)
class ClusterPlan:
    """Template parameters, see ``kronsparse_chain.cuh``; ``split`` clusters share the rows j of the second factor.

    ``mma``: by tensor cores, see ``kronsparse_chain_mma.cuh``, each cluster for one of ``tiles`` of the rows.
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
        sets, tiles = min(math.ceil(c / 16), self.warps), math.ceil(math.ceil(b / (CLUSTER * self.split)) / 8)
        sums = min(self.warps // sets, tiles) * sets * 64 * self.rows
        return c * (self.rows + 2) * _VECTOR + 4 * sums + _VECTOR

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        a, _, _, d = self.second
        return CLUSTER * self.tiles * self.split * a * d * BYTES[self.dtype] // _VECTOR

    def __str__(self) -> str:
        shape = f"{self.rows} rows of {tuple(self.first)} and {tuple(self.second)}"
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
    (a, b, c, d), (blocks, _, columns, steps) = first, second
    if dtype not in DTYPES or not limits.has(("clusters",)) or batch <= 0 or d != 1:
        return None
    each = _VECTOR // BYTES[dtype]
    if a * b != blocks * columns * steps or any(extent % each for extent in (b, c, steps)):
        return None
    shape, ends, clusters = (limits.arch, dtype, first, second), (bias, activation), blocks * steps // each
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


def _split(clusters: int, rows: int, filled: int) -> int:
    """Return how many clusters share the rows of the second factor, so that there are as many blocks as asked for."""
    split = 1
    while 2 * CLUSTER * split * clusters <= filled and 2 * CLUSTER * split <= rows:
        split *= 2
    return split
