"""The matrix of a kernel, and what is made of it block by block without storing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..errors import ShapeError
from ..ops.checks import check_out
from ..ops.dtypes import NAMES
from ..ops.execute import Types
from .blocks import Block, Workspace, blocks
from .call import Call
from .recompute import recompute


def dense(call: Call, out: Any, diagonal: Any, offsets: tuple[int, int]) -> Any:
    """All pairs of rows, written to ``out`` where given, with ``diagonal`` added."""
    if out is None:
        result = call.gram(call.x, call.y, call.shared)
        if diagonal is not None:
            result = add_diagonal(result, diagonal, offsets)
        return call.finished(result)
    shape = (*call.batch, call.x.shape[-2], call.y.shape[-2])
    types = Types(NAMES[call.dtype], (NAMES[call.dtype],)).text
    values = [call.x, call.y, *call.shared, *([diagonal] if isinstance(diagonal, torch.Tensor) else [])]
    tracked = torch.is_grad_enabled() and any(value.requires_grad for value in values)
    (target,) = check_out(out, shape, types, [call.x, call.y], tracked, True)
    if target.dtype == call.x.dtype:
        call.gram(call.x, call.y, call.shared, out=target)
    else:
        target.copy_(call.gram(call.x, call.y, call.shared))
    if diagonal is not None:
        _check_batch(target, diagonal)
        _add(target, diagonal, offsets)
    return out


def _check_batch(target: torch.Tensor, diagonal: Any) -> None:
    if isinstance(diagonal, torch.Tensor):
        try:
            fits = torch.broadcast_shapes(target.shape[:-2], diagonal.shape) == target.shape[:-2]
        except RuntimeError:
            fits = False
        if not fits:
            raise ShapeError(f"diagonal has batch shape {tuple(diagonal.shape)}, the result {tuple(target.shape)}")


def _entries(matrix: torch.Tensor, offsets: tuple[int, int]) -> tuple[torch.Tensor, int]:
    """The entries whose row and column have the same index in the larger arrays."""
    offset = int(offsets[0]) - int(offsets[1])
    return matrix.diagonal(offset, -2, -1), offset


def _spread(diagonal: Any, matrix: torch.Tensor) -> Any:
    return diagonal.to(matrix.dtype).unsqueeze(-1) if isinstance(diagonal, torch.Tensor) else diagonal


def _add(matrix: torch.Tensor, diagonal: Any, offsets: tuple[int, int]) -> None:
    _entries(matrix, offsets)[0].add_(_spread(diagonal, matrix))


def add_diagonal(matrix: torch.Tensor, diagonal: Any, offsets: tuple[int, int]) -> torch.Tensor:
    """The matrix with a number, or one per batch, added where row and column have the same index."""
    if isinstance(diagonal, torch.Tensor):
        try:
            batch = torch.broadcast_shapes(matrix.shape[:-2], diagonal.shape)
        except RuntimeError:
            _check_batch(matrix, diagonal)
            raise
        if batch != matrix.shape[:-2]:
            matrix = matrix.expand(*batch, *matrix.shape[-2:]).clone()
    moving = matrix.requires_grad or (isinstance(diagonal, torch.Tensor) and diagonal.requires_grad)
    if moving and torch.is_grad_enabled():
        entries, offset = _entries(matrix, offsets)
        return torch.diagonal_scatter(matrix, entries + _spread(diagonal, matrix), offset, -2, -1)
    _add(matrix, diagonal, offsets)
    return matrix


def matmul(call: Call, v: torch.Tensor, diagonal: Any = None) -> torch.Tensor:
    """The matrix times v, a vector or a matrix with as many rows as y."""
    rows = call.y.shape[-2]
    shape, vector = tuple(v.shape), v.dim() == 1
    v = v.unsqueeze(-1) if vector else v
    if not shape or v.shape[-2] != rows:
        raise ShapeError(f"v must have a row for each of the {rows} rows of y, it has shape {shape}")
    try:
        batch = torch.broadcast_shapes(call.batch, v.shape[:-2])
    except RuntimeError:
        raise ShapeError(f"batch axes do not broadcast: v has shape {shape}, k(x, y) {call.batch}") from None
    call = call.widened()
    v = v.to(call.x.dtype)
    tracked = torch.is_grad_enabled() and (call.is_tracked or v.requires_grad)
    parts: list[torch.Tensor] = []
    out = None if tracked else call.x.new_empty((*batch, call.x.shape[-2], v.shape[-1]))
    space = Workspace()
    for row in blocks(call):
        total = _summed(call, space, v, row)
        if out is None:
            parts.append(total)
        else:
            out[..., row[0].rows, :] = total
    space.release()
    if out is None:
        out = torch.cat(parts, -2) if parts else call.x.new_zeros((*batch, 0, v.shape[-1]))
    if diagonal is not None:
        if call.x.shape[-2] != rows:
            raise ShapeError(f"diagonal needs as many rows in x as in y, they have {call.x.shape[-2]} and {rows}")
        scale = diagonal.to(v.dtype)[..., None, None] if isinstance(diagonal, torch.Tensor) else diagonal
        out = out + scale * v
    return out.squeeze(-1) if vector else out


def _product(
    call: Call, space: Workspace, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, *shared: torch.Tensor
) -> tuple[torch.Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        return (block_matrix(call, space, x, y, shared) @ v,)


def block_matrix(
    call: Call, space: Workspace, x: torch.Tensor, y: torch.Tensor, shared: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The matrix of a block, in the workspace where no derivative is recorded."""
    shape = (*call.batch, x.shape[-2], y.shape[-2])
    return call.gram(x, y, shared, out=space.matrix(x, shape, (x, y, *shared)))


def _summed(call: Call, space: Workspace, v: torch.Tensor, row: list[Block]) -> torch.Tensor:
    total: torch.Tensor | None = None
    for block in row:
        x, y = call.x[..., block.rows, :], call.y[..., block.columns, :]
        (part,) = recompute(partial(_product, call, space), x, y, v[..., block.columns, :], *call.shared)
        total = part if total is None else total + part
    assert total is not None
    return total


def _sum(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.sum(-1)


def _max(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.amax(-1)


def _logsumexp(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.logsumexp(-1)


REDUCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], float]] = {
    "sum": (_sum, torch.add, 0.0),
    "max": (_max, torch.maximum, float("-inf")),
    "logsumexp": (_logsumexp, torch.logaddexp, float("-inf")),
}
"""How a block is reduced over its rows of y, how blocks join, and the value over no rows."""


def _reduced(
    call: Call, kind: str, space: Workspace, x: torch.Tensor, y: torch.Tensor, *shared: torch.Tensor
) -> tuple[torch.Tensor]:
    return (REDUCTIONS[kind][0](block_matrix(call, space, x, y, shared)),)


def reduced(call: Call, kind: str) -> torch.Tensor:
    """A reduction over the rows of y: (..., m)."""
    call = call.widened()
    _, join, nothing = REDUCTIONS[kind]
    if call.y.shape[-2] == 0 or call.x.shape[-2] == 0:
        return call.x.new_full((*call.batch, call.x.shape[-2]), nothing)
    parts: list[torch.Tensor] = []
    space = Workspace()
    for row in blocks(call):
        total: torch.Tensor | None = None
        for block in row:
            x, y = call.x[..., block.rows, :], call.y[..., block.columns, :]
            (part,) = recompute(partial(_reduced, call, kind, space), x, y, *call.shared)
            total = part if total is None else join(total, part)
        assert total is not None
        parts.append(total)
    space.release()
    return torch.cat(parts, -1)
