"""Checks of the arguments of a call, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch

from ..arrays import check_same_device, check_same_dtype, unwrap_out
from ..config import Precision
from ..errors import DtypeError, GradientError, OutputError, ParameterError, ShapeError
from ..ir.definition import Definition
from ..ir.equation import Equation, Extents, extents
from .dtypes import DTYPES
from .execute import Types
from .torch_private import autocasts, has_tangent, is_batched, is_wrapped

_LARGEST = int(np.finfo(np.float64).max)
_PRECISIONS = (None, *get_args(Precision))


def is_number(value: Any) -> bool:
    """Return whether a value travels as a kernel argument rather than as an array."""
    return isinstance(value, (bool, int, float, np.number, np.bool_)) or (
        isinstance(value, np.ndarray) and value.ndim == 0
    )


def number_of(value: Any, name: str) -> float | int:
    """Python number of a scalar."""
    if type(value) is float:
        return value
    number = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    if isinstance(number, bool):
        return int(number)
    if not isinstance(number, (int, float)) or (isinstance(number, int) and abs(number) > _LARGEST):
        raise ParameterError(f"parameter {name!r} is {number!r}, which is not a real number that float64 can represent")
    return number


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast off, so that products are computed in the types of their operands."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else nullcontext()


@dataclass(frozen=True)
class Call:
    """Arguments of one call: arrays in the equation's order, then parameters that are arrays; and numbers."""

    arrays: tuple[Any, ...]
    labels: tuple[str, ...]
    count: int
    names: tuple[str, ...]
    numbers: Mapping[str, Any]
    tensors: tuple[torch.Tensor, ...] = ()

    @staticmethod
    def of(definition: Definition, operands: Sequence[Any], named: Mapping[str, Any]) -> Call:
        """Sort positional and named arguments into arrays and numbers."""
        rest = iter(enumerate(operands))
        arrays: list[Any] = []
        labels: list[str] = []
        for name in definition.equation.names:
            if name is None:
                index, value = next(rest)
                arrays.append(value)
                labels.append(f"operand {index}")
            else:
                arrays.append(named[name])
                labels.append(f"operand {name!r}")
        for index, label in enumerate(labels):
            if is_number(arrays[index]) and not hasattr(arrays[index], "shape"):
                raise DtypeError(f"{label} is a number; pass an array, or make it a named parameter of the lambda")
        numbers = {name: named[name] for name in definition.parameters if is_number(named[name])}
        if isinstance(arrays[0], torch.Tensor):
            device, others = arrays[0].device, [name for name in definition.parameters if name not in numbers]
            numbers |= {name: named[name].item() for name in others if is_host_number(named[name], device)}
        names = tuple(name for name in definition.parameters if name not in numbers)
        arrays += [named[name] for name in names]
        labels += [f"parameter {name!r}" for name in names]
        return Call(tuple(arrays), tuple(labels), len(definition.equation.names), names, numbers)

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Call:
        """Return the call with every array as a tensor, in float32 if autocast asks for it."""
        if autocasts(tensors[0].device):
            tensors = [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]
        if self.count > 1 and self.arrays[0] is self.arrays[1]:
            tensors = [tensors[0], tensors[0], *tensors[2:]]
        return replace(self, tensors=tuple(tensors))

    @property
    def operands(self) -> tuple[torch.Tensor, ...]:
        """Tensors of the equation's operands."""
        return self.tensors[: self.count]

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Tensors of the parameters."""
        return dict(zip(self.names, self.tensors[self.count :], strict=True))


def is_host_number(value: Any, device: torch.device) -> bool:
    """Return whether a tensor is a number on the host beside operands on a device, read without a synchronisation.

    A tensor by which a derivative is taken, or a batch of them that vmap hides, is none.
    """
    if not isinstance(value, torch.Tensor) or value.dim() or not value.device.type == "cpu" != device.type:
        return False
    return not (value.requires_grad or is_batched(value) or is_wrapped(value) or has_tangent([value]))


def check_precision(precision: Any, more: Sequence[str] = ("half",)) -> None:
    """Raise ParameterError for an invalid precision."""
    choices = (*_PRECISIONS, *more)
    if not (precision is None or isinstance(precision, str)) or precision not in choices:
        listing = ", ".join(map(repr, choices))
        raise ParameterError(f"precision must be one of {listing}, not {precision!r}")


def check_call(equation: Equation, call: Call) -> Extents:
    """Return the extents of the call, or raise the error that says what does not fit."""
    check_same_device(call.tensors, call.labels)
    check_same_dtype(call.operands, call.labels[: call.count])
    for name, tensor in call.parameters.items():
        if tensor.is_complex() or tensor.dtype == torch.bool:
            raise ParameterError(f"parameter {name!r} has dtype {tensor.dtype}; pass real numbers")
        operand = call.operands[0].dtype
        if not operand.is_floating_point and tensor.dtype.itemsize > max(operand.itemsize, 4):
            raise DtypeError(f"parameter {name!r} is {tensor.dtype}, wider than the arithmetic of {operand} operands")
        if tensor.is_floating_point() and not call.operands[0].is_floating_point():
            raise DtypeError(f"parameter {name!r} is floating point, the operands are {call.operands[0].dtype}")
    axes = [*equation.operands, *("" for _ in call.names)]
    return extents(call.labels, axes, [tuple(t.shape) for t in call.tensors], equation.text)


def check_terms(definition: Definition, sizes: Mapping[str, int]) -> None:
    """Raise ShapeError for argmin or argmax over an empty axis."""
    positions = [reduction.name for reduction in definition.reductions if reduction.result == "index"]
    empty = [axis for axis in definition.equation.letters if axis not in definition.equation.out and sizes[axis] == 0]
    if positions and empty:
        raise ShapeError(
            f"{positions[0]} over axis {definition.equation.written(empty[0])!r} of {definition.equation.text!r}, "
            "which has size 0: no position exists"
        )


def shares_memory(tensor: torch.Tensor) -> bool:
    """Return whether two elements may lie at one address."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def reach(tensor: torch.Tensor) -> int:
    """Return the bytes from the first entry of a tensor to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def overlaps_any(out: torch.Tensor, arrays: Sequence[torch.Tensor], spans: Sequence[int]) -> bool:
    """Return whether a result overlaps an array; ``spans`` has the bytes that the result and each array extend over."""
    begin = out.data_ptr()
    end = begin + spans[0]
    for index, array in enumerate(arrays, 1):  # noqa: SIM110 - a generator takes 0.4 us longer
        if begin - spans[index] < array.data_ptr() < end:
            return True
    return False


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors span a common address."""
    first, second = one.data_ptr(), other.data_ptr()
    return one.device == other.device and first < second + reach(other) and second < first + reach(one)


