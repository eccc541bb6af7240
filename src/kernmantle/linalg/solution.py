"""Records that solvers return, and errors that their infos mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import LinearAlgebraError, ParameterError
from ..torch_ops.torch_private import no_transform
from .arguments import check_overwrite
from .implicit import solved


def described(value: Any) -> str:
    """Return an array by its shape: showing values would wait for a device."""
    return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"


class Described:
    """A record whose arrays are shown by their shapes."""

    def __repr__(self) -> str:
        shown = {
            name: described(value) if hasattr(value, "dtype") else repr(value)
            for name, value in vars(self).items()
            if value is not None
        }
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in shown.items())})"


@dataclass(frozen=True, repr=False)
class Solution(Described):
    """A solution of a linear system.

    Attributes
    ----------
    x : array
        The solution, NaN where ``info`` is positive.
    info : array of int32, shape (...)
        On the device. 0, or as LAPACK means it: for Cholesky the order of the leading minor that is not positive
        definite, for LU the place of an exact zero on the diagonal of U, counted from 1. -1 where ``refine`` did not
        get to the digits of float64.
    ran : str
        The routine that was used.
    jitter : array or None
        What was added to the diagonal, per item.
    residual : array or None
        ``‖b - a x‖ / ‖b‖`` of each column after the last refinement.
    """

    x: Any
    info: Any
    ran: str
    jitter: Any = None
    residual: Any = None


def raise_for(info: torch.Tensor, meaning: str) -> None:
    """Wait for the infos and raise LinearAlgebraError, naming the first item, unless all are 0."""
    if not info.dim() and not info.item():
        return
    found = info.reshape(-1).tolist()
    failed = [i for i, value in enumerate(found) if value]
    if not failed:
        return
    first = failed[0]
    where = f"item {first} of the batch: " if info.dim() else ""
    more = f" ({len(failed)} of {len(found)} items failed)" if len(failed) > 1 else ""
    raise LinearAlgebraError(f"{where}{meaning.format(info=found[first])} (info {found[first]}){more}")


def nan_where_failed(result: torch.Tensor, info: torch.Tensor) -> torch.Tensor:
    """Return a result with NaN for the items that failed, in place where no gradient is recorded."""
    if not info.dim() and info.is_cpu and not torch.compiler.is_compiling() and no_transform() and not info.item():
        return result  # reading takes 1 us there, and filling nothing 15
    failed = (info != 0)[(..., *(None,) * (result.dim() - info.dim()))]
    if result.requires_grad or not no_transform():
        return result.masked_fill(failed, float("nan"))
    return result.masked_fill_(failed, float("nan"))


def check_target(b: torch.Tensor, shape: Sequence[int]) -> None:
    """Raise ParameterError unless a solution of that shape can be written to b."""
    if b.shape != tuple(shape):
        raise ParameterError(f"overwrite_b needs b of the shape of the solution, {tuple(shape)}")


def solution(a: torch.Tensor, b: torch.Tensor, solver: Any, shape: Sequence[int], overwrite_b: bool) -> torch.Tensor:
    """Return the solution for columns of b expanded to a batch, in b where that may be."""
    if overwrite_b:
        check_overwrite(b, "b")
    wide = b if b.shape == tuple(shape) else b.expand(shape)
    return solved(a, wide, solver, overwrite_b and wide.shape == b.shape)


def delivered(x: torch.Tensor, rhs: torch.Tensor, overwrite: bool, info: torch.Tensor) -> torch.Tensor:
    """Return the solution with NaN where it is none, in b where that is to be overwritten."""
    lacking = x.dim() - 2 - info.dim()
    x = nan_where_failed(x, info[(None,) * lacking])
    if overwrite:
        target = rhs if rhs.dim() == x.dim() else rhs.unsqueeze(-1)
        check_target(target, x.shape)
        return x if x.data_ptr() == target.data_ptr() else target.copy_(x)
    return x
