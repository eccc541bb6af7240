"""Predicted time of a pass of a Kronecker product on a GPU: a roofline of its bytes and of the work of its kernel.

Fitted on one H200 to 80 passes of random shapes by each kernel that takes them, within 10 to 30 % (root mean square;
decision 0043); float64 on one H100 to passes of decision 0028.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from .axis_plan import COLUMNS as PIECE_COLUMNS
from .axis_plan import ROWS as PIECE_ROWS
from .axis_plan import blocks_of, fibers_of, packed_of, pieces_of
from .mma_choice import is_small, preparing_cycles, waiting_cycles
from .mma_plan import LANES, STATIC_BYTES, MmaPlan
from .modes import Mode
from .passes import Pass
from .two_axis_plan import WHOLE, TwoAxisPlan, fills_fragments, tile_cycles, tile_latency

# Seconds of a kernel beside what it does.
LAUNCH = 4e-6
# Seconds of a small kernel behind others, and of multiplying out a factor with the one before.
SMALL, _JOINT = 2.5e-6, 4.4e-6
# Seconds that count of the host's: a tenth of what it takes to start a kernel of ours, a product of the vendor's
# through torch, and what multiplies a factor out (10, 30 and 25 us; decisions 0023 and 0030): of two plans that take
# the GPU as long that with the fewest launches is taken.
HOST_OWN, HOST_VENDOR, HOST_JOINT = 1e-6, 3e-6, 2.5e-6
# Times as much it is in an eager call that waits for the host, and seconds of such a call beside its launches.
HOST_WHOLE, HOST_CALL = 10.0, 20e-6
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
CLOCK = 1.7e9
ACCESS = 16
# Times as long as estimated that passes over halves take with fewer columns to their right, which fill 16 with zeros.
_SPARSE, _LEAST_RUN = 2.5, 8
# Cycles more to store 16 x 16 results of several factors of halves, and where they are so many times what is read and
# leave two bytes at a time from rows of more than _LONG_ROW: 12 x 46 beside 5 x 205 take 92 us, one by one 57 (H200).
_STORED, _STORED_ALONE, _LONG_ROW, _GROWN = 50, 320, 64, 16
# Of memory and work, the share of the shorter one that a pass on tensor cores, and a product of the vendor's, does not
# hide.
_PASS_OVERLAP, _VENDOR_OVERLAP = 0.2, 0.4
# Seconds to multiply factors out in a pass over halves.
_JOINED = 2.1e-6
# Times as long as estimated that passes of float32 take whose axes are multiples of 64, or two of 60, and additions of
# up to three factors whose extents are powers of two: 64 x 64 three times take 1.25 ms for 268 million numbers, 8 x 8
# six times by additions 2.0 (H200).
_WHOLE, _THREE, _THREE_RUN = 0.65, 1.5, 512
# Seconds to prepare an entry of a factor for wgmma, of a product of several for each; times the speed of memory that
# passes reach, and those over two factors of 128 of float32 (64^3: 560 and 567 us, 128^3: 1941 and 1469, H200).
_PREPARED, _WGMMA_MEMORY, _WGMMA_WIDE = 1.05e-9, 1.05, 0.8
# Times the speed of memory that passes over whole rows reach, by rows of a factor and bytes of a number (16^4: 173 and
# 79 us, 32^3: 92 and 42, 64^3: 806 and 325, H200).
_CLUSTER_MEMORY = {(16, 4): 0.88, (16, 2): 0.97, (32, 4): 0.95, (32, 2): 0.95, (64, 4): 0.76, (64, 2): 0.92}
# The same of passes over one factor, and seconds of a piece of x on one multiprocessor, of halves or not: at least, for
# 8192 numbers of factors of up to so many rows and columns, by loads of 16, 8, 4 and, of halves, 2
# bytes; at least where each column of float32 has its own power of two; to prepare an entry of a factor; times as long
# where tiles have columns of several entries of up to so many (H200, 45 passes within 11 %, root mean square;
# decisions 0096 and 0105).
_AXIS_MEMORY, _AXIS_NUMBERS, _AXIS_ALONE = 1.05, 8192, 1.2e-6
_AXIS_PREPARED, _AXIS_PACKED = {2: 0.2e-9, 4: 0.8e-9}, {2: (1.6, 16), 4: (1.18, 128)}
_AXIS_LEAST = 0.7e-6
_AXIS_PIECE = {
    False: {64: (2.15e-6, 2.7e-6, 2.8e-6), 128: (2.4e-6, 2.95e-6, 3.8e-6), 256: (2.65e-6, 3.1e-6, 3.25e-6)},
    True: {
        64: (1.1e-6, 1.3e-6, 1.8e-6, 4.5e-6), 128: (1.2e-6, 1.3e-6, 1.45e-6, 2.1e-6),
        256: (1.2e-6, 1.35e-6, 1.5e-6, 1.9e-6),
    },
}  # fmt: skip
# Times as long as estimated that additions of one factor that is a power of two take, of halves or with nothing to its
# right (4 x 4: 76 us instead of 39), of several factors of 4 with something to their right, and passes of
# halves over two axes, and over three, that are multiples of 32: 4 x 4 nine times took 4.21 ms in passes of additions,
# 32 x 32 four times of bfloat16 3.04 in three and one, in two and two 2.34 (H200).
_ALONE, _FOURS, _FOUR, _TWO_AXES, _THREE_AXES, _AXIS = 1.8, 5.0, 4, 0.7, 1.03, 32
_TWO_AXIS_PREPARED = 0.87e-9  # seconds to prepare an entry of a factor for passes over two axes
# Rows and columns of the largest matrix of all factors of float32.
_WIDEST_JOINT = 2048
# Entries of wider ones of halves. Of two, 60 x 9430 takes 70 us where its factors take 95, 63 x 23085 21 and 13 (H200).
_MOST_JOINT = 1 << 20
_COPIED = 0.3  # share of the memory's speed of copies in other orders
_MOST_RIGHT = 64  # entries behind an axis up to which it may be brought into rows
_MEMORY = 4.8e12  # bytes a second by which that is decided (H200)
_LEAST_COLUMNS = 2.1  # columns; products of halves whose rows are not aligned are as much slower where there are fewer
_ODD = 1.4  # times as long again as products of halves take whose rows are odd
# Share of the estimate that batched products of halves take with factors of so many rows and columns and so many to the
# right (216 x 216 beside 3168: some 150 us where 270 were expected, H200, decision 0105).
_LARGE, _MANY_COLUMNS, _LARGE_SHARE = 192, 1024, 0.5
_NARROW_COLUMNS = 40  # columns to which products of float32 round up where there are few
_WAITING = 1.5  # times as long as estimated that warps wait which share few tiles of halves with unaligned rows
# Longest axes that registers hold well in float64, and the share of the additions of longer ones: 16 and 31 (H200).
_WIDEST_DOUBLE, _WIDER_DOUBLE = 12, 0.22
_ACROSS = 32  # neighbours behind a run that one block of additions takes at least


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
    """Cycles of a warp for 16 x 16 entries: to read and split them, of one product of 16 x 16 x 16, and to store them.

    ``unit`` are cycles beside those for each set of lines, ``latency`` those of each step of a warp that waits for it,
    ``entry`` seconds to prepare one entry of a factor. All takes ``joint`` times as long where the warps of a block
    share a tile, and memory ``unaligned`` times where runs are no whole vectors.
    """

    memory: float
    read: float
    product: float
    store: float
    unit: float
    entry: float
    joint: float
    latency: float
    unaligned: float


MMA = {
    "f32": MmaRates(0.9, 33.6, 20.3, 119.0, 53.0, 1.5e-9, 1.09, 27.6, 1.15),
    "f16": MmaRates(0.8, 13.8, 22.6, 24.8, 48.0, 0.87e-9, 1.05, 10.8, 1.3),
    "f64": MmaRates(0.85, 20.0, 80.0, 60.0, 53.0, 1.5e-9, 1.0, 27.6, 1.8),
}


def _storing(plan: MmaPlan) -> int:
    """Return the cycles more that 16 x 16 results of several factors of halves take."""
    is_long = plan.run.rows > _GROWN * plan.run.columns and plan.run.modes[-1].rows > _LONG_ROW
    return _STORED_ALONE if is_long and plan.layout.out_width == plan.phases[-1].together == 1 else _STORED


def mma_seconds(
    plan: MmaPlan, tiles: int, moved: float, run: int, limits: DeviceLimits, joined_factors: int = 1
) -> float:
    """Return a pass on tensor cores over so many tiles that moves so many bytes, in runs of ``run`` numbers.

    Up to ``joined_factors`` neighbours are multiplied out as one.
    """
    rates = MMA["f64" if plan.stored == "f64" else "f32" if plan.tensor.products > 1 else "f16"]
    cycles, steps, entries = 0.0, 0.0, 0
    stores = SIZES[plan.stored] == 2 and len(plan.phases) > 1
    for number, phase in enumerate(plan.phases):
        deep, wide = -(-phase.mode.columns // LANES), -(-phase.mode.rows // LANES)
        blocks, products = phase.units * phase.tiles, deep * wide * plan.tensor.products
        cycles += blocks * (deep * rates.read + products * rates.product + wide * rates.store)
        cycles += phase.units * rates.unit
        steps += blocks * (deep + products + wide)
        entries += deep * wide * LANES * LANES
        if stores and number + 1 == len(plan.phases):
            cycles += blocks * wide * _storing(plan)
    fits = limits.shared_per_sm // (plan.shared + STATIC_BYTES + RESERVED_SHARED), limits.threads_per_sm // plan.threads
    at_once = max(1, min(fits)) * (plan.warps // plan.group)
    waves, busy = -(-tiles // (at_once * limits.sm_count)), min(at_once, -(-tiles // limits.sm_count))
    work = waves * busy * cycles / (4 * CLOCK) * (rates.joint if plan.group > 1 else 1.0)
    work = max(work, waves * steps / plan.group * rates.latency / CLOCK)
    memory = moved / (rates.memory * memory_of(limits))
    size = SIZES[plan.stored]
    memory *= rates.unaligned if _unaligned(run, size) else 1.0
    joined = _JOINED * (size == 2 and joined_factors > 1)
    together = _together(memory, work, _PASS_OVERLAP) * (
        _SPARSE if size == 2 and plan.right > 1 and run < _LEAST_RUN else 1.0
    )
    sides = [side for mode in plan.run.modes for side in (mode.columns, mode.rows)]
    is_whole = all(map(fills_fragments, sides)) if len(plan.phases) == 2 else not any(side % WHOLE for side in sides)
    if size == 4 and joined_factors <= 2 and is_whole:
        together *= _WHOLE
    if size == 2 and len(plan.phases) > 1 and not any(side % _AXIS for side in sides):
        together *= _TWO_AXES if len(plan.phases) == 2 else _THREE_AXES
    seconds = entries * rates.entry + joined + together
    if size == 2 and is_small(plan, tiles, limits.sm_count):
        waiting = preparing_cycles(plan) + waiting_cycles(plan, tiles, limits.sm_count)
        seconds = max(seconds, waiting / CLOCK * (_WAITING if _unaligned(run, size) else 1.0))
    return LAUNCH + seconds


def wgmma_seconds(run: Pass, moved: float, stored: str, limits: DeviceLimits) -> float:
    """Return a pass by wgmma that moves so many bytes."""
    size = run.modes[0].columns
    is_wide = stored == "f32" and len(run.modes) == 2 and size > WHOLE
    prepared = _PREPARED * size**2 * sum(map(len, run.parts))
    return LAUNCH + prepared + moved / ((_WGMMA_WIDE if is_wide else _WGMMA_MEMORY) * memory_of(limits))


def cluster_seconds(run: Pass, moved: float, stored: str, limits: DeviceLimits) -> float:
    """Return a pass by clusters that moves so many bytes."""
    size = run.modes[0].columns
    prepared = _PREPARED * size**2 * sum(map(len, run.parts))
    return LAUNCH + prepared + moved / (_CLUSTER_MEMORY[size, SIZES[stored]] * memory_of(limits))


def axis_seconds(run: Pass, entries: int, right: int, stored: str, limits: DeviceLimits) -> float:
    """Return a pass over one factor by wgmma on so many entries of its batch, with so much to its right."""
    mode, size = run.modes[0], SIZES[stored]
    moved = size * float(entries) * right * (mode.columns + mode.rows)
    prepared = _AXIS_PREPARED[size] * mode.columns * mode.rows * len(run.parts[0])
    vector = math.gcd(right, ACCESS // size)
    rounds = -(-pieces_of(mode, entries, right, stored) // limits.sm_count)
    chunks = -(-mode.columns // PIECE_COLUMNS)
    longest = mode.columns / chunks
    if size == 4:  # results take as long
        longest = max(longest, mode.rows / -(-mode.rows // PIECE_ROWS) / chunks)
    numbers = fibers_of(mode, blocks_of(mode, right, stored)) * longest
    rates = _AXIS_PIECE[size == 2]
    whole = next(own for most, own in rates.items() if max(mode.columns, mode.rows) <= most)
    least = _AXIS_LEAST
    own, (packed, most) = whole[(ACCESS // size // vector).bit_length() - 1], _AXIS_PACKED[size]
    if packed_of(right, fibers_of(mode, blocks_of(mode, right, stored))):
        least = _AXIS_ALONE if size == 4 else least
        own *= packed if right <= most and (chunks == 1 or size == 2) else 1.0
    piece = max(least, own * numbers / _AXIS_NUMBERS)
    return LAUNCH + prepared + max(moved / (_AXIS_MEMORY * memory_of(limits)), rounds * piece)


def two_axis_seconds(plan: TwoAxisPlan, entries: int, limits: DeviceLimits) -> float:
    """Return a pass over the last two axes whose first product stays in registers."""
    prepared = _TWO_AXIS_PREPARED * sum(mode.columns * mode.rows for mode in plan.run.modes)
    prepared += _JOINED * (max(map(len, plan.run.parts)) > 1)
    tiles = plan.count(entries, 1)
    shared = -(-tiles // limits.sm_count) * tile_cycles(plan)
    alone = -(-tiles // (plan.groups * limits.sm_count)) * tile_latency(plan)
    return LAUNCH + prepared + max(shared, alone) / CLOCK


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
    "f32": (VendorRates(3e-6, 0.67, 2.69e13, 37, 71, 13, 1.0), VendorRates(3e-6, 0.49, 2.61e13, 22, 77, 27, 1.0)),
    "f16": (
        VendorRates(3.2e-6, 1.15, 2.97e14, 27, 63, 1, 1.54, 237),
        VendorRates(3.5e-6, 0.82, 1.83e14, 123, 47, 1, 2.5, 11),
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


def matmul_seconds(mode: Mode, count: int, right: int, stored: str, limits: DeviceLimits) -> float:
    """Return one factor by the vendor's product on ``count`` matrices of its columns x ``right``."""
    by_rows = goes_by_rows(mode, count, right, stored)
    return (_rows_seconds if by_rows else _direct_seconds)(mode, count, right, stored, memory_of(limits))


