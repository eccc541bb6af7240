"""The rows of y that are nearest to each row of x, found without the matrix between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..errors import ParameterError
from ..ir.definition import Definition
from ..ir.equation import parse
from ..torch_ops.autograd import Attributes, assumed_constant
from ..torch_ops.contract import Contraction
from ..torch_ops.info import RunInfo
from ..torch_ops.row_reduce import task_of
from ..torch_ops.torch_private import is_recorded
from .kernel_form import gram
from .kernel_inputs import Call


def check_count(count: Any, rows: int) -> int:
    """The number of neighbours, at least 1 and at most as many as there are rows."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= rows:
        raise ParameterError(f"count must be an integer from 1 to {rows}, the number of rows of y, got {count!r}")
    return count


def nearest(
    contraction: Contraction,
    operands: Sequence[torch.Tensor],
    parameters: Mapping[str, Any],
    count: int,
    largest: bool,
    precision: str | None = None,
    info: RunInfo | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and places of the best entries of every row of the contraction's matrix, best first, NaN last.

    The values have derivatives: they are computed again, for these pairs alone.
    """
    how = "largest" if largest else "smallest"
    fixed = {name: _detached(value) for name, value in parameters.items()}
    alone = [operand.detach() for operand in operands]
    task, tensors = task_of(contraction, how, alone, fixed, count=count, precision=precision, info=info)
    values, places = task.evaluate(tensors)
    moving = [*operands, *(value for value in parameters.values() if isinstance(value, torch.Tensor))]
    if is_recorded(moving):
        values = _pairs(contraction, operands, parameters, places, precision).to(values.dtype)
    return values, places


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


_PAIRED = Attributes()


@assumed_constant
def _name(text: str) -> str:
    return _PAIRED.name_of(text, partial(_of_rows, text))


def _of_rows(text: str) -> Contraction:
    """Of a contraction over all pairs the one of every row with the row of the same index."""
    definition = Definition.parse(text)
    row, column = definition.equation.out
    axes = ",".join(axes.replace(column, row) for axes in definition.equation.operands)
    return Contraction.of(replace(definition, equation=parse(f"{axes}->{row}")))


def _pairs(
    contraction: Contraction, operands: Sequence[torch.Tensor], parameters: Mapping[str, Any], places: torch.Tensor,
    precision: str | None,
) -> torch.Tensor:  # fmt: skip
    """Entries of the matrix at some places of every row."""
    row, column = contraction.definition.equation.out
    batch, count = places.shape[:-2], places.shape[-1]
    given: list[torch.Tensor] = []
    for operand, axes in zip(operands, contraction.definition.equation.operands, strict=True):
        if column in axes:
            place = axes.index(column) - len(axes)
            operand = operand.expand(*batch, *operand.shape[operand.dim() - len(axes) :])
            # The derivative of an index adds in one order on GPUs, that of gather in any.
            chosen = operand.movedim(place, len(batch))[(*_grid(batch, places.device), places.flatten(-2))]
            operand = chosen.movedim(len(batch), place)
        elif row in axes:
            place = axes.index(row) - len(axes)
            operand = operand.repeat_interleave(count, place)
        given.append(operand)
    paired: Contraction = getattr(_PAIRED, _name(contraction.text))
    return paired(*given, precision=precision, **parameters).unflatten(-1, (-1, count))


def _grid(batch: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Indices of the batch axes, to go with those of one further axis."""
    return [
        torch.arange(extent, device=device)[(..., *(None,) * (len(batch) - place))]
        for place, extent in enumerate(batch)
    ]


def nearest_of(call: Call, count: int, largest: bool, return_values: bool) -> Any:
    """Indices of the largest or smallest values of a kernel, with them where asked."""
    check_count(count, call.y.shape[-2])
    given = call.given(call.x, call.y, call.shared)
    info = call.info("largest" if largest else "smallest")
    found = nearest(gram(call.form), given.operands, given.parameters, count, largest, call.precision, info)
    return (call.finished(found[0]), call.wrap(found[1])) if return_values else call.wrap(found[1])
