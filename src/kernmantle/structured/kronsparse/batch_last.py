"""Dense layers on arrays whose batch axes follow the features."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ...checks import integer
from ...errors import DtypeError, ShapeError


class LinearBatchLast(nn.Linear):
    """Dense linear layer on arrays ``(in_features, ...)``: ``W x + bias``.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        See torch.nn.Linear, whose parameters and initialisation it has.

    Notes
    -----
    Cost and gradients are those of torch.nn.Linear.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> km.LinearBatchLast(3, 5)(torch.ones(3, 7, 2)).shape
    torch.Size([5, 7, 2])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        _check_first_axis(input, self.in_features)
        columns = input.reshape(input.shape[0], math.prod(input.shape[1:]))
        if self.bias is None:
            product = self.weight @ columns
        else:
            product = torch.addmm(self.bias.view(-1, 1), self.weight, columns)
        return product.reshape(self.out_features, *input.shape[1:])


class LayerNormBatchLast(nn.Module):
    """Layer normalisation over the first axis of arrays ``(features, ...)``.

    Parameters
    ----------
    features : int
        Length of the first axis.
    eps : float
        Added to the variance.
    elementwise_affine, bias : bool
        Whether there is a learnt scale, and an offset.
    device, dtype
        Of the parameters, which are named as in torch.nn.LayerNorm.

    Notes
    -----
    Cost and gradients are those of torch.nn.LayerNorm, without a transposed copy.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x = torch.randn(8, 3, 2)
    >>> torch.allclose(km.LayerNormBatchLast(8)(x), torch.nn.LayerNorm(8)(x.movedim(0, -1)).movedim(-1, 0), atol=1e-6)
    True
    """

    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features, self.eps = integer(features, "features"), float(eps)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.ones(features, **options)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(features, **options)) if elementwise_affine and bias else None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise; halves are computed in float32."""
        _check_first_axis(input, self.features)
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        variance, mean = torch.var_mean(wide, 0, correction=0, keepdim=True)
        value = (wide - mean) * torch.rsqrt(variance + self.eps)
        shape = (-1, *(1,) * (input.dim() - 1))
        if self.weight is not None:
            value = value * self.weight.reshape(shape)
        if self.bias is not None:
            value = value + self.bias.reshape(shape)
        return value.to(input.dtype)

    def extra_repr(self) -> str:
        """For repr."""
        return f"{self.features}, eps={self.eps}, elementwise_affine={self.weight is not None}"


def _check_first_axis(input: Any, features: int) -> None:
    """Raise DtypeError or ShapeError unless this is a tensor of floating-point numbers with so many features."""
    if not isinstance(input, torch.Tensor) or not input.is_floating_point():
        kind = str(input.dtype) if isinstance(input, torch.Tensor) else type(input).__name__
        raise DtypeError(f"input must be a tensor of floating-point numbers, not {kind}")
    if input.shape[:1] != (features,):
        raise ShapeError(f"input has shape {tuple(input.shape)}; its first axis must have {features} features")