def _rows_seconds(mode: Mode, count: int, right: int, stored: str, memory_rate: float) -> float:
    """Return the same between copies in another order."""
    copied = 2.0 * SIZES[stored] * count * right * (mode.columns + mode.rows) / (_COPIED * memory_rate)
    return 2 * LAUNCH + copied + _direct_seconds(mode, count * right, 1, stored, memory_rate)


# Seconds that the vendor's product waits for each position of the reduced axis: of float32, of halves whose runs are
# odd, and of others; multiplications a second of many positions of halves whose runs are no whole vectors, or odd
# (H200, 149 products, decision 0113).
_VENDOR_WAITING, _UNALIGNED_PRODUCTS, _ODD_PRODUCTS = {4: 1.5e-8, 2: 1.8e-8, 1: 5e-9}, 7e13, 5e13


def _direct_seconds(mode: Mode, count: int, right: int, stored: str, memory_rate: float) -> float:
    """Return the same of matrices as they lie."""
    size = SIZES[stored]
    rates = VENDOR["f16" if size == 2 else stored][right > 1]
    memory = size * float(count) * right * (mode.columns + mode.rows) / (rates.memory * memory_rate)
    tall, wide = (count, mode.rows) if right == 1 else (mode.rows, right)
    width = min(rates.wide, _NARROW_COLUMNS) if size == 4 and 1 < right <= _MOST_RIGHT else rates.wide
    padded = -(-tall // rates.high) * rates.high * float(-(-wide // width) * width)
    work = (1 if right == 1 else count) * padded * (rates.start + max(mode.columns, rates.deep)) / rates.products
    runs = (mode.columns, mode.rows) if right == 1 else (right, mode.columns)
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
    is_small = SIZES[stored] == 2 and whole.columns * whole.rows <= _MOST_JOINT
    if max(whole.columns, whole.rows) > _WIDEST_JOINT and not is_small:
        return math.inf, None
    moved = 2 * SIZES[stored] * whole.columns * whole.rows
    made = (len(plain.modes) - 1) * (_JOINT + host * HOST_JOINT) + moved / memory_of(limits)
    parts = (tuple(range(plain.first, plain.stop)),)
    seconds = host * HOST_VENDOR + made + matmul_seconds(whole, before, trailing, stored, limits)
    return seconds, replace(plain, kind="matmul", modes=(whole,), parts=parts)


@dataclass(frozen=True)
class FmaRates:
    """A pass of additions: share of the memory's speed and of the additions, additions beside those of an entry.

    Where runs are no multiples of four numbers, additions take ``unaligned`` times as long, and more where they give
    more numbers than they take; ``several`` times those of three square factors and more with nothing after them, of
    two half as much less, and of two and more with something. ``even`` are share and overlap where all extents are
    powers of two up to 8.
    """

    memory: float
    share: float
    entry: float
    overlap: float
    unaligned: float
    several: tuple[float, float]
    even: tuple[float, float]


FMA = {
    "f32": FmaRates(1.25, 0.42, 3.3, 2.1, 2.8, (0.6, 1.0), (0.67, 0.3)),
    "f16": FmaRates(0.87, 0.44, 5.3, 2.1, 3.3, (0.58, 1.2), (0.25, 0.3)),
    "f64": FmaRates(1.2, 0.32, 3.8, 0.5, 1.0, (1.0, 1.0), (0.1, 0.3)),
}  # fmt: skip


# Shares of the estimate that additions of a whole product take whose square factors are many of one size: float32 of
# sizes that are no powers of two (7 products of 5 to 9 factors of 3, 5, 6 and 7 took 0.29 to 0.85 of it), and float64
# of size 4 (5 products of 4 to 7 factors, 0.26 to 0.43; H200, decision 0095).
_MANY_ODD, _ODD_SHARE, _MANY_FOURS, _FOURS_SHARE = 4, 0.5, 4, 0.3


# The same of halves with factors of up to so many rows and something to their right (3 x 3 and 2 x 2 take 52 us where
# 168 were expected, H200, decision 0105).
_TINY, _TINY_SHARE = 3, 0.4


def alike_share(modes: Sequence[Mode], right: int, stored: str) -> float:
    """Return what of their estimate additions take that apply all factors of a product in one pass."""
    sizes = {side for mode in modes for side in (mode.columns, mode.rows)}
    if len(sizes) > 1 or right > 1 or any(mode.factor is None for mode in modes):
        return 1.0
    size = sizes.pop()
    if stored == "f64" and size == _FOUR and len(modes) >= _MANY_FOURS:
        return _FOURS_SHARE
    return _ODD_SHARE if stored == "f32" and size & (size - 1) and len(modes) >= _MANY_ODD else 1.0


def fma_seconds(modes: Sequence[Mode], count: int, right: int, stored: str, limits: DeviceLimits) -> float:
    """Return a pass of additions over ``count`` arrays of the extents of its modes by ``right``."""
    rates = FMA["f16" if SIZES[stored] == 2 else stored]
    before, after = math.prod(mode.columns for mode in modes), math.prod(mode.rows for mode in modes)
    entries, work, run = float(before), 0.0, right if right > 1 else math.gcd(before, after)
    for mode in modes:
        if mode.factor is not None:
            work += entries * (mode.rows + rates.entry * max(1.0, mode.rows / mode.columns))
            entries = entries / mode.columns * mode.rows
    vectors = float(count) * right
    memory = (before + after) * vectors * SIZES[stored] / (rates.memory * memory_of(limits))
    even = run % 4 == 0 and all(mode.columns == mode.rows in (1, 2, 4, 8) for mode in modes)
    share, overlap = rates.even if even else (rates.share, rates.overlap)
    if stored == "f64" and max(max(mode.columns, mode.rows) for mode in modes) > _WIDEST_DOUBLE:
        share *= _WIDER_DOUBLE
    work *= vectors / (128 * CLOCK * min(limits.sm_count, count * math.ceil(right / _ACROSS)) * share)
    work *= rates.unaligned * math.sqrt(max(1.0, after / before)) if run % 4 else 1.0
    if SIZES[stored] == 2 and right > 1 and run % 4 == 0 and all(mode.columns == mode.rows <= _TINY for mode in modes):
        work *= _TINY_SHARE
    factors = sum(mode.factor is not None for mode in modes)
    if stored == "f32" and even and 1 < factors <= 3 and before >= _THREE_RUN:
        return LAUNCH + _THREE * _together(memory, work, overlap)
    if stored == "f32" and right > 1 and factors > 1 and all(mode.columns == mode.rows == _FOUR for mode in modes):
        return LAUNCH + _FOURS * _together(memory, work, overlap)
    if even and factors == 1 and (right == 1 or SIZES[stored] == 2):
        return LAUNCH + _ALONE * _together(memory, work, overlap)
    if factors > 1 and not even and all(mode.columns == mode.rows for mode in modes):
        own = rates.several[right > 1]
        work *= own if factors > 2 or right > 1 else (1 + own) / 2
    return LAUNCH + _together(memory, work, overlap)
