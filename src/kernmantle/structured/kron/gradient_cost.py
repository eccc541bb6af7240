"""Predicted times of the steps of gradients of a Kronecker product on a GPU: partial products, and sums.

Fitted on one H200 (decisions 0043 and 0048).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .back_axis_plan import BackAxisPlan, back_axis, back_axis_seconds
from .back_registers_plan import BackRegistersPlan, back_registers, back_registers_seconds
from .back_wgmma_plan import BackWgmmaPlan, back_wgmma, back_wgmma_seconds
from .chain_gradient_plan import ChainPlan, chain
from .chain_gradient_plan import seconds as chain_seconds
from .cost import LAUNCH, SIZES, SMALL
from .cuda_plan import plan
from .factor_gradient_plan import CAPACITY, MOST_APPLIED, WARPS, GramPlan, RegisterGramPlan, Size, gram
from .modes import Mode, columns, parse, rows
from .separation import separating_seconds
from .tensor_plan import Tensor, takes_wgmma

PassPlan = ChainPlan | BackWgmmaPlan | BackAxisPlan | BackRegistersPlan
# Types of arrays whose steps have a price.
PRICED = ("f16", "bf16", "f32", "f64")
_JOINT_ENTRIES = 2048 * 2048


@dataclass(frozen=True)
class GpuPrice:
    """Seconds of steps for ``items`` arrays with ``columns`` behind their last axis.

    ``shapes`` are those of the factors; ``tensor``: how tensor cores multiply.
    """

    shapes: tuple[tuple[int, int], ...]
    items: int
    columns: int
    stored: str
    limits: DeviceLimits
    tensor: Tensor | None
    fuse: bool

    def may_join(self, group: Sequence[Mode]) -> bool:
        """Return whether neighbouring factors may share one gradient, which is in float32 where they are halves."""
        return rows(group) * columns(group) <= _JOINT_ENTRIES

    def product(self, text: str, is_adjoint: bool) -> float:
        """Return the seconds of the product of a text."""
        shapes = tuple((p, q) for q, p in self.shapes) if is_adjoint else self.shapes
        modes = parse(text, shapes)
        found = plan(modes, self.columns, self.stored, self.limits, self.fuse, self._tensor(modes), self.items)
        return found.seconds

    def _tensor(self, modes: Sequence[Mode]) -> Tensor | None:
        """Return how tensor cores multiply in a partial product, whose arrays lie in one piece."""
        whole = 16 // SIZES[self.stored]
        return self._tensors[rows(modes) % whole == 0 and columns(modes) % whole == 0]

    @cached_property
    def _tensors(self) -> tuple[Tensor | None, Tensor | None]:
        """How tensor cores multiply arrays whose rows are no whole vectors of 16 bytes, and those whose rows are."""
        if self.tensor is None or not takes_wgmma(self.tensor, self.stored, self.columns, self.limits.arch):
            return self.tensor, self.tensor
        odd = replace(self.tensor, has_wgmma=True, is_aligned=False)
        return odd, replace(odd, is_aligned=True)

    def sum(self, group: Sequence[Mode], left: int, right: int) -> float:
        """Return the seconds of the gradients of neighbouring factors."""
        size = rows(group), columns(group)
        methods = sum_seconds(
            size, left * self.items, right * self.columns, self.stored, self.limits, self.tensor is not None,
            len(group) > 1,
        )  # fmt: skip
        return min(methods.values()) + self._separating(group)

    def applying_sum(self, group: Sequence[Mode], left: int, right: int) -> float:
        """Return the seconds of the same by a kernel that applies the factors too."""
        size, factors = (rows(group), columns(group)), tuple([(mode.rows, mode.columns) for mode in group])
        if self.tensor is None or len(group) > MOST_APPLIED:
            return math.inf
        own = left * self.items, right * self.columns
        return applying_seconds(size, *own, self.stored, self.limits, factors) + self._separating(group)

    def passing(self, group: Sequence[Mode], left: int, right: int) -> float:
        """Return the seconds of one pass that applies the factors and finds the gradient of each."""
        if self.tensor is None or self.stored == "f64":
            return math.inf
        sizes = tuple([(mode.rows, mode.columns) for mode in group])
        return pass_over(sizes, (self.items, left, right, self.columns), self.stored, self.limits)[1]

    def _separating(self, group: Sequence[Mode]) -> float:
        return separating_seconds([(mode.rows, mode.columns) for mode in group], self.stored, self.limits)


@lru_cache(maxsize=16384)
def pass_over(
    sizes: tuple[Size, ...], call: tuple[int, int, int, int], stored: str, limits: DeviceLimits
) -> tuple[PassPlan | None, float]:
    """Return the quickest pass over neighbouring factors, and its seconds; None and infinity without one.

    ``call``: arrays, entries of each before the factors and behind, and columns.
    """
    arrays, before, after, columns = call
    items, right = arrays * before, after * columns
    found: list[tuple[float, PassPlan]] = []
    row = chain(sizes, items, right, stored, limits)
    if row is not None:
        found.append((chain_seconds(row, items, right, limits), row))
    tile = back_wgmma(sizes, before, stored, limits) if right == 1 else None
    if tile is not None:
        found.append((back_wgmma_seconds(tile, items, limits), tile))
    # A tile, or a matrix, which has one power of two, must not have entries of several rows of x.
    axis = back_axis(sizes, right, stored, limits) if columns == 1 else None
    if axis is not None:
        found.append((back_axis_seconds(axis, items, right, limits), axis))
    short = back_registers(sizes, (arrays, before, right), stored, limits) if columns == 1 else None
    if short is not None:
        found.append((back_registers_seconds(short, items, right, limits), short))
    time, plan = min(found, key=lambda own: own[0], default=(math.inf, None))
    return plan, time


@lru_cache(maxsize=16384)
def applying_seconds(
    size: tuple[int, int], count: int, right: int, stored: str, limits: DeviceLimits, factors: tuple[Size, ...]
) -> float:
    """Return the seconds of the same sum by the kernel that applies the factor too; infinity where there is none."""
    q, p = size
    chosen = gram(q, p, right, stored, True, limits.arch, factors)
    if chosen is None or chosen.chunks(count, right) < 2:
        return math.inf
    written = float(SIZES[stored]) * count * right * p / _MEMORY
    if isinstance(chosen, RegisterGramPlan):
        slower = 1.0 if max(chosen.vec, chosen.vec_u) > 1 and chosen.blocks > 1 else _APPLIED_SINGLE
        return _kernel_seconds(chosen, count, right, limits) + slower * _APPLIED * written
    base, of_capacity, single = _APPLYING[SIZES[stored]]
    down, across = chosen.capacities
    is_single = min(chosen.vec_v, chosen.vec_u) * SIZES[stored] < 8
    padding = max(down / q, across / p)
    slower = (base + of_capacity * max(down, across)) * (single if is_single else 1.0)
    return _kernel_seconds(chosen, count, right, limits) + padding * slower * written


@lru_cache(maxsize=16384)
def sum_seconds(
    size: tuple[int, int], count: int, right: int, stored: str, limits: DeviceLimits, has_kernel: bool,
    is_wide: bool = False,
) -> Mapping[str, float]:  # fmt: skip
    """Return the seconds of v[l, q, r] u[l, p, r] summed over ``count`` l and ``right`` r, by each method.

    By our "kernel", that kernel over "two rows" at a time, one product of rows as they lie ("mm"), or of several rows
    as one ("mm of rows"), "batched" products that are added up, or one product of arrays that are brought into "rows".
    Sums of halves are in float32 where they are ``is_wide``.
    """
    q, p = size
    moved = float(SIZES[stored]) * count * right * (q + p) / _MEMORY
    found: dict[str, float] = {}
    chosen = gram(q, p, right, stored, True, limits.arch) if has_kernel else None
    if chosen is not None:
        found["kernel"] = _kernel_seconds(chosen, count, right, limits)
    rate, half = VENDOR_RATES[stored], SIZES[stored] == 2
    doubled = over_two_rows(size, count, right, stored, limits) if has_kernel else None
    if doubled is not None:
        found["two rows"] = 2 * LAUNCH + _kernel_seconds(doubled, count // 2, 1, limits)
    if right == 1 or count == 1:
        found["mm"] = _mm_seconds(size, count * right, stored)
        together = rows_together(size, count, right, stored) if has_kernel else 1
        if together > 1:
            joint = together * q, together * p
            found["mm of rows"] = 2 * SMALL + _mm_seconds(joint, count // together, stored)
        return found
    parts = 2.0 * (SIZES["f32"] if is_wide else SIZES[stored]) * count * q * p / _MEMORY
    deep, slower = max(right, _DEEP), _ODD if half and right % 8 else _ODD_ROWS if half and (q % 2 or p % 2) else _EVEN
    area = _padded(q) * float(_padded(p))
    if half and is_wide:
        area, rate, slower = _tiled(q) * float(_tiled(p)), _WIDE_RATE, _ODD_WIDE if right % 2 else _EVEN
    found["batched"] = _BATCHED_START + slower * (moved + parts + count * area * deep / rate)
    copies = 2 * LAUNCH + 2 * moved / (_COPIED[right > _SHORT] * (_THIN if min(size) < _THINNEST else 1.0))
    found["rows"] = copies + _mm_seconds(size, count * right, stored)
    return found


def rows_together(size: tuple[int, int], count: int, right: int, stored: str) -> int:
    """Return how many rows of halves, which are no whole vectors, the vendor's product takes as one that is; or 1.

    In the sum over all of them together theirs are the blocks of the diagonal.
    """
    if SIZES[stored] != 2 or right > 1:
        return 1
    sides = [math.gcd(side, _VECTOR) for side in size]
    whole = next((own for own in (2, 4) if min(sides) < _VECTOR == own * min(sides) and count % own == 0), 1)
    return whole if whole * max(size) <= _WIDEST_TOGETHER else 1


def over_two_rows(
    size: tuple[int, int], count: int, right: int, stored: str, limits: DeviceLimits
) -> GramPlan | RegisterGramPlan | None:
    """Return the plan of a sum over two rows at a time, where one of an odd number of halves begins within a word.

    Both are a row of twice the length, in whose sum theirs are the blocks of the diagonal; None where that is no way.
    """
    if SIZES[stored] != 2 or right > 1 or count % 2 or all(side % 2 == 0 for side in size):
        return None
    found = gram(2 * size[0], 2 * size[1], 1, stored, True, limits.arch)
    return None if found is None or found.chunks(count // 2, 1) < 2 else found


# Times as long as memory takes for its results that a kernel takes more which applies a factor to what it sums: that of
# additions, and where it moves single numbers or has one block; those on tensor cores, more for each row that a tile
# has room for, and times as long where copies are of fewer than 8 bytes (60 sums on one H200).
_APPLIED, _APPLIED_SINGLE = 1.4, 1.6
_APPLYING = {2: (1.45, 0.0, 1.6), 4: (0.75, 0.031, 1.15)}
# Bytes a second of one H200; multiplications of the vendor's sums a second; fewest positions of one of its products.
_MEMORY = 4.8e12
VENDOR_RATES = {"f16": 3e14, "bf16": 3e14, "f32": 2.3e13, "f64": 2e13}
_DEEP = 32
# Seconds to begin with batched products, and times as long as estimated that they take; those of halves whose runs are
# no whole vectors, whose results have odd rows, and whose results are in float32 with odd runs.
_BATCHED_START, _EVEN, _ODD, _ODD_ROWS, _ODD_WIDE = 8e-6, 1.2, 8.0, 4.4, 2.0
# Copies' share of the memory's speed where up to _SHORT entries lie after an axis, and where more do; _THIN of it with
# fewer than _THINNEST rows.
_COPIED, _SHORT, _THIN, _THINNEST = (0.4, 0.22), 20, 0.35, 6
# Seconds more, and times as long as their bytes take, that products of halves take whose rows are no whole vectors,
# and those of an odd number of halves; times as long to multiply, by the rows and columns of
# their tiles (H200, 6 sums within 10 %, decision 0119); multiplications a second of batched ones whose results are in
# float32.
_UNALIGNED, _UNALIGNED_BYTES, _ODD_START, _ODD_BYTES = 4e-6, 1.4, 2e-5, 1.67
_SLOWER, _ODD_SLOWER, _WIDE_RATE = {64: 5.0, 128: 2.6, 256: 2.35}, {64: 6.4, 128: 2.65, 256: 3.3}, 7.5e13


# Halves of a vector; most rows or columns of the sum over several of them: of 600 x 600 it takes longer (H200, decision
# 0119).
_VECTOR, _WIDEST_TOGETHER = 8, 256
# Of one product: share of the memory's speed, seconds to begin, of a position of its sum, and of a long one at most.
_READ, _START, _POSITION, _LONGEST_SUM = 0.85, 5e-6, 2.5e-10, 7e-6


def _padded(extent: int) -> int:
    """Return the extent of tiles of the vendor's."""
    return -(-extent // 32) * 32


def _tiled(extent: int) -> int:
    """Return the extent of their larger tiles of halves."""
    return 64 if extent <= 64 else -(-extent // 128) * 128


def _mm_seconds(size: tuple[int, int], positions: int, stored: str) -> float:
    """Return one product of the vendor's with a sum over so many positions, which is shared where it is long."""
    q, p = size
    memory = float(SIZES[stored]) * positions * (q + p) / (_READ * _MEMORY)
    is_half = SIZES[stored] == 2
    high, wide = (_tiled(side) if is_half and side > 64 else max(64, _padded(side)) for side in size)
    work = float(positions) * high * wide / VENDOR_RATES[stored]
    is_unaligned = is_half and (q % 8 != 0 or p % 8 != 0)
    is_odd = is_half and (q % 2 != 0 or p % 2 != 0)
    memory *= _ODD_BYTES if is_odd else _UNALIGNED_BYTES if is_unaligned else 1.0
    work *= (_ODD_SLOWER if is_odd else _SLOWER)[min(256, _tiled(max(size)))] if is_unaligned else 1.0
    start = _START + (_ODD_START if is_odd else _UNALIGNED * is_unaligned)
    return start + min(_LONGEST_SUM, positions * _POSITION) + max(memory, work)


@dataclass(frozen=True)
class _KernelRates:
    """Seconds of a multiprocessor for a stage, and each of its copies, numbers set apart or stored alone, and products.

    ``start`` are those of the kernel, ``added`` of that which adds shares, ``moved`` times those that its bytes take.
    """

    start: float
    added: float
    stage: float
    copy: float
    apart: float
    single: float
    product: float
    moved: float


# Seconds of a multiprocessor to set one number of float32 apart in shared memory.
_MOVED_APART = 8.5e-11
# Times as long as products of float32 take where the only block of a multiprocessor has fewer threads, whose warps have
# tiles of so many columns in 8s, and more.
_ALONE, _THREADS, _SHORT_TILES = (2.2, 1.3), 512, 4
# Share of the time of products of halves, by whole vectors, that they take in blocks of more than WARPS warps, and in
# tiles of more than 128 x 128 or in several (H200, decisions 0119 and 0124).
_MANY_WARPS, _WIDE_TILES = 0.7, 0.85
# Additions a second of sums that threads keep, and times as long as memory's speed says that what they read takes.
_ADDITIONS, _REGISTER_READS = 1.7e13, 1.25
# Fitted to 54 random sums on one H200, within 14 % (root mean square; decision 0043);
# those of float32 to 29 sums.
_KERNEL = {
    2: _KernelRates(3.4e-6, 2.6e-6, 0.1e-6, 2.27e-11, 2.34e-10, 2.5e-11, 9.5e-13, 0.53),
    4: _KernelRates(3.5e-6, 2.7e-6, 0.15e-6, 6.0e-11, 3.0e-10, 0.0, 2.0e-12, 0.55),
}


def _kernel_seconds(chosen: GramPlan | RegisterGramPlan, count: int, right: int, limits: DeviceLimits) -> float:
    """Return our kernel's sum: what the stages of a multiprocessor take one after the other."""
    rates = _KERNEL[SIZES[chosen.stored]]
    if isinstance(chosen, RegisterGramPlan):
        moved = float(SIZES[chosen.stored]) * count * right * (chosen.rows + chosen.columns) / _MEMORY
        added = float(count) * right * chosen.rows * chosen.columns / _ADDITIONS
        return rates.start + rates.added + max(_REGISTER_READS * moved, added)
    down, across = chosen.capacities
    shares = chosen.shares(count, right, chosen.blocks * limits.sm_count)
    stages = -(-chosen.chunks(count, right) // shares) * -(-shares * chosen.tiles // limits.sm_count)
    if chosen.order == "flat":
        down, across = min(down, chosen.rows), min(across, chosen.columns)
    positions = chosen.deep // chosen.right * chosen.right
    copies = positions * (down / chosen.vec_v + across / chosen.vec_u)
    numbers = positions * (down + across)
    products = math.prod(chosen.capacities) * chosen.deep * rates.product
    if SIZES[chosen.stored] == 4 and chosen.blocks == 1 and chosen.threads < _THREADS:
        products *= _ALONE[chosen.fragments[1] > _SHORT_TILES]
    if SIZES[chosen.stored] == 2 and min(chosen.vec_v, chosen.vec_u) == _VECTOR:
        is_wide = chosen.tiles > 1 or max(chosen.capacities) > CAPACITY
        products *= _WIDE_TILES if is_wide else _MANY_WARPS if math.prod(chosen.warps) > WARPS else 1.0
    seconds = rates.stage + copies * rates.copy + products
    if chosen.order == "flat" and chosen.vec_v == chosen.vec_u == 4 == SIZES[chosen.stored]:
        seconds += numbers * _MOVED_APART
    elif chosen.order == "flat":
        seconds += numbers * rates.apart
    elif min(chosen.vec_v, chosen.vec_u) == 1:
        seconds += numbers * rates.single
    moved = float(SIZES[chosen.stored]) * count * right * (chosen.rows + chosen.columns) / _MEMORY
    return rates.start + rates.added * (shares > 1) + stages * seconds + rates.moved * moved
