"""An apply by blocks of its matrix, which are written, reduced by torch's functions and freed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ..compiler.row_reduce import PRODUCT, Apply
from ..ir.reductions import Reduction
from .checks import without_autocast
from .dtypes import DTYPES
from .execute import Types, allocate, execute
from .layout import geometry

BLOCK_BYTES = {"cpu": 8 << 20, "cuda": 32 << 20}
"""Most bytes of a block: few enough for the cache of a CPU, and for a GPU to have as much again for intermediates."""
LEAST_IN_KERNELS = 1 << 18
"""Fewest entries of a matrix for which a GPU computes derivatives by points in dedicated kernels."""
_SIDE = 128  # columns that the width of a block is a multiple of
Tensors = Sequence[torch.Tensor]


def reduce_rows(reduction: Reduction, entries: torch.Tensor) -> torch.Tensor:
    """Return the reduction of the last axis, by the function of torch that its row names."""
    return getattr(torch, reduction.torch[0])(entries, -1)


def join_rows(reduction: Reduction, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the reduction of two blocks from those of each."""
    return getattr(torch, reduction.torch[1])(one, other)


def ranges(extent: int, step: int) -> Iterator[slice]:
    """Return consecutive ranges of an axis."""
    return (slice(start, min(start + step, extent)) for start in range(0, extent, step))


def block_shape(rows: int, columns: int, entries: int, device: torch.device) -> tuple[int, int]:
    """Return the rows and columns of a block of so many entries.

    On the CPU all columns where one row of them fits; on GPUs nearly a square, so that little of x and y is read.
    """
    width = max(1, min(columns, entries))
    if device.type != "cpu":
        side = math.isqrt(entries)
        width = max(1, min(columns, max(side // _SIDE * _SIDE or side, entries // max(rows, 1))))
    return max(1, min(rows, entries // width)), width


def cut(apply: Apply, tensors: Tensors, rows: slice, columns: slice) -> list[torch.Tensor]:
    """Return the operands of a block; batch axes stay as they are."""
    parts: list[torch.Tensor] = []
    for operand, tensor in zip(apply.inner.tensors, tensors, strict=False):
        for axis, piece in ((apply.row, rows), (apply.column, columns)):
            if axis in operand.axes:
                trailing = len(operand.axes) - operand.axes.index(axis) - 1
                tensor = tensor[(..., piece, *(slice(None),) * trailing)]
        parts.append(tensor)
    return parts


def product(entries: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the matrix product, without autocast."""
    with without_autocast(entries.device):
        return entries @ v


def smallest(keys: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest values of every row and their positions: ordered by value, then by position, NaN last.

    torch leaves open which of equal keys it takes. On GPUs it takes the first of them, on CPUs any. Its sort on GPUs
    compares bits, by which a NaN with a sign comes first: one that was negated, or infinity less infinity in float64.
    """
    positions = keys.topk(count, -1, False, True).indices
    if keys.device.type == "cpu":
        last = keys.gather(-1, positions).amax(-1, keepdim=True)  # NaN where there is one
        equal = torch.where(last.isnan(), keys.isnan(), keys == last)
        if bool((equal.sum(-1) > equal.gather(-1, positions).sum(-1)).any()):
            order = torch.arange(keys.shape[-1])
            below = torch.where(last.isnan(), ~keys.isnan(), keys < last)
            rank = torch.where(below, order - len(order), torch.where(equal, order, len(order)))
            positions = rank.topk(count, -1, False).indices
    positions = positions.sort(-1).values
    chosen = keys.gather(-1, positions)
    ordered = chosen.masked_fill(chosen.isnan(), math.nan).sort(stable=True, dim=-1)
    return ordered.values, positions.gather(-1, ordered.indices)


def _reduced(apply: Apply, entries: torch.Tensor, v: torch.Tensor | None, first: int) -> tuple[torch.Tensor, ...]:
    if apply.selects:
        keys = entries.neg() if apply.how == "largest" else entries
        values, positions = smallest(keys, min(apply.count, keys.shape[-1]))
        return values, positions + first
    if apply.how == PRODUCT:
        assert v is not None
        return (product(entries, v),)
    return (reduce_rows(apply.reduction, entries),)


def _joined(apply: Apply, one: Tensors, other: Tensors) -> tuple[torch.Tensor, ...]:
    if apply.selects:
        keys, positions = (torch.cat(parts, -1) for parts in zip(one, other, strict=True))
        values, chosen = smallest(keys, min(apply.count, keys.shape[-1]))
        return values, positions.gather(-1, chosen)
    return (join_rows(apply.reduction, one[0], other[0]),)


def run_blocks(apply: Apply, types: Types, tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
    """Write the results; the matrix has at least one row and column."""
    own = replace(types, outs=(types.compute,))
    device, dtype, text = tensors[0].device, DTYPES[types.compute], apply.inner.text
    geo = geometry(apply.inner, [tuple(t.shape) for t in tensors[: len(apply.inner.tensors)]])
    limit = BLOCK_BYTES.get(device.type, BLOCK_BYTES["cuda"]) // (dtype.itemsize * math.prod(geo.batch))
    extent = geo.sizes[apply.row], geo.sizes[apply.column]
    height, width = block_shape(*extent, limit, device)
    memory = allocate((math.prod(geo.batch) * height * width,), dtype, device)
    v = tensors[-1].to(dtype) if apply.weighted else None
    for rows in ranges(extent[0], height):
        total: tuple[torch.Tensor, ...] | None = None
        for columns in ranges(extent[1], width):
            shape = (*geo.batch, rows.stop - rows.start, columns.stop - columns.start)
            entries = memory[: math.prod(shape)].view(shape)
            execute(text, own.text, cut(apply, tensors, rows, columns), numbers, [entries])
            found = _reduced(apply, entries, None if v is None else v[..., columns, :], columns.start)
            total = found if total is None else _joined(apply, total, found)
        assert total is not None
        if apply.how == "largest":
            total = (total[0].neg(), *total[1:])
        for out, value in zip(outs, total, strict=True):
            out[(..., rows, *(slice(None),) * (len(apply.out) - 1))] = value
