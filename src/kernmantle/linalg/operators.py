"""Whatever multiplies: dense matrices, kernels' matrices that are not stored, operators of other libraries."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arrays import Wrap, unwrap
from ..errors import DtypeError, ShapeError
from .arguments import check_dtype, check_reverse, check_square

Apply = Callable[[torch.Tensor], torch.Tensor]
CHUNK = 1 << 18
"""Entries of a float32 matrix that are in float64 at a time: 2 MiB."""


@dataclass(frozen=True)
class Product:
    """A square linear operator on tensors: ``apply`` multiplies columns (n, c).

    ``wide`` multiplies columns of float64, in float64, where the operator is of float32 and can be had so; ``narrow``
    multiplies columns of float32, in float32, where it is of float64.
    """

    apply: Apply
    size: int
    dtype: torch.dtype
    device: torch.device
    wrap: Wrap
    source: Any
    wide: Apply | None = None
    narrow: Apply | None = None

    @property
    def requires_grad(self) -> bool:
        """Return whether the operator may depend on something that requires a gradient."""
        return bool(getattr(self.source, "requires_grad", isinstance(self.source.dtype, torch.dtype)))

    def gap(self, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return ``b - a x`` in float64, of a product in float64 where the operator can be had so."""
        return b.double() - (self.apply(x).double() if self.wide is None else self.wide(x.double()))


def _wide_matrix(a: torch.Tensor) -> Apply:
    """Return the products in float64 of a float32 matrix, of which a few rows at a time are in float64."""
    return lambda v: torch.cat([rows.double() @ v for rows in a.detach().split(max(1, CHUNK // max(1, a.shape[1])))])


def _other(a: Any, dtype: torch.dtype, apply: Callable[[Any, torch.Tensor], torch.Tensor]) -> dict[str, Apply]:
    """Products of ``a.double()`` for an operator of float32, of ``a.float()`` for one of float64, if it has that."""
    name, method = ("wide", "double") if dtype == torch.float32 else ("narrow", "float")
    if not callable(getattr(a, method, None)):
        return {}
    made: list[Any] = []

    def multiply(v: torch.Tensor) -> torch.Tensor:
        if not made:
            made.append(getattr(a, method)())
        return apply(made[0], v)

    return {name: multiply}


def is_array(a: Any) -> bool:
    """Return whether this is an array rather than an operator."""
    return isinstance(a, (torch.Tensor, np.ndarray, list, tuple)) or hasattr(a, "__dlpack__")


def product_of(a: Any) -> Product:
    """A dense matrix, or an object with ``shape``, ``dtype`` and ``@`` on tensors or on numpy arrays, as a product."""
    if is_array(a):
        (tensor,), wrap = unwrap(a, names=["a"])
        check_square(tensor)
        check_reverse(tensor, "a")
        if tensor.dim() != 2:
            raise ShapeError(f"a must be one matrix here, it has shape {tuple(tensor.shape)}; loop over the batch")
        other = _other(tensor.detach(), tensor.dtype, operator.matmul)
        if tensor.dtype == torch.float32:
            other = {"wide": _wide_matrix(tensor)}
        return Product(lambda v: tensor @ v, tensor.shape[-1], tensor.dtype, tensor.device, wrap, tensor, **other)
    shape = tuple(getattr(a, "shape", ()))
    if not hasattr(a, "__matmul__") or len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeError(f"a must be a square matrix or operator with .shape and @, not {_shown(a, shape)}")
    kind = getattr(a, "dtype", None)
    if isinstance(kind, torch.dtype):
        device = getattr(a, "device", torch.device("cpu"))
        check_dtype(torch.empty(0, dtype=kind), "a")
        return Product(
            lambda v: a @ v,
            shape[0],
            kind,
            torch.device(device),
            lambda result: result,
            a,
            **_other(a, kind, operator.matmul),
        )
    try:
        dtype = torch.from_numpy(np.empty(0, kind)).dtype
    except TypeError as error:
        raise DtypeError(f"a has dtype {kind!r}; solvers take float32 and float64") from error
    check_dtype(torch.empty(0, dtype=dtype), "a")
    _, wrap = unwrap(np.empty(0, kind), names=["a"])
    other = _other(a, dtype, _by_numpy)
    return Product(lambda v: _by_numpy(a, v), shape[0], dtype, torch.device("cpu"), wrap, a, **other)


def _by_numpy(a: Any, v: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(a @ v.numpy()))


def _shown(a: Any, shape: tuple[int, ...]) -> str:
    return f"{type(a).__name__} of shape {shape}" if shape else type(a).__name__
