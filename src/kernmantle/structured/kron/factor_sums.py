"""Gradients of Kronecker factors by torch's products: sums over entries before and behind an axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from .torch_products import batch_of

Tensors = Sequence[torch.Tensor]
View = tuple[tuple[int, ...], tuple[int, ...], int]
"""Extents, strides and the first entry of a view."""


def separated(joint: torch.Tensor, factors: Tensors) -> list[torch.Tensor]:
    """Return the gradients of matrices, in their type, from that of their Kronecker product in any type."""
    count, kind = len(factors), factors[0].dtype
    sides = [factor.shape[axis] for axis in (0, 1) for factor in factors]
    order = [axis for position in range(count) for axis in (position, count + position)]
    rest = joint.reshape(sides).permute(order).reshape(joint.numel())
    entries = [factor.conj().reshape(factor.numel()).to(joint.dtype) for factor in factors]
    before = [entries[0]]  # entry [i] belongs to the factors up to i
    for other in entries[1:-1]:
        before.append((before[-1].unsqueeze(1) * other).flatten())
    found: list[torch.Tensor] = []
    for position in range(count - 1, 0, -1):
        wide = rest.reshape(before[position - 1].shape[0], entries[position].shape[0])
        found.append((before[position - 1] @ wide).reshape(factors[position].shape).to(kind))
        rest = wide @ entries[position]
    return [rest.reshape(factors[0].shape).to(kind), *found[::-1]]


class Axes(NamedTuple):
    """Batch axes of a product: their extents, those that a factor has itself, and those that its gradient sums."""

    batch: tuple[int, ...]
    own: tuple[int, ...]
    summed: tuple[int, ...]


def axes_of(x: torch.Tensor, grad: torch.Tensor, shape: Sequence[int]) -> Axes:
    """Return the batch axes of a product and of a factor of a shape."""
    rank = max(x.dim(), grad.dim()) - 2
    own = [axis for axis in range(rank) if axis >= rank + 2 - len(shape) and shape[axis - rank - 2] != 1]
    return Axes(batch_of([x, grad]), tuple(own), tuple(axis for axis in range(rank) if axis not in own))


def arranged(tensor: torch.Tensor, size: int, left: int, axes: Axes) -> torch.Tensor:
    """Return a tensor (…, left * size * right, c) as (own axes, count, size, right * c)."""
    batch, own, summed = axes
    wide = tensor.expand(*batch, *tensor.shape[-2:]).permute(*own, *summed, len(batch), len(batch) + 1)
    count = left
    for axis in summed:
        count *= batch[axis]
    right = tensor.shape[-2] // (left * size) * tensor.shape[-1] if left * size else 0
    return wide.reshape(*(batch[axis] for axis in own), count, size, right)


# Positions of the longest sum of halves in one accumulator of a tensor core, which rounds towards zero: 480000 of them
# lose 1 % (H200).
_LONGEST = 1 << 15
# A block of the vendor's products of halves takes one part of a longer sum and a tile of the result: 101640 positions
# of 84 x 84 in four parts took 224 us, in 99 of them 35 (H200). There are parts for so many blocks, none shorter, or
# up to a quarter fewer that leave nothing, which takes four kernels more: 40215 positions of 1001 x 56 in 33 parts take
# 75 us, in 21 97.
_SHORTEST, _BLOCKS, _TILE = 1 << 8, 264, 128


def matmul(a: torch.Tensor, b: torch.Tensor, is_wide: bool) -> torch.Tensor:
    """Return the vendor's product of matrices, of halves on a GPU in float32 where it ``is_wide``.

    Long sums of halves are those of their parts.
    """
    is_half = a.is_cuda and a.dtype in (torch.float16, torch.bfloat16)
    if not is_half or (a.dim() > 2 and not is_wide):
        return a @ b
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    parts = parts_of(a.shape[-1], a.shape[0], b.shape[-1]) if a.dim() == 2 else 1
    if parts > 1:
        whole = a.shape[1] // parts * parts
        left, right = a[:, :whole].unflatten(1, (parts, -1)).transpose(0, 1), b[:whole].unflatten(0, (parts, -1))
        total = torch.bmm(left, right, out_dtype=torch.float32).sum(0)  # pyright: ignore
        if whole < a.shape[1]:
            total += torch.mm(a[:, whole:], b[whole:], out_dtype=torch.float32)  # pyright: ignore
        return total if is_wide else total.to(a.dtype)
    return multiply(a, b, out_dtype=torch.float32) if is_wide else a @ b  # pyright: ignore


def by_matrices(u: torch.Tensor, v: torch.Tensor, is_wide: bool) -> torch.Tensor:
    """Return v u, of matrices that lie so that this is a sum."""
    return matmul(v, u, is_wide)


@lru_cache(maxsize=1024)
def parts_of(positions: int, rows: int, columns: int) -> int:
    """Return the parts of a sum of halves over so many positions, for a result of so many rows and columns."""
    if positions <= _LONGEST:
        return 1
    tiles = -(-rows // _TILE) * -(-columns // _TILE)
    least = -(-positions // _LONGEST)
    most = max(least, min(positions // _SHORTEST, _BLOCKS // tiles))
    return next((parts for parts in range(most, max(least - 1, most * 3 // 4), -1) if positions % parts == 0), most)


def product_of_rows(u: torch.Tensor, v: torch.Tensor, together: int, is_wide: bool) -> torch.Tensor:
    """Return the sum of v[n, q] u[n, p] over n of halves whose rows are so many ``together`` in u and in v."""
    joint = matmul(v.mT, u, True)
    sides = [side // together for side in joint.shape]
    found = joint.view(together, sides[0], together, sides[1]).diagonal(dim1=0, dim2=2).sum(-1)
    return found if is_wide else found.to(u.dtype)


def multiplied(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return the sum of v[…, l, q, r] conj(u[…, l, p, r]) over l and r, by the vendor's products."""
    if u.shape[-1] == 1:
        return matmul(v.squeeze(-1).mT, u.squeeze(-1).conj(), is_wide)
    return (by_batches if u.shape[-1] >= max(u.shape[-2], v.shape[-2]) else copied)(u, v, is_wide)


def by_batches(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return the sum of :func:`multiplied` by a product for every l."""
    product = matmul(v, u.mH, is_wide)
    return product.squeeze(-3) if u.shape[-3] == 1 else product.sum(-3)


def in_rows(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return that sum of real numbers by one product of rows of entries, which copies bring together."""
    return matmul(v.mT.reshape(-1, v.shape[-2]).mT, u.mT.reshape(-1, u.shape[-2]), is_wide)


def copied(u: torch.Tensor, v: torch.Tensor, is_wide: bool = False) -> torch.Tensor:
    """Return that sum by one product of copies in another order."""
    return matmul(v.transpose(-3, -2).flatten(-2), u.transpose(-3, -2).flatten(-2).mH, is_wide)


def outer(x: torch.Tensor, grad: torch.Tensor, left: int, shape: Sequence[int]) -> torch.Tensor:
    """Return the sum of grad[…, l, q, r] conj(x[…, l, p, r]) over l, r and the batch axes that a factor lacks."""
    if not (x.numel() and grad.numel()):
        return x.new_zeros(shape)
    axes = axes_of(x, grad, shape)
    u, v = arranged(x, shape[-1], left, axes), arranged(grad, shape[-2], left, axes)
    return multiplied(u, v).reshape(shape)
