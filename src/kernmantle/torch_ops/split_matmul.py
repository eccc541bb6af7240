"""Products of float32 matrices through three products of halves, by the vendor's matmul.

A matrix is scaled by powers of two along the axis that stays and split in two halves of 11 bits. The product of the
high halves is summed in ranges, for tensor cores cut off what float32 would round: without ranges, 10000 terms of one
sign lose 5e-5 of their sum, with ``_RANGE`` 5e-6 and with ``_SHORT_RANGE`` 1e-6; terms of both signs lose 1e-7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..config import current
from .torch_private import is_untracked

_LEAST = 1 << 32  # multiplications of a product that is worth splitting
_RANGE, _SHORT_RANGE = 1024, 256  # terms that one product of halves sums, and where terms have one sign
ONE_SIGN, ONE_SIGN_SHORT = 7e-6, 2e-6
"""Largest errors of sums of terms of one sign, of the sum, by the length of the ranges."""
_PIECE = 32 << 20  # bytes of what is split at a time
_TOP = 10  # binary exponent that the largest entry of a row is scaled to
_SMALLEST, _LARGEST = -116, 128  # binary exponents that float32 can be scaled from


@dataclass(frozen=True)
class Halves:
    """``(high + low) * scale``, a matrix whose products are summed along the axis that ``scale`` lacks."""

    high: torch.Tensor
    low: torch.Tensor
    scale: torch.Tensor


def worthwhile(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether a product of these is better taken in halves: large, float32, on a GPU, without a derivative."""
    if torch.compiler.is_compiling():
        return False
    work = math.prod(left.shape) * right.shape[-1]
    exact = current().precision != "ieee" and torch.backends.cuda.matmul.fp32_precision != "tf32"
    large = left.is_cuda and left.dtype == torch.float32 and left.dim() == right.dim() == 2 and work >= _LEAST
    return large and exact and is_untracked([left, right])


def split(matrix: torch.Tensor, dim: int, out: Halves | None = None, *, spent: bool = False) -> Halves:
    """Return a matrix, or several, in halves, to be summed along ``dim``; what is not finite stays so in the result.

    One that nobody needs any more, ``spent``, is overwritten.
    """
    found = empty(matrix.shape, dim, matrix.device) if out is None else out
    _fill(matrix, _fitted(matrix, dim, found.scale), found.high, found.low, spent)
    return found


def _fitted(matrix: torch.Tensor, dim: int, scale: torch.Tensor) -> torch.Tensor:
    """Powers of two that a matrix is to be multiplied by, one a line along ``dim``; their inverses go to ``scale``."""
    top = torch.linalg.vector_norm(matrix, math.inf, dim=dim, keepdim=True)
    exponent = torch.where(torch.isfinite(top), torch.frexp(top).exponent, 0).clamp_(_SMALLEST, _LARGEST)
    one = torch.ones_like(top)
    scale.copy_(torch.ldexp(one, exponent - _TOP))
    return torch.ldexp(one, _TOP - exponent)


def _fill(
    matrix: torch.Tensor, factor: torch.Tensor, high: torch.Tensor, low: torch.Tensor, spent: bool = False
) -> None:
    scaled = matrix.mul_(factor) if spent else matrix * factor
    high.copy_(scaled)
    low.copy_(scaled.sub_(high))


def empty(shape: Sequence[int], dim: int, device: torch.device) -> Halves:
    """Room for a matrix that is summed along ``dim``."""
    sizes = [1 if axis == dim % len(shape) else extent for axis, extent in enumerate(shape)]
    high, low = (torch.empty(*shape, dtype=torch.float16, device=device) for _ in range(2))
    return Halves(high, low, torch.empty(*sizes, device=device))


def split_rows(matrix: torch.Tensor) -> Halves:
    """Return the halves of a matrix scaled by its rows, made a few rows at a time."""
    found = empty(matrix.shape, 1, matrix.device)
    whole = matrix, _fitted(matrix, 1, found.scale), found.high, found.low
    for parts in zip(*(each.split(_step(matrix)) for each in whole), strict=True):
        _fill(*parts)
    return found


def _step(matrix: torch.Tensor) -> int:
    return max(1, _PIECE // (matrix.element_size() * max(1, matrix.shape[1])))


def multiply(left: Halves, right: Halves, out: torch.Tensor) -> torch.Tensor:
    """Return one matrix times each of several, ``left @ right``, in float32, written to ``out``."""
    count, length = right.high.shape[:2]
    high, low = (half.expand(count, *half.shape) for half in (left.high, left.low))
    torch.bmm(high, right.low, out_dtype=torch.float32, out=out)
    torch.baddbmm(out, low, right.high, out_dtype=torch.float32, out=out)
    for start in range(0, length, _RANGE):
        part = slice(start, start + _RANGE)
        torch.baddbmm(out, high[..., part], right.high[:, part], out_dtype=torch.float32, out=out)
    return out.mul_(left.scale).mul_(right.scale)


def gram(matrix: torch.Tensor) -> torch.Tensor:
    """``matrix.T @ matrix`` in float32, without the derivative of anything."""
    parts = split(matrix, 0)
    left = parts.high.mT
    mixed = torch.mm(left, parts.low, out_dtype=torch.float32)
    out = mixed + mixed.mT
    length, columns = matrix.shape
    # Ranges of a narrow matrix are multiplied together: one by one they keep the host 20 us each and a GPU 3 us.
    together = max(1, _PIECE // (4 * columns * columns))
    whole = length // _SHORT_RANGE * _SHORT_RANGE if together > 1 else 0
    for several in parts.high[:whole].view(-1, _SHORT_RANGE, columns).split(together) if whole else ():
        out += torch.bmm(several.mT, several, out_dtype=torch.float32).sum(0)
    for start in range(whole, length, _SHORT_RANGE):
        part = slice(start, start + _SHORT_RANGE)
        torch.addmm(out, left[:, part], parts.high[part], out_dtype=torch.float32, out=out)
    return out.mul_(parts.scale.mT).mul_(parts.scale)
