"""Sums over rows of weighted differences to points, by matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ..torch_ops.split_matmul import Halves, empty, multiply, split, split_rows, worthwhile

BLOCK_BYTES = 64 << 20  # of differences at a time
_COLUMNS_BYTES, _GROUP_BYTES = 32 << 20, 128 << 20  # of rows times coefficients at a time, plain and in halves


def products(
    weights: torch.Tensor, coef: torch.Tensor, x: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Σ_n weights[m, n] coef[n, o] x[n, k]: (..., o, m, k)."""
    outputs, columns = coef.shape[-1], x.shape[-1]
    if coef.dim() == 2 and (out is None or out.dim() == 3) and worthwhile(weights, x):
        result = x.new_empty(outputs, weights.shape[0], columns) if out is None else out
        return _in_halves(split_rows(weights), coef, x, result)
    size = x.shape[-2] * columns * x.element_size() * math.prod(torch.broadcast_shapes(coef.shape[:-2], x.shape[:-2]))
    step = max(1, _COLUMNS_BYTES // max(size, 1))
    if outputs <= step:  # the one comparison that guards a compiled graph of any sizes
        result = _of_outputs(weights, coef, x)
    else:
        parts = (coef[..., start : start + step] for start in range(0, outputs, step))
        result = torch.cat([_of_outputs(weights, part, x) for part in parts], -3)
    return result if out is None else out.copy_(result)


def _of_outputs(weights: torch.Tensor, coef: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    scaled = (coef.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
    return (weights @ scaled).unflatten(-1, (coef.shape[-1], x.shape[-1])).movedim(-2, -3)


def _in_halves(weights: Halves, coef: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    step = max(1, _GROUP_BYTES // (x.shape[0] * x.shape[1] * x.element_size()))
    buffer = empty((min(step, len(out)), *x.shape), 1, x.device)
    for start in range(0, len(out), step):
        chosen = slice(start, start + step)
        columns = coef[:, chosen].unbind(1)
        own = [Halves(*parts) for parts in zip(buffer.high, buffer.low, buffer.scale, strict=True)]
        for column, part in zip(columns, own, strict=False):
            split(x * column.unsqueeze(-1), 0, part, spent=True)
        count = slice(len(columns))
        multiply(weights, Halves(buffer.high[count], buffer.low[count], buffer.scale[count]), out[chosen])
    return out


def sums(weights: torch.Tensor, coef: torch.Tensor) -> torch.Tensor:
    """Σ_n weights[m, n] coef[n, o] over (..., o, m, 1)."""
    return (weights @ coef).mT.unsqueeze(-1)


def centred(z: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both minus the mean of x: what depends on differences alone does not change, but loses fewer digits."""
    middle = x.detach().mean(-2, keepdim=True)
    return z - middle, x - middle


def blocks(rows: int, row_bytes: int, budget: int = BLOCK_BYTES) -> Iterator[slice]:
    """Yield the ranges of rows, about equally long, of at most ``budget`` bytes."""
    count = -(-rows // max(1, budget // max(1, row_bytes)))
    for number in range(count):
        yield slice(rows * number // count, rows * (number + 1) // count)


def differences(
    weights: torch.Tensor, coef: torch.Tensor, z: torch.Tensor, x: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Σ_n weights[m, n] coef[n, o] (z[m, k] - x[n, k]) in ``out`` (..., o, m, k), without derivatives."""
    points, others = centred(z, x) if x.shape[-2] else (z, x)
    size = weights.element_size() * weights.shape[-1] * math.prod(weights.shape[:-2])
    for rows in blocks(weights.shape[-2], size, max(2 * BLOCK_BYTES, out.nbytes // 2)):
        chosen, part = weights[..., rows, :], out[..., rows, :]
        products(chosen, -coef, others, part)
        part.addcmul_(sums(chosen, coef), points[..., rows, :].unsqueeze(-3))
    return out
