"""The rows of y that are nearest to each row of x by a kernel, found without the matrix between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..checks import integer
from ..errors import GradientError, ShapeError
from ..torch_ops.row_select import nearest
from ..torch_ops.torch_private import is_tracked
from .kernel_form import gram
from .kernel_inputs import Call


def check_count(count: Any, rows: int) -> int:
    """Return the number of neighbours, at least 1 and at most as many as there are rows."""
    if rows == 0:
        raise ShapeError("y has no rows, among which no row of x has neighbours")
    return integer(count, "count", 1, rows, ", the number of rows of y")


def check_indices(named: Mapping[str, Any]) -> None:
    """Raise GradientError where a gradient by one of the arrays is recorded, though indices are all that is wanted."""
    for name, value in named.items():
        if isinstance(value, torch.Tensor) and not torch.compiler.is_compiling() and is_tracked([value]):
            raise GradientError(
                f"indices have no gradient, and one by {name} is recorded: pass return_values=True for values that "
                f"have one, {name}.detach(), or use torch.no_grad()"
            )


def nearest_of(call: Call, count: int, largest: bool, return_values: bool) -> Any:
    """Return the indices of the largest or smallest values of a kernel, with them where asked."""
    count = check_count(count, call.y.shape[-2])
    if not return_values:
        shared = dict(zip((*call.form.weights, *call.names), call.shared, strict=False))
        check_indices({"x": call.x, "y": call.y, **shared})
    inputs = call.kernel_inputs(call.x, call.y, call.shared)
    info = call.info("largest" if largest else "smallest")
    found = nearest(gram(call.form), inputs.operands, inputs.parameters, count, largest, call.precision, info)
    return (call.finished(found[0]), call.wrap(found[1])) if return_values else call.wrap(found[1])
