"""Block-sparse reductions: every range of rows with the ranges of columns that it is reduced over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ParameterError
from .expression import Expression, checked_types, leaves
from .reductions import Route, cut, reduce_formula

IDENTITIES = {
    "sum": 0.0, "softmax": math.nan, "logsumexp": -math.inf, "min": math.inf, "max": -math.inf, "smallest": math.inf,
    "largest": -math.inf,
}  # fmt: skip
"""Results of rows that are in no range, or in one without columns."""
Block = tuple[slice, torch.Tensor]


def swap_axes(ranges: Any) -> Any:
    """Return the ranges of the transposed matrix."""
    return None if ranges is None else (*ranges[3:6], *ranges[:3])


def blocks_of(ranges: Sequence[Any], axis: str, device: torch.device) -> list[Block]:
    """Return ranges of rows with the columns of each, for a reduction over ``axis``."""
    if len(ranges) != 6:
        raise ParameterError(f"ranges is a tuple of six arrays, as from_matrix makes it; got {len(ranges)}")
    rows, ends, columns = ([*torch.as_tensor(part).tolist()] for part in (ranges[:3] if axis == "j" else ranges[3:]))
    if len(ends) != len(rows):
        raise ParameterError(f"ranges: there are {len(rows)} ranges of rows and {len(ends)} ends of slices")
    blocks: list[Block] = []
    first = 0
    for (start, stop), end in zip(rows, ends, strict=True):
        pieces = [torch.arange(low, high, device=device) for low, high in columns[first:end]]
        blocks.append((slice(start, stop), torch.cat(pieces) if pieces else torch.arange(0, device=device)))
        first = end
    return blocks


def reduce_blocks(
    e: Expression, how: str, axis: str, ranges: Sequence[Any], *, weights: Expression | None, count: int, route: Route
) -> tuple[torch.Tensor, ...]:
    """Return the results of a reduction over ranges; gradients pass through the entries in them alone."""
    tensor = leaves(checked_types(e))[0].tensor
    row_axis = "j" if axis == "i" else "i"
    if e.batch or (weights is not None and weights.batch):
        raise ParameterError("ranges are for variables without batch dimensions; call once for each of the batch")
    extent = e.extents.get(row_axis, 1)
    width = e.dim if weights is None else weights.dim
    parts: list[tuple[torch.Tensor, ...]] = []
    order: list[torch.Tensor] = []
    for rows, columns in blocks_of(ranges, axis, tensor.device):
        if not len(columns) or rows.stop <= rows.start:
            continue
        own = cut(cut(e, row_axis, rows), axis, columns)
        scale = None if weights is None else cut(cut(weights, row_axis, rows), axis, columns)
        found = reduce_formula(own, how, axis, weights=scale, count=count, route=route)
        if count:
            found = found[0], columns[found[1]]
        parts.append(found)
        order.append(torch.arange(rows.start, rows.stop, device=tensor.device))
    shape = (extent, *(count,) * bool(count), width)
    results = [tensor.new_full(shape, IDENTITIES[how])]
    if count:
        results.append(torch.zeros(shape, dtype=torch.int64, device=tensor.device))
    if parts:
        where = torch.cat(order)
        results = [
            whole.index_copy(0, where, torch.cat(every))
            for whole, every in zip(results, zip(*parts, strict=True), strict=True)
        ]
    return tuple(results)
