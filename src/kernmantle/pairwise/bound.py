"""Products with the matrix of a kernel, and reductions of its rows, whose plan is bound: no check is left to make.

Bound are calls on two matrices of rows with hyperparameters that are numbers, with or without lengthscales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.simplify import POWER_CLASSES
from ..runtime.dispatch import PLANS, CallKey
from ..torch_ops.call_key import call_key, is_recorded
from ..torch_ops.checks import check_apart, overlaps_any, reach
from ..torch_ops.info import RunInfo
from ..torch_ops.row_reduce import BoundApply, bind_apply
from ..torch_ops.row_reduce_autograd import recorded
from .kernel_form import Form, divided, gram

_DTYPES = (torch.float32, torch.float64)
# Up to so many differences of float32 a kernel on a GPU takes the lengthscales as they are and makes one reciprocal for
# each column in every thread, half a microsecond of an H200, where a launch for reciprocals takes the host seven.
_MOST_DIVIDED = {"cuda": 1 << 20}


@dataclass(frozen=True, eq=False)
class BoundReduction:
    """The bound call of a product with the matrix or of a reduction of its rows.

    ``lengths`` are the names of the lengthscales in the form's order, which a kernel that ``divides`` reads as they are
    and another one as reciprocals; ``is_vector`` says that v has one axis, ``is_recorded`` that derivatives are
    recorded. ``spans`` are the bytes that ``out``, x, y, v and the lengthscales reach over, empty without ``out``.
    """

    apply: BoundApply
    lengths: tuple[str, ...]
    divides: bool
    is_vector: bool
    is_recorded: bool
    route: str
    spans: tuple[int, ...] = ()

    def __call__(
        self, tensors: Sequence[Any], numbers: Mapping[str, Any], outs: Sequence[torch.Tensor] = ()
    ) -> torch.Tensor:
        """Return the result on x, y, v (None of a reduction) and lengthscales by name, and hyperparameters by name.

        ``outs`` holds at most one tensor, which the result is written to.
        """
        x, y, v, weights = tensors
        # Bound are lengthscales of the rows' dtype alone: their reciprocals need no wider type.
        arrays = _arrays(x, y, v, weights, self.lengths, self.divides, self.is_vector)
        if outs:
            (out,) = outs
            inputs = (x, x if y is None else y, v, *weights.values())
            if overlaps_any(out, inputs, self.spans):
                check_apart(outs, inputs)
            self.apply.write(arrays, numbers, out.unsqueeze(-1) if self.is_vector else out)
            return out
        if self.is_recorded:
            result = recorded(self.apply.task(numbers, RunInfo()), arrays)
        else:
            result = self.apply(arrays, numbers)[0]
        return result.squeeze(-1) if self.is_vector else result


def _arrays(
    x: Any, y: Any, v: Any, weights: Mapping[str, torch.Tensor], lengths: Sequence[str], divides: bool, is_vector: bool
) -> list[torch.Tensor]:
    """Return the operands of the contraction, then v as a matrix."""
    found = [x, x if y is None else y]
    found.extend([weights[name] if divides else weights[name].reciprocal() for name in lengths])
    if v is not None:
        found.append(v.unsqueeze(-1) if is_vector else v)
    return found


def classes_of(values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return what a plan depends on of hyperparameters: names, and exponents of a class.

    None if some are tensors, and while torch.compile traces, which would guard their values.
    """
    if torch.compiler.is_compiling():
        return None
    found: list[Any] = []
    for name, value in values.items():
        if type(value) is not float and type(value) is not int:
            return None
        found += name, value if value in POWER_CLASSES else None
    return tuple(found)


def key_of(
    form: Form, classes: tuple[Any, ...], weights: Mapping[str, torch.Tensor], how: str, x: Any, y: Any, v: Any,
    precision: str | None, out: Any = None,
) -> CallKey | None:  # fmt: skip
    """Return what the checks and the plan of a call depend on; None for one that has to go through all checks."""
    if len(form.operands) != len(weights):
        return None
    if precision is not None and type(precision) is not str:
        return None
    tensors = x, y, v, out, *[weights[name] for name in form.weights]
    return call_key(("reduction", form.key), (how, precision, *classes), tensors)


def bind(
    key: CallKey | None, form: Form, values: Mapping[str, Any], weights: Mapping[str, torch.Tensor], how: str, x: Any,
    y: Any, v: Any, precision: str | None, out: Any = None,
) -> None:  # fmt: skip
    """Store the bound call of one that went through all checks, if it is of a kind that is bound."""
    lengths = form.weights
    arrays = [x, x if y is None else y, *weights.values(), *([] if v is None else [v])]
    if key is None or x.dtype not in _DTYPES:
        return
    if any(array.dtype != x.dtype or array.numel() == 0 for array in arrays):
        return
    if arrays[0].dim() != 2 or arrays[1].dim() != 2 or any(weight.dim() != 1 for weight in weights.values()):
        return
    if v is not None and v.dim() > 2:
        return
    if out is not None and not (out.is_contiguous() and out.data_ptr() % 16 == 0):
        return
    is_vector = v is not None and v.dim() == 1
    fits = arrays[0].numel() * arrays[1].shape[0] <= _MOST_DIVIDED.get(x.device.type, 0)
    divides = bool(lengths) and fits and x.dtype == torch.float32 and precision is None
    found = _arrays(x, y, v, weights, lengths, divides, is_vector)
    operands, last = (found, None) if v is None else (found[:-1], found[-1])
    bound = bind_apply((divided if divides else gram)(form), how, operands, values, last, precision)
    inputs = [*arrays[:2], *([] if v is None else [v]), *weights.values()]
    spans = () if out is None else tuple(map(reach, [out, *inputs]))
    PLANS[key] = BoundReduction(bound, lengths, divides, is_vector, is_recorded(key), bound.program.route, spans)
