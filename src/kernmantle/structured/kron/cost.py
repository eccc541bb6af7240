"""Predicted time of a pass of a Kronecker product on a GPU: a roofline of its bytes and of the work of its kernel.

Fitted on one H200 to passes of random shapes by each kernel that takes them, within 11 to 20 % (root mean square) of
those by mma.sync, of additions, over one axis and over two (decisions 0083, 0096 and 0118); float64 on one H100 to
passes of decision 0028.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...backends.cuda.tiles import CLOCK, RESERVED_SHARED, DeviceLimits
from .axis_plan import COLUMNS as PIECE_COLUMNS
from .axis_plan import ROWS as PIECE_ROWS
from .axis_plan import blocks_of, fibers_of, packed_of, pieces_of
from .fma_plan import FmaPlan
from .mma_choice import is_small, waiting_cycles
from .mma_plan import LANES, SIZES, STATIC_BYTES, MmaPlan
from .modes import Mode
from .passes import Pass
from .two_axis_plan import WHOLE, TwoAxisPlan, fills_fragments, pass_cycles
from .wide_plan import POSITIONS, WidePlan, is_transposed, wide_part

# Seconds of a kernel beside what it does: in a gradient, and of a pass that is none of additions (decision 0118).
LAUNCH, _START = 4e-6, 3.4e-6
# Seconds of a small kernel behind others, and of multiplying out a factor with the one before.
SMALL, _JOINT = 2.5e-6, 2.1e-6
# Seconds that count of the host's: a tenth of what it takes to start a kernel of ours, a product of the vendor's
# through torch, and what multiplies a factor out (10, 30 and 25 us; decisions 0023 and 0030): of two plans that take
# the GPU as long that with the fewest launches is taken.
HOST_OWN, HOST_VENDOR, HOST_JOINT = 1e-6, 3e-6, 2.5e-6
# Times as much it is in an eager call that waits for the host, and seconds of such a call beside its launches.
HOST_WHOLE, HOST_CALL = 10.0, 20e-6
ACCESS = 16
_VENDOR_OVERLAP = 0.4  # of memory and work, the share of the shorter one that the vendor's product does not hide
# Times as long as estimated that passes of float32 take over two axes of 64, or of 60, and of halves over two that are
# multiples of 32: 64 x 64 three times take 1.25 ms for 268 million numbers, 32 x 32 four times of bfloat16 1.17 for 512
# rows in two and two, 1.30 in three and one (H200).
_WHOLE, _WHOLE_HALVES = {4: 0.65, 2: 0.85}, 32
_SEVERAL = 1.12  # the same of three factors and more (H200, 60 passes, decision 0118)
# Seconds to prepare an entry of a factor for wgmma, of a product of several for each; times the speed of memory that
# passes reach, and those over two factors of 128 of float32 (64^3: 560 and 567 us, 128^3: 1941 and 1469, H200).
_PREPARED, _WGMMA_MEMORY, _WGMMA_WIDE = 1.05e-9, 1.05, 0.8
# Times the speed of memory that passes over whole rows reach, by rows of a factor and bytes of a number (16^4: 173 and
# 79 us, 32^3: 92 and 42, 64^3: 806 and 325, H200).
_CLUSTER_MEMORY = {(16, 4): 0.88, (16, 2): 0.97, (32, 4): 0.95, (32, 2): 0.95, (64, 4): 0.76, (64, 2): 0.92}
# The same of passes over one factor, and seconds of a piece of x on one multiprocessor, of halves or not: at least, for
# 8192 numbers of factors of up to so many rows and columns, by loads of 16, 8, 4 and, of halves, 2 bytes, and for as
# many results of halves by stores of these; at least where each column of float32 has its own power of two; to prepare
# an entry of a factor; times as long where tiles have columns of several entries of up to so many (H200, 45 passes
# within 11 %, root mean square; decisions 0096, 0105 and, of results, 0123).
_AXIS_MEMORY, _AXIS_NUMBERS, _AXIS_ALONE = 1.05, 8192, 1.2e-6
_AXIS_PREPARED, _AXIS_PACKED = {2: 0.2e-9, 4: 0.8e-9}, {2: (1.6, 16), 4: (1.18, 128)}
_AXIS_LEAST = 0.7e-6
_AXIS_STORED = (0.7e-6, 1.05e-6, 1.4e-6, 1.7e-6)
_AXIS_PIECE = {
    False: {64: (2.15e-6, 2.7e-6, 2.8e-6), 128: (2.4e-6, 2.95e-6, 3.8e-6), 256: (2.65e-6, 3.1e-6, 3.25e-6)},
    True: {
        64: (1.1e-6, 1.3e-6, 1.8e-6, 4.5e-6), 128: (1.2e-6, 1.3e-6, 1.45e-6, 2.1e-6),
        256: (1.2e-6, 1.35e-6, 1.5e-6, 1.9e-6),
    },
}  # fmt: skip
# Cycles of a tile of a pass over a wide factor by bytes of a number: at least, for a number that is read, one that is
# stored, 1024 multiplications of tensor cores, and one of a small factor; times as long where no tile is copied
# ahead. Seconds to prepare an entry (H200, 90 timings of passes of float32 and halves within 10 and
# 15 %, root mean square, decision 0143).
_WIDE = {4: (370.0, 0.245, 0.0, 0.52, 0.034, 1.32), 2: (660.0, 0.036, 0.046, 0.67, 0.036, 1.34)}
_WIDE_PREPARED = {4: 0.67e-9, 2: 0.13e-9}
_WIDE_TRANSPOSED = 100.0  # for each entry of the batch whose results are turned round on their way
# Seconds to prepare an entry of a factor for passes over two axes, of halves for each of several that are multiplied
# out; and in small passes of halves by mma.sync for each copy of a lane of its first rows where these are no whole
# vectors of 16 bytes, and where they begin anywhere (H200, 19 passes over two axes of halves within 10 %, root mean
# square, decision 0138).
_TWO_AXIS_PREPARED = {2: 0.15e-9, 4: 0.7e-9}
_COPY_NARROW, _COPY_SHIFTED = 0.15e-6, 0.8e-6
# Rows and columns of the largest matrix of all factors, and entries of wider ones by bytes of a number: of two
# factors of halves 60 x 9430 takes 70 us where these take 95, 63 x 23085 21 and 13; 16 x 3555 of float32 143 and
# 234 (H200).
_WIDEST_JOINT, _MOST_JOINT = 2048, {2: 1 << 20, 4: 1 << 16, 8: 1 << 16}
_COPIED = 0.3  # share of the memory's speed of copies in other orders
_MOST_RIGHT = 64  # entries behind an axis up to which it may be brought into rows
_MEMORY = 4.8e12  # bytes a second by which that is decided (H200)
_LEAST_COLUMNS = 2.1  # columns; products of halves whose rows are not aligned are as much slower where there are fewer
_ODD = 1.4  # times as long again as products of halves take whose rows are odd
# Share of the estimate that batched products of halves take with factors of so many rows and columns and so many to the
# right (216 x 216 beside 3168: some 150 us where 270 were expected, H200, decision 0105).
_LARGE, _MANY_COLUMNS, _LARGE_SHARE = 192, 1024, 0.5
_NARROW_COLUMNS = 40  # columns to which products of float32 round up where there are few


def memory_of(limits: DeviceLimits) -> float:
    """Return the bytes a second."""
    return limits.generation.memory_rate


def host_seconds(run: Pass) -> float:
    """Return what a pass was charged for the host's time."""
    if run.kind != "matmul":
        return HOST_OWN
    return HOST_VENDOR + (len(run.parts[0]) - 1) * HOST_JOINT


