"""Kernels with a term of every pair that is given: a table added to the sum over the columns."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..errors import ParameterError, ShapeError
from ..ir.node import Node, substitute, var
from ..ir.simplify import simplify
from .kernel_form import ROWS, TABLE, Form, of_form
from .kernel_inputs import Call


@of_form
def form_with_table(form: Form) -> Form:
    """Return the form whose sum has a further term of every pair."""
    if len(form.maps) != 1:
        raise ParameterError(
            f"a table is added to the sum of a kernel, this one has {len(form.maps)}: give the table to the parts, "
            "whose matrices can be added"
        )
    operand = var(f"x{len(ROWS) + len(form.operands)}")
    (output,) = simplify(substitute([form.output], {"s0": Node("add", (var("s0"), operand))}))
    return replace(form, output=output, operands=(*form.operands, TABLE))


def with_table(call: Call, table: torch.Tensor) -> Call:
    """Return the call with a term for every pair."""
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
    """Return the shared tensors for some rows of x."""
    return (*call.shared[:-1], call.shared[-1][..., points, :]) if call.form.has_table else call.shared
