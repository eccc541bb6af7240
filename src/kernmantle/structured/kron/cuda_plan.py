"""Plans of Kronecker products on a GPU: passes, and for each the tile, the phases and the ways in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ...backends.cuda.tiles import RESERVED_SHARED, DeviceLimits
from . import cost
from .aligned_choice import CLUSTERS, WIDE_CLUSTERS, aligned_passes, of_part
from .cluster_plan import IN_PARTS, WHOLE
from .cost import SIZES, fma_seconds, joint_matrix, matmul_seconds, mma_seconds
from .mma_choice import joint_runs
from .mma_choice import plan_of as mma_plan
from .modes import Mode, cheapest
from .passes import After, Pass, following, in_order, orders, plain_pass, surrounding, views
from .tensor_plan import Tensor
from .two_axis_plan import surely

ROWS = 1024  # of x, for which passes are priced where nothing is said
TWO_AXES = "two_axis"
KINDS = ("mma", "axis", TWO_AXES, "fma", "matmul", CLUSTERS)
VALUES = {"f32": 64, "f64": 32}  # of a thread in registers
TILE = {"f32": 8192, "f64": 4096}  # entries of a block in shared memory
WIDEST = 32  # rows and columns of a factor that FMA instructions take
RIGHT = 32  # entries to the right of the factors that a block takes at least
COALESCED = 8  # neighbouring entries from which on global memory is read and written without shared memory between
# Entries of a factor that a thread copies at once, so that a small pass waits for memory once.
COPIED = 4
# Factors of more rows or columns take tensor cores longer to prepare than the vendor's product of so few bytes.
LARGE, LEAST_MOVED = 128, 1 << 24
# Share of the time of the plan of least cost that another one may take to replace it (H200; decision 0063).
CLEARLY = 0.85
# The same of another order of its passes than that of fewest multiplications.
SOONER = 0.6
WIDE = 1 << 20


@dataclass(frozen=True)
class FmaLayout:
    """Properties of a call's arrays: neighbours in one access on the way in and out, a y, batched factors."""

    in_width: int
    out_width: int
    added: bool
    varies: bool


@dataclass(frozen=True)
class Phase:
    """Axes ``first`` to before ``stop`` of the run in registers, for ``across`` x ``along`` neighbours at once."""

    first: int
    stop: int
    across: int
    along: int


