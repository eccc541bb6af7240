"""Where the arrays of a Kronecker product lie: which axis runs beside the product, and the strides of every pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Arrays:
    """x (…, k, c), factors (…, q, p), y and out (…, k', c), batch axes as many for all, shared ones of length 1."""

    x: torch.Tensor
    factors: tuple[torch.Tensor, ...]
    y: torch.Tensor | None
    out: torch.Tensor

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch axes of the result."""
        return tuple(self.out.shape[:-2])


def _deep(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor.reshape((1,) * (rank - tensor.dim()) + tensor.shape) if tensor.dim() < rank else tensor


def arranged(x: torch.Tensor, factors: Tensors, y: torch.Tensor | None, out: torch.Tensor) -> Arrays:
    """The arrays with the axis beside the product chosen so that memory is read along it, or along the product."""
    rank = out.dim()
    wide = [_deep(tensor, rank) for tensor in (x, *factors)]
    given = Arrays(wide[0], tuple(wide[1:]), None if y is None else y.expand(out.shape), out)
    x = given.x
    if x.shape[-1] > 1 and (x.stride(-1) < x.stride(-2) or x.shape[-2] == 1):
        return given
    shared = [axis for axis in range(rank - 2) if all(f.shape[axis] == 1 for f in given.factors)]
    if x.shape[-1] > 1:
        given, x = _aside(given), x.unsqueeze(-1)
        shared.append(rank - 2)
    if x.shape[-2] == 1 or abs(x.stride(-2)) == 1:
        return given
    beside = [axis for axis in shared if given.x.shape[axis] > 1 and 0 < given.x.stride(axis) < given.x.stride(-2)]
    if not beside:
        return given
    return _chosen(given, min(beside, key=given.x.stride))


def _aside(given: Arrays) -> Arrays:
    """The columns as the last batch axis."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.movedim(-1, -2).unsqueeze(-1)

    factors = tuple(factor.unsqueeze(-3) for factor in given.factors)
    return Arrays(moved(given.x), factors, None if given.y is None else moved(given.y), moved(given.out))


def _chosen(given: Arrays, axis: int) -> Arrays:
    """A batch axis that no factor has as the columns, which had length 1."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.squeeze(-1).movedim(axis, -1)

    factors = tuple(factor.squeeze(axis) for factor in given.factors)
    return Arrays(moved(given.x), factors, None if given.y is None else moved(given.y), moved(given.out))


@dataclass(frozen=True)
class Port:
    """Strides of one array in a pass: of the batch axes with ``left`` last, of the run and of what is right of it."""

    batch: tuple[int, ...]
    run: int
    right: int


def port(tensor: torch.Tensor, left: int, run: int, right: int) -> Port | None:
    """Strides of (…, left * run * right, columns); None where ``right`` and the columns do not lie in one line."""
    *batch, own, across = tensor.stride()
    batch = [0 if size == 1 else stride for size, stride in zip(tensor.shape[:-2], batch, strict=True)]
    columns = tensor.shape[-1]
    if right > 1 and columns > 1 and own != columns * across:
        return None
    inner = across if columns > 1 else own
    return Port((*batch, own * run * right if left > 1 else 0), own * right, inner)


def spread(strides: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of batch axes, 0 for axes of length 1."""
    return tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))


def within(arrays: Arrays, x: torch.Tensor, out: torch.Tensor, y: torch.Tensor | None) -> Arrays:
    """The same factors on other arrays."""
    return replace(arrays, x=x, out=out, y=y)