def check_out(
    out: Any, shape: Sequence[int], types: str, values: Sequence[torch.Tensor], tracked: bool, single: bool
) -> list[torch.Tensor]:
    """Return the tensors of ``out``, or raise the error that says why they cannot take the result."""
    if not single and not isinstance(out, (tuple, list)):
        raise OutputError(f"out must be a tuple of arrays, one per output, not {type(out).__name__}")
    entries = [out] if single else list(out)
    dtypes = Types.parse(types).outs
    if len(entries) != len(dtypes):
        raise OutputError(f"out has {len(entries)} arrays, the contraction has {len(dtypes)} outputs")
    targets = [unwrap_out(entry) for entry in entries]
    for target, dtype in zip(targets, dtypes, strict=True):
        check_target(target, shape, DTYPES[dtype], values[0].device, tracked)
    check_apart(targets, values)
    return targets


def check_target(
    target: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device, tracked: bool
) -> None:
    """Raise the error that says why a tensor cannot take a result."""
    if tracked:
        raise GradientError("out= cannot be combined with a gradient; drop out= or use torch.no_grad()")
    if tuple(target.shape) != tuple(shape):
        raise OutputError(f"out has shape {tuple(target.shape)}, the result has {tuple(shape)}")
    if target.dtype != dtype:
        raise OutputError(f"out has dtype {target.dtype}, the result has {dtype}")
    if target.device != device:
        raise OutputError(f"out is on {target.device}, the operands are on {device}")
    if target.is_neg() or target.is_conj() or target._is_zerotensor():
        raise OutputError("out is a lazily negated or conjugated view, or lazily zero; pass one with its own memory")
    if target.requires_grad:
        raise GradientError("out requires a gradient; pass out.detach() or drop out=")
    if shares_memory(target):
        raise OutputError("out has elements that share memory (an expanded view); pass one with its own memory")


def check_apart(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Raise OutputError if output arrays overlap inputs or each other."""
    for index, target in enumerate(targets):
        begin = target.data_ptr()
        end = begin + reach(target)
        for value in values:
            first = value.data_ptr()
            if first < end and begin < first + reach(value) and value.device == target.device:
                raise OutputError("out overlaps an operand in memory; pass one with its own memory")
        if index and any(overlap(target, other) for other in targets[:index]):
            raise OutputError("two arrays of out overlap in memory; pass one per output")
