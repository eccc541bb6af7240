"""Dense linear layers of other libraries: their matrix (out_features, in_features) and bias."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch import nn

from ...arrays import unwrap
from ...errors import DeviceError, DtypeError, ParameterError, ShapeError

_HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
_TRANSPOSED = "Conv1D"  # of transformers, which has weights (in_features, out_features)


class Dense(NamedTuple):
    """Weight and bias of a dense linear layer."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def dense(layer: Any) -> Dense:
    """Return the weight (out_features, in_features) and bias of a layer; raise ParameterError if it is not linear."""
    weight = getattr(layer, "weight", None)
    if not isinstance(layer, nn.Module) or not isinstance(weight, torch.Tensor):
        raise ParameterError(f"a linear layer with a weight (out_features, in_features) is needed, not {_kind(layer)}")
    if weight.dim() != 2:
        raise ShapeError(
            f"the weight of a linear layer is a matrix, that of {_kind(layer)} has shape {tuple(weight.shape)}"
        )
    return Dense(weight.T if type(layer).__name__ == _TRANSPOSED else weight, getattr(layer, "bias", None))


def carry_hooks(old: nn.Module, new: nn.Module, share: bool = False) -> None:
    """Make a module call the forward and backward hooks of the module that it replaces, after its own.

    ``share``: handles of the old module's hooks, which is no longer used, remove them from the new module too.
    """
    for name in _HOOKS:
        found, own = getattr(old, name), getattr(new, name)
        if share and not own:
            setattr(new, name, found)
        elif found:
            own.update(found)
    if old._backward_hooks:
        new._is_full_backward_hook = old._is_full_backward_hook


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a dense linear layer and nothing else."""
    return type(module) is nn.Linear or type(module).__name__ in (
        _TRANSPOSED, "LinearBatchLast", "NonDynamicallyQuantizableLinear",
    )  # fmt: skip


def matrix_of(layer: Any) -> torch.Tensor | None:
    """Return the matrix of a layer, or of an array; None of a shape. Halves come back in float32."""
    if isinstance(layer, nn.Module):
        value = dense(layer).weight
    elif isinstance(layer, (tuple, list, torch.Size)):
        return None
    else:
        (value,), _ = unwrap(layer, names=("the matrix",))
    return decomposable(value)


def decomposable(matrix: torch.Tensor) -> torch.Tensor:
    """Return a finite matrix in float32 or float64; raise the error that says what is wrong."""
    if not matrix.dtype.is_floating_point:
        raise DtypeError(f"the matrix is {matrix.dtype}; a real floating-point one is needed")
    if matrix.is_meta:
        raise DeviceError("the matrix is on meta and has no values; move its layer with to_empty() and fill it first")
    value = matrix.detach() if matrix.dtype in (torch.float32, torch.float64) else matrix.detach().float()
    if not bool(value.isfinite().all()):
        raise ParameterError("the matrix has entries that are not finite")
    return value


def check_shape(shape: Any) -> tuple[int, int]:
    """(out_features, in_features) of a shape, a matrix or a layer."""
    found = dense(shape).weight.shape if isinstance(shape, nn.Module) else getattr(shape, "shape", shape)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise ShapeError(f"a shape has two entries (out_features, in_features), not {_kind(found)} {found!r}")
    try:
        rows, columns = map(operator.index, found)
    except TypeError:
        rows = columns = 0
    if min(rows, columns) < 1:
        raise ShapeError(f"both entries of a shape (out_features, in_features) must be positive integers, not {found}")
    return rows, columns


def _kind(value: Any) -> str:
    return type(value).__name__