@dataclass(frozen=True)
class FmaPlan:
    """A pass of small factors by fused multiply-adds.

    ``direct_in`` and ``direct_out``: no shared memory on that way; ``slices``: how many share what is read of a
    factor, as registers allow; ``ahead``: entries of the next tile that are copied while one is multiplied.
    """

    run: Pass
    stored: str
    compute: str
    arch: str
    items: int
    right: int
    threads: int
    phases: tuple[Phase, ...]
    layout: FmaLayout
    direct_in: bool
    direct_out: bool
    slices: int
    ahead: int = 0

    @property
    def extents(self) -> tuple[int, ...]:
        """Room of every axis of the run."""
        return tuple(max(mode.columns, mode.rows) for mode in self.run.modes)

    @property
    def elements(self) -> int:
        """Entries of a tile."""
        return self.items * math.prod(self.extents) * self.right

    @property
    def gap(self) -> tuple[int, int] | None:
        """Return after how many entries of a tile how many are left out."""
        groups = [(phase.first, phase.stop) for phase in self.phases]
        return _gap(groups, self.extents, self.right, self.compute)

    def pitch(self, mode: Mode) -> int:
        """Return the length of a line of a factor in shared memory."""
        return _pitch(mode, self.compute)

    @property
    def factor_words(self) -> int:
        """Entries of shared memory for the factors."""
        used = sum(mode.columns * self.pitch(mode) for mode in self.run.modes if mode.factor is not None)
        return -(-used // 32) * 32

    @property
    def tile(self) -> int:
        """Entries of a tile that pass through shared memory: none where one phase reads and writes global memory."""
        return 0 if self.direct_in and self.direct_out and len(self.phases) == 1 else self.elements

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        tile, gap = self.tile, self.gap
        words = self.factor_words + tile + (tile // gap[0] * gap[1] if gap else 0)
        return SIZES[self.compute] * words + SIZES[self.stored] * self.ahead

    def count(self, entries: int, right: int) -> int:
        """Return the tiles of so many entries of the last batch axis, with so much to the right of the run."""
        return -(-entries // self.items) * -(-right // self.right)

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        ahead = f" ahead {self.ahead}" * (self.ahead > 0)
        return f"tile {self.items}x{self.right} threads {self.threads} slices {self.slices}{ahead}"

    def __str__(self) -> str:
        access = " direct" * (self.direct_in or self.direct_out)
        return f"{self.run} {self.stored} {self.tile_name}{access}"


@dataclass(frozen=True)
class CudaKronPlan:
    """Passes for a device; ``seconds`` are what they should take there, without what counts of the host's time.

    ``eager`` is that of an eager call that waits for the host, where another one takes the host less.
    """

    passes: tuple[Pass, ...]
    compute: str
    seconds: float = field(default=0.0, compare=False)
    eager: CudaKronPlan | None = None

    def __str__(self) -> str:
        return f"{self.compute}, {' then '.join(map(str, self.passes))}"


@lru_cache(maxsize=4096)
def plan(
    modes: tuple[Mode, ...], right: int, stored: str, limits: DeviceLimits, fuse: bool, tensor: Tensor | None = None,
    items: int = ROWS, kinds: tuple[str, ...] = KINDS, host: float = 1.0, after: After | None = None,
) -> CudaKronPlan:  # fmt: skip
    """The passes that should take least time for ``items`` tensors with ``right`` columns behind their last axis.

    By the ``kinds`` of kernels; on tensor cores, if ``tensor`` says how, neighbouring factors too small for them being
    multiplied out. Every way of cutting the axes into ranges is compared, a range by each kernel that takes it: one
    pass on tensor cores, one of additions, or the vendor's product of a single factor or of the matrix of all.
    A launch is charged a share of the host's time, ``host`` times as much. With ``after`` both together take least.
    Passes over two axes are taken where all is surely quicker with them.
    """
    found = _plan(modes, right, stored, limits, fuse, tensor, items, kinds, host, after)
    others = tuple(kind for kind in kinds if kind != TWO_AXES)
    if not others or all(run.kind != TWO_AXES for run in found.passes):
        return found
    without = _plan(modes, right, stored, limits, fuse, tensor, items, others, host, after)
    entries = {run.kind: items * view.left for run, view in zip(found.passes, views(modes, found.passes), strict=True)}
    run = next(run for run in found.passes if run.kind == TWO_AXES)
    share = surely(run, stored, entries[TWO_AXES], len(without.passes) - len(found.passes), limits)
    later = 0.0 if after is None else following(found.passes, after) - following(without.passes, after)
    if later < 0:
        return found if found.seconds + later < without.seconds else without
    return found if found.seconds < share * without.seconds else without


def _plan(
    modes: tuple[Mode, ...], right: int, stored: str, limits: DeviceLimits, fuse: bool, tensor: Tensor | None,
    items: int, kinds: tuple[str, ...], host: float, after: After | None,
) -> CudaKronPlan:  # fmt: skip
    """Return the passes by any of these kernels that should take least time."""
    count, compute = len(modes), "f64" if stored == "f64" else "f32"

    def seconds_of(passes: Sequence[Pass]) -> float:
        return _seconds(passes, modes, (items, right), stored, limits, fuse, tensor, host)

    # Time and passes for the axes before each stop, those behind it being multiplied already.
    best: list[tuple[float, tuple[Pass, ...]]] = [(0.0, ())]
    found: list[tuple[float, tuple[Pass, ...]]] = [(0.0, ())]
    for stop in range(1, count + 1):
        found = []
        for first in range(stop):
            own = modes[first:stop]
            if all(mode.factor is None for mode in own):
                found.append(best[first])
                continue
            left, right_columns = (surrounding(own, part) for part in (modes[:first], modes[stop:]))
            sides = items * left, right * right_columns
            others = math.prod(mode.columns for mode in (*modes[:first], *modes[stop:]))
            own_kinds = kinds if (first, stop) == (0, count) else of_part(kinds, others, SIZES[stored])
            seconds, run = _quickest_pass(own, *sides, stored, limits, fuse, tensor, own_kinds, host)
            if run is not None:
                moved = replace(run, first=run.first + first, stop=run.stop + first)
                moved = replace(moved, parts=tuple(tuple(index + first for index in part) for part in moved.parts))
                found.append((best[first][0] + seconds, (*best[first][1], moved)))
        best.append(min(found, key=lambda one: one[0], default=(math.inf, ())))
    assert best[count][0] < math.inf, f"no kernel of {kinds} takes {modes}"
    # What a pass takes depends on those that are applied before it, which only whole plans say.
    ordered = [in_order(passes) for own, passes in sorted(found, key=lambda one: one[0]) if own < math.inf]
    times = list(map(seconds_of, ordered))
    total, chosen = min(zip(times, ordered, strict=True), key=lambda one: one[0])
    if total > CLEARLY * times[0]:
        total, chosen = times[0], ordered[0]
    if after is None:
        quickest = min(orders(chosen), key=seconds_of)
        total, chosen = (seconds_of(quickest), quickest) if seconds_of(quickest) < SOONER * total else (total, chosen)
    if after is not None:
        total, chosen = min(zip(times, ordered, strict=True), key=lambda one: one[0] + following(one[1], after))
    on_tensor_cores = any(run.kind in ("mma", "axis", TWO_AXES) for run in chosen)
    seconds = total - host * sum(map(cost.host_seconds, chosen))
    return CudaKronPlan(chosen, str(tensor) if on_tensor_cores else compute, seconds)


def _seconds(
    passes: Sequence[Pass], modes: Sequence[Mode], sides: tuple[int, int], stored: str, limits: DeviceLimits,
    fuse: bool, tensor: Tensor | None, host: float,
) -> float:  # fmt: skip
    """Return what passes in this order take on ``sides`` tensors and columns beside them, the host's time included."""
    total, (items, right) = 0.0, sides
    for run, view in zip(passes, views(modes, passes), strict=True):
        own, kinds = tuple(modes[run.first : run.stop]), (run.kind, CLUSTERS if len(passes) == 1 else WIDE_CLUSTERS)
        outside = items * view.left, right * view.right
        total += _quickest_pass(own, *outside, stored, limits, fuse, tensor, kinds, host)[0]
    return total


@lru_cache(maxsize=16384)
def _quickest_pass(
    modes: tuple[Mode, ...], left: int, right_columns: int, stored: str, limits: DeviceLimits, fuse: bool,
    tensor: Tensor | None, kinds: tuple[str, ...], host: float,
) -> tuple[float, Pass | None]:  # fmt: skip
    """Return the seconds and pass of the quickest kernel that takes a range of axes whole; none where there is none."""
    own = [mode for mode in modes if mode.factor is not None]
    if not fuse and len(own) > 1:
        return math.inf, None
    found: list[tuple[float, Pass | None]] = [(math.inf, None)]
    plain, whole = (plain_pass(kind, modes, 0, len(modes)) for kind in ("fma", "matmul"))
    before = math.prod(mode.columns for mode in modes[: plain.first]) * left
    trailing = math.prod(mode.rows for mode in modes[plain.stop :]) * right_columns
    if len(own) == 1:
        seconds = host * cost.HOST_VENDOR + matmul_seconds(own[0], before, trailing, stored, limits)
        found.append((seconds, whole))
    if not any(map(_is_wide, own)) and _fma_fits(plain.modes, trailing, stored, limits):
        share = cost.alike_share(plain.modes, trailing, stored) if CLUSTERS in kinds else 1.0  # of a whole product
        seconds = share * fma_seconds(plain.modes, before, trailing, stored, limits)
        found.append((host * cost.HOST_OWN + seconds, plain))
    if tensor is not None and len(own) == len(plain.modes):
        if len(own) > 1 and stored != "f16":
            found.append(joint_matrix(plain, before, trailing, stored, limits, host))
        moved = SIZES[stored] * float(before) * trailing * (plain.columns + plain.rows)
        is_large = any(max(mode.columns, mode.rows) > LARGE for mode in own)
        if not is_large or moved >= LEAST_MOVED or "matmul" not in kinds:
            found.append(_by_tensor_cores(plain, before, trailing, stored, limits, tensor, host))
        clusters = WHOLE if CLUSTERS in kinds else IN_PARTS if WIDE_CLUSTERS in kinds else {}
        aligned = aligned_passes(plain, (before, trailing), stored, tensor, limits, clusters)
        found += [(host * cost.HOST_OWN + seconds, joint) for seconds, joint in aligned]
    return min((one for one in found if one[1] is None or one[1].kind in kinds), key=lambda one: one[0])


def _fma_fits(modes: tuple[Mode, ...], right_columns: int, stored: str, limits: DeviceLimits) -> bool:
    least = 1 if right_columns == 1 else min(RIGHT, _power(right_columns))
    kind = "f64" if stored == "f64" else "f32"
    return SIZES[kind] * _tile_words(modes, least, kind) <= limits.shared_per_block


def _by_tensor_cores(
    plain: Pass, before: int, trailing: int, stored: str, limits: DeviceLimits, tensor: Tensor, host: float
) -> tuple[float, Pass | None]:
    """Return the same on tensor cores, small neighbours multiplied out."""
    found: list[tuple[float, Pass | None]] = [(math.inf, None)]
    width = trailing if trailing == 1 else min(WIDE, _power(trailing))
    for run, joined_factors in joint_runs(plain, tensor, limits.shared_per_block):
        chosen = mma_plan(run.modes, stored, tensor, width, before, limits)
        if chosen is not None:
            moved = SIZES[stored] * float(before) * trailing * (run.columns + run.rows)
            length = trailing if trailing > 1 else math.gcd(run.modes[-1].columns, run.modes[-1].rows)
            tiles = chosen.count(before, trailing)
            seconds = host * cost.HOST_OWN + mma_seconds(chosen, tiles, moved, length, limits, joined_factors)
            found.append((seconds, run))
    return min(found, key=lambda one: one[0])


def _pitch(mode: Mode, compute: str) -> int:
    """Return the length of a line of a factor in shared memory."""
    vector = 16 // SIZES[compute]
    return -(-mode.rows // vector) * vector


def _gap(groups: Sequence[tuple[int, int]], extents: Sequence[int], right: int, compute: str) -> tuple[int, int] | None:
    """Return after how many entries of a tile how many are left out, so that threads hit different banks."""
    vector = 16 // SIZES[compute]
    for first, stop in groups:
        own = math.prod(extents[first:stop])
        if right * math.prod(extents[stop:]) == 1 and own % (2 * vector) == 0:
            return own, vector
    return None


@lru_cache(maxsize=4096)
def _tile_words(modes: tuple[Mode, ...], right: int, compute: str) -> int:
    """Return the entries of shared memory that a tile of one run takes with its factors."""
    factors = sum(mode.columns * _pitch(mode, compute) for mode in modes if mode.factor is not None)
    extents = [max(mode.columns, mode.rows) for mode in modes]
    whole = math.prod(extents) * right
    if not any(mode.factor is not None for mode in modes):
        return whole
    gap = _gap(_groups(extents, modes, VALUES[compute]), extents, right, compute)
    return -(-factors // 32) * 32 + whole + (whole // gap[0] * gap[1] if gap else 0)


def _is_wide(mode: Mode) -> bool:
    """Return whether a thread's registers cannot hold the axis of a factor."""
    return max(mode.columns, mode.rows) > WIDEST


def _groups(extents: Sequence[int], modes: Sequence[Mode], most: int) -> list[tuple[int, int]]:
    """Return the ranges of neighbouring factors that registers hold: one at the end, then from the first axis on."""
    indices = [index for index, mode in enumerate(modes) if mode.factor is not None]
    first = stop = indices[-1] + 1
    while first - 1 in indices and math.prod(extents[first - 1 : stop]) <= max(most, extents[stop - 1]):
        first -= 1
    found = [(first, stop)]
    begin = 0
    while begin < first:
        if begin not in indices:
            begin += 1
            continue
        end = begin + 1
        while end < first and end in indices and math.prod(extents[begin : end + 1]) <= most:
            end += 1
        found.append((begin, end))
        begin = end
    return found


def _ordered(groups: Sequence[tuple[int, int]], modes: Sequence[Mode]) -> list[tuple[int, int]]:
    """Order of the phases: fewest multiplications; where all are square, the last axes neither first nor last."""
    if all(mode.rows == mode.columns for mode in modes):
        last, *rest = groups
        return [rest[0], last, *rest[1:]] if rest else [last]
    whole = [
        Mode(math.prod(m.columns for m in modes[a:b]), math.prod(m.rows for m in modes[a:b]), index)
        for index, (a, b) in enumerate(groups)
    ]
    by_position = sorted(whole, key=lambda mode: groups[mode.factor or 0])
    return [groups[by_position[position].factor or 0] for position in cheapest(by_position)]


def _power(count: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << max(0, count - 1).bit_length()


def _divisor(count: int, most: int) -> int:
    return max(divisor for divisor in range(1, max(1, min(count, most)) + 1) if count % divisor == 0)


@lru_cache(maxsize=4096)
def fma_candidates(
    run: Pass, stored: str, compute: str, layout: FmaLayout, entries: int, columns: int, limits: DeviceLimits
) -> tuple[FmaPlan, ...]:
    """Return the plans of a pass of small factors, the preferred first."""
    first = fma(run, stored, compute, layout, entries, columns, limits)
    found = [first]
    for threads in (128, 256, 512):
        for slices in (2, 4, 8):
            if threads <= max(128, 2 * first.threads):
                own = fma(run, stored, compute, layout, entries, columns, limits, threads, slices)
                found += [own] * (own not in found)
    return tuple(found)


@lru_cache(maxsize=4096)
def fma(
    run: Pass, stored: str, compute: str, layout: FmaLayout, entries: int, columns: int, limits: DeviceLimits,
    threads: int = 0, slices: int = 0,
) -> FmaPlan:  # fmt: skip
    """Return the tile and phases of a pass of small factors on that many ``entries`` of the last batch axis.

    ``columns`` entries lie to the right of the axes of the factors.
    """
    extents = [max(mode.columns, mode.rows) for mode in run.modes]
    whole = math.prod(extents)
    widest = max(RIGHT, _power(TILE[compute] // whole + 1) // 2)
    right = 1 if columns == 1 else min(_power(columns), widest)
    items = 1
    if not layout.varies and right * whole < TILE[compute]:
        items = min(_power(entries), _power(TILE[compute] // (right * whole) + 1) // 2)
        while items > 1 and -(-entries // items) * -(-columns // right) < 2 * limits.sm_count:
            items //= 2
    elements = items * right * whole
    copied = sum(mode.columns * _pitch(mode, compute) for mode in run.modes if mode.factor is not None) // COPIED
    threads = threads or min(256, max(32, elements // 16 // 32 * 32, -(-copied // 32) * 32))
    ordered = _ordered(_groups(extents, run.modes, VALUES[compute]), run.modes)
    right_of = {group: math.prod(extents[group[1] :]) * right for group in ordered}
    square_in = all(mode.columns >= mode.rows for mode in run.modes)
    square_out = all(mode.rows >= mode.columns for mode in run.modes)
    direct_in = square_in and right_of[ordered[0]] >= COALESCED
    direct_out = square_out and right_of[ordered[-1]] >= COALESCED
    phases: list[Phase] = []
    for index, group in enumerate(ordered):
        own = math.prod(extents[group[0] : group[1]])
        columns = right_of[group]
        down = items * whole * right // (own * columns)
        outside = [layout.in_width] * (direct_in and index == 0)
        outside += [layout.out_width] * (direct_out and index == len(ordered) - 1)
        budget = min(VALUES[compute] // own, items * whole * right // (own * threads))
        most = max(1, min([16 // SIZES[compute], budget, *outside]))
        width = math.gcd(columns, 1 << (most.bit_length() - 1))
        across = _divisor(down, budget) if columns == 1 else 1
        phases.append(Phase(*group, across, width))
    found = FmaPlan(
        run, stored, compute, limits.arch, items, right, threads, tuple(phases), layout, direct_in, direct_out,
        slices or 4,
    )  # fmt: skip
    return replace(found, ahead=_ahead(found, entries, limits))


def _ahead(own: FmaPlan, tiles: int, limits: DeviceLimits) -> int:
    """Return how much of the next tile is copied ahead: whole lines of the first phase, where one block is alone.

    A multiprocessor that holds a single block reads nothing else while its threads wait for each other.
    """
    span = math.prod(own.extents[own.phases[0].stop :])
    is_alone = 2 * (own.shared + RESERVED_SHARED) > limits.shared_per_sm and tiles > limits.sm_count
    in_order = own.direct_in and own.phases[0].first == 0 and own.items == own.right == 1 and len(own.phases) > 1
    if not (is_alone and in_order) or SIZES[own.stored] * own.layout.in_width < 16 or span % own.layout.in_width:
        return 0
    available = limits.shared_per_block - own.shared - 16
    return min(available // (SIZES[own.stored] * span) * span, math.prod(own.extents))
