"""Predicted times of the passes of a Kronecker product on a CPU core, by our kernel and by the vendor's products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ...compiler.nest import BYTES
from ..mode_product.cpu_cost import CACHE, PRODUCT, VECTOR, Pattern, amounts, row_of
from ..mode_product.cpu_plan import shared_group
from .cpu_plan import SIZES, CpuKronPlan, chunking, joined, lengthened, padded, run_steps, together, width
from .modes import Mode
from .passes import ALONG, VENDOR, Pass, View, views

MACHINE = "AMD EPYC (znver5, AVX-512 and its products of bfloat16), one core"
"""The machine that the tables were fitted on (decision 0135)."""
_CALLED = 5e-6  # seconds that a call of a Kronecker-sparse product takes besides its kernel (decision 0135)
_FIRST_CACHE = 1 << 15  # bytes
_ROWS = 8  # of a tile
_WAITS = 5  # products of vectors in the time after which one may be added to the same sum


class Costs(NamedTuple):
    """Seconds of a pass of our kernel, and of each of its units.

    These are an entry of a factor, one of a factor too large for the first cache, a number read or written, one whose
    neighbour in the block lies elsewhere, a product of vectors, one of vectors with a mask, and a step on a chunk.
    """

    start: float
    entry: float
    far: float
    number: float
    apart: float
    product: float
    masked: float
    step: float


class Dense(NamedTuple):
    """Seconds of a matrix product of the vendor, and of each matrix, product of vectors, one with a mask, number."""

    start: float
    matrix: float
    product: float
    masked: float
    number: float


KERNEL: Mapping[str, Costs] = {
    "f32": Costs(2.1e-6, 2e-10, 0.0, 4.9e-11, 1.9e-10, 1.3e-10, 1.3e-10, 5.7e-9),
    "f64": Costs(2.1e-6, 2.5e-10, 4.4e-12, 7.8e-11, 1.7e-10, 1.3e-10, 1.4e-10, 7.8e-9),
}
"""By the computed type (decision 0135)."""
DENSE: Mapping[tuple[str, bool], Dense] = {
    ("f32", False): Dense(4.6e-6, 0.0, 2.9e-10, 4.2e-10, 5.8e-11),
    ("f32", True): Dense(5.2e-6, 1.2e-7, 2.4e-10, 7.2e-10, 6.4e-11),
    ("f64", False): Dense(4.5e-6, 7.8e-9, 2.6e-10, 4.1e-10, 1.5e-10),
    ("f64", True): Dense(5.4e-6, 2.4e-7, 3.6e-10, 6.7e-10, 1.2e-10),
}
"""By the computed type, and whether it is a product of many matrices (decision 0135)."""


class Work(NamedTuple):
    """A product: its type, batch entries, columns, bytes of a vector, and which ends of it lie apart or vary."""

    dtype: str
    items: int
    columns: int
    vector_bytes: int
    apart: bool
    varies: bool


@lru_cache(maxsize=4096)
def seconds(plan: CpuKronPlan, modes: tuple[Mode, ...], work: Work) -> float:
    """Return what the passes of a plan should take."""
    total = 0.0
    for own, view in zip(plan.passes, views(modes, plan.passes), strict=True):
        if own.kind == VENDOR:
            total += _dense(own.modes[0], view, plan.compute, work)
        elif own.kind == ALONG:
            total += _along(own.modes[0], view, work)
        else:
            total += _kernel(own, view, plan.compute, work)
    return total


def with_kinds(plan: CpuKronPlan, modes: tuple[Mode, ...], work: Work) -> CpuKronPlan:
    """Return the plan with the quicker way along the axes that have a pass for themselves, for halves by our tiles."""

    def chosen(own: Pass, view: View) -> Pass:
        if own.kind != VENDOR:
            return own
        by_tiles = BYTES[work.dtype] == 2 or _along(own.modes[0], view, work) < _dense(
            own.modes[0], view, plan.compute, work
        )
        return replace(own, kind=ALONG) if by_tiles else own

    return replace(plan, passes=tuple(map(chosen, plan.passes, views(modes, plan.passes))))


def vectors_along(pattern: Pattern, count: int, dtype: str) -> tuple[float, str]:
    """Return the seconds of tiles along the axis of x (count, c, d), and along what vectors go (``along``)."""
    kinds = ("groups", "right") if pattern[3] > 1 else ("rows",)
    return min((_tiles_along(pattern, count, dtype, kind), kind) for kind in kinds)


def _along(mode: Mode, view: View, work: Work) -> float:
    """Return the seconds of tiles along an axis."""
    pattern, count = (1, mode.rows, mode.columns, view.right * work.columns), work.items * view.left
    return vectors_along(pattern, count, work.dtype)[0]


def _tiles_along(pattern: Pattern, count: int, dtype: str, vectors: str) -> float:
    """Return the seconds of tiles whose blocks share the matrix."""
    _, b, c, d = pattern
    last = vectors == "right"
    batch, own = (d, (count, b, c, 1)) if last else (count, pattern)
    found = amounts("kernel", own, batch, dtype, last, False)
    if vectors == "groups":
        lanes = VECTOR // max(BYTES[dtype], SIZES["f32"])
        group = shared_group(b, c, d, lanes)
        groups, across = -(-d // group), -(-count * group // lanes)
        moved = count * groups * (b + c) if BYTES[dtype] == 2 else found.traffic
        tiles = groups * -(-b // _ROWS) * -(-across // 3)
        found = found._replace(blocks=tiles, products=groups * across * b * c, traffic=moved)
    found = found._replace(weights=BYTES[dtype] * b * c, far=max(0.0, BYTES[dtype] * count * d * (b + c) - CACHE))
    return PRODUCT[row_of("kernel", own, dtype, last)].seconds(found) - _CALLED


def _dense(mode: Mode, view: View, compute: str, work: Work) -> float:
    right, lanes = view.right * work.columns, work.vector_bytes // SIZES[compute]
    count, across = work.items * view.left, mode.rows if right == 1 else right
    costs, products = DENSE[compute, right > 1], count * mode.columns * (1 if right == 1 else mode.rows)
    vectors = costs.product * (across // lanes) + (costs.masked if across % lanes else 0.0)
    numbers = count * right * (mode.columns + mode.rows) + mode.columns * mode.rows
    return costs.start + costs.matrix * count + products * vectors + costs.number * numbers


def _kernel(own: Pass, view: View, compute: str, work: Work) -> float:
    right, size = view.right * work.columns, SIZES[compute]
    costs, lanes = KERNEL[compute], max(1, work.vector_bytes // size)
    longer = None if work.apart else lengthened(own, right, compute)
    own, right = (own, right) if longer is None else (longer, 1)
    block, numbers = width(own, right, compute), work.items * view.left * right * (own.columns + own.rows)
    count = 1 if work.apart or work.varies else together(own, work.items * view.left, block, right, compute)
    own, items = joined(own, count), -(-work.items * view.left // count) * -(-right // block)
    inner = chunking(own, block, compute)
    entries = [mode.columns * padded(mode.rows) for mode in own.modes if mode.factor is not None]
    packed = costs.entry * sum(entries) + costs.far * sum(each for each in entries if each * size > _FIRST_CACHE)
    moved = (costs.number + (costs.apart if work.apart else 0.0)) * numbers
    total = 0.0
    for index, step in enumerate(run_steps(own, block)):
        chunks = inner.count if index < inner.steps else 1
        left = step.left // chunks
        if step.right == 1:
            high, across, outer = left, step.mode.rows, chunks
        else:
            high, across, outer = step.mode.rows, step.right, step.left
        total += outer * (costs.step + step.mode.columns * _tiles(high, across, lanes, costs))
    return costs.start + packed * (work.items if work.varies else 1) + moved + items * total


def _tiles(rows: int, across: int, lanes: int, costs: Costs) -> float:
    """Return the seconds of tiles of so many rows and lanes for one number of the sum."""
    double, rest = divmod(across, 2 * lanes)
    single, rest = divmod(rest, lanes)
    heights = [_ROWS] * (rows // _ROWS) + [height for height in (4, 2, 1) if rows % _ROWS & height]
    one = sum(max(_WAITS, height) for height in heights)
    two = sum(max(_WAITS, 2 * height) for height in heights)
    return costs.product * (double * two + single * one) + (costs.masked * one if rest else 0.0)
