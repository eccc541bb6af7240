"""Plans of Kronecker-sparse products on a GPU whose blocks have a few rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .plan import Problem

_NARROW, _NARROW_WEIGHTS = 8, 64


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

    def grid(self, problem: Problem, limits: DeviceLimits) -> tuple[int, int]:
        """Return the blocks, and how many of them share what is left when the weights are chosen."""
        a, _, _, d = problem.pattern
        wide = a * (d // self.vector) if self.first else problem.batch // self.vector
        ranges = -(-wide // self.threads)
        sets = problem.groups * (ranges if self.first else a * d)
        spans = problem.batch if self.first else ranges
        wanted = max(1, limits.sm_count * 16 // sets)
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
