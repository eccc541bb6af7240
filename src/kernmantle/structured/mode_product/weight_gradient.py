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
from . import cuda_emit
from .cuda import bind_ready, spans
from .row_sum_plan import row_sum_plan, row_sum_seconds
from .stream_plan import THREADS as STREAM_THREADS
from .stream_plan import stream_sum_plan, stream_sum_seconds
from .weight_gradient_plan import DTYPES as SUMMED
from .weight_gradient_plan import sum_plan, sum_seconds

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
    rows = _bind_rows(x, grad, pattern, products, limits(index)) if all(first) else None
    if rows is not None:
        return rows
    chosen = sum_plan(limits(index).arch, pattern[3], NAMES[x.dtype], first[0], first[1], products)
    entry = Entry(cuda_emit.ENTRY, chosen.threads, chosen.shared)
    loaded = load_kernels(chosen, chosen.arch, lambda: cuda_emit.emit_sum(chosen), entry)
    blocks = chosen.tiles(pattern, groups)
    slots = chosen.slots(pattern, groups, batch, limits(index))
    rest = (batch, groups, *pattern, slots, *x.stride(), *grad.stride())
    return _in_parts(loaded, pattern, groups, slots, blocks, rest, index)


def _bind_rows(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], products: int, own: DeviceLimits
) -> Sums | None:
    """Return sums over rows as they lie; None where the kernel that reads single numbers should be quicker."""
    _, b, c, d = pattern
    groups, batch, _ = x.shape
    if x.stride(2) != 1 or grad.stride(2) != 1:
        return None
    dtype = NAMES[x.dtype]
    x_bytes, y_bytes = _copied(x, c * d), _copied(grad, b * d)
    chosen = row_sum_plan(pattern, batch, dtype, x_bytes, y_bytes, products, own)
    other = sum_plan(own.arch, d, dtype, True, True)
    if row_sum_seconds(chosen, pattern, batch, own) >= sum_seconds(other, pattern, batch, own):
        return None
    entry = Entry(cuda_emit.ENTRY, chosen.threads, chosen.shared)
    loaded = load_kernels(chosen, chosen.arch, lambda: cuda_emit.emit_row_sum(chosen), entry)
    slots = chosen.slots(pattern, groups, batch, own)
    rest = (batch, groups, *pattern, slots, *x.stride()[:2], *grad.stride()[:2])
    return _in_parts(loaded, pattern, groups, slots, chosen.tiles(pattern, groups), rest, index_of(x.device))


def _copied(side: torch.Tensor, block: int) -> int:
    """Return the bytes of the largest copy that pointer, strides and blocks of so many features allow, at most 16."""
    size = side.element_size()
    return math.gcd(16, side.data_ptr(), *(size * step for step in (*side.stride()[:2], block)))


def _in_parts(
    loaded: Any, pattern: tuple[int, int, int, int], groups: int, slots: int, tiles: int, rest: tuple[int, ...],
    index: int,
) -> Sums:  # fmt: skip
    """Return sums in so many parts of the batch, which are added."""
    shape = (slots, groups, *pattern)
    launch = None if loaded is None else bind_ready(loaded[0], 3, rest, index, tiles * slots)

    def run(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        parts = allocate(shape, torch.float32, x.device)
        if launch is not None:
            launch((x.data_ptr(), grad.data_ptr(), parts.data_ptr()))
        total = parts[0] if slots == 1 else parts.sum(0)
        return total if x.dtype == torch.float32 else total.to(x.dtype)

    return run


def _streamed_sum(
    x: torch.Tensor, grad: torch.Tensor, pattern: tuple[int, int, int, int], first: bool, own: DeviceLimits
) -> Sums | None:
    """Return the gradient of weights for a small batch; None where the kernel for larger ones should be quicker."""
    index, (groups, batch, _), dtype = index_of(x.device), x.shape, NAMES[x.dtype]
    other = sum_plan(own.arch, pattern[3], dtype, first, first)
    if stream_sum_seconds(pattern, batch, dtype, own, not first) >= sum_seconds(other, pattern, batch, own):
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
    entry = Entry(cuda_emit.ENTRY, STREAM_THREADS)
    loaded = load_kernels(chosen, chosen.arch, lambda: cuda_emit.emit_stream_sum(chosen), entry)
    blocks = chosen.blocks(groups)

    def run(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        out = allocate((groups, *pattern), x.dtype, x.device)
        if loaded is not None:
            x, grad = (side.contiguous() if copied else side for side, copied in zip((x, grad), copies, strict=True))
            pointers = x.data_ptr(), grad.data_ptr(), out.data_ptr()
            start(loaded[0], index, blocks, (*pointers, batch, x.stride(0), grad.stride(0)))
        return out

    return run