def _together(memory: float, work: float, overlap: float) -> float:
    """Return both at once, of the smaller one a share more."""
    return max(memory, work) + overlap * min(memory, work)


def _unaligned(length: int, size: int) -> bool:
    """Return whether neighbours of such a run cannot be moved 16 bytes at a time."""
    return length * size % ACCESS != 0


@dataclass(frozen=True)
class MmaRates:
    """Share of the memory's speed, and cycles of a warp for 16 x 16 entries: to read them, and of a 16^3 product.

    ``unit`` are cycles beside those for each set of lines, ``entry`` seconds to prepare one entry of a factor, of
    halves for each of several that are multiplied out. Memory takes ``unaligned`` times as long where runs are no whole
    vectors. What comes from memory and what is multiplied do not hide each other.
    """

    memory: float
    read: float
    product: float
    unit: float
    entry: float
    unaligned: float


# H200, 470 passes within 18 % of halves and 25 of float32 (root mean square), decision 0118; entries of halves 0138.
MMA = {
    "f32": MmaRates(2.4, 58.0, 19.2, 70.0, 1.4e-9, 2.35),
    "f16": MmaRates(1.58, 25.5, 17.8, 48.0, 0.15e-9, 1.64),
    "f64": MmaRates(1.25, 42.0, 66.0, 45.0, 1.5e-9, 1.8),
}


