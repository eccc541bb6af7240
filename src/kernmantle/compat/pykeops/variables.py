"""Variables from arrays: which axis theirs is, and back to the kind of array that was given."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch

from ...errors import DtypeError, ParameterError, ShapeError
from .expression import Expression, Leaf, Number, constants, described

LETTERS = ("i", "j", "")


def tensor_of(array: Any) -> torch.Tensor:
    """Return an array as a tensor on the same memory."""
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(_writable(array))
    if tensor.is_complex():
        raise DtypeError("complex variables are not supported: give real and imaginary parts as two variables")
    if not tensor.is_floating_point():
        raise DtypeError(f"variables are floating point; got {tensor.dtype}, convert it")
    return tensor


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    usable = array.flags.writeable and all(stride >= 0 for stride in array.strides) and array.dtype.isnative
    return array if usable else np.array(array, dtype=array.dtype.newbyteorder("="))


def array_of(tensors: Any) -> Any:
    """Return tensors as arrays of numpy."""
    return tuple(tensor.numpy() for tensor in tensors) if isinstance(tensors, tuple) else tensors.numpy()


def is_number(value: Any) -> bool:
    """Return whether a value is a number of Python's or numpy's."""
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def variable(values: Any, axis: int | None) -> Expression:
    """Return the variable of an array, or the constants of numbers; ``axis`` is 0, 1 or 2, None to read the shape."""
    if is_number(values):
        return Number(values if isinstance(values, int | float) else values.item())
    if isinstance(values, list):
        if axis not in (None, 2) or not values or not all(map(is_number, values)):
            raise ParameterError(f"a list is a parameter, of numbers and without axis; got {values!r}, axis={axis}")
        numbers = [float(value) for value in values]
        return Number(numbers[0]) if len(numbers) == 1 else constants(numbers)
    if not isinstance(values, torch.Tensor | np.ndarray):
        raise DtypeError(f"a LazyTensor is made of an array, numbers or three integers; got {described(values)}")
    tensor = tensor_of(values)
    if axis not in (None, 0, 1, 2):
        raise ParameterError(f"axis is 0, 1 or 2; got {axis!r}")
    if tensor.dim() < 2 and axis in (0, 1):
        raise ShapeError(f"a variable over {LETTERS[axis]} is at least 2-dimensional; got {described(values)}")
    if tensor.dim() < 2 or axis == 2:
        return Leaf(tensor.reshape(1, 1) if tensor.dim() == 0 else tensor.unsqueeze(-2), "")
    if axis is None:
        return _of_shape(tensor, described(values))
    if tensor.dim() > 2:
        raise ShapeError(f"axis={axis} is for 2-dimensional arrays; got {described(values)}, drop axis")
    return Leaf(tensor, LETTERS[axis])


def _of_shape(tensor: torch.Tensor, text: str) -> Leaf:
    """Return the variable whose axis its shape says."""
    if tensor.dim() == 2:
        raise ShapeError(f"the axis of a 2-dimensional array is given: axis=0 or axis=1; got {text}")
    rows, columns = tensor.shape[-3:-1]
    if rows == 1:
        return Leaf(tensor.squeeze(-3), "" if columns == 1 else "j")
    if columns == 1:
        return Leaf(tensor.squeeze(-2), "i")
    raise ShapeError(f"the shape is (..., M, 1, D), (..., 1, N, D) or (..., 1, 1, D); got {text}")


class Alias(NamedTuple):
    """A variable of a formula: its name, its axis 0, 1 or 2, its dimension and its position among the arguments."""

    name: str | None
    axis: int
    dim: int
    position: int


_NAMED = re.compile(r"(?:([A-Za-z_]\w*)=)?(Vi|Vj|Pm|Vx|Vy)\((?:(\d+),)?(\d+)\)")
_INDEXED = re.compile(r"(?:([A-Za-z_]\w*)=)?Var\((\d+),(\d+),([012])\)")
_KINDS = {"Vi": 0, "Vx": 0, "Vj": 1, "Vy": 1, "Pm": 2}


def alias(text: str, position: int) -> Alias:
    """Return what ``"x = Vi(3)"``, ``"x = Vi(0, 3)"`` or ``"Var(0, 3, 0)"`` declares."""
    compact = text.replace(" ", "")
    found = _NAMED.fullmatch(compact)
    if found:
        name, kind, explicit, dim = found.groups()
        return Alias(name, _KINDS[kind], int(dim), position if explicit is None else int(explicit))
    found = _INDEXED.fullmatch(compact)
    if not found:
        raise ParameterError(f"{text!r} declares no variable: write 'x = Vi(3)', 'y = Vj(3)' or 'p = Pm(1)'")
    name, explicit, dim, axis = found.groups()
    return Alias(name, int(axis), int(dim), int(explicit))


def argument(values: Any, own: Alias) -> Leaf:
    """Return the variable of an argument of a call."""
    if not isinstance(values, torch.Tensor | np.ndarray):
        raise DtypeError(f"argument {own.position} is an array; got {described(values)}")
    tensor = tensor_of(values)
    least = 1 if own.axis == 2 else 2
    if tensor.dim() < least or tensor.shape[-1] != own.dim:
        wanted = "(..., D)" if own.axis == 2 else "(..., rows, D)"
        raise ShapeError(f"argument {own.position} has shape {wanted} with D = {own.dim}; got {described(values)}")
    return Leaf(tensor.unsqueeze(-2) if own.axis == 2 else tensor, LETTERS[own.axis])
