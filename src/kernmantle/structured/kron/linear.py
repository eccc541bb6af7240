"""Linear layers whose update is a Kronecker product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...arrays import check_same_device, dtype_name, has_strides, unwrap
from ...errors import DtypeError, ParameterError, ShapeError
from ...torch_ops.checks import autocasts
from .matmul import multiply, multiply_again

Weight = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def kron_linear(
    x: torch.Tensor,
    w1: Weight,
    w2: Weight,
    scale: Any = 1,
    base: Callable[[torch.Tensor], torch.Tensor] | torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply a linear layer and its update ``scale * (w1 ⊗ w2)``, which is never formed.

    The result is ``base(x) + scale * x (w1 ⊗ w2)ᵀ``.

    Parameters
    ----------
    x : tensor
        (…, b d).
    w1, w2 : tensor or pair of tensors
        (a, b) and (c, d); a pair (u, v) stands for u @ v, as low-rank adapters store it.
    scale : number or tensor
        Multiplies the update; a tensor has one entry.
    base : callable or tensor, optional
        The layer that is adapted, or its output (…, a c); without it the result is the update alone.

    Returns
    -------
    tensor
        (…, a c).

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        As :func:`kron_matmul`, and for a scale of several entries.
    ParameterError
        For a base that is neither a layer nor a tensor, and a scale that is no number.

    Notes
    -----
    The update costs ``min(b c (a + d), a d (b + c))`` multiplications a row instead of ``a b c d``, and no memory of
    the size of the weight. It has the gradients of :func:`kron_matmul`. This is the LoKr adapter [1]_.

    References
    ----------
    .. [1] S.-Y. Yeh et al., "Navigating text-to-image customization: from LyCORIS fine-tuning to model evaluation",
       ICLR 2024.

    Examples
    --------
    >>> import kernmantle as km, torch
    >>> x, w1, w2 = torch.ones(1, 4), torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> km.kron_linear(x, w1, w2, scale=0.5)
    tensor([[3.0000, 1.5000]])
    """
    if base is None or isinstance(base, torch.Tensor):
        found = multiply_again(x, (w1, w2), scale, base)
        if found is not None:
            return found
    x = _check(x, "x", 1)
    if not (base is None or isinstance(base, torch.Tensor) or callable(base)):
        raise ParameterError(f"base must be a layer, the tensor that it gives, or None, not {type(base).__name__}")
    if not (isinstance(scale, (int, float, complex)) or hasattr(scale, "dtype")) or isinstance(scale, bool):
        raise ParameterError(f"scale must be a number or a tensor, not {scale!r}")
    if not isinstance(scale, (int, float, complex)) and len(scale.shape):
        if math.prod(scale.shape) != 1:
            raise ShapeError(f"scale has shape {tuple(scale.shape)}; it multiplies the whole update: pass one number")
        scale = scale.reshape(())
    factors = [_weight(w1, "w1"), _weight(w2, "w2")]
    if base is None:
        return multiply(x, factors, alpha=scale, transposed=True)
    start = base if isinstance(base, torch.Tensor) else base(x)
    if not isinstance(start, torch.Tensor):
        raise ParameterError(f"base gives {type(start).__name__}; it must give a tensor (…, a c)")
    found = None if start is base else multiply_again(x, factors, scale, start)
    if found is not None:
        return found
    wanted = (*x.shape[:-1], factors[0].shape[0] * factors[1].shape[0])
    if tuple(start.shape) != wanted:
        raise ShapeError(f"base gives {tuple(start.shape)}, but x (w1 ⊗ w2)ᵀ has shape {wanted}")
    if isinstance(x, torch.Tensor) and start.dtype != x.dtype and not autocasts(x.device):
        kinds = dtype_name(start.dtype), dtype_name(x.dtype)
        raise DtypeError(f"base gives {kinds[0]}, but x is {kinds[1]}; convert one of them")
    return multiply(x, factors, alpha=scale, beta=1, y=start, transposed=True)


def _weight(value: Any, name: str) -> torch.Tensor:
    """Return a weight as one matrix."""
    if not isinstance(value, (tuple, list)):
        return _check(value, name, 2)
    if len(value) != 2:
        raise ShapeError(f"{name} is a tensor or a pair (u, v) for u @ v, not {len(value)} of them")
    left, right = (_check(part, f"{name}[{index}]", 2) for index, part in enumerate(value))
    if left.shape[1] != right.shape[0]:
        shapes = tuple(left.shape), tuple(right.shape)
        raise ShapeError(f"{name} is a pair of shapes {shapes[0]} and {shapes[1]}, which u @ v does not multiply")
    check_same_device([left, right], [f"{name}[0]", f"{name}[1]"])
    if left.dtype != right.dtype and not autocasts(left.device):
        kinds = dtype_name(left.dtype), dtype_name(right.dtype)
        raise DtypeError(f"{name} is a pair of {kinds[0]} and {kinds[1]}; convert one of them")
    return left @ right


def _check(value: Any, name: str, axes: int) -> torch.Tensor:
    """Return the argument; raise DtypeError or ShapeError unless it is a tensor of rows, or a matrix."""
    tensor = value if isinstance(value, torch.Tensor) and has_strides(value) else unwrap(value, names=[name])[0][0]
    if tensor.dim() < axes or (axes == 2 and tensor.dim() > 2):
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}; x is (…, b d), w1 (a, b) and w2 (c, d)")
    return value if hasattr(value, "reshape") else tensor
