"""Plans of Kronecker-sparse products by FMA instructions, where their bytes take longer than their multiplications."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import CLOCK, DeviceLimits
from ...compiler.nest import BYTES
from .plan import Problem

THREADS = 256  # of a block
DTYPES = ("f32", "f16", "bf16")
_WARP, _WARPS = 32, THREADS // 32  # lanes of a warp, warps of a block
_ISSUED = 2.5  # slots of instructions for a position of k, without those that convert halves (H200, decision 0077)
_MOST_WIDE, _MOST_COLUMNS, _WAVES = 64, 40, 16  # values of l of a block, its columns, blocks for each multiprocessor
# Positions of k whose weights, or whose numbers of x where the batch is last, stay in registers; and how many of them.
_MOST_C, _NUMBERS = {True: 10, False: 12}, 32
# Columns of blocks that a thread has in parts, and the least l along which its neighbours lie, or the least batch.
_MOST_B, _LEAST_L, _LEAST_BATCH = {True: 16, False: 8}, 12, 64
_LEAST_BYTES = 1e7  # bytes of x and y, below which nothing was timed (H200)


@dataclass(frozen=True)
class Costs:
    """Seconds to start, bytes a second, times as many bytes where single halves are moved, and shares of a second.

    ``issue`` are instructions a cycle of a scheduler, ``again`` counts x read by other blocks, ``step`` and ``wave``
    are seconds of a step along k of each wave of blocks, and of a wave.
    """

    bytes: float
    halves: float
    issue: float
    again: float = 0.0
    step: float = 0.0
    wave: float = 0.0
    start: float = 3.5e-6


# Fitted on one H200 to 215 products of random patterns within 13 to 19 % (root mean square; decision 0077), by whether
# numbers stay in registers and whether features lie together.
_COSTS: Mapping[tuple[bool, bool], Costs] = {
    (True, True): Costs(3.65e12, 1.34, 0.91), (True, False): Costs(3.59e12, 1.3, 1.5, 2.0),
    (False, True): Costs(4.5e12, 1.25, 2.0, 0.0, 9.9e-7, 5.7e-7),
    (False, False): Costs(4.5e12, 1.07, 2.0, 0.0, 5.5e-7, 2.6e-7),
}  # fmt: skip
_SURE = 1.1  # times as long as predicted, so that what is chosen is quicker


@dataclass(frozen=True)
class FmaPlan:
    """Template parameters, see ``kronsparse_fma.cuh``; ``d`` is 0 where the batch is last.

    ``each`` blocks share a multiprocessor.
    """

    arch: str
    dtype: str
    first: bool
    d: int
    wide: int
    outputs: int
    rows: int
    vector: int
    steps: int
    each: int
    bias: bool
    activation: str

    @property
    def tile_n(self) -> int:
        """Rows of a block."""
        if self.first:
            return THREADS // self.wide * self.rows
        return _WARPS // self.wide * _WARP * self.rows * self.vector

    def grid(self, problem: Problem, _: DeviceLimits) -> tuple[int, int]:
        """Return the blocks of a launch, and 1: none of them share rows."""
        a, b, _c, d = problem.pattern
        sets = problem.groups * a * -(-b // self.outputs) * -(-d // self.wide)
        return sets * -(-problem.batch // self.tile_n), 1

    def seconds(self, problem: Problem, limits: DeviceLimits) -> float:
        """Return the predicted seconds."""
        _, b, c, _d = problem.pattern
        blocks, steps = self.grid(problem, limits)[0], -(-c // self.steps)
        halves = BYTES[self.dtype] == 2
        each = (1.5 + halves) * self.rows + (1 + halves) * self.outputs + self.outputs * self.rows + 3
        issued = blocks * _WARPS * (steps * self.steps * each + 4 * self.outputs * self.rows + 60)
        waves = -(-blocks // (limits.sm_count * self.each))
        again = -(-b // self.outputs) - 1
        return _seconds(_COSTS[False, self.first], problem, limits, issued, self.vector, again, waves, steps)

    def __str__(self) -> str:
        shape = f"{self.outputs} columns x {self.rows * self.vector} rows, k by {self.steps}"
        return f"kron sparse {self.arch} FMA {shape}, batch {'first' if self.first else 'last'}, {self.dtype}"


@dataclass(frozen=True)
class OutputsPlan:
    """Template parameters, see ``kronsparse_outputs.cuh``; ``d`` is 0 where the batch is last, else ``wide`` is."""

    arch: str
    dtype: str
    first: bool
    c: int
    d: int
    vector: int
    rows: int
    wide: int
    columns: int
    bias: bool
    activation: str

    def grid(self, problem: Problem, limits: DeviceLimits) -> tuple[int, int]:
        """Return the blocks of a launch, and how many of them share the rows of the same outputs."""
        a, b, _, d = problem.pattern
        if not self.first:
            tiles = -(-problem.batch // (THREADS // self.wide * self.vector * self.rows))
            return problem.groups * a * -(-b // self.columns) * -(-d // self.wide) * tiles, 1
        ranges = problem.groups * -(-a * b * d // (THREADS * self.vector))
        slots = max(1, min(problem.batch, -(-limits.sm_count * _WAVES // ranges)))
        return ranges * slots, slots

    def seconds(self, problem: Problem, limits: DeviceLimits) -> float:
        """Return the predicted seconds."""
        b, (blocks, slots), halves = problem.pattern[1], self.grid(problem, limits), BYTES[self.dtype] == 2
        if self.first:
            each = self.vector * (self.c * (_ISSUED + halves) + 1 + halves) + 3
            issued = blocks * _WARPS * (-(-problem.batch // slots) * each + 4 * self.vector * self.c + 60)
            return _seconds(_COSTS[True, True], problem, limits, issued, self.vector, 0)
        numbers = self.rows * self.vector * self.c
        each = numbers + self.rows * (2 + self.vector) + self.c / 4 + 2
        issued = blocks * _WARPS * (min(self.columns, b) * each + 3 * numbers + 60)
        return _seconds(_COSTS[True, False], problem, limits, issued, self.vector, -(-b // self.columns) - 1)

    def __str__(self) -> str:
        shape = f"{self.c} numbers of {self.rows * self.vector} rows"
        return f"kron sparse {self.arch} FMA, {shape} kept, batch {'first' if self.first else 'last'}, {self.dtype}"


def _seconds(
    own: Costs, problem: Problem, limits: DeviceLimits, issued: float, vector: int, again: int, waves: int = 0,
    steps: int = 0,
) -> float:  # fmt: skip
    """Return the seconds of bytes, instructions and waits, one after the other."""
    a, b, c, d = problem.pattern
    size = BYTES[problem.dtype]
    ends = size * problem.groups * problem.batch * a * d
    moved = ends * (c + b) + size * problem.groups * a * b * c * d
    moved = moved * (own.halves if size * vector < 4 else 1.0) + own.again * again * ends * c
    work = issued / (4 * limits.sm_count * CLOCK * own.issue)
    return own.start + moved / own.bytes + work + waves * (steps * own.step + own.wave)


def _warps_along(d: int) -> int:
    """Return the warps of a block that have an l of their own."""
    wide = _WARPS
    while wide > 1 and wide >= 2 * d:
        wide //= 2
    return wide


def _vector(problem: Problem, most: int) -> int:
    """Return how many neighbours a thread writes at once, at most so many."""
    a, b, _, d = problem.pattern
    together = problem.y_run if problem.x_first else min(problem.x_bytes // BYTES[problem.dtype], problem.y_run)
    along = a * b * d if problem.x_first else problem.batch
    while most > 1 and (along % most or most > together):
        most //= 2
    return most


def candidates(problem: Problem, limits: DeviceLimits) -> Iterator[FmaPlan | OutputsPlan]:
    """Yield the plans of a product whose arrays have the same order."""
    _, b, c, d = problem.pattern
    first, own = problem.x_first, (problem.bias, problem.activation)
    if problem.dtype not in DTYPES or first != problem.y_first:
        return
    if c <= _MOST_C[first]:
        vector = _vector(problem, 2 if first else 4)
        rows = 1 << min(3, max(1, (_NUMBERS // (vector * c)).bit_length() - 1))
        if not first:
            rows = max(1, min(4 if c <= _NUMBERS // 4 else 2, -(-problem.batch // _WARP)) // vector)
        wide, columns = (0, 0) if first else (_warps_along(d), -(-b // -(-b // _MOST_COLUMNS)))
        yield OutputsPlan(
            limits.arch, problem.dtype, first, c, d if first else 0, vector, rows, wide, columns, *own
        )  # fmt: skip
    if b <= _MOST_B[first] and (d >= _LEAST_L if first else problem.batch >= _LEAST_BATCH):
        wide, steps, each = (-(-d // -(-d // _MOST_WIDE)), 4, 2) if first else (_warps_along(d), 2, 3)
        yield FmaPlan(limits.arch, problem.dtype, first, d if first else 0, wide, 4, 8, 1, steps, each, *own)


@lru_cache(maxsize=4096)
def fma_choice(problem: Problem, limits: DeviceLimits) -> tuple[float, FmaPlan | OutputsPlan] | None:
    """Return the seconds that the quickest plan surely takes no longer than, and the plan; None if nothing takes it."""
    a, b, c, d = problem.pattern
    if BYTES[problem.dtype] * problem.groups * problem.batch * a * d * (b + c) < _LEAST_BYTES:
        return None
    found = [(_SURE * plan.seconds(problem, limits), plan) for plan in candidates(problem, limits)]
    found = [own for own in found if own[1].grid(problem, limits)[0] < 2**31]
    return min(found, key=lambda own: own[0], default=None)
