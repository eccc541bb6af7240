"""Matrices that rows are multiplied by before a kernel sees them."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import DeviceError, ParameterError, ShapeError
from ..torch_ops.checks import without_autocast


def check_transform(matrix: Any) -> torch.Tensor:
    """Return a floating-point matrix, or the diagonal of one."""
    if not isinstance(matrix, torch.Tensor) or matrix.dim() not in (1, 2):
        shape = tuple(matrix.shape) if isinstance(matrix, torch.Tensor) else matrix
        raise ShapeError(f"a transform has shape (k, r), or (k,) for a diagonal, not {shape}")
    if not matrix.is_floating_point():
        raise ParameterError(f"a transform is floating point, this one is {matrix.dtype}")
    return matrix


def multiplied(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return the rows times a matrix, in their dtype."""
    if matrix.shape[0] != rows.shape[-1]:
        raise ShapeError(
            f"the transform has shape {tuple(matrix.shape)}, x has shape {tuple(rows.shape)}: its first axis is the "
            "columns of x"
        )
    if matrix.device != rows.device:
        raise DeviceError(f"the transform is on {matrix.device}, x on {rows.device}; move one with .to()")
    chosen = matrix.to(rows.dtype)
    if matrix.dim() == 1:
        return rows * chosen
    with without_autocast(rows.device):
        return rows @ chosen


def transform_vjp(gradients: torch.Tensor, matrix: torch.Tensor | None) -> torch.Tensor:
    """Return the gradients by rows from gradients by the rows times the matrix."""
    if matrix is None:
        return gradients
    chosen = matrix.to(gradients.dtype)
    with without_autocast(gradients.device):
        return gradients * chosen if matrix.dim() == 1 else gradients @ chosen.mT


def composed(first: torch.Tensor, then: torch.Tensor | None) -> torch.Tensor:
    """Return the one matrix of two that are multiplied one after the other."""
    if then is None:
        return first
    if first.dim() == 1:
        return first * then if then.dim() == 1 else first.unsqueeze(-1) * then
    with without_autocast(first.device):
        return first * then if then.dim() == 1 else first @ then
