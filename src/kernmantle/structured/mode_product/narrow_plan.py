"""Plans of Kronecker-sparse products on a GPU whose blocks have a few rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .plan import Problem

_NARROW, _NARROW_WEIGHTS = 8, 64  # rows or columns of a block, and weights of it that registers hold
# Bytes a second by whether the features of x are together, and by bytes of an access; seconds of a kernel, of a block
# of a full multiprocessor, of a thread for what it reads next, and for a weight of its own (H200, 70 products within
# 15 %, root mean square, decision 0113).
_BYTES_A_SECOND = {
    True: {2: 2.0e12, 4: 2.35e12, 8: 2.6e12, 16: 3.0e12}, False: {2: 1.95e12, 4: 2.4e12, 8: 2.9e12, 16: 3.4e12},
}  # fmt: skip
_START, _BLOCK, _READ, _WEIGHT = 2.2e-6, 1.4e-7, 4.5e-7, 3e-8
_BLOCKS = 16  # for each multiprocessor


@dataclass(frozen=True)
class NarrowPlan:
    """A kernel whose threads hold the weights of one block in registers."""

    arch: str
    dtype: str
    first: bool
    rows: int
    columns: int
    vector: int
    together: bool
    bias: bool
    activation: str
    threads: int = 128

    def seconds(self, problem: Problem, limits: DeviceLimits) -> float:
        """Return the seconds of a product."""
        a, b, c, d = problem.pattern
        blocks, slots = self.grid(problem, limits)
        spans = problem.batch if self.first else -(-(problem.batch // self.vector) // self.threads)
        size = BYTES[self.dtype]
        moved = size * problem.groups * problem.batch * a * d * (b + c)
        rate = _BYTES_A_SECOND[self.first][min(16, size * (c if self.together else self.vector))]
        longest = max(moved / rate, _BLOCK * blocks / limits.sm_count, _READ * -(-spans // max(1, slots)))
        return _START + longest + _WEIGHT * b * c * self.vector * self.first

    def grid(self, problem: Problem, limits: DeviceLimits) -> tuple[int, int]:
        """Return the blocks, and how many of them share what is left when the weights are chosen."""
        a, _, _, d = problem.pattern
        wide = a * (d // self.vector) if self.first else problem.batch // self.vector
        ranges = -(-wide // self.threads)
        sets = problem.groups * (ranges if self.first else a * d)
        spans = problem.batch if self.first else ranges
        wanted = max(1, limits.sm_count * _BLOCKS // sets)
        slots = min(spans, wanted)
        return sets * slots, slots

    def __str__(self) -> str:
        where = "first" if self.first else "last"
        shape = f"{self.rows}x{self.columns}, {self.vector} at once"
        return f"kron sparse {self.arch} narrow {shape}, batch {where}, {self.dtype}"


@lru_cache(maxsize=4096)
def narrow_plan(problem: Problem, limits: DeviceLimits) -> NarrowPlan | None:
    """Return the plan for blocks of a few rows and columns in one layout; None for others."""
    _, b, c, d = problem.pattern
    size = BYTES[problem.dtype]
    if max(b, c) > _NARROW or b * c > _NARROW_WEIGHTS or problem.x_first != problem.y_first:
        return None
    first, vector, together = problem.x_first, 1, False
    if first and d == 1:
        together = c & (c - 1) == 0 == b & (b - 1) and problem.x_bytes >= c * size and problem.y_run >= b
    else:
        along, vector = d if first else problem.batch, 16 // size
        most = min(problem.x_bytes // size, problem.y_run, _NARROW_WEIGHTS // (b * c) if first else vector)
        while along % vector or vector > most:
            vector //= 2
    return NarrowPlan(limits.arch, problem.dtype, first, b, c, vector, together, problem.bias, problem.activation)


def narrow_seconds(problem: Problem, limits: DeviceLimits) -> float:
    """Return the seconds of the kernel of narrow blocks; infinite if it does not take the problem."""
    own = narrow_plan(problem, limits)
    return math.inf if own is None else own.seconds(problem, limits)
