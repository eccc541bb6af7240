"""The rows of y that are nearest to each row of x, from blocks of the matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..errors import ParameterError
from .blocks import blocks
from .call import Call
from .recompute import recompute

Compare = Callable[..., torch.Tensor]


def check_count(count: Any, rows: int) -> int:
    """The number of neighbours, at least 1 and at most as many as there are rows."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= rows:
        raise ParameterError(f"count must be an integer from 1 to {rows}, the number of rows of y, got {count!r}")
    return count


def _top(
    compare: Compare, count: int, largest: bool, x: torch.Tensor, y: torch.Tensor, *shared: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = compare(x, y, shared).topk(count, -1, largest, True)
    return values, indices


def nearest(call: Call, compare: Compare, count: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of the best columns of every row of ``compare(x, y, shared)``."""
    values: list[torch.Tensor] = []
    indices: list[torch.Tensor] = []
    for row in blocks(call):
        best: tuple[torch.Tensor, torch.Tensor] | None = None
        for block in row:
            x, y = call.x[..., block.rows, :], call.y[..., block.columns, :]
            kept = min(count, y.shape[-2])
            found, places = recompute(partial(_top, compare, kept, largest), x, y, *call.shared)
            places = places + block.columns.start
            if best is not None:
                merged = torch.cat([best[0], found], -1)
                found, order = merged.topk(min(count, merged.shape[-1]), -1, largest, True)
                places = torch.cat([best[1], places], -1).gather(-1, order)
            best = found, places
        assert best is not None
        values.append(best[0])
        indices.append(best[1])
    shape = (*call.batch, 0, count)
    if not values:
        return call.x.new_zeros(shape), torch.zeros(shape, dtype=torch.int64, device=call.device)
    return torch.cat(values, -2), torch.cat(indices, -2)


def nearest_of(call: Call, count: int, largest: bool, return_values: bool) -> Any:
    """Indices of the largest or smallest values of a kernel, with them where asked."""
    check_count(count, call.y.shape[-2])
    call = call.widened()
    values, indices = nearest(call, call.gram, count, largest)
    return (call.finished(values), call.wrap(indices)) if return_values else call.wrap(indices)
