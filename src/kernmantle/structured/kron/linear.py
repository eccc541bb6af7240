"""Linear layers whose update is a Kronecker product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .matmul import kron_matmul

Weight = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def kron_linear(
    x: torch.Tensor,
    w1: Weight,
    w2: Weight,
    scale: Any = 1,
    base: Callable[[torch.Tensor], torch.Tensor] | torch.Tensor | None = None,
) -> torch.Tensor:
    """A linear layer with the update ``scale * (w1 ⊗ w2)``, which is never formed: ``base(x) + scale * x (w1 ⊗ w2)ᵀ``.

    Parameters
    ----------
    x : tensor
        (…, b d).
    w1, w2 : tensor or pair of tensors
        (a, b) and (c, d); a pair (u, v) stands for u @ v, as low-rank adapters store it.
    scale : number or tensor
    base : callable or tensor, optional
        The layer that is adapted, or its output (…, a c).

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
    The update costs rows * d (b + a c / d) * b multiplications at most instead of rows * a b c d, and no memory of the
    size of the weight. It has the gradients of :func:`kron_matmul`. This is the LoKr adapter [1]_.

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
    factors = [(w[0] @ w[1] if isinstance(w, tuple) else w).mT for w in (w1, w2)]
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if base is None:
        found = kron_matmul(flat, factors, alpha=scale)
        return found.reshape(*x.shape[:-1], found.shape[-1])
    start = base if isinstance(base, torch.Tensor) else base(x)
    y = start.reshape(math.prod(start.shape[:-1]), start.shape[-1])
    return kron_matmul(flat, factors, alpha=scale, beta=1, y=y).reshape(start.shape)
