"""The arguments of kron_matmul: checked, and converted to a product from the left on (…, k, c)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from ...arrays import Wrap, check_same_device, check_same_dtype, dtype_name, unwrap, unwrap_out
from ...config import current
from ...errors import DtypeError, OutputError, ParameterError, ShapeError
from ...ir.equation import broadcast
from ...torch_ops.checks import autocasts, check_precision, check_target, is_host_number, overlap
from .execute import Number, rows_of
from .factors import described, listed
from .form import Form
from .modes import text_of

_LARGEST = 2**63 - 1  # entries of an array
_TYPES = {
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Product:
    """A checked call: x, factors and y as passed, and their form, which converts them to the product on (…, k, c).

    ``text`` names the different factors by number; ``shape`` is that of the result as the caller sees it.
    """

    form: Form
    text: str
    options: str
    numbers: tuple[Number, Number]
    x: torch.Tensor
    factors: tuple[torch.Tensor, ...]
    y: torch.Tensor | None
    shape: tuple[int, ...]
    wrap: Wrap

    @property
    def values(self) -> list[torch.Tensor]:
        """Every tensor."""
        return [self.x, *self.factors, *([] if self.y is None else [self.y])]

    def canonical(self) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor | None]:
        """Return x (…, k, c), the factors (…, q, p) and y as it broadcasts to the result (…, k', c)."""
        return self.form.x(self.x), [self.form.factor(factor) for factor in self.factors], self.form.y(self.y)


@dataclass(frozen=True)
class _Arguments:
    """Arguments as tensors: the different factors, and for every axis the number of its factor or an identity."""

    x: torch.Tensor
    factors: list[torch.Tensor]
    entries: list[int | str]
    y: torch.Tensor | None


class _Names(NamedTuple):
    """Names that a caller's arguments have in errors."""

    factors: tuple[str, ...] = ()
    alpha: str = "alpha"
    y: str = "y"
    arrays: str = "x and the factors"
    transposed: str = "the transposed factors: pass factor.mT of each"

    def factor(self, index: int) -> str:
        """Return that of a factor."""
        return self.factors[index] if self.factors else f"factors[{index}]"


_NAMES = {
    False: _Names(),
    True: _Names(("w1", "w2"), "scale", "base", "x, w1 and w2", "the transposed weights: pass w1.mT and w2.mT"),
}
"""Names in ``kron_matmul`` and in ``kron_linear``, which alone multiplies by transposes."""


def _unique(factors: Sequence[Any], names: _Names) -> tuple[list[Any], list[str], list[int | str]]:
    """Return the distinct factors, their names in errors, and the entries of the product."""
    found: list[Any] = []
    labels: list[str] = []
    entries: list[int | str] = []
    for index, factor in enumerate(factors):
        if isinstance(factor, int):
            entries.append(f"i{factor}")
            continue
        same = [number for number, other in enumerate(found) if other is factor]
        entries.append(same[0] if same else len(found))
        if not same:
            found.append(factor)
            labels.append(names.factor(index))
    return found, labels, entries


def _scalar(value: Any, name: str, x: torch.Tensor) -> Number | torch.Tensor:
    """Return a number, or a tensor of one number per batch entry."""
    if isinstance(value, torch.Tensor) and not is_host_number(value, x.device):
        check_same_device([x, value], ["x", name])
        cast = autocasts(x.device) and value.is_floating_point() and x.is_floating_point()
        value = value.to(x.dtype) if cast and torch.float64 not in (value.dtype, x.dtype) else value
        if value.dim() or value.is_complex() > x.is_complex() or value.is_floating_point() > x.is_floating_point():
            check_same_dtype([x, value], ["x", name])
        return value.to(x.dtype)
    if isinstance(value, (torch.Tensor, np.generic, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float, complex)):
        raise ParameterError(f"{name} must be a number or a tensor, not {value!r}")
    if isinstance(value, complex) and not x.is_complex():
        raise DtypeError(f"{name} is the complex number {value}, x is {dtype_name(x.dtype)}")
    if not (x.is_complex() or x.is_floating_point()):
        if value != int(value.real):
            raise DtypeError(f"{name} is {value}, x is {dtype_name(x.dtype)}; convert x with .float() first")
        return int(value.real)
    return value


def _check_sizes(
    factors: Sequence[Any], width: int, side: str, shape: Sequence[int], transposed: bool, names: _Names
) -> None:
    index = -2 if (side == "right") != transposed else -1
    sizes = [f if isinstance(f, int) else int(f.shape[index]) for f in factors]
    others = [f if isinstance(f, int) else int(f.shape[-3 - index]) for f in factors]
    total = math.prod(sizes)
    own, theirs = ("columns" if side == "right" else "rows"), ("rows" if index == -2 else "columns")
    if width != total:
        product = f"{' * '.join(map(str, sizes))} = " if len(sizes) > 1 else ""
        hint = f"; it fits {names.transposed}" if width == math.prod(others) else ""
        raise ShapeError(
            f"x of shape {tuple(shape)} has {width} {own}, but {described(factors)} has {product}{total} {theirs}{hint}"
        )
    if math.prod(shape) // max(width, 1) * max(total, math.prod(others)) > _LARGEST:
        raise ShapeError(f"{described(factors)} on x of shape {tuple(shape)} has more than 2**63 entries")


def _tensors(x: Any, factors: Sequence[Any], y: Any, names: _Names) -> tuple[_Arguments, Wrap]:
    unique, labels, entries = _unique(factors, names)
    arrays = [x, *unique] if y is None else [x, *unique, y]
    labels = ["x", *labels, *([] if y is None else [names.y])]
    tensors, wrap = unwrap(*arrays, names=labels)
    kind = tensors[0].device.type
    if autocasts(tensors[0].device) and tensors[0].is_floating_point() and tensors[0].dtype != torch.float64:
        tensors = [t.to(torch.get_autocast_dtype(kind)) if t.dtype != torch.float64 else t for t in tensors]
    check_same_device(tensors, labels)
    dtype = check_same_dtype(tensors, labels)
    if dtype not in _TYPES:
        wide = torch.complex64 if dtype.is_complex else torch.float32 if dtype.is_floating_point else torch.int64
        raise DtypeError(f"x is {dtype_name(dtype)}; convert {names.arrays} with .to({wide})")
    if tensors[0].dim() == 0:
        raise ShapeError("x is a number; pass a vector, a matrix or a batch of matrices")
    return _Arguments(tensors[0], tensors[1 : 1 + len(unique)], entries, None if y is None else tensors[-1]), wrap


def _with_alpha(arguments: _Arguments, alpha: torch.Tensor) -> _Arguments:
    """Return the arguments with a tensor alpha multiplied into the smallest factor, or into x if there is none."""
    indices = [index for index, entry in enumerate(arguments.entries) if isinstance(entry, int)]
    if not indices:
        spread = alpha[..., None] if arguments.x.dim() == 1 else alpha[..., None, None]
        return replace(arguments, x=arguments.x * spread)
    sizes = [arguments.factors[int(arguments.entries[index])].numel() for index in indices]
    index = indices[sizes.index(min(sizes))]  # torch.compile follows no key= of min
    scaled = arguments.factors[int(arguments.entries[index])] * alpha[..., None, None]
    entries = [len(arguments.factors) if i == index else entry for i, entry in enumerate(arguments.entries)]
    return replace(arguments, factors=[*arguments.factors, scaled], entries=entries)


def _used(arguments: _Arguments) -> _Arguments:
    """Return the arguments without factors that no entry names."""
    numbers = sorted({entry for entry in arguments.entries if isinstance(entry, int)})
    entries = [numbers.index(entry) if isinstance(entry, int) else entry for entry in arguments.entries]
    return replace(arguments, factors=[arguments.factors[number] for number in numbers], entries=entries)


def gather(
    x: Any, factors: Any, side: str, alpha: Any, beta: Any, y: Any, precision: str | None, fuse: bool,
    transposed: bool = False,
) -> Product:  # fmt: skip
    """Return the checked call; raise the error that says what is wrong.

    ``transposed``: x is multiplied by the product of the transposes of the factors.
    """
    if side not in ("right", "left"):
        raise ParameterError(f"side must be 'right' (x times the product) or 'left' (product times x), not {side!r}")
    if fuse not in (True, False):
        raise ParameterError(f"fuse must be True or False, not {fuse!r}")
    check_precision(precision, ())
    if precision is None and not torch.compiler.is_compiling():
        precision = current().precision
    factors, names = listed(factors), _NAMES[transposed]
    arguments, wrap = _tensors(x, factors, y, names)
    kind = "vector" if arguments.x.dim() == 1 else "row" if side == "right" else "column"
    form = Form(kind, (side == "right") != transposed)
    _check_sizes(factors, arguments.x.shape[-2 if kind == "column" else -1], side, arguments.x.shape, transposed, names)
    scale, share = _scalar(alpha, names.alpha, arguments.x), _scalar(beta, "beta", arguments.x)
    if y is None and (isinstance(share, torch.Tensor) or share != 0):
        raise ParameterError(f"beta is {beta} but there is no y; pass y=, or leave beta out")
    if isinstance(scale, torch.Tensor):
        arguments, scale = _used(_with_alpha(arguments, scale)), 1
    if isinstance(share, torch.Tensor):
        assert arguments.y is not None
        arguments = replace(
            arguments, y=arguments.y * (share[..., None] if kind == "vector" else share[..., None, None])
        )
        share = 1
    if share == 0:
        arguments = replace(arguments, y=None)
    options = f"{precision or 'default'} {'fuse' if fuse else 'single'}"
    text, own = text_of(arguments.entries), tuple(arguments.factors)
    found = Product(form, text, options, (scale, share), arguments.x, own, arguments.y, (), wrap)
    return replace(found, shape=_shape(found))


def _shape(call: Product) -> tuple[int, ...]:
    """Return the shape of the result."""
    x, factors, y = call.canonical()
    batch = broadcast([tuple(tensor.shape[:-2]) for tensor in (x, *factors)])
    if batch is None:
        shapes = ", ".join(str(tuple(factor.shape)) for factor in call.factors)
        raise ShapeError(f"the batch axes of x {tuple(call.x.shape)} and the factors {shapes} do not broadcast")
    product, stop = (*batch, rows_of(call.text, factors), x.shape[-1]), None if call.form.kind == "column" else -1
    shape = product if y is None else broadcast([product, tuple(y.shape)])
    if shape is None or shape[-2:] != product[-2:]:
        assert call.y is not None
        raise ShapeError(f"y of shape {tuple(call.y.shape)} does not broadcast to the result {product[:stop]}")
    return shape[:stop]


def target(out: Any, call: Product) -> torch.Tensor:
    """Return ``out`` as a tensor; raise the error that says why it cannot take the result."""
    tensor = unwrap_out(out)
    tracked = torch.is_grad_enabled() and any(value.requires_grad for value in call.values)
    check_target(tensor, call.shape, call.x.dtype, call.x.device, tracked)
    if any(overlap(tensor, value) for value in (call.x, *call.factors)):
        raise OutputError("out overlaps x or a factor in memory; only y may be written in place")
    if call.y is not None and overlap(tensor, call.y):
        canonical, y = call.form.x(tensor), call.canonical()[2]
        assert y is not None
        if (canonical.data_ptr(), canonical.stride(), canonical.shape) != (y.data_ptr(), y.stride(), y.shape):
            raise OutputError("out overlaps y in memory without being y; pass y itself or memory of its own")
    return tensor
