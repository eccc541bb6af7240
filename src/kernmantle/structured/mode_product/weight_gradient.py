"""Gradients of the weights of Kronecker-sparse products on NVIDIA GPUs: sums over the batch, bound for one layout.

``x`` and ``grad`` are (groups, N, features), the sums (groups, a, b, c, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...backends.cuda.tiles import DeviceLimits
from ...torch_ops.cuda import Entry, index_of, limits, load_kernels, start
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate
from . import sum_emit
from .column_sum_plan import column_sum_plan, column_sum_seconds, columns_seconds
from .cuda import bind_ready, spans
from .cuda_emit import ENTRY
from .row_sum_plan import row_sum_plan, row_sum_seconds
from .stream_plan import THREADS as STREAM_THREADS
from .stream_plan import stream_sum_plan, stream_sum_seconds
from .weight_gradient_plan import DTYPES as SUMMED
from .weight_gradient_plan import parts_plan, sum_plan, sum_seconds

Sums = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def bind_gradient(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], precision: str
) -> Sums | None:
    """Return what sums the gradient of weights, (groups, a, b, c, d); None if the kernel does not take it."""
    if NAMES[x.dtype] not in SUMMED or precision == "ieee":
        return None
    first = [side.stride(2) <= side.stride(1) for side in (x, grad)]
    index, groups, batch = index_of(x.device), x.shape[0], x.shape[1]
    streamed = _streamed_sum(x, grad, pattern, all(first), limits(index))
    if streamed is not None:
        return streamed
    products = 1 if precision == "tf32" else 3
    found = _bind_tiles(x, grad, pattern, products, limits(index), first[0]) if first[0] == first[1] else None
    if found is not None:
        return found
    chosen = sum_plan(limits(index).arch, pattern[3], NAMES[x.dtype], first[0], first[1], products)
    entry = Entry(ENTRY, chosen.threads, chosen.shared)
    loaded = load_kernels(chosen, chosen.arch, lambda: sum_emit.emit_sum(chosen), entry)
    blocks = chosen.tiles(pattern, groups)
    slots = chosen.slots(pattern, groups, batch, limits(index))
    rest = (batch, groups, *pattern, slots, *x.stride(), *grad.stride())
    return _in_parts(loaded, pattern, groups, slots, blocks * slots, rest, x)


def _bind_tiles(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], products: int, own: DeviceLimits,
    first: bool,
) -> Sums | None:  # fmt: skip
    """Return sums over rows, or features, as they lie; None where the kernel for single numbers should be quicker.

    ``first``: features lie together, and not the batch.
    """
    (_, b, c, d), (groups, batch, _), dtype = pattern, x.shape, NAMES[x.dtype]
    if any(side.stride(2 if first else 1) != 1 for side in (x, grad)):
        return None
    step, runs = (1, (c * d, b * d)) if first else (2, (0, 0))
    bytes_ = [_copied(side, side.stride(0), side.stride(step), run) for side, run in zip((x, grad), runs, strict=True)]
    plan, expected, emit = (
        (row_sum_plan, row_sum_seconds, sum_emit.emit_row_sum)
        if first
        else (column_sum_plan, column_sum_seconds, sum_emit.emit_column_sum)
    )
    chosen: Any = plan(pattern, batch, dtype, *bytes_, products, own)
    other = sum_plan(own.arch, d, dtype, first, first)
    if expected(chosen, pattern, batch, own) >= sum_seconds(other, pattern, batch, own):
        return None
    entry = Entry(ENTRY, chosen.threads, chosen.shared)
    loaded = load_kernels(chosen, chosen.arch, lambda: emit(chosen), entry)
    slots = 1 if chosen.whole else chosen.slots(pattern, groups, batch, own)
    rest = (batch, groups, *pattern, slots, *(side.stride(axis) for side in (x, grad) for axis in (0, step)))
    blocks = chosen.blocks(chosen.tiles(pattern, groups) * slots, own)
    return _in_parts(loaded, pattern, groups, slots, blocks, rest, x, chosen.whole)


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


def _streamed_sum(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], first: bool, own: DeviceLimits
) -> Sums | None:
    """Return the gradient of weights for a small batch; None where the kernel for larger ones should be quicker."""
    index, (groups, batch, _), dtype = index_of(x.device), x.shape, NAMES[x.dtype]
    other = sum_seconds(sum_plan(own.arch, pattern[3], dtype, first, first), pattern, batch, own)
    if not first:
        other = min(other, columns_seconds(pattern, batch, dtype, own))
    if stream_sum_seconds(pattern, batch, dtype, own, not first) >= other:
        return None
    chosen = stream_sum_plan(pattern, batch, groups, dtype, own)
    if chosen is None or not (spans(x) and spans(grad)):
        return None
    copies = [side.stride(2) != 1 and side.shape[2] > 1 for side in (x, grad)]
    x_row, y_row = (
        side.shape[2] if copied or batch == 1 else side.stride(1)
        for side, copied in zip((x, grad), copies, strict=True)
    )
    chosen = replace(chosen, x_row=x_row, y_row=y_row)
    entry = Entry(ENTRY, STREAM_THREADS)
    loaded = load_kernels(chosen, chosen.arch, lambda: sum_emit.emit_stream_sum(chosen), entry)
    blocks = chosen.blocks(groups)

    def run(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        out = allocate((groups, *pattern), x.dtype, x.device)
        if loaded is not None:
            x, grad = (side.contiguous() if copied else side for side, copied in zip((x, grad), copies, strict=True))
            pointers = x.data_ptr(), grad.data_ptr(), out.data_ptr()
            start(loaded[0], index, blocks, (*pointers, batch, x.stride(0), grad.stride(0)))
        return out

    return run
