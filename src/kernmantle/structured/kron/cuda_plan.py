"""Plans of Kronecker products on a GPU: passes, and for each the tile, the phases and the ways in and out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from operator import itemgetter

from ...backends.cuda.tiles import DeviceLimits
from . import cost, fma_plan
from .aligned_choice import CLUSTERS, WIDE_CLUSTERS, aligned_passes, of_part, saving_seconds
from .cluster_plan import IN_PARTS, WHOLE
from .cost import SIZES, fma_seconds, joint_matrix, matmul_seconds, mma_seconds
from .mma_choice import joint_runs
from .mma_choice import plan_of as mma_plan
from .modes import Mode
from .passes import After, Pass, every_order, following, in_order, orders, plain_pass, surrounding, views
from .tensor_plan import Tensor

ROWS = 1024  # of x, for which passes are priced where nothing is said
TWO_AXES = "two_axis"
KINDS = ("mma", "axis", "wide", TWO_AXES, "fma", "matmul", CLUSTERS)
# Passes over two axes may also write what comes between their products, where gradients find it.
SAVES = "saves"
# Share of the time of product and gradients without it that they may take so: one of 16 that should take 0.988 takes
# 1.16, 15 that should take less up to 0.997, most 0.8 to 0.95 (H200, decision 0144).
SAVING_SOONER = 0.97
# Factors of more rows or columns take tensor cores longer to prepare than the vendor's product of so few bytes.
LARGE, LEAST_MOVED = 128, 1 << 24
# Share of the time in the order of fewest multiplications that another order of passes may take to replace it: of 7
# that should take 0.7 to 0.8 of it the slowest takes 0.96 (H200, decision 0118).
SOONER = 0.8
# Ways of cutting axes into passes that are compared with the gradients that follow, and times as long as the quickest
# that they may take: gradients of 22 products take 0.86 of the time so (H200, decision 0124).
CUTS, MOST_SLOWER = 12, 1.8
WIDE = 1 << 20


Cut = tuple[float, tuple[Pass, ...]]
"""Passes over some axes, and their seconds."""
PassOver = Callable[[int, int], Cut]
"""The quickest pass over the axes from one to before another, none where they have no factors."""


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
    """
    count, compute = len(modes), "f64" if stored == "f64" else "f32"

    def seconds_of(passes: Sequence[Pass]) -> float:
        return _seconds(passes, modes, (items, right), stored, limits, fuse, tensor, host)

    @cache
    def pass_over(first: int, stop: int) -> Cut:
        """Return the seconds and the pass, if there is one, over a range of axes."""
        own = modes[first:stop]
        if all(mode.factor is None for mode in own):
            return 0.0, ()
        left, right_columns = (surrounding(own, part) for part in (modes[:first], modes[stop:]))
        sides = items * left, right * right_columns
        others = math.prod(mode.columns for mode in (*modes[:first], *modes[stop:]))
        own_kinds = kinds if (first, stop) == (0, count) else of_part(kinds, others, SIZES[stored])
        seconds, run = _quickest_pass(own, *sides, stored, limits, fuse, tensor, own_kinds, host)
        if run is None:
            return math.inf, ()
        moved = replace(run, first=run.first + first, stop=run.stop + first)
        return seconds, (replace(moved, parts=tuple(tuple(at + first for at in part) for part in moved.parts)),)

    # What a pass takes depends on those that are applied before it, which only whole plans say.
    if after is None:
        ordered = [_soonest(in_order(passes), seconds_of) for passes in _by_last(count, pass_over)]
    else:
        ordered = [own for passes in _cuts(count, pass_over) for own in every_order(passes)]
        ordered += [_saving(own) for own in ordered if SAVES in kinds and any(run.kind == TWO_AXES for run in own)]
    assert ordered, f"no kernel of {kinds} takes {modes}"
    times = [(seconds_of(passes), passes) for passes in ordered]
    if after is None:
        total, chosen = min(times, key=itemgetter(0))
    else:
        total, chosen = _least(_worthwhile(times), lambda one: one[0] + following(one[1], after))
    on_tensor_cores = any(run.kind in ("mma", "axis", "wide", TWO_AXES) for run in chosen)
    seconds = total - host * sum(map(cost.host_seconds, chosen))
    return CudaKronPlan(chosen, str(tensor) if on_tensor_cores else compute, seconds)


def _joined(before: Cut, last: Cut) -> Cut:
    return before[0] + last[0], before[1] + last[1]


def _by_last(count: int, pass_over: PassOver) -> list[tuple[Pass, ...]]:
    """Return the quickest passes by where the last one begins, the quickest of all first."""
    # Time and passes for the axes before each stop, those behind it being multiplied already.
    best: list[Cut] = [(0.0, ())]
    found: list[Cut] = [(0.0, ())]
    for stop in range(1, count + 1):
        found = sorted((_joined(best[first], pass_over(first, stop)) for first in range(stop)), key=itemgetter(0))
        best.append(found[0])
    return [passes for seconds, passes in found if seconds < math.inf]


