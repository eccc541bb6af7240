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
CLUSTER, THREADS = 8, 256
_VECTOR = 16  # bytes
_MOST_ROWS, _MOST_SHARED = 16, 96 << 10
_FILLED = 128  # blocks, about as many as multiprocessors
# Seconds to begin, of a row and of a product that a block adds; bytes of weights a second. Fitted to Monarch matrices
# of 32 and 64 blocks with 1, 4 and 16 rows in bfloat16 on one H200 within 8 % (root mean square; decision 0042).
_START, _ROW, _ADDED, _READ = 2.7e-6, 2.5e-7, 4.2e-11, 1.2e13


@dataclass(frozen=True)
class ClusterPlan:
    """Template parameters, see ``kronsparse_chain.cuh``; ``split`` clusters share the rows j of the second factor."""

    arch: str
    dtype: str
    first: Pattern
    second: Pattern
    rows: int
    split: int
    bias: bool
    activation: str

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.second[2] * (self.rows | 1) * _VECTOR

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        a, _, _, d = self.second
        return CLUSTER * self.split * a * d * BYTES[self.dtype] // _VECTOR

    def __str__(self) -> str:
        shape = f"{self.rows} rows of {tuple(self.first)} and {tuple(self.second)}"
        return f"kron sparse chain {self.arch} in clusters of {CLUSTER}, {shape}, {self.dtype}"


def cluster_seconds(plan: ClusterPlan, batch: int) -> float:
    """Return the predicted seconds of a launch."""
    one, two = math.prod(plan.first) * plan.split, math.prod(plan.second)
    added = batch * (_ROW + _ADDED * (one + two) / plan.blocks)
    return _START + added + BYTES[plan.dtype] * (one + two) / _READ


@lru_cache(maxsize=1024)
def cluster_plan(
    first: Pattern, second: Pattern, batch: int, dtype: str, bias: bool, activation: str, limits: DeviceLimits
) -> ClusterPlan | None:
    """Return the plan of a chain whose rows, and x, are whole vectors; None if each factor takes its own launch."""
    (a, b, c, d), (blocks, _, columns, steps) = first, second
    if dtype not in DTYPES or not limits.has(("clusters",)) or not 0 < batch <= _MOST_ROWS or d != 1:
        return None
    each = _VECTOR // BYTES[dtype]
    if a * b != blocks * columns * steps or any(extent % each for extent in (b, c, steps)):
        return None
    rows, split = 1 << (batch - 1).bit_length(), 1
    while 2 * CLUSTER * split * blocks * steps // each <= _FILLED and 2 * CLUSTER * split <= second[1]:
        split *= 2
    found = ClusterPlan(limits.arch, dtype, first, second, rows, split, bias, activation)
    return found if found.shared <= _MOST_SHARED else None
