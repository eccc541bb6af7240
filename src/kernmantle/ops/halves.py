"""Products of float32 matrices through three products of halves, by the vendor's matmul.

A matrix is scaled by powers of two along the axis that stays and split in two halves of 11 bits. The product of the
high halves is summed in ranges, for tensor cores accumulate with fewer bits than float32 has; the small ones are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..config import current
from .autograd import is_untracked

_LEAST = 1 << 32
_RANGE = 1024
_TOP = 10
_SMALLEST, _LARGEST = -116, 128


@dataclass(frozen=True)
class Halves:
    """``(high + low) * scale``, a matrix whose products are summed along the axis that ``scale`` lacks."""

    high: torch.Tensor
    low: torch.Tensor
    scale: torch.Tensor


def worthwhile(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a product of these is better taken in halves: large, float32, on a GPU, without a derivative."""
    work = math.prod(left.shape) * right.shape[-1]
    exact = current().precision != "ieee" and not torch.backends.cuda.matmul.allow_tf32
    large = left.is_cuda and left.dtype == torch.float32 and left.dim() == right.dim() == 2 and work >= _LEAST
    return large and exact and is_untracked([left, right])


def split(matrix: torch.Tensor, dim: int) -> Halves:
    """A matrix in halves, to be summed along ``dim``; what is not finite stays so in the result."""
    top = torch.linalg.vector_norm(matrix, math.inf, dim=dim, keepdim=True)
    exponent = torch.where(torch.isfinite(top), torch.frexp(top).exponent, 0).clamp_(_SMALLEST, _LARGEST)
    scaled = matrix * torch.ldexp(torch.ones_like(top), _TOP - exponent)
    high = scaled.half()
    return Halves(high, scaled.sub_(high).half(), torch.ldexp(torch.ones_like(top), exponent - _TOP))


def multiply(left: Halves, right: Halves, out: torch.Tensor) -> torch.Tensor:
    """``left @ right`` in float32, written to ``out``."""
    torch.mm(left.high, right.low, out_dtype=torch.float32, out=out)
    torch.addmm(out, left.low, right.high, out_dtype=torch.float32, out=out)
    length = left.high.shape[-1]
    for start in range(0, length, _RANGE):
        part = slice(start, start + _RANGE)
        torch.addmm(out, left.high[:, part], right.high[part], out_dtype=torch.float32, out=out)
    return out.mul_(left.scale).mul_(right.scale)


def gram(matrix: torch.Tensor) -> torch.Tensor:
    """``matrix.T @ matrix`` in float32, without the derivative of anything."""
    parts = split(matrix, 0)
    left = Halves(parts.high.mT, parts.low.mT, parts.scale.mT)
    columns = matrix.shape[-1]
    mixed = torch.mm(left.high, parts.low, out_dtype=torch.float32)
    out = mixed + mixed.mT
    for start in range(0, matrix.shape[0], _RANGE):
        part = slice(start, start + _RANGE)
        torch.addmm(out, left.high[:, part], parts.high[part], out_dtype=torch.float32, out=out)
    return out.mul_(left.scale).mul_(parts.scale.expand(columns, columns))
