"""Kronecker products by torch's own operations, one factor after the other: the general path, for every type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .modes import Mode, Step, cheapest, columns, rows, steps

Tensors = Sequence[torch.Tensor]


def batch_of(tensors: Tensors) -> tuple[int, ...]:
    """Return the broadcast shape of all axes but the last two."""
    shapes = [tensor.shape[:-2] for tensor in tensors if tensor.dim() > 2]
    if all(shape == shapes[0] for shape in shapes):  # torch's own function takes longer than a small product
        return tuple(shapes[0]) if shapes else ()
    return tuple(torch.broadcast_shapes(*shapes))


def shared_axes(factors: Tensors, rank: int) -> int:
    """Return how many trailing batch axes, of ``rank``, no factor has."""
    for index in range(1, rank + 1):
        if any(factor.dim() >= index + 2 and factor.shape[-2 - index] != 1 for factor in factors):
            return index - 1
    return rank


def _integer_product(factor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a matrix product of integers where torch has none."""
    total = factor[..., :, :1] * x[..., :1, :]
    for index in range(1, x.shape[-2]):
        total += factor[..., :, index : index + 1] * x[..., index : index + 1, :]
    return total


def _multiplied(x: torch.Tensor, factor: torch.Tensor, step: Step) -> torch.Tensor:
    """Return one factor (…, rows, columns) on x (…, left * columns * right)."""
    wide = x.reshape(*x.shape[:-1], step.left, step.mode.columns, step.right)
    spread = factor.unsqueeze(-3)
    if x.is_cuda and not (x.is_floating_point() or x.is_complex()) and step.mode.columns:
        result = _integer_product(spread, wide)
    elif step.right == 1 and step.mode.columns:
        result = wide.squeeze(-1) @ factor.mT
        return result.flatten(-2)
    else:
        result = spread @ wide
    return result.flatten(-3)


def product(
    x: torch.Tensor, factors: Tensors, modes: Sequence[Mode], order: Sequence[int] | None = None
) -> torch.Tensor:
    """Return the product of x (…, columns, c): a new tensor (…, rows, c)."""
    batch = batch_of([x, *factors])
    folded = shared_axes(factors, len(batch))
    count = len(batch) - folded
    whole = x.reshape(*(1,) * (len(batch) + 2 - x.dim()), *x.shape)
    inner = whole.shape[count:-2]
    value = whole.reshape(*whole.shape[:count], math.prod(inner) * columns(modes) * x.shape[-1])
    for step in steps(modes, cheapest(modes) if order is None else order, x.shape[-1]):
        assert step.mode.factor is not None
        factor = factors[step.mode.factor]
        own = factor.reshape(*factor.shape[: max(0, factor.dim() - 2 - folded)], *factor.shape[-2:])
        value = _multiplied(value, own, Step(step.position, step.left * math.prod(inner), step.mode, step.right))
    result = value.reshape(*value.shape[:-1], *inner, rows(modes), x.shape[-1])
    return result.clone() if result.untyped_storage()._cdata == x.untyped_storage()._cdata else result


def multiplied_out(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the Kronecker product of matrices that no batch axis varies, row by row; one alone is not touched."""
    if len(factors) == 1:
        return factors[0]
    whole = factors[0].reshape(factors[0].shape[-2:])
    for factor in factors[1:]:
        own = factor.reshape(factor.shape[-2:])
        rows, columns = whole.shape[0] * own.shape[0], whole.shape[1] * own.shape[1]
        whole = (whole[:, None, :, None] * own[None, :, None, :]).reshape(rows, columns).contiguous()
    return whole
