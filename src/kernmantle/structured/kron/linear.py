"""Linear layers whose update is a Kronecker product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ...arrays import unwrap
from ...checks import function
from ...errors import ShapeError
from .matmul import kron_matmul

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
        Multiplies the update.
    base : callable or tensor, optional
        The layer that is adapted, or its output (…, a c); without it the result is the update alone.

    Returns
    -------
    tensor
        (…, a c).

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        As :func:`kron_matmul`.

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
    x = _check(x, "x", 1)
    if not isinstance(base, torch.Tensor):
        function(base, "base")
    factors = [_weight(w, name).mT for w, name in ((w1, "w1"), (w2, "w2"))]
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if base is None:
        found = kron_matmul(flat, factors, alpha=scale)
        return found.reshape(*x.shape[:-1], found.shape[-1])
    start = base if isinstance(base, torch.Tensor) else base(x)
    wanted = (*x.shape[:-1], factors[0].shape[-1] * factors[1].shape[-1])
    if tuple(start.shape) != wanted:
        raise ShapeError(f"base gives {tuple(start.shape)}, but x (w1 ⊗ w2)ᵀ has shape {wanted}")
    y = start.reshape(math.prod(start.shape[:-1]), start.shape[-1])
    return kron_matmul(flat, factors, alpha=scale, beta=1, y=y).reshape(start.shape)


def _weight(value: Any, name: str) -> torch.Tensor:
    """Return a weight as one matrix."""
    if not isinstance(value, (tuple, list)):
        return _check(value, name, 2)
    if len(value) != 2:
        raise ShapeError(f"{name} is a tensor or a pair (u, v) for u @ v, not {len(value)} of them")
    left, right = (_check(part, f"{name}[{index}]", 2) for index, part in enumerate(value))
    return left @ right


def _check(value: Any, name: str, axes: int) -> torch.Tensor:
    """Return the argument; raise DtypeError or ShapeError unless it is a tensor of rows, or a matrix."""
    (tensor,), _ = unwrap(value, names=[name])
    if tensor.dim() < axes or (axes == 2 and tensor.dim() > 2):
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}; x is (…, b d), w1 (a, b) and w2 (c, d)")
    return value if hasattr(value, "reshape") else tensor
