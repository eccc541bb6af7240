"""The rows of y that are nearest to each row of x by a kernel, found without the matrix between them."""

from __future__ import annotations

from typing import Any

from ..errors import ParameterError
from ..torch_ops.row_select import nearest
from .kernel_form import gram
from .kernel_inputs import Call


def check_count(count: Any, rows: int) -> int:
    """Return the number of neighbours, at least 1 and at most as many as there are rows."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= rows:
        raise ParameterError(f"count must be an integer from 1 to {rows}, the number of rows of y, got {count!r}")
    return count


def nearest_of(call: Call, count: int, largest: bool, return_values: bool) -> Any:
    """Return the indices of the largest or smallest values of a kernel, with them where asked."""
    check_count(count, call.y.shape[-2])
    inputs = call.kernel_inputs(call.x, call.y, call.shared)
    info = call.info("largest" if largest else "smallest")
    found = nearest(gram(call.form), inputs.operands, inputs.parameters, count, largest, call.precision, info)
    return (call.finished(found[0]), call.wrap(found[1])) if return_values else call.wrap(found[1])
