"""Gradients of the weights of Kronecker-sparse products on NVIDIA GPUs: sums over the batch, bound for one layout.

``x`` and ``grad`` are (groups, N, features), the sums (groups, a, b, c, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

from ...backends.cuda.tiles import DeviceLimits
from ...torch_ops.cuda import Entry, index_of, limits, load_kernels
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from . import sum_emit
from .column_sum_plan import column_sum_plan, column_sum_seconds
from .cuda import bind_ready
from .cuda_emit import ENTRY
from .fma_sum_plan import FmaSumPlan, fma_sum_plan, fma_sum_seconds, least_seconds, rows_seconds
from .plan import Pattern
from .rearrange import features_together
from .row_sum_plan import row_sum_plan, row_sum_seconds
from .transpose_plan import ACCESS
from .weight_gradient_plan import DTYPES as SUMMED
from .weight_gradient_plan import MOST_PART_BYTES, parts_plan, sum_plan, sum_seconds

Sums = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_Choice = tuple[float, Callable[[], Sums]]
"""Seconds that sums should take for one group, and what binds them."""


def bind_gradient(x: torch.Tensor, grad: torch.Tensor, pattern: Pattern, precision: str) -> Sums | None:
    """Return what sums the gradient of weights, (groups, a, b, c, d); None if the kernels do not take it."""
    if NAMES[x.dtype] not in SUMMED or precision == "ieee":
        return None
    first = [side.stride(2) <= side.stride(1) for side in (x, grad)]
    own, products = limits(index_of(x.device)), 1 if precision == "tf32" else 3
    choices = [_by_numbers(x, grad, pattern, products, own, first)]
    axis = 2 if first[0] else 1
    if first[0] == first[1] and x.stride(axis) == 1 == grad.stride(axis):
        choices.append(_by_tiles(x, grad, pattern, products, own, first[0]))
        if least_seconds(pattern, x.shape[1], own) < min(choices, key=itemgetter(0))[0]:
            choices += _by_fma(x, grad, pattern, own, first[0])
    return min(choices, key=itemgetter(0))[1]()


def _by_numbers(
    x: torch.Tensor, grad: torch.Tensor, pattern: Pattern, products: int, own: DeviceLimits, first: list[bool]
) -> _Choice:
    """Return sums of arrays of any strides, which are read a number at a time."""
    groups, batch, _ = x.shape
    chosen = sum_plan(own.arch, pattern[3], NAMES[x.dtype], first[0], first[1], products)

    def bind() -> Sums:
        entry = Entry(ENTRY, chosen.threads, chosen.shared)
        loaded = load_kernels(chosen, chosen.arch, lambda: sum_emit.emit_sum(chosen), entry)
        slots = chosen.slots(pattern, groups, batch, own)
        rest = (batch, groups, *pattern, slots, *x.stride(), *grad.stride())
        return _in_parts(loaded, pattern, groups, slots, chosen.tiles(pattern, groups) * slots, rest, x)

    return sum_seconds(chosen, pattern, batch, own), bind


def _by_tiles(
    x: torch.Tensor, grad: torch.Tensor, pattern: Pattern, products: int, own: DeviceLimits, first: bool
) -> _Choice:
    """Return sums by tensor cores over rows, or features, as they lie; ``first``: features lie together."""
    (_, b, c, d), (groups, batch, _), dtype = pattern, x.shape, NAMES[x.dtype]
    runs = (c * d, b * d) if first else (0, 0)
    bytes_ = [_copied(side, *_apart(side, first), run) for side, run in zip((x, grad), runs, strict=True)]
    plan, expected, emit = (
        (row_sum_plan, row_sum_seconds, sum_emit.emit_row_sum)
        if first
        else (column_sum_plan, column_sum_seconds, sum_emit.emit_column_sum)
    )
    chosen: Any = plan(pattern, batch, dtype, *bytes_, products, own)

    def bind() -> Sums:
        entry = Entry(ENTRY, chosen.threads, chosen.shared)
        loaded = load_kernels(chosen, chosen.arch, lambda: emit(chosen), entry)
        slots = 1 if chosen.whole else chosen.slots(pattern, groups, batch, own)
        rest = (batch, groups, *pattern, slots, *_apart(x, first), *_apart(grad, first))
        blocks = chosen.blocks(chosen.tiles(pattern, groups) * slots, own)
        return _in_parts(loaded, pattern, groups, slots, blocks, rest, x, chosen.whole)

    return expected(chosen, pattern, batch, own), bind


def _by_fma(x: torch.Tensor, grad: torch.Tensor, pattern: Pattern, own: DeviceLimits, first: bool) -> list[_Choice]:
    """Return sums by FMA instructions; a batch that is last and short is transposed before, where that is quicker."""
    batch, dtype, d, found = x.shape[1], NAMES[x.dtype], pattern[3], list[_Choice]()
    access = min(_copied(side, *_apart(side, first), *[d] * first) for side in (x, grad))
    direct = fma_sum_plan(pattern, batch, dtype, first, access, own)
    if direct is not None:
        found.append((fma_sum_seconds(direct, batch, own), lambda: _bind_fma(x, grad, direct)))
    rows = None if first else fma_sum_plan(pattern, batch, dtype, True, math.gcd(ACCESS, x.element_size() * d), own)
    if rows is not None:
        taken = fma_sum_seconds(rows, batch, own) + rows_seconds(pattern, batch, dtype)
        found.append((taken, lambda: _bind_rows(x, grad, rows)))
    return found


def _bind_fma(x: torch.Tensor, grad: torch.Tensor, chosen: FmaSumPlan) -> Sums:
    entry = Entry(ENTRY, chosen.threads, chosen.shared)
    groups, batch, _ = x.shape
    slots = max(1, min(chosen.slots, MOST_PART_BYTES // (4 * groups * math.prod(chosen.pattern))))
    loaded = load_kernels(chosen, chosen.arch, lambda: sum_emit.emit_fma_sum(chosen), entry)
    rest = (batch, groups, slots, *_apart(x, chosen.first), *_apart(grad, chosen.first))
    return _in_parts(loaded, chosen.pattern, groups, slots, groups * chosen.tiles * slots, rest, x, chosen.whole)


def _bind_rows(x: torch.Tensor, grad: torch.Tensor, chosen: FmaSumPlan) -> Sums:
    """Return sums over rows of features that lie together, which are made of arrays whose batch is last."""
    sums = _bind_fma(features_together(x), features_together(grad), chosen)
    return lambda x, grad: sums(features_together(x), features_together(grad))


def _apart(side: torch.Tensor, first: bool) -> tuple[int, int]:
    """Return the strides of groups, and of rows or features."""
    return side.stride(0), side.stride(1 if first else 2)


def _copied(side: torch.Tensor, *steps: int) -> int:
    """Return the bytes of the largest copy that the pointer and steps of so many entries allow, at most 16."""
    size = side.element_size()
    return math.gcd(16, side.data_ptr(), *(size * step for step in steps))


def _in_parts(
    loaded: Any, pattern: tuple[int, int, int, int], groups: int, slots: int, blocks: int, rest: tuple[int, ...],
    like: torch.Tensor, whole: bool = False,
) -> Sums:  # fmt: skip
    """Return sums in so many parts of the batch, which are added and rounded to the type of ``like``.

    ``whole``: the one part is of that type already.
    """
    index, shape, dtype = index_of(like.device), (groups, *pattern), like.dtype
    launch = None if loaded is None else bind_ready(loaded[0], 3, rest, index, blocks)
    if whole or (slots == 1 and dtype == torch.float32):

        def run_whole(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
            out = allocate(shape, dtype, x.device)
            if launch is not None:
                launch((x.data_ptr(), grad.data_ptr(), out.data_ptr()))
            return out

        return run_whole
    chosen, count = parts_plan(limits(index).arch, NAMES[dtype], slots), groups * math.prod(pattern)
    entry = Entry(ENTRY, chosen.threads, waits=True)
    adds = load_kernels(chosen, chosen.arch, lambda: sum_emit.emit_parts(chosen), entry)
    add = None if adds is None else bind_ready(adds[0], 2, (slots, count), index, chosen.blocks(count))

    def run(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        parts, out = allocate((slots, *shape), torch.float32, x.device), allocate(shape, dtype, x.device)
        if launch is not None and add is not None:
            launch((x.data_ptr(), grad.data_ptr(), parts.data_ptr()))
            add((parts.data_ptr(), out.data_ptr()))
        return out

    return run
