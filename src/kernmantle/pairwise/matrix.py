"""The matrix of a kernel, and what is made of it without storing it."""

from __future__ import annotations

from typing import Any

import torch

from ..arrays import common_shape
from ..compiler.row_reduce import PRODUCT
from ..errors import ShapeError
from ..torch_ops.checks import check_out
from ..torch_ops.dtypes import NAMES
from ..torch_ops.execute import Types
from ..torch_ops.row_reduce_autograd import rowwise
from ..torch_ops.torch_private import is_recorded, plain
from .kernel_form import gram
from .kernel_inputs import Call


def dense(call: Call, out: Any, diagonal: Any, offsets: tuple[int, int]) -> Any:
    """Return all pairs of rows, written to ``out`` where given, with ``diagonal`` added."""
    if out is None:
        result = call.matrix()
        if diagonal is not None:
            result = add_diagonal(result, diagonal, offsets)
        return call.finished(result)
    shape = (*call.batch, call.x.shape[-2], call.y.shape[-2])
    types = Types(NAMES[call.dtype], (NAMES[call.dtype],)).text
    values = [call.x, call.y, *call.shared, *([diagonal] if isinstance(diagonal, torch.Tensor) else [])]
    tracked = is_recorded(values)
    (target,) = check_out(out, shape, types, [call.x, call.y], tracked, True)
    batch = tuple(target.shape[:-2])
    if isinstance(diagonal, torch.Tensor) and common_batch(batch, diagonal) != batch:
        raise ShapeError(f"diagonal has shape {tuple(diagonal.shape)}, out has no such batch: {tuple(target.shape)}")
    if target.dtype == call.x.dtype:
        call.matrix(target)
    else:
        target.copy_(call.matrix())
    if diagonal is not None:
        _add(target, diagonal, offsets)
    return out


def common_batch(batch: tuple[int, ...], diagonal: torch.Tensor) -> tuple[int, ...]:
    """Return the batch axes of a matrix with a diagonal for each of a batch."""
    try:
        return common_shape(batch, diagonal.shape)
    except RuntimeError:
        shape = tuple(diagonal.shape)
        raise ShapeError(
            f"diagonal has shape {shape}, which the batch {tuple(batch)} does not broadcast with"
        ) from None


def _entries(matrix: torch.Tensor, offsets: tuple[int, int]) -> tuple[torch.Tensor, int]:
    """Return the entries whose row and column have the same index in the larger arrays."""
    offset = int(offsets[0]) - int(offsets[1])
    return matrix.diagonal(offset, -2, -1), offset


def spread(diagonal: Any, matrix: torch.Tensor) -> Any:
    """Return a diagonal, one number or one per batch, beside the entries of a matrix."""
    return diagonal.to(matrix.dtype).unsqueeze(-1) if isinstance(diagonal, torch.Tensor) else diagonal


def _add(matrix: torch.Tensor, diagonal: Any, offsets: tuple[int, int]) -> None:
    _entries(matrix, offsets)[0].add_(spread(diagonal, matrix))


def add_diagonal(matrix: torch.Tensor, diagonal: Any, offsets: tuple[int, int]) -> torch.Tensor:
    """Return the matrix with a number, or one per batch, added where row and column have the same index."""
    if isinstance(diagonal, torch.Tensor):
        batch = common_batch(tuple(matrix.shape[:-2]), diagonal)
        if batch != matrix.shape[:-2]:
            matrix = matrix.expand(*batch, *matrix.shape[-2:]).clone()
    if is_recorded([matrix, *([diagonal] if isinstance(diagonal, torch.Tensor) else [])]):
        entries, offset = _entries(matrix, offsets)
        return torch.diagonal_scatter(matrix, entries + spread(diagonal, matrix), offset, -2, -1)
    _add(matrix, diagonal, offsets)
    return matrix


def matmul(call: Call, v: torch.Tensor, diagonal: Any = None, out: Any = None) -> Any:
    """Return the matrix times v, a vector or a matrix with as many rows as y, in ``out`` if given."""
    rows = call.y.shape[-2]
    shape, vector = tuple(v.shape), v.dim() == 1
    v = v.unsqueeze(-1) if vector else v
    if not shape or v.shape[-2] != rows:
        raise ShapeError(f"v must have a row for each of the {rows} rows of y, it has shape {shape}")
    own = call.batch
    try:
        batch = common_shape(own, v.shape[:-2])
    except RuntimeError:
        raise ShapeError(f"batch axes do not broadcast: v has shape {shape}, k(x, y) {own}") from None
    if diagonal is not None and call.x.shape[-2] != rows:
        raise ShapeError(f"diagonal needs as many rows in x as in y, they have {call.x.shape[-2]} and {rows}")
    if isinstance(diagonal, torch.Tensor):
        batch = common_batch(tuple(batch), diagonal)
    target = None
    if out is not None:
        whole = (*batch, call.x.shape[-2], *(() if vector else v.shape[-1:]))
        values = [call.x, call.y, v, *call.shared, *([diagonal] if isinstance(diagonal, torch.Tensor) else [])]
        types = Types(NAMES[call.dtype], (NAMES[call.dtype],)).text
        (target,) = check_out(out, whole, types, values, is_recorded(values), True)
    wide, v = _computed_in(call, v)
    result = _rowwise(wide, PRODUCT, v)
    if diagonal is not None:
        scale = diagonal.to(v.dtype)[..., None, None] if isinstance(diagonal, torch.Tensor) else diagonal
        result = result + scale * v
    result = result.squeeze(-1) if vector else result
    if target is None:
        return call.finished(result)
    target.copy_(result)
    return out


def _computed_in(call: Call, v: torch.Tensor) -> tuple[Call, torch.Tensor]:
    """Call and v in the type that results are kept in: halves only where nothing is made of them."""
    if call.is_tracked or v.requires_grad or not plain([call.x, v]):
        call = call.widened()
    return call, v.to(call.x.dtype)


def reduced(call: Call, how: str) -> torch.Tensor:
    """Return a reduction over the rows of y: (..., m)."""
    return _rowwise(_computed_in(call, call.x)[0], how)


def _rowwise(call: Call, how: str, v: torch.Tensor | None = None) -> torch.Tensor:
    arguments = call.kernel_inputs(call.x, call.y, call.shared)
    return rowwise(gram(call.form), how, arguments.operands, arguments.parameters, v, call.precision, call.info(how))