def _cuts(count: int, pass_over: PassOver) -> list[tuple[Pass, ...]]:
    """Return the passes of the quickest ways of cutting the axes: what gradients find of them differs more than theirs.

    One pass over all axes, which leaves nothing, is among them whatever it takes.
    """
    cuts: list[list[Cut]] = [[(0.0, ())]]
    for stop in range(1, count + 1):
        begin = 1 if stop == count else 0
        found = [_joined(before, pass_over(first, stop)) for first in range(begin, stop) for before in cuts[first]]
        cuts.append(sorted(dict.fromkeys(found), key=itemgetter(0))[:CUTS])
    return [passes for seconds, passes in (pass_over(0, count), *cuts[count]) if seconds < math.inf]


def _worthwhile(times: list[Cut]) -> list[Cut]:
    """Return passes that do not take much more than the quickest ones that leave something."""
    most = MOST_SLOWER * min((seconds for seconds, passes in times if len(passes) > 1), default=math.inf)
    return [(seconds, passes) for seconds, passes in times if seconds <= most or len(passes) == 1]


def _least(times: list[Cut], whole: Callable[[Cut], float]) -> Cut:
    """Return the passes of which the ``whole`` takes least; those that save something of their own if clearly less."""
    groups = ([one for one in times if any(run.saves for run in one[1]) == saves] for saves in (False, True))
    plain, *saving = [min(own, key=whole) for own in groups if own]
    return saving[0] if saving and whole(saving[0]) < SAVING_SOONER * whole(plain) else plain


def _saving(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the passes, of which those over two axes save what comes between their products."""
    return tuple([replace(run, saves=run.kind == TWO_AXES) for run in passes])


def _soonest(passes: tuple[Pass, ...], seconds_of: Callable[[Sequence[Pass]], float]) -> tuple[Pass, ...]:
    """Return the passes in the order of least time, where that is clearly less than in the one they have."""
    quickest = min(orders(passes), key=seconds_of)
    return quickest if seconds_of(quickest) < SOONER * seconds_of(passes) else passes


def _seconds(
    passes: Sequence[Pass], modes: Sequence[Mode], sides: tuple[int, int], stored: str, limits: DeviceLimits,
    fuse: bool, tensor: Tensor | None, host: float,
) -> float:  # fmt: skip
    """Return what passes in this order take on ``sides`` tensors and columns beside them, the host's time included."""
    total, ahead, (items, right) = 0.0, 0.0, sides
    for run, view in zip(passes, views(modes, passes), strict=True):
        own, kinds = tuple(modes[run.first : run.stop]), (run.kind, CLUSTERS if len(passes) == 1 else WIDE_CLUSTERS)
        outside = items * view.left, right * view.right
        if run.saves:
            seconds = host * cost.HOST_OWN + saving_seconds(run, outside[0], stored, limits, tensor)
        else:
            seconds = _quickest_pass(own, *outside, stored, limits, fuse, tensor, kinds, host)[0]
        # A pass of halves over one axis prepares its factor while one of ours that is ahead still runs.
        hides = run.kind == "axis" and SIZES[stored] == 2 and len(run.parts[0]) == 1
        hidden = min(ahead, cost.axis_prepared(run, stored)) if hides else 0.0
        total += seconds - hidden
        ahead = 0.0 if run.kind == "matmul" else seconds - hidden
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
    moved = SIZES[stored] * float(before) * trailing * (plain.columns + plain.rows)
    if not any(map(fma_plan.is_wide, own)) and fma_plan.fits(plain.modes, trailing, stored, limits):
        chosen = fma_plan.plan_of(plain, stored, before, trailing, limits)
        seconds = fma_seconds(chosen, chosen.count(before, trailing), moved, limits)
        found.append((host * cost.HOST_OWN + seconds, plain))
    if tensor is not None and len(own) == len(plain.modes):
        if len(own) > 1 and stored != "f16":
            found.append(joint_matrix(plain, before, trailing, stored, limits, host))
        is_large = any(max(mode.columns, mode.rows) > LARGE for mode in own)
        if not is_large or moved >= LEAST_MOVED or "matmul" not in kinds:
            found.append(_by_tensor_cores(plain, before, trailing, stored, limits, tensor, host))
        clusters = WHOLE if CLUSTERS in kinds else IN_PARTS if WIDE_CLUSTERS in kinds else {}
        aligned = aligned_passes(plain, (before, trailing), stored, tensor, limits, clusters)
        found += [(host * cost.HOST_OWN + seconds, joint) for seconds, joint in aligned]
    return min((one for one in found if one[1] is None or one[1].kind in kinds), key=lambda one: one[0])


def _by_tensor_cores(
    plain: Pass, before: int, trailing: int, stored: str, limits: DeviceLimits, tensor: Tensor, host: float
) -> tuple[float, Pass | None]:
    """Return the same on tensor cores, small neighbours multiplied out."""
    found: list[tuple[float, Pass | None]] = [(math.inf, None)]
    width = trailing if trailing == 1 else min(WIDE, fma_plan.power(trailing))
    for run, joined_factors in joint_runs(plain, tensor, limits.shared_per_block):
        chosen = mma_plan(run.modes, stored, tensor, width, before, limits)
        if chosen is not None:
            moved = SIZES[stored] * float(before) * trailing * (run.columns + run.rows)
            length = trailing if trailing > 1 else math.gcd(run.modes[-1].columns, run.modes[-1].rows)
            tiles = chosen.count(before, trailing)
            seconds = host * cost.HOST_OWN + mma_seconds(chosen, tiles, moved, length, limits, joined_factors)
            found.append((seconds, run))
    return min(found, key=lambda one: one[0])
