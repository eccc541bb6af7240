"""The smallest or largest entries of the rows of scores, with derivatives of the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..ir.definition import Definition
from ..ir.equation import parse
from ..ir.nested import Score
from .autograd import Attributes, assumed_constant
from .info import RunInfo
from .row_reduce import Defined, entries, task_of
from .torch_private import is_recorded

Tensors = Sequence[torch.Tensor]


def nearest(
    score: Defined, operands: Tensors, parameters: Mapping[str, Any], count: int, largest: bool,
    precision: str | None = None, info: RunInfo | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the values and indices of the best entries of every row of a score's matrix, best first, NaN last.

    The values have derivatives: they are computed again, for these entries alone.
    """
    how = "largest" if largest else "smallest"
    fixed = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in parameters.items()}
    alone = [operand.detach() for operand in operands]
    task, tensors = task_of(score, how, alone, fixed, count=count, precision=precision, info=info)
    values, indices = task.evaluate(tensors)
    moving = [*operands, *(value for value in parameters.values() if isinstance(value, torch.Tensor))]
    if is_recorded(moving):
        values = _chosen(score, operands, parameters, indices, precision).to(values.dtype)
    return values, indices


_OF_ROWS = Attributes()


@assumed_constant
def _name(text: str) -> str:
    return _OF_ROWS.name_of(text, partial(_of_rows, text))


def _of_rows(text: str) -> Score:
    """Return, of a contraction over rows and columns, that of every row with the column of the same index."""
    definition = Definition.parse(text)
    row, column = definition.equation.out
    axes = ["".join(dict.fromkeys(_leading(own, row, column))) for own in definition.equation.operands]
    axes = ["".join(dict.fromkeys(own.replace(column, row))) for own in axes]
    return Score(replace(definition, equation=parse(f"{','.join(axes)}->{row}")))


def _leading(axes: str, row: str, column: str) -> str:
    """Return the axes of an operand over rows and columns with these first; those of any other as they are."""
    if row not in axes or column not in axes:
        return axes
    return row + column + axes.replace(row, "").replace(column, "")


def _chosen(
    score: Defined, operands: Tensors, parameters: Mapping[str, Any], indices: torch.Tensor, precision: str | None
) -> torch.Tensor:
    """Return the entries of the matrix at some columns of every row."""
    row, column = score.definition.equation.out
    batch, count = indices.shape[:-2], indices.shape[-1]
    grid = _grid(batch, indices.device)
    chosen: list[torch.Tensor] = []
    for operand, axes in zip(operands, score.definition.equation.operands, strict=True):
        lead = operand.dim() - len(axes)
        if column in axes:
            order = _leading(axes, row, column)
            order = order if row in axes else column + order.replace(column, "")
            operand = operand.permute([*range(lead), *(lead + axes.index(axis) for axis in order)])
            operand = operand.expand(*batch, *operand.shape[lead:])
            # The derivative of an index adds in one order on GPUs, that of gather in any.
            if row in axes:
                rows = torch.arange(indices.shape[-2], device=indices.device)[:, None]
                above = [each[..., None] for each in grid]
                operand = operand[(*above, rows, indices)].flatten(len(batch), len(batch) + 1)
            else:
                operand = operand[(*grid, indices.flatten(-2))]
                operand = operand.movedim(len(batch), len(batch) + axes.index(column))
        elif row in axes:
            operand = operand.repeat_interleave(count, axes.index(row) - len(axes))
        chosen.append(operand)
    of_rows: Score = getattr(_OF_ROWS, _name(score.text))
    return entries(of_rows, chosen, parameters, precision)[0].unflatten(-1, (-1, count))


def _grid(batch: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Return the indices of the batch axes, to go with those of one further axis."""
    return [
        torch.arange(extent, device=device)[(..., *(None,) * (len(batch) - index))]
        for index, extent in enumerate(batch)
    ]
