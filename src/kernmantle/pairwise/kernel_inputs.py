"""Arguments of a kernel, checked, as tensors of one dtype and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..arrays import Wrap, check_same_device, common_shape, is_numpy_like, promoted
from ..errors import DeviceError, DtypeError, ParameterError, ShapeError
from ..torch_ops.checks import autocasts, check_precision
from ..torch_ops.info import RunInfo, RunInfos
from ..torch_ops.torch_private import is_recorded
from .inputs import HALVES, check_rows, floating, tensors_of
from .kernel_form import Form, Squares, Table, diagonal, gram
from .transform import multiplied

Value = float | str | torch.Tensor
MATRIX = "matrix"
LENGTHS = ("bandwidth", "period")
"""Hyperparameters that are lengths along every column, of which one for each column is another thing."""


@dataclass(frozen=True)
class Call:
    """A form with the tensors of one call; ``y`` is ``x`` itself where only one array was given.

    ``shared`` are the weights, then the parameters that are tensors, in the order of the form, then the table.
    """

    form: Form
    x: torch.Tensor
    y: torch.Tensor
    shared: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    numbers: Mapping[str, float]
    dtype: torch.dtype
    wrap: Wrap
    precision: str | None = None
    infos: RunInfos = field(default_factory=RunInfos, compare=False)

    def info(self, name: str) -> RunInfo:
        """Return the record of what the call makes of its matrix, or of the matrix."""
        if self.form.has_table:
            return self.infos.of(f"{name} with a table")
        return self.infos.matrix if name == MATRIX else self.infos.of(name)

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch axes of the result."""
        weights, end = len(self.form.weights), len(self.form.weights) + len(self.names)
        shapes = [self.x.shape[:-2], self.y.shape[:-2], *(w.shape[:-1] for w in self.shared[:weights])]
        shapes += [table.shape[:-2] for table in self.shared[end:]]
        shapes += [value.shape for value in self.shared[weights:end]]
        return common_shape(*shapes)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.x.device

    def kernel_inputs(self, x: torch.Tensor, y: torch.Tensor, shared: Sequence[torch.Tensor]) -> KernelInputs:
        """Return the operands and parameters for rows x and y."""
        weights = dict(zip(self.form.weights, shared, strict=False))
        parameters = dict(zip(self.names, shared[len(weights) :], strict=False))
        operands = [x, y]
        for operand in self.form.operands:
            if isinstance(operand, Table):
                operands.append(shared[-1])
            elif isinstance(operand, Squares):
                operands.append(squares(x if operand.role == "m" else y, weights.get(operand.weight)))
            else:
                operands.append(weights[operand])
        return KernelInputs(operands, {**self.numbers, **parameters})

    def gram(
        self, x: torch.Tensor, y: torch.Tensor, shared: Sequence[torch.Tensor], out: Any = None,
        info: RunInfo | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return all pairs of rows x and y."""
        inputs, info = self.kernel_inputs(x, y, shared), RunInfo() if info is None else info
        return gram(self.form).run(inputs.operands, inputs.parameters, out, self.precision, info)

    def matrix(self, out: Any = None) -> torch.Tensor:
        """Return all pairs of rows, as the kernel's own."""
        return self.gram(self.x, self.y, self.shared, out, self.info(MATRIX))

    def diagonal(self) -> torch.Tensor:
        """Return the rows with themselves."""
        inputs = self.kernel_inputs(self.x, self.x, self.shared)
        return diagonal(self.form)(*inputs.operands, precision=self.precision, **inputs.parameters)

    @property
    def is_tracked(self) -> bool:
        """Return whether a derivative may be recorded, at any level."""
        return is_recorded((self.x, self.y, *self.shared))

    def finished(self, result: torch.Tensor) -> Any:
        """Return the result in the dtype and kind of the caller's arrays."""
        return self.wrap(result if result.dtype == self.dtype else result.to(self.dtype))

    def widened(self) -> Call:
        """Return the same in float32 where the tensors are halves."""
        if self.x.dtype not in HALVES:
            return self
        x = self.x.float()
        y = x if self.y is self.x else self.y.float()
        shared = tuple(value.float() if value.dtype in HALVES else value for value in self.shared)
        return replace(self, x=x, y=y, shared=shared)


@dataclass(frozen=True)
class KernelInputs:
    """Arguments of a contraction of a form."""

    operands: list[torch.Tensor]
    parameters: dict[str, Any]


def squares(rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the squared lengths of the rows."""
    scaled = rows if weight is None else rows * weight.unsqueeze(-2)
    return torch.linalg.vecdot(scaled, scaled)


def direct_operands(
    form: Form, values: Mapping[str, Value], weights: Mapping[str, torch.Tensor], x: Any, y: Any
) -> Sequence[torch.Tensor] | None:  # fmt: skip
    """Return the rows, and the reciprocals of lengthscales, if they can go to the contraction as they are."""
    if not isinstance(x, torch.Tensor) or x.dim() != 2 or len(form.operands) != len(weights):
        return None
    columns, dtype, device = x.shape[1], x.dtype, x.device
    if dtype not in (torch.float32, torch.float64):
        return None
    for lengths in weights.values():
        if lengths.dim() != 1 or lengths.shape[0] != columns or lengths.dtype != dtype or lengths.device != device:
            return None
    for value in values.values():
        if type(value) is not float and type(value) is not int:
            return None
    if y is None:
        y = x
    elif (
        not isinstance(y, torch.Tensor) or y.dim() != 2 or y.shape[1] != columns or y.dtype != dtype
        or y.device != device
    ):  # fmt: skip
        return None
    return (x, y, *[weights[name].reciprocal() for name in form.weights]) if weights else (x, y)


def prepare(
    form: Form, values: Mapping[str, Value], weights: Mapping[str, torch.Tensor], x: Any, y: Any,
    extra: Mapping[str, Any] | None = None, precision: str | None = None, transform: torch.Tensor | None = None,
    infos: RunInfos | None = None,
) -> tuple[Call, list[torch.Tensor]]:  # fmt: skip
    """Check the rows of a call; ``extra`` are further arrays of the rows' dtype, returned as tensors."""
    check_precision(precision)
    missing = next((name for name, value in (extra or {}).items() if value is None), None)
    if missing is not None:
        raise DtypeError(f"{missing} is None; pass an array")
    tensors, wrap = tensors_of({"x": x, "y": None if y is x else y, **(extra or {})})
    host = is_numpy_like(x)
    placed = promoted({name: floating(tensor, name, host) for name, tensor in tensors.items()})
    left = placed["x"]
    right = placed.get("y", left)
    check_rows(left, right)
    others = [name for name in placed if name not in "xy"]
    check_same_device([left, *(placed[name] for name in others)], ["x", *others])
    autocast = autocasts(left.device)
    dtype = torch.float32 if autocast and left.dtype in HALVES else left.dtype
    if left.dtype in HALVES and (autocast or form.reads_squares):
        placed = {name: t.float() for name, t in placed.items()}
        left, right = placed["x"], placed.get("y", placed["x"])
    if transform is not None:
        left, right = (multiplied(left, transform),) * 2 if right is left else (
            multiplied(left, transform), multiplied(right, transform)
        )  # fmt: skip
    infos = RunInfos() if infos is None else infos
    call = _with_values(form, values, weights, left, right, dtype, wrap, precision, infos)
    return call, [placed[name] for name in others]


def _scale_of(lengths: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what columns are multiplied by, from the lengths that they are divided by."""
    wide = lengths if lengths.dtype == torch.float64 else lengths.float()
    return wide.reciprocal().to(dtype)


def _check_not_lengthscales(name: str, value: torch.Tensor, x: torch.Tensor) -> None:
    """Raise ParameterError for a batch of lengths that has as many entries as the rows have columns."""
    base = name.rstrip("0123456789").rstrip("_")
    if base not in LENGTHS:
        return
    count = value.shape[0]
    raise ParameterError(
        f"{name} has shape ({count},), the rows have {count} columns, shape {tuple(x.shape)}: one length a column is "
        f"lengthscales= instead of {base}=, a batch of {count} kernels takes the rows as x[None]"
    )


def _scales(form: Form, weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    """Return what the columns of rows are multiplied by, of lengthscales that fit them."""
    for name in form.weights:
        scale = weights[name]
        if scale.device != x.device:
            raise DeviceError(f"x is on {x.device} but lengthscales is on {scale.device}; move one with .to()")
        if scale.shape[-1] != x.shape[-1]:
            raise ShapeError(
                f"lengthscales has shape {tuple(scale.shape)}, its last axis must be the columns of "
                f"x, which has shape {tuple(x.shape)}"
            )
    return [_scale_of(weights[name], x.dtype) for name in form.weights]


def _with_values(
    form: Form, values: Mapping[str, Value], weights: Mapping[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor,
    dtype: torch.dtype, wrap: Wrap, precision: str | None, infos: RunInfos,
) -> Call:  # fmt: skip
    columns, scales = x.shape[-1], _scales(form, weights, x)
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    parameters: dict[str, torch.Tensor] = {}
    numbers: dict[str, float] = {}
    for name in form.parameters:
        value = values[name]
        if not isinstance(value, torch.Tensor):
            numbers[name] = float(columns) if isinstance(value, str) else value
            continue
        if value.device != x.device and (value.dim() or not value.is_cpu or value.requires_grad):
            raise DeviceError(f"x is on {x.device} but {name} is on {value.device}; move one with .to()")
        if value.dim() == 1 and value.shape[0] == columns > 1 and x.dim() == y.dim() == 2 and not scales:
            _check_not_lengthscales(name, value, x)
        parameters[name] = value.to(kind)
    call = Call(form, x, y, (*scales, *parameters.values()), tuple(parameters), numbers, dtype, wrap, precision, infos)
    try:
        _ = call.batch
    except RuntimeError:
        shapes = {"x": x.shape, "y": y.shape, **{n: p.shape for n, p in parameters.items()}}
        if scales:
            shapes["lengthscales"] = scales[0].shape
        listing = ", ".join(f"{name} has shape {tuple(shape)}" for name, shape in shapes.items())
        raise ShapeError(f"batch axes do not broadcast: {listing}") from None
    return call
