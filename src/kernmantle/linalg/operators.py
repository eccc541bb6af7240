"""Whatever multiplies: dense matrices, kernels' matrices that are not stored, operators of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arrays import Wrap, unwrap
from ..errors import DtypeError, ShapeError
from .arguments import check_dtype, check_reverse, check_square


@dataclass(frozen=True)
class Product:
    """A square linear operator on tensors: ``apply`` multiplies columns (n, c)."""

    apply: Callable[[torch.Tensor], torch.Tensor]
    size: int
    dtype: torch.dtype
    device: torch.device
    wrap: Wrap
    source: Any


def is_array(a: Any) -> bool:
    """Whether this is an array rather than an operator."""
    return isinstance(a, (torch.Tensor, np.ndarray)) or hasattr(a, "__dlpack__")


def product_of(a: Any, name: str = "a") -> Product:
    """A dense matrix, or an object with ``shape``, ``dtype`` and ``@`` on tensors or on numpy arrays, as a product."""
    if is_array(a):
        (tensor,), wrap = unwrap(a, names=[name])
        check_square(tensor, name)
        check_reverse(tensor, name)
        if tensor.dim() != 2:
            raise ShapeError(f"{name} must be one matrix here, it has shape {tuple(tensor.shape)}; loop over the batch")
        return Product(lambda v: tensor @ v, tensor.shape[-1], tensor.dtype, tensor.device, wrap, tensor)
    shape = tuple(getattr(a, "shape", ()))
    if not hasattr(a, "__matmul__") or len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeError(f"{name} must be a square matrix or operator with .shape and @, not {_shown(a, shape)}")
    kind = getattr(a, "dtype", None)
    if isinstance(kind, torch.dtype):
        device = getattr(a, "device", torch.device("cpu"))
        check_dtype(torch.empty(0, dtype=kind), name)
        return Product(lambda v: a @ v, shape[0], kind, torch.device(device), lambda result: result, a)
    try:
        dtype = torch.from_numpy(np.empty(0, kind)).dtype
    except TypeError as error:
        raise DtypeError(f"{name} has dtype {kind!r}; solvers take float32 and float64") from error
    check_dtype(torch.empty(0, dtype=dtype), name)
    _, wrap = unwrap(np.empty(0, kind), names=[name])
    return Product(
        lambda v: torch.from_numpy(np.ascontiguousarray(a @ v.numpy())), shape[0], dtype, torch.device("cpu"), wrap, a
    )


def _shown(a: Any, shape: tuple[int, ...]) -> str:
    return f"{type(a).__name__} of shape {shape}" if shape else type(a).__name__
