"""Plans of Kronecker-sparse products of a few rows by tensor cores, over weights that are read where they lie.

Where values of l interleave, fragments are read from stages of shared memory at the stride of l.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...backends.cuda.tiles import CLOCK, RESERVED_SHARED, DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern, Problem
from .plan_table import (
    TABLES,
    Column,
    count_of,
    either,
    grid,
    joined,
    larger,
    masked,
    norm,
    quickest_row,
    rows_of,
    smaller,
)
from .stream_plan import StreamPlan, copy_seconds, stream_plan, stream_seconds
from .transpose_plan import ACCESS

DTYPES = ("f16", "bf16")
_WARP, _DEPTH, _BANKS = 32, 16, 32  # lanes, positions of k of a product, banks of 4 bytes
_MOST_BATCH, _MOST_NUMBERS = 256, 2**31 - 1  # rows, and numbers that steps are counted to
_MOST_SUMS, _MOST_REGISTERS, _OTHER_REGISTERS = 96, 200, 44  # of a thread
_MOST_RESIDENT, _ALLOCATED = 2048, 128  # threads of a multiprocessor, and those by which registers are shared out
_WARPS = 4, 16  # of a block
_PARTS_L = (1, 2, 3, 4, 6, 8)  # blocks along l
_CLUSTERS = (1, 2, 4, 8)  # blocks that share the positions of k
_ORDERS = 1, 2, 4  # of positions of k in a fragment
_FRAGMENTS = 1, 2, 3, 4, 5, 6, 8  # of 8 rows of a block
_PITCHES = np.arange(0, 128, 16)  # of rows of a stage, beside multiples of 128 bytes
# Bytes that rows are further apart than any row is long, as they lie in banks, and as prices were fitted: to reads that
# took rows for one that are a multiple of 128 bytes apart (decisions 0093 and 0103).
_APART, _AS_FITTED = 2**17, 0
# Rows and weights from which on tensor cores may be quicker, and times their model: of 48 products those of fewer rows
# or weights took longer than by FMA instructions (H200, seconds of graphs, decision 0093).
_LEAST_BATCH, _LEAST_WEIGHTS, _SURELY = 5, 10**5, 1.15


@dataclass(frozen=True)
class StreamMmaPlan:
    """Template parameters, see ``kronsparse_stream_mma.cuh``."""

    arch: str
    dtype: str
    pattern: Pattern
    tile_l: int
    warp_l: int
    warps_l: int
    warps_j: int
    m: int
    n: int
    stages: int
    cluster: int
    order: int
    w_skew: int
    x_skew: int
    bulk: bool
    along: bool
    bias: bool = False
    activation: str = ""
    last: bool = False
    w_cycles: int = field(default=1, repr=False, compare=False)
    """Cycles in which a warp reads a fragment of weights, as prices were fitted."""
    x_cycles: int = field(default=1, repr=False, compare=False)
    """Cycles in which a warp reads a fragment of x, as prices were fitted."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return _WARP * self.warps_l * self.warps_j

    @property
    def tile_j(self) -> int:
        """Outputs j of a block."""
        return 16 * self.m * self.warps_j

    @property
    def rows(self) -> int:
        """Rows of the batch of a block."""
        return 8 * self.n

    @property
    def own_l(self) -> int:
        """Accesses along l of a warp."""
        return -(-self.tile_l // (self.warp_l * self.warps_l))

    @property
    def full(self) -> bool:
        """Whether a block has all values of l."""
        return self.tile_l == self.pattern[3]

    def run_bytes(self, positions: int) -> int:
        """Return the bytes of a run of neighbours in a stage."""
        return -(-either(self.full, positions, 1) * self.tile_l * BYTES[self.dtype] // 16) * 16 + 16

    @property
    def step(self) -> int:
        """Bytes between neighbouring positions of a row of a stage."""
        return either(self.full, self.tile_l * BYTES[self.dtype], self.run_bytes(1))

    def pitch(self, positions: int, skew: int) -> int:
        """Return the bytes between rows of a stage."""
        return either(self.full, 1, positions) * self.run_bytes(positions) + skew

    @property
    def pitches(self) -> tuple[int, int]:
        """Bytes between rows of weights and of x."""
        return self.pitch(_DEPTH if self.along else self.tile_j, self.w_skew), self.pitch(_DEPTH, self.x_skew)

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        weights, x = self.pitches
        return (self.tile_j if self.along else _DEPTH) * weights + self.rows * x

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        sums = either(self.stores_registers, 0, 4 * self.tile_j * self.tile_l * self.rows)
        return self.stages * self.stage + sums + 8 * self.stages * self.bulk

    @property
    def stores_registers(self) -> bool:
        """Whether sums leave registers for the result."""
        return self.last & (self.cluster == 1)

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        read = 4 * (2 * self.m + self.n) * larger(1, self.warp_l * BYTES[self.dtype] // 4)
        return 4 * self.own_l * self.warp_l * self.m * self.n + read + 4 * self.m + _OTHER_REGISTERS

    @property
    def resident(self) -> int:
        """Blocks that share the registers of a multiprocessor."""
        registers = REGISTERS // (-(-self.registers // 8) * 8 * -(-self.threads // _ALLOCATED) * _ALLOCATED)
        return larger(1, smaller(registers, _MOST_RESIDENT // self.threads))

    def each(self, own: DeviceLimits) -> int:
        """Return the blocks that share a multiprocessor."""
        return larger(1, smaller(self.resident, own.shared_per_sm // (self.shared + RESERVED_SHARED)))

    @property
    def chunks(self) -> int:
        """Stages of all positions of k."""
        return -(-self.pattern[2] // _DEPTH)

    @property
    def tiles(self) -> int:
        """Blocks for one group and part of the batch, without those that share k."""
        a, b, _, d = self.pattern
        return a * -(-b // self.tile_j) * -(-d // self.tile_l)

    def blocks(self, problem: Problem) -> int:
        """Return the blocks of a launch."""
        return problem.groups * self.tiles * -(-problem.batch // self.rows) * self.cluster

    def __str__(self) -> str:
        order = "along" if self.along else "across"
        shape = f"{self.rows} rows x {self.tile_j} x {self.tile_l} of {tuple(self.pattern)}"
        warps = f"{self.warps_l} x {self.warps_j} warps, {self.m} x {self.n} x {self.warp_l}"
        copies = " by runs" if self.bulk else ""
        stages = f"{self.stages} stages{copies}, clusters of {self.cluster}"
        return f"kron sparse {self.arch} streamed weights {order} k by mma, {shape}, {warps}, {stages}, {self.dtype}"


def fits(pattern: Pattern, batch: int, dtype: str, limits: DeviceLimits) -> bool:
    """Return whether steps within x, the result and a block are small enough."""
    a, b, c, d = pattern
    small = max(b * c * d, batch * a * d * max(b, c)) <= _MOST_NUMBERS
    return dtype in DTYPES and 0 < batch <= _MOST_BATCH and d > 1 and small and limits.has(("clusters",))


@lru_cache(maxsize=4096)
def read_cycles(step: int, row_shift: int, step_shift: int, access: int, along: bool, apart: int = _APART) -> Column:
    """Return the cycles in which a warp reads a fragment: a row for each order of k, with those of each pitch.

    Rows are ``apart`` and 0, 16 ... 112 bytes more from each other, positions ``step`` bytes. Runs of rows and of
    positions begin so many bytes further in their 16 bytes than those before.
    """
    lane, e, pitch = np.arange(_WARP), np.arange(2)[:, None], (apart + _PITCHES)[:, None, None, None]
    own, quad = lane // 4, lane % 4
    k = np.stack((quad + 4 * e, 2 * quad + e, 4 * quad + e))
    r, s = (own, k) if along else (k, own)
    at: Any = r * pitch + s * step + (r * row_shift + s * step_shift) % 16
    # Words of the lanes that read together, for each pitch, order and e.
    both: Any = np.stack((at // 4, (at + access - 1) // 4), -1)
    words = np.sort(both.reshape(-1, 2 * min(_WARP, 128 // access)))
    first = np.diff(words, axis=1, prepend=-1) != 0
    banks = np.arange(len(words))[:, None] * _BANKS + words % _BANKS
    every: Any = np.bincount(banks[first], minlength=len(words) * _BANKS)
    taken = every.reshape(*at.shape[:-1], -1, _BANKS)
    return taken.max(-1).sum(-1).max(-1).T


def _arranged(table: StreamMmaPlan, shifts: int, wide: int) -> StreamMmaPlan:
    """Return plans with the order of k and the skews of weights and x with which their reads meet in few banks.

    They have the same values of l; rows of weights are ``wide`` numbers in memory, runs of positions begin so many
    bytes further than those before.
    """
    (_, _, c, d), size = table.pattern, BYTES[table.dtype]
    skews, cycles, fitted = list[Any](), list[Any](), list[Any]()
    for pitch, row, along in ((table.pitches[0], wide, table.along), (table.pitches[1], c, True)):
        reads = table.step, row * d * size % 16, shifts % 16, table.warp_l * size, along
        first = (np.broadcast_to(pitch, count_of(table)) % 128) // 16
        several = read_cycles(*reads)[:, (first[:, None] + np.arange(8)) % 8]  # of the orders, rows of the table, skews
        skews.append(16 * several.argmin(-1))
        cycles.append(several.min(-1))
        fitted.append(np.broadcast_to(read_cycles(*reads, _AS_FITTED).min(-1, keepdims=True), cycles[-1].shape))
    at = np.arange(count_of(table))
    order, priced = ((2 * table.m * own[0] + table.n * own[1]).argmin(0) for own in (cycles, fitted))
    return replace(
        table, order=np.array(_ORDERS)[order], w_skew=skews[0][order, at], x_skew=skews[1][order, at],
        w_cycles=fitted[0][priced, at], x_cycles=fitted[1][priced, at],
    )  # fmt: skip


def candidates(
    problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int = ACCESS
) -> Iterator[StreamMmaPlan]:
    """Yield the plans that fit, for weights of which so many bytes may be read in one access."""
    table = _every(problem, along, limits, weight_bytes)
    return iter(()) if table is None else rows_of(table)


def _every(problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int) -> StreamMmaPlan | None:
    """Return the table of the plans that fit, of which batches take those with their rows of a block."""
    pattern, batch, size = problem.pattern, problem.batch, BYTES[problem.dtype]
    if not fits(pattern, batch, problem.dtype, limits):
        return None
    access = math.gcd(min(weight_bytes, problem.x_bytes if problem.x_first else ACCESS), ACCESS)
    own = problem.dtype, pattern, along, problem.bias, problem.activation, batch > 1 and not problem.y_first
    table = _table(*own, access // size, limits)
    if table is None:
        return None
    fragments = -(-batch // 8)
    rows = {-(-fragments // parts) for parts in range(1, fragments + 1)}
    found = masked(table, np.isin(table.n, [n for n in _FRAGMENTS if n in rows]))
    return found if count_of(found) else None


@lru_cache(maxsize=TABLES)
def _table(
    dtype: str, pattern: Pattern, along: bool, bias: bool, activation: str, last: bool, most: int, limits: DeviceLimits
) -> StreamMmaPlan | None:
    """Return the table of plans for every number of rows, of vectors of at most so many numbers; None without any."""
    (_, b, c, d), size, tables = pattern, BYTES[dtype], list[StreamMmaPlan]()
    warps_l = {-(-d // parts) for parts in _PARTS_L if parts == 1 or d // parts >= 8}
    chunks = -(-c // _DEPTH)
    clusters = [cluster for cluster in _CLUSTERS if cluster <= chunks]
    for vector in (1, 2, 4, 8):
        if d % vector or vector > most:
            break
        for tile_l in sorted({-(-wide // vector) * vector for wide in warps_l}):
            units = tile_l // vector
            n, m, warps_j, own_l, cluster = grid(_FRAGMENTS, (1, 2, 3, 4), (1, 2, 4), (1, 2, 3, 4, 5, 6, 8), clusters)
            warps = -(-units // own_l)
            taken = (16 * m * warps_j < b + 16) & (own_l <= units) & (-(-units // warps) == own_l)
            taken &= own_l * vector * m * n * 4 <= _MOST_SUMS
            taken &= (_WARPS[0] <= warps * warps_j) & (warps * warps_j <= _WARPS[1])
            # By the copy engine in no cluster: racecheck reports a pair of writes there (decision 0093).
            bulk = (cluster == 1) & (tile_l == d and chunks > 1)
            found = StreamMmaPlan(
                limits.arch, dtype, pattern, tile_l, vector, warps, warps_j, m, n, 2, cluster, 1, 0, 0, bulk, along,
                bias, activation, last,
            )  # fmt: skip
            found = masked(found, taken)
            if not count_of(found):
                continue
            found = _arranged(found, 0 if found.full else d * size, c if along else b)
            allocated = -(-found.threads // _ALLOCATED) * _ALLOCATED
            taken = found.registers <= np.minimum(_MOST_REGISTERS, REGISTERS // allocated)
            tables.append(_staged(masked(found, taken & (found.shared <= limits.shared_per_block)), limits))
    return joined(tables) if tables else None


def _staged(table: StreamMmaPlan, limits: DeviceLimits) -> StreamMmaPlan:
    """Return plans of two stages with as many as leave as many blocks to a multiprocessor."""
    each, steps, chosen = table.each(limits), -(-table.chunks // table.cluster), np.full(count_of(table), 2)
    for stages in (3, 4):
        found = replace(table, stages=stages)
        fits = (stages <= steps) & (found.shared <= limits.shared_per_block) & (found.each(limits) == each)
        chosen[fits] = stages
    return replace(table, stages=chosen)


@dataclass(frozen=True)
class Costs:
    """Instructions and cycles of a multiprocessor that a plan takes, and seconds where it says so.

    ``piece`` and ``run`` are instructions of a copy of 16 bytes and by the copy engine, ``word`` of what is
    made of two numbers, ``load`` and ``product`` of a read and of a product, ``step`` of a stage besides, ``direct``
    and ``stored`` of a sum that leaves registers, and shared memory, for the result. An instruction takes a warp
    ``chain`` cycles where no other is ready, and a multiprocessor a quarter of one, of which a share ``reached`` is
    used. ``wait`` is what a stage waits for memory where there are two, ``block`` what a block takes besides, and
    ``joined`` where it adds what others of its cluster have. ``cache`` and ``memory`` are bytes a second, ``short`` how
    many times 16 bytes a run takes besides that is not whole, ``start`` seconds to begin; what overlaps is added in a
    ``power``.
    """

    piece: float
    run: float
    word: float
    load: float
    product: float
    step: float
    direct: float
    stored: float
    chain: float
    reached: float
    wait: float
    block: float
    joined: float
    cache: float
    memory: float
    short: float
    start: float
    power: float


# Fitted on one H200 to 420 tiles of 28 products within 22 %, 27 % on 300 of 20 others (root mean square; decision 0093)
_COSTS = Costs(
    3.79, 48.6, 0.2, 4.3, 0.5, 118.0, 12.5, 27.8, 3.44, 0.419, 833.0, 658.0, 3.82e3, 2.15e13, 4.2e12, 10.0, 4.5e-6, 1.32
)


def plan_seconds(plan: StreamMmaPlan, problem: Problem, limits: DeviceLimits) -> Any:
    """Return what a plan should take."""
    (a, b, c, d), batch, size, own = problem.pattern, problem.batch, BYTES[problem.dtype], _COSTS
    reads, words = 2 * plan.m + plan.n, plan.warp_l * (4 * plan.m + 2 * plan.n)
    products = plan.warp_l * plan.m * plan.n
    runs = -(-(plan.rows + (plan.tile_j if plan.along else _DEPTH)) // plan.threads)
    copied = either(plan.bulk, own.run * runs, plan.stage / 16 / plan.threads * own.piece)
    multiplied = 4 * reads * own.load + words * own.word + products * own.product
    issued = copied + plan.own_l * multiplied + own.step
    stored = either(plan.stores_registers, own.direct, own.stored)
    end = plan.tile_j * plan.tile_l * plan.rows / plan.threads * stored
    steps, blocks, warps = -(-plan.chunks // plan.cluster), plan.blocks(problem), plan.threads / _WARP
    alone = steps * (issued * own.chain + own.wait / (plan.stages - 1)) + end * own.chain + own.block
    alone += own.joined * (plan.cluster > 1)
    read = 4 * plan.own_l * (2 * plan.m * plan.w_cycles + plan.n * plan.x_cycles)
    together = warps * (steps * larger(issued / 4, read) + end / 4) / own.reached
    waves = -(-blocks // (limits.sm_count * plan.each(limits)))
    worked = larger(-(-blocks // limits.sm_count) * together, waves * alone) / CLOCK
    weights, x, y = (
        size * problem.groups * math.prod(problem.pattern),
        *(size * problem.groups * batch * a * side * d for side in (c, b)),
    )
    parts, repeats = -(-batch // plan.rows), -(-b // plan.tile_j)
    whole = either(plan.full, 1.0, 1.0 + own.short * 16 / (plan.tile_l * size))
    moved, memory = (weights * parts + x * repeats) * whole / own.cache, (weights + x + y) / own.memory
    return own.start + norm((worked, moved, memory), own.power)


@lru_cache(maxsize=4096)
def _choice(
    problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int
) -> tuple[float, StreamMmaPlan] | None:
    """Return the least seconds of a plan, and the plan; None if none fits."""
    table = _every(problem, along, limits, weight_bytes)
    return None if table is None else quickest_row(table, plan_seconds(table, problem, limits))


def stream_mma_plan(
    problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int = ACCESS
) -> StreamMmaPlan | None:
    """Return the plan that should be quickest, with k (``along``) or j next to l in memory; None if none fits."""
    found = _choice(problem, along, limits, weight_bytes)
    return None if found is None else found[1]


@lru_cache(maxsize=4096)
def stream_choice(
    problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int = ACCESS
) -> tuple[float, StreamPlan | StreamMmaPlan] | None:
    """Return the predicted seconds of a product that reads the weights where they lie, and its plan; None without one.

    ``along``: k, and not j, lies next to l in memory.
    """
    fma = stream_plan(problem, along, limits, weight_bytes)
    if fma is None:
        return None
    found: tuple[float, StreamPlan | StreamMmaPlan] = stream_seconds(problem, limits, along), fma
    if problem.batch < _LEAST_BATCH or math.prod(problem.pattern) < _LEAST_WEIGHTS:
        return found
    mma = _choice(problem, along, limits, weight_bytes)
    if mma is None:
        return found
    taken = _SURELY * mma[0] + copy_seconds(problem)
    return (taken, mma[1]) if taken < found[0] else found
