"""Arrays of a Kronecker product, and along which of their axes they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Arrays:
    """x (…, k, c), factors (…, q, p), y and out (…, k', c), all with as many batch axes; shared axes have length 1."""

    x: torch.Tensor
    factors: tuple[torch.Tensor, ...]
    y: torch.Tensor | None
    out: torch.Tensor

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch axes of the result."""
        return tuple(self.out.shape[:-2])


def _of_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor.reshape((1,) * (rank - tensor.dim()) + tensor.shape) if tensor.dim() < rank else tensor


def arranged(x: torch.Tensor, factors: Tensors, y: torch.Tensor | None, out: torch.Tensor) -> Arrays:
    """Return the arrays with the columns chosen so that memory is read along them, or along the product."""
    rank = out.dim()
    wide = [_of_rank(tensor, rank) for tensor in (x, *factors)]
    arrays = Arrays(wide[0], tuple(wide[1:]), None if y is None else y.expand(out.shape), out)
    x = arrays.x
    if x.shape[-1] > 1 and (x.stride(-1) < x.stride(-2) or x.shape[-2] == 1):
        return arrays
    shared = [axis for axis in range(rank - 2) if all(f.shape[axis] == 1 for f in arrays.factors)]
    if x.shape[-1] > 1:
        arrays, x = columns_as_batch(arrays), x.unsqueeze(-1)
        shared.append(rank - 2)
    if x.shape[-2] == 1 or abs(x.stride(-2)) == 1:
        return arrays
    candidates = [
        axis for axis in shared if arrays.x.shape[axis] > 1 and 0 < arrays.x.stride(axis) < arrays.x.stride(-2)
    ]
    if not candidates:
        return arrays
    return batch_as_columns(arrays, min(candidates, key=arrays.x.stride))


def columns_as_batch(arrays: Arrays) -> Arrays:
    """Return the arrays with the columns as the last batch axis."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.movedim(-1, -2).unsqueeze(-1)

    factors = tuple(factor.unsqueeze(-3) for factor in arrays.factors)
    return Arrays(moved(arrays.x), factors, None if arrays.y is None else moved(arrays.y), moved(arrays.out))


def batch_as_columns(arrays: Arrays, axis: int) -> Arrays:
    """Return the arrays with a batch axis that no factor has as the columns, which had length 1."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.squeeze(-1).movedim(axis, -1)

    factors = tuple(factor.squeeze(axis) for factor in arrays.factors)
    return Arrays(moved(arrays.x), factors, None if arrays.y is None else moved(arrays.y), moved(arrays.out))
