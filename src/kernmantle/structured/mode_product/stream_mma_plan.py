"""Plans of Kronecker-sparse products of a few rows by tensor cores, over weights that are read where they lie.

Where values of l interleave, fragments are read from stages of shared memory at the stride of l.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from ...compiler.nest import BYTES
from .plan import REGISTERS, Pattern, Problem
from .stream_plan import StreamPlan, copy_seconds, stream_plan, stream_seconds
from .transpose_plan import ACCESS

DTYPES = ("f16", "bf16")
_WARP, _DEPTH, _BANKS = 32, 16, 32
_MOST_BATCH, _MOST_NUMBERS = 256, 2**31 - 1
_MOST_SUMS, _MOST_REGISTERS, _OTHER_REGISTERS = 96, 200, 44  # of a thread
_MOST_RESIDENT, _ALLOCATED = 2048, 128  # threads of a multiprocessor, and those by which registers are shared out
_WARPS = 4, 16  # of a block
_PARTS_L = (1, 2, 3, 4, 6, 8)  # blocks along l
_CLUSTERS = (1, 2, 4, 8)
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
        return -(-(positions if self.full else 1) * self.tile_l * BYTES[self.dtype] // 16) * 16 + 16

    @property
    def step(self) -> int:
        """Bytes between neighbouring positions of a row of a stage."""
        return self.tile_l * BYTES[self.dtype] if self.full else self.run_bytes(1)

    def pitch(self, positions: int, skew: int) -> int:
        """Return the bytes between rows of a stage."""
        return (1 if self.full else positions) * self.run_bytes(positions) + skew

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
        sums = 0 if self.last and self.cluster == 1 else 4 * self.tile_j * self.tile_l * self.rows
        return self.stages * self.stage + sums + 8 * self.stages * self.bulk

    @property
    def registers(self) -> int:
        """Registers of a thread, about."""
        read = 4 * (2 * self.m + self.n) * max(1, self.warp_l * BYTES[self.dtype] // 4)
        return 4 * self.own_l * self.warp_l * self.m * self.n + read + 4 * self.m + _OTHER_REGISTERS

    @property
    def resident(self) -> int:
        """Blocks that share the registers of a multiprocessor."""
        registers = REGISTERS // (-(-self.registers // 8) * 8 * -(-self.threads // _ALLOCATED) * _ALLOCATED)
        return max(1, min(registers, _MOST_RESIDENT // self.threads))

    def each(self, own: DeviceLimits) -> int:
        """Return the blocks that share a multiprocessor."""
        return max(1, min(self.resident, own.shared_per_sm // (self.shared + RESERVED_SHARED)))

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


def _positions(order: int, quad: int, e: int) -> int:
    return {1: quad + 4 * e, 4: 4 * quad + e, 2: 2 * quad + e % 2 + 8 * (e // 2)}[order]


@lru_cache(maxsize=4096)
def read_cycles(row: int, step: int, row_shift: int, step_shift: int, access: int, order: int, along: bool) -> int:
    """Return the cycles in which a warp reads a fragment from rows and positions so many bytes apart.

    Runs of rows and of positions begin so many bytes further in their 16 bytes than those before.
    """
    lanes_at_once = min(_WARP, 128 // access)
    worst = 0
    for e in (0, 1):
        taken = 0
        for first in range(0, _WARP, lanes_at_once):
            banks: dict[int, set[int]] = {}
            for lane in range(first, first + lanes_at_once):
                own, k = lane // 4, _positions(order, lane % 4, e)
                r, s = (own, k) if along else (k, own)
                at = r * row + s * step + (r * row_shift + s * step_shift) % 16
                for word in {at // 4, (at + access - 1) // 4}:
                    banks.setdefault(word % _BANKS, set()).add(word)
            taken += max(map(len, banks.values()))
        worst = max(worst, taken)
    return worst


@lru_cache(maxsize=4096)
def arranged(
    dtype: str, pattern: Pattern, tile_l: int, tile_j: int, warp_l: int, m: int, n: int, along: bool
) -> tuple[int, int, int, int, int]:
    """Return the order of k, skews of weights and x, and cycles of their fragments, whose reads meet in few banks."""
    _, b, c, d = pattern
    size = BYTES[dtype]
    plan = StreamMmaPlan("", dtype, pattern, tile_l, warp_l, 1, tile_j // (16 * m), m, n, 2, 1, 1, 0, 0, False, along)
    shifts = 0 if plan.full else d * size
    best: tuple[float, tuple[int, int, int, int, int]] | None = None
    for order in (1, 2, 4):
        found: list[tuple[int, int]] = []
        for pitch, row, lies_along in (
            (plan.pitches[0], (c if along else b) * d * size, along), (plan.pitches[1], d * size * c, True),
        ):  # fmt: skip
            every = (
                (
                    read_cycles(
                        (pitch + skew) % 128, plan.step, row % 16, shifts % 16, warp_l * size, order, lies_along
                    ),
                    skew,
                )
                for skew in range(0, 128, 16)
            )
            found.append(min(every))
        taken = 2 * m * found[0][0] + n * found[1][0]
        if best is None or taken < best[0]:
            best = taken, (order, found[0][1], found[1][1], found[0][0], found[1][0])
    assert best is not None
    return best[1]


def candidates(
    problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int = ACCESS
) -> Iterator[StreamMmaPlan]:
    """Yield the plans that fit, for weights of which so many bytes may be read in one access."""
    pattern, batch, size = problem.pattern, problem.batch, BYTES[problem.dtype]
    _, b, c, d = pattern
    if not fits(pattern, batch, problem.dtype, limits):
        return
    access = math.gcd(min(weight_bytes, problem.x_bytes if problem.x_first else ACCESS), ACCESS)
    last = batch > 1 and not problem.y_first
    fragments, chunks = -(-batch // 8), -(-c // _DEPTH)
    warps_l = {-(-d // parts) for parts in _PARTS_L if parts == 1 or d // parts >= 8}
    rows = sorted({-(-fragments // parts) for parts in range(1, fragments + 1)} & {1, 2, 3, 4, 5, 6, 8})
    for vector in (1, 2, 4, 8):
        if d % vector or vector * size > access:
            break
        tiles_l = sorted({-(-wide // vector) * vector for wide in warps_l})
        for tile_l, n, m, warps_j in itertools.product(tiles_l, rows, (1, 2, 3, 4), (1, 2, 4)):
            tile_j, units = 16 * m * warps_j, tile_l // vector
            if tile_j >= b + 16 or vector * m * n * 4 > _MOST_SUMS:
                continue
            for own_l in (1, 2, 3, 4, 5, 6, 8):
                warps = -(-units // own_l)
                if own_l > units or own_l * vector * m * n * 4 > _MOST_SUMS or -(-units // warps) != own_l:
                    continue
                if not _WARPS[0] <= warps * warps_j <= _WARPS[1]:
                    continue
                order_and_skews = arranged(problem.dtype, pattern, tile_l, tile_j, vector, m, n, along)[:3]
                for cluster in _CLUSTERS:
                    if cluster > chunks:
                        break
                    # By the copy engine in no cluster: racecheck reports a pair of writes there (decision 0093).
                    bulk = tile_l == d and chunks > 1 and cluster == 1
                    first = StreamMmaPlan(
                        limits.arch, problem.dtype, pattern, tile_l, vector, warps, warps_j, m, n, 2, cluster,
                        *order_and_skews, bulk, along, problem.bias, problem.activation, last,
                    )  # fmt: skip
                    most = min(_MOST_REGISTERS, REGISTERS // (-(-first.threads // _ALLOCATED) * _ALLOCATED))
                    if first.registers <= most and first.shared <= limits.shared_per_block:
                        yield _staged(first, limits)


def _staged(plan: StreamMmaPlan, limits: DeviceLimits) -> StreamMmaPlan:
    """Return a plan of two stages with as many as leave as many blocks to a multiprocessor."""
    each, steps = plan.each(limits), -(-plan.chunks // plan.cluster)
    for stages in (4, 3):
        found = replace(plan, stages=stages)
        if stages <= steps and found.shared <= limits.shared_per_block and found.each(limits) == each:
            return found
    return plan


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
_CLOCK = 1.7e9  # cycles a second


def plan_seconds(plan: StreamMmaPlan, problem: Problem, limits: DeviceLimits) -> float:
    """Return what a plan should take."""
    (a, b, c, d), batch, size, own = problem.pattern, problem.batch, BYTES[problem.dtype], _COSTS
    reads, words = 2 * plan.m + plan.n, plan.warp_l * (4 * plan.m + 2 * plan.n)
    products = plan.warp_l * plan.m * plan.n
    cycles = arranged(plan.dtype, plan.pattern, plan.tile_l, plan.tile_j, plan.warp_l, plan.m, plan.n, plan.along)[3:]
    copied = plan.stage / 16 / plan.threads * own.piece
    if plan.bulk:
        copied = own.run * -(-(plan.rows + (plan.tile_j if plan.along else _DEPTH)) // plan.threads)
    multiplied = 4 * reads * own.load + words * own.word + products * own.product
    issued = copied + plan.own_l * multiplied + own.step
    stored = own.direct if plan.last and plan.cluster == 1 else own.stored
    end = plan.tile_j * plan.tile_l * plan.rows / plan.threads * stored
    steps, blocks, warps = -(-plan.chunks // plan.cluster), plan.blocks(problem), plan.threads / _WARP
    alone = steps * (issued * own.chain + own.wait / (plan.stages - 1)) + end * own.chain + own.block
    alone += own.joined * (plan.cluster > 1)
    read = 4 * plan.own_l * (2 * plan.m * cycles[0] + plan.n * cycles[1])
    together = warps * (steps * max(issued / 4, read) + end / 4) / own.reached
    waves = -(-blocks // (limits.sm_count * plan.each(limits)))
    worked = max(-(-blocks // limits.sm_count) * together, waves * alone) / _CLOCK
    weights, x, y = (
        size * problem.groups * math.prod(problem.pattern),
        *(size * problem.groups * batch * a * side * d for side in (c, b)),
    )
    parts, repeats = -(-batch // plan.rows), -(-b // plan.tile_j)
    whole = 1.0 if plan.full else 1.0 + own.short * 16 / (plan.tile_l * size)
    moved, memory = (weights * parts + x * repeats) * whole / own.cache, (weights + x + y) / own.memory
    return own.start + sum(part**own.power for part in (worked, moved, memory)) ** (1 / own.power)


@lru_cache(maxsize=4096)
def stream_mma_plan(
    problem: Problem, along: bool, limits: DeviceLimits, weight_bytes: int = ACCESS
) -> StreamMmaPlan | None:
    """Return the plan that should be quickest, with k (``along``) or j next to l in memory; None if none fits."""
    every = candidates(problem, along, limits, weight_bytes)
    return min(every, key=lambda plan: plan_seconds(plan, problem, limits), default=None)


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
    mma = stream_mma_plan(problem, along, limits, weight_bytes)
    if mma is None:
        return found
    taken = _SURELY * plan_seconds(mma, problem, limits) + copy_seconds(problem)
    return (taken, mma) if taken < found[0] else found
