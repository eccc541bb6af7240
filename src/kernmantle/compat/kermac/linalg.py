"""kermac.linalg's functions: right-hand sides and solutions are rows, infos stay on the device.

Unlike there, CPU tensors and float64 are taken, the triangle is that of the array, and views of any strides are
overwritten in place.
"""

from __future__ import annotations

from enum import Enum, auto

import torch

from ... import linalg
from ...errors import LinearAlgebraError


class FillMode(Enum):
    """Which triangle is read."""

    UPPER = auto()
    LOWER = auto()


def _batched(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError("a and b must be PyTorch tensors")
    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must have dtype torch.float32 or torch.float64, not {tensor.dtype}")
    if tensor.dim() not in (2, 3):
        raise ValueError(f"{name} must be 2 or 3-dimensional, it has shape {tuple(tensor.shape)}")
    return tensor if tensor.dim() == 3 else tensor.unsqueeze(0)


def _square(a: torch.Tensor) -> torch.Tensor:
    found = _batched(a, "a")
    if found.shape[1] != found.shape[2]:
        raise ValueError(f"a tensor is not square, got {tuple(found.shape[1:])}")
    return found


def _rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found = _batched(b, "b")
    if found.device != a.device or found.dtype != a.dtype:
        raise ValueError(f"a and b must share dtype and device: got {a.dtype} {a.device} and {b.dtype} {b.device}")
    if found.shape[0] != a.shape[0]:
        raise ValueError(f"a and b tensor must have the same batch mode got {(a.shape[0], found.shape[0])}")
    if found.shape[2] != a.shape[2]:
        raise ValueError(f"b tensor must have {a.shape[2]} columns, got {found.shape[2]}")
    return found


Solved = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def solve_cholesky(
    a: torch.Tensor,
    b: torch.Tensor,
    fill_mode: FillMode = FillMode.LOWER,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_errors: bool = False,
    debug: bool = False,  # noqa: ARG001
) -> Solved:
    """Return solutions x (L, C, N) of ``x a = b``, for symmetric a (L, N, N), with the infos of factor and solution."""
    matrix = _square(a)
    rows = _rows(matrix, b)
    try:
        found = linalg.solve_cholesky(
            matrix, rows.mT, lower=fill_mode is FillMode.LOWER, overwrite_a=overwrite_a, overwrite_b=overwrite_b,
            check_errors=check_errors,
        )  # fmt: skip
    except LinearAlgebraError as error:
        raise ValueError(f"Non-zero items found: {error}") from error
    return _delivered(found.x, found.info, b)


def solve_lu(
    a: torch.Tensor,
    b: torch.Tensor,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_errors: bool = False,
    debug: bool = False,  # noqa: ARG001
) -> Solved:
    """Return the solutions x (L, C, N) of ``x a = b`` for a (L, N, N), with the infos of factors and solution."""
    matrix = _square(a)
    rows = _rows(matrix, b)
    try:
        with torch.no_grad():
            factor = linalg.lu_factor(matrix, overwrite_a=overwrite_a, check_errors=check_errors)
    except LinearAlgebraError as error:
        raise ValueError(f"Non-zero items found: {error}") from error
    found = linalg.lu_solve(factor, rows.mT, transpose=True, overwrite_b=overwrite_b)
    return _delivered(found.x, found.info, b)


def _delivered(x: torch.Tensor, info: torch.Tensor, b: torch.Tensor) -> Solved:
    return x.mT.reshape(b.shape), info, torch.zeros_like(info)


def eigh(
    a: torch.Tensor, fill_mode: FillMode = FillMode.LOWER, overwrite_a: bool = False, check_errors: bool = False
) -> Solved:
    """Return the eigenvalues (L, N), vectors as columns (L, N, N), and infos of symmetric a (L, N, N)."""
    try:
        found = linalg.eigh(
            _square(a), lower=fill_mode is FillMode.LOWER, overwrite_a=overwrite_a, check_errors=check_errors
        )
    except LinearAlgebraError as error:
        raise ValueError(f"Non-zero items found: {error}") from error
    return found.w, found.v, found.info