def _small_mma_seconds(plan: MmaPlan, tiles: int, run: int, limits: DeviceLimits) -> float:
    """Return a pass of halves whose blocks leave multiprocessors idle, but for what prepares its factors."""
    first = plan.phases[0]
    along, down = (first.mode.columns, LANES * first.tiles) if first.last else (run, first.mode.columns)
    width = math.gcd(along * 2, ACCESS)
    length = along if first.last else min(along, LANES * first.tiles)
    is_shifted = width < 4
    copies = down * ((length + 14) // 8 if is_shifted else 2 * length / width) / 32
    each = _COPY_SHIFTED if is_shifted else _COPY_NARROW if width < ACCESS else 0.0
    return _START + waiting_cycles(plan, tiles, limits.sm_count) / CLOCK + copies * each


def _fragments(extent: int) -> int:
    return -(-extent // LANES)


def mma_seconds(
    plan: MmaPlan, tiles: int, moved: float, run: int, limits: DeviceLimits, joined_factors: int = 1
) -> float:
    """Return a pass on tensor cores over so many tiles that moves so many bytes, in runs of ``run`` numbers.

    Up to ``joined_factors`` neighbours are multiplied out as one.
    """
    size = SIZES[plan.stored]
    rates = MMA["f64" if plan.stored == "f64" else "f32" if plan.tensor.products > 1 else "f16"]
    fragments = [(_fragments(phase.mode.columns), _fragments(phase.mode.rows)) for phase in plan.phases]
    prepared = rates.entry * LANES * LANES * sum(deep * wide for deep, wide in fragments)
    if size == 2:
        prepared *= joined_factors
        if is_small(plan, tiles, limits.sm_count):
            return prepared + _small_mma_seconds(plan, tiles, run, limits)
    cycles = 0.0
    for phase, (deep, wide) in zip(plan.phases, fragments, strict=True):
        blocks, products = phase.units * phase.tiles, deep * wide * plan.tensor.products
        cycles += blocks * (deep * rates.read + products * rates.product) + phase.units * rates.unit
    fits = limits.shared_per_sm // (plan.shared + STATIC_BYTES + RESERVED_SHARED), limits.threads_per_sm // plan.threads
    at_once = max(1, min(fits)) * (plan.warps // plan.group)
    waves, busy = -(-tiles // (at_once * limits.sm_count)), min(at_once, -(-tiles // limits.sm_count))
    work = waves * busy * cycles / (4 * CLOCK)
    memory = moved / (rates.memory * memory_of(limits))
    memory *= rates.unaligned if _unaligned(run, size) else 1.0
    sides = [side for mode in plan.run.modes for side in (mode.columns, mode.rows)]
    is_whole = all(map(fills_fragments, sides)) if size == 4 else not any(side % _WHOLE_HALVES for side in sides)
    is_whole = is_whole and len(plan.phases) == 2 and joined_factors <= 2
    share = _WHOLE.get(size, 1.0) if is_whole else _SEVERAL if len(plan.phases) > 2 and size < 8 else 1.0
    return _START + prepared + share * (memory + work)


def wgmma_seconds(run: Pass, moved: float, stored: str, limits: DeviceLimits) -> float:
    """Return a pass by wgmma that moves so many bytes."""
    size = run.modes[0].columns
    is_wide = stored == "f32" and len(run.modes) == 2 and size > WHOLE
    prepared = _PREPARED * size**2 * sum(map(len, run.parts))
    return _START + prepared + moved / ((_WGMMA_WIDE if is_wide else _WGMMA_MEMORY) * memory_of(limits))


def cluster_seconds(run: Pass, moved: float, stored: str, limits: DeviceLimits) -> float:
    """Return a pass by clusters that moves so many bytes."""
    size = run.modes[0].columns
    prepared = _PREPARED * size**2 * sum(map(len, run.parts))
    return _START + prepared + moved / (_CLUSTER_MEMORY[size, SIZES[stored]] * memory_of(limits))


def axis_prepared(run: Pass, stored: str) -> float:
    """Return the seconds in which a pass over one factor by wgmma prepares it."""
    mode = run.modes[0]
    return _AXIS_PREPARED[SIZES[stored]] * mode.columns * mode.rows * len(run.parts[0])


def axis_seconds(run: Pass, entries: int, right: int, stored: str, limits: DeviceLimits) -> float:
    """Return a pass over one factor by wgmma on so many entries of its batch, with so much to its right."""
    mode, size = run.modes[0], SIZES[stored]
    moved = size * float(entries) * right * (mode.columns + mode.rows)
    prepared = axis_prepared(run, stored)
    vector = math.gcd(right, ACCESS // size)
    rounds = -(-pieces_of(mode, entries, right, stored) // limits.sm_count)
    chunks = -(-mode.columns // PIECE_COLUMNS)
    longest = mode.columns / chunks
    if size == 4:  # results take as long
        longest = max(longest, mode.rows / -(-mode.rows // PIECE_ROWS) / chunks)
    fibers = fibers_of(mode, blocks_of(mode, right, stored))
    rates = _AXIS_PIECE[size == 2]
    whole = next(own for most, own in rates.items() if max(mode.columns, mode.rows) <= most)
    least, width = _AXIS_LEAST, (ACCESS // size // vector).bit_length() - 1
    own, (packed, most) = whole[width] * longest, _AXIS_PACKED[size]
    if size == 2:
        own = max(own, _AXIS_STORED[width] * mode.rows / -(-mode.rows // PIECE_ROWS))
    if packed_of(right, fibers):
        least = _AXIS_ALONE if size == 4 else least
        own *= packed if right <= most and (chunks == 1 or size == 2) else 1.0
    piece = max(least, own * fibers / _AXIS_NUMBERS)
    return _START + prepared + max(moved / (_AXIS_MEMORY * memory_of(limits)), rounds * piece)


def wide_seconds(plan: WidePlan, entries: int, limits: DeviceLimits) -> float:
    """Return a pass over one wide factor, and a small one if there is one, on so many entries of its batch."""
    mode, size, positions = plan.mode, SIZES[plan.stored], plan.items * plan.span
    begin, read, written, product, small, stalled = _WIDE[size]
    results = positions * min(plan.wide, mode.rows)
    products = POSITIONS * plan.wide * LANES * _fragments(mode.columns) * plan.tensor.products / 1024
    cycles = begin + read * positions * mode.columns + written * results + product * products
    cycles += small * results * plan.span if plan.has_small else 0.0
    cycles += plan.items * _WIDE_TRANSPOSED if is_transposed(plan.run) else 0.0
    cycles *= stalled if plan.ahead == 0 else 1.0
    factors = len(plan.run.parts[wide_part(plan.run)])
    prepared = _WIDE_PREPARED[size] * mode.columns * mode.rows * factors / plan.sharing
    moved = size * float(entries) * plan.span * (mode.columns + mode.rows)
    rounds = -(-plan.count(entries, 1) // limits.sm_count)
    return _START + prepared + max(moved / memory_of(limits), rounds * cycles / CLOCK)


def two_axis_seconds(plan: TwoAxisPlan, entries: int, limits: DeviceLimits) -> float:
    """Return a pass over the last two axes whose first product stays in registers."""
    size = SIZES[plan.stored]
    read = sum(
        mode.columns * mode.rows * (len(part) if size == 2 else 1)
        for mode, part in zip(plan.run.modes, plan.run.parts, strict=True)
    )
    prepared = _TWO_AXIS_PREPARED[size] * read
    return _START + prepared + pass_cycles(plan, entries, limits.sm_count) / CLOCK


@dataclass(frozen=True)
class VendorRates:
    """The vendor's product: share of the memory's speed, multiplications a second, and its tile, to which it rounds up.

    A tile takes as long as ``start`` positions of the reduced axis before its first one. Halves whose runs are no whole
    vectors take ``unaligned`` times as long to multiply.
    """

    launch: float
    memory: float
    products: float
    high: int
    wide: int
    deep: int
    unaligned: float
    start: int = 0


# Of matrices beside each other in one product, and of many with something behind each.
VENDOR = {
    "f32": (VendorRates(4.2e-6, 0.68, 2.6e13, 37, 71, 13, 1.0), VendorRates(2.7e-6, 0.5, 2.3e13, 22, 77, 27, 1.0)),
    "f16": (
        VendorRates(3e-6, 1.04, 4.8e14, 27, 63, 1, 4.2, 98),
        VendorRates(2.7e-6, 1.02, 3.7e14, 123, 47, 1, 6.4, 18),
    ),
    "f64": (VendorRates(7e-6, 0.8, 1.6e13, 36, 69, 13, 1.0), VendorRates(4.2e-6, 0.56, 1.6e13, 33, 89, 27, 1.0)),
}


def goes_by_rows(mode: Mode, count: int, right: int, stored: str) -> bool:
    """Return whether ``count`` arrays of an axis with ``right`` behind it are brought into rows of that axis first.

    Gradients of halves with such products by the vendor's of many matrices took 71 ms, so 9 (decision 0032).
    """
    if not 1 < right <= _MOST_RIGHT:
        return False
    return _rows_seconds(mode, count, right, stored, _MEMORY) < _direct_seconds(mode, count, right, stored, _MEMORY)


# Rows of x, and of a factor and its transpose, more than and up to, for which the vendor's product of float32 by a
# transposed factor takes 27 us, and 7 to 8 by a copy of it (H200, decision 0134).
_COPIED_ROWS, _COPIED_EXTENTS = (16, 64), (128, 192)


def takes_copy(mode: Mode, count: int, stored: str) -> bool:
    """Return whether a product of ``count`` rows by a transposed factor is quicker by a copy of it."""
    least, most = _COPIED_EXTENTS
    is_slow = all(least < side <= most for side in (mode.rows, mode.columns))
    return stored == "f32" and is_slow and _COPIED_ROWS[0] < count <= _COPIED_ROWS[1]


def matmul_seconds(mode: Mode, count: int, right: int, stored: str, limits: DeviceLimits) -> float:
    """Return one factor by the vendor's product on ``count`` matrices of its columns x ``right``."""
    by_rows = goes_by_rows(mode, count, right, stored)
    return (_rows_seconds if by_rows else _direct_seconds)(mode, count, right, stored, memory_of(limits))


def _rows_seconds(mode: Mode, count: int, right: int, stored: str, memory_rate: float) -> float:
    """Return the same between copies in another order."""
    copied = 2.0 * SIZES[stored] * count * right * (mode.columns + mode.rows) / (_COPIED * memory_rate)
    return 2 * LAUNCH + copied + _direct_seconds(mode, count * right, 1, stored, memory_rate)


# Seconds that the vendor's product waits for each position of the reduced axis: of many matrices of float32, of halves
# whose runs are odd, and of others; multiplications a second of many positions of halves whose runs are no whole
# vectors, or odd (H200, 256 products within 24 %, root mean square, decision 0118).
_VENDOR_WAITING, _UNALIGNED_PRODUCTS, _ODD_PRODUCTS = {4: 1.2e-8, 2: 1.8e-8, 1: 5e-9}, 9.1e13, 5.9e13


def _direct_seconds(mode: Mode, count: int, right: int, stored: str, memory_rate: float) -> float:
    """Return the same of matrices as they lie."""
    size = SIZES[stored]
    rates = VENDOR["f16" if size == 2 else stored][right > 1]
    memory = size * float(count) * right * (mode.columns + mode.rows) / (rates.memory * memory_rate)
    tall, wide = (count, mode.rows) if right == 1 else (mode.rows, right)
    width = min(rates.wide, _NARROW_COLUMNS) if size == 4 and 1 < right <= _MOST_RIGHT else rates.wide
    padded = -(-tall // rates.high) * rates.high * float(-(-wide // width) * width)
    work = (1 if right == 1 else count) * padded * (rates.start + max(mode.columns, rates.deep)) / rates.products
    # A factor lies in memory by its rows or by its columns.
    runs = (mode.columns, mode.rows) if right == 1 else (right, mode.columns, mode.rows)
    if size == 2 and right >= _MANY_COLUMNS and min(mode.columns, mode.rows) >= _LARGE:
        work *= _LARGE_SHARE
    if size == 2 and any(_unaligned(run, size) for run in runs):
        slower = rates.unaligned * (1.0 if right == 1 else 1 + _LEAST_COLUMNS / right)
        slower *= _ODD if any(run % 2 for run in (runs if right == 1 else runs[:1])) else 1.0
        work, memory = work * slower, memory * math.sqrt(slower)
        if right == 1:
            rate = _ODD_PRODUCTS if any(run % 2 for run in runs) else _UNALIGNED_PRODUCTS
            work = max(work, padded * mode.columns / rate)
    waits_as = 2 if size == 2 and any(run % 2 for run in runs) else 4 if size == 4 else 1
    return rates.launch + mode.columns * _VENDOR_WAITING[waits_as] + _together(memory, work, _VENDOR_OVERLAP)


def joint_matrix(
    plain: Pass, before: int, trailing: int, stored: str, limits: DeviceLimits, host: float
) -> tuple[float, Pass | None]:
    """Return a pass by the vendor's product with the matrix of all factors, whose entries float16 may not hold."""
    whole = Mode(plain.columns, plain.rows, 0)
    entries = whole.columns * whole.rows
    if max(whole.columns, whole.rows) > _WIDEST_JOINT and entries > _MOST_JOINT[SIZES[stored]]:
        return math.inf, None
    moved = 2 * SIZES[stored] * entries
    made = (len(plain.modes) - 1) * (_JOINT + host * HOST_JOINT) + moved / memory_of(limits)
    parts = (tuple(range(plain.first, plain.stop)),)
    seconds = host * HOST_VENDOR + made + matmul_seconds(whole, before, trailing, stored, limits)
    return seconds, replace(plain, kind="matmul", modes=(whole,), parts=parts)


# Seconds of a pass of additions beside what it does, and for each round of tiles and each of its phases; times the
# speed of memory; cycles of one multiplication of a thread behind another; and issue slots of a read of 16 bytes of a
# factor, of an access of global memory beside shared memory, and beside registers, along extents that are powers of two
# and others, whose places are divisions (H200, 234 passes within 20 %, root mean square; decision 0118).
_FMA_LAUNCH, _FMA_ROUND, _FMA_MEMORY, _FMA_CHAIN = 2e-6, 2.1e-7, 2.3, 1.95
_FMA_FACTOR, _FMA_STAGED, _FMA_DIRECT = 0.81, 105.0, {True: 28.0, False: 43.5}
# Slots of a multiprocessor a cycle, and times as long instructions take in float64 with axes of up to five and longer
# ones: 4 x 4 seven times 259 us for 2967 rows, 8 x 8 slower than by tensor cores (H200, decision 0095).
_LANES, _FMA_DOUBLE, _FMA_SHORT = 128, (1.4, 2.8), 5


# Times as long as factors of 4 take with columns to their right: three with 4096 720 us for 256 rows, not 340 (H200).
_FOUR, _FOURS = 4, 2.2


def fma_seconds(plan: FmaPlan, tiles: int, moved: float, limits: DeviceLimits) -> float:
    """Return a pass of additions over so many tiles that moves so many bytes."""
    used, threads = plan.instructions, plan.threads
    fits = (
        limits.shared_per_sm // (plan.shared + RESERVED_SHARED), limits.threads_per_sm // threads,
        limits.registers_per_sm // (plan.registers * threads),
    )  # fmt: skip
    rounds = -(-tiles // (max(1, min(fits)) * limits.sm_count))
    is_even = plan.right == 1 and all(extent & (extent - 1) == 0 for extent in plan.extents)
    slots = used.factors * _FMA_FACTOR + used.staged * _FMA_STAGED + used.direct * _FMA_DIRECT[is_even]
    is_slow = plan.right > 1 and all(extent == _FOUR for extent in plan.extents)
    cycles = rounds * used.chain * _FMA_CHAIN + -(-tiles // limits.sm_count) * slots / _LANES
    work = cycles / CLOCK * (_FMA_DOUBLE[max(plan.extents) > _FMA_SHORT] if plan.compute == "f64" else 1.0)
    work *= _FOURS if is_slow else 1.0
    return _FMA_LAUNCH + rounds * len(plan.phases) * _FMA_ROUND + moved / (_FMA_MEMORY * memory_of(limits)) + work
