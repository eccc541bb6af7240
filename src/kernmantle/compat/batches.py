"""Checks and batch axes as kermac has them: one optional batch axis on everything, results always with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..torch_ops.contract import Contraction


def batch_size(tensors: dict[str, tuple[torch.Tensor, int]]) -> int:
    """Return the one batch size of arrays that have an axis more than they need."""
    batch = 1
    for name, (tensor, axes) in tensors.items():
        if tensor.dim() not in (axes, axes + 1):
            raise ValueError(f"{name} must have {axes} or {axes + 1} axes, it has shape {tuple(tensor.shape)}")
        size = tensor.shape[0] if tensor.dim() > axes else 1
        if size != 1 and batch not in (1, size):
            raise ValueError(f"{name} has batch size {size}, another array has {batch}")
        batch = max(batch, size)
    return batch


def check_tensors(tensors: dict[str, Any], out: Any) -> None:
    """Raise what kermac raises for operands that are no tensors, or of several dtypes or devices."""
    for name, tensor in {**tensors, **({} if out is None else {"out": out})}.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
    first = next(iter(tensors.values()))
    for name, tensor in {**tensors, **({} if out is None else {"out": out})}.items():
        if not tensor.is_floating_point() or tensor.dtype != first.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; all arrays must have one floating-point dtype")
        if tensor.device != first.device:
            raise ValueError(f"{name} is on {tensor.device}, another array on {first.device}")


def hyper_sizes(values: dict[str, Any]) -> dict[str, tuple[torch.Tensor, int]]:
    """Return the tensors among hyperparameters, with the axes that each needs."""
    return {name: (value, 0) for name, value in values.items() if isinstance(value, torch.Tensor)}


def batch_of_pairs(
    a: torch.Tensor, b: torch.Tensor, hyper: dict[str, tuple[torch.Tensor, int]], out: torch.Tensor | None
) -> int:
    """Return the batch size of the pairs of rows of a and of b, once all arrays fit."""
    check_tensors({"a": a, "b": b}, out)
    batch = batch_size({"a": (a, 2), "b": (b, 2), **({} if out is None else {"out": (out, 2)}), **hyper})
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"K dimensions must match: a has {a.shape[-1]} columns, b has {b.shape[-1]}")
    shape = a.shape[-2], b.shape[-2]
    if out is not None and (tuple(out.shape[-2:]) != shape or (out.dim() == 2 and batch > 1)):
        raise ValueError(f"out must have shape {(batch, *shape)}, it has {tuple(out.shape)}")
    return batch


def deliver(
    contraction: Contraction, operands: Sequence[torch.Tensor], axes: int, batch: int, out: torch.Tensor | None,
    parameters: dict[str, Any],
) -> torch.Tensor:  # fmt: skip
    """Return the result with a batch axis, in ``out`` where given; an ``out`` of more batches repeats the result."""
    first = operands[0]
    wide = first if first.dim() == 3 else first.unsqueeze(0)
    wide = wide.expand(batch, *wide.shape[1:])
    if out is None:
        return contraction(wide, *operands[1:], **parameters)
    target = out if out.dim() > axes else out.unsqueeze(0)
    contraction(wide, *operands[1:], out=target, **parameters)
    return out
