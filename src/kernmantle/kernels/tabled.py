"""Kernels with a term of every pair that is given: a table added to the sum over the columns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..errors import ParameterError, ShapeError
from ..expr.node import Node, substitute, var
from ..expr.simplify import simplify
from ..ops.checks import without_autocast
from .apply import common_batch
from .blocks import block_bytes
from .call import Call
from .differences import blocks
from .form import ROWS, TABLE, Form, of_form
from .recompute import recompute


@of_form
def form_with_table(form: Form) -> Form:
    """The form whose sum has a further term of every pair."""
    if len(form.maps) != 1:
        raise ParameterError(
            f"a table is added to the sum of a kernel, this one has {len(form.maps)}: give the table to the parts, "
            "whose matrices can be added"
        )
    place = var(f"x{len(ROWS) + len(form.operands)}")
    (output,) = simplify(substitute([form.output], {"s0": Node("add", (var("s0"), place))}))
    return replace(form, output=output, operands=(*form.operands, TABLE))


def with_table(call: Call, table: torch.Tensor) -> Call:
    """The call with a term for every pair."""
    wanted = (call.x.shape[-2], call.y.shape[-2])
    if tuple(table.shape[-2:]) != wanted:
        raise ShapeError(f"table must have an entry for each of the {wanted[0]} x {wanted[1]} pairs of rows, it has "
                         f"shape {tuple(table.shape)}")  # fmt: skip
    found = replace(call, form=form_with_table(call.form), shared=(*call.shared, table.to(call.x.dtype)))
    try:
        _ = found.batch
    except RuntimeError:
        raise ShapeError(
            f"batch axes do not broadcast: table has shape {tuple(table.shape)}, k(x, y) {call.batch}"
        ) from None
    return found


def at_points(call: Call, points: slice) -> tuple[torch.Tensor, ...]:
    """The shared tensors for some rows of x."""
    return (*call.shared[:-1], call.shared[-1][..., points, :]) if call.form.has_table else call.shared


def _product(call: Call, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, *shared: torch.Tensor) -> Any:
    with without_autocast(v.device):
        return (call.gram(x, y, shared) @ v,)


def matmul(call: Call, v: torch.Tensor, diagonal: Any = None) -> torch.Tensor:
    """The matrix times v, from blocks of its rows."""
    vector = v.dim() == 1
    call, wide = call.widened(), v.unsqueeze(-1) if vector else v
    wide = wide.to(call.x.dtype)
    rows = (call.x.shape[-2], call.y.shape[-2])
    if wide.dim() < 2 or wide.shape[-2] != rows[1]:
        raise ShapeError(f"v must have a row for each of the {rows[1]} rows of y, it has shape {tuple(v.shape)}")
    if diagonal is not None and rows[0] != rows[1]:
        raise ShapeError(f"diagonal needs as many rows in x as in y, they have {rows[0]} and {rows[1]}")
    try:
        batch = torch.broadcast_shapes(call.batch, wide.shape[:-2])
    except RuntimeError:
        raise ShapeError(f"batch axes do not broadcast: v has shape {tuple(v.shape)}, k(x, y) {call.batch}") from None
    if isinstance(diagonal, torch.Tensor):
        common_batch(tuple(batch), diagonal)
    parts = [
        recompute(partial(_product, call), call.x[..., points, :], call.y, wide, *at_points(call, points))[0]
        for points in blocks(rows[0], call.x.element_size() * max(1, rows[1]), block_bytes(call))
    ]
    out = torch.cat(parts, -2) if parts else call.x.new_zeros((*batch, 0, wide.shape[-1]))
    if diagonal is not None:
        scale = diagonal.to(wide.dtype)[..., None, None] if isinstance(diagonal, torch.Tensor) else diagonal
        out = out + scale * wide
    return out.squeeze(-1) if vector else out
