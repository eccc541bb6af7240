"""Values of hyperparameters: numbers and tensors, compared, shown and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..arrays import unwrap
from ..errors import ParameterError
from ..torch_ops.checks import is_number, number_of
from .inputs import readable
from .kernel_inputs import Value


def equal(one: Value, other: Value) -> bool:
    """Return whether two values are the same: tensors only where they are one."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return type(one) is type(other) and one == other


def shown(value: Any) -> str:
    """Return a value for a repr: arrays by their shape unless they are a single number on the CPU."""
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 and readable(value):
            return f"tensor({value.item():.6g})"
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, (np.generic, np.ndarray)) and not value.shape:
        return repr(value.item())
    return f"array{value.shape}" if getattr(value, "shape", ()) else repr(value)


def value_of(value: Any, name: str) -> Any:
    """Return the number or tensor of a hyperparameter."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise ParameterError(f"hyperparameter {name!r} has dtype {value.dtype}; pass real numbers")
        return value
    if is_number(value):
        number = number_of(value, name)
        if number != number:
            raise ParameterError(f"hyperparameter {name!r} is NaN")
        return number
    if isinstance(value, (list, tuple)) and value and all(is_number(each) for each in value):
        return value_of(np.asarray(value, dtype=float), name)
    if hasattr(value, "__array__"):
        (found,), _ = unwrap(np.array(value, order="C"), names=[f"hyperparameter {name!r}"])
        return value_of(found, name)
    kind = type(value).__name__
    raise ParameterError(f"hyperparameter {name!r} must be a number, a list of numbers or an array, not {kind}")
