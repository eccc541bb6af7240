"""Exact scaling by powers of two, so that norms and products stay within the range of a type; nothing waits."""

from __future__ import annotations

import torch

_FORMATS = {torch.float32: (torch.int32, 23, 127), torch.float64: (torch.int64, 52, 1023)}
"""Integers of the same width, bits of the significand, and bias of the exponent."""


def exponent(top: torch.Tensor) -> torch.Tensor:
    """Return integers e with ``2**(e - 1) <= top < 2**e``, and 0 for zeros, infinities and NaN."""
    found = torch.frexp(top).exponent
    return found.masked_fill(~torch.isfinite(top) | (top == 0), 0)


def _power(e: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return 2**e, exactly, for exponents of normal numbers; others count as the nearest of these."""
    integers, bits, bias = _FORMATS[dtype]
    return ((e.clamp(1 - bias, bias).to(integers) + bias) << bits).view(dtype)


def shifted(x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """Return ``x * 2**e``; in two steps, since 2**e may be out of range where x and the result are not."""
    half = e.div(2, rounding_mode="floor")
    return x * _power(half, x.dtype) * _power(e - half, x.dtype)
