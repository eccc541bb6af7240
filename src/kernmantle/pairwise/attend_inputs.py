"""Checks of what a user gives attention, before anything is computed."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..arrays import check_same_device, dtype_name, unwrap
from ..errors import DtypeError, ParameterError, ShapeError
from ..ir.equation import broadcast
from ..torch_ops.checks import is_number
from .inputs import HALVES
from .scores import Arrays, is_inner_product


def checked_truth(name: str, value: Any, other: str) -> bool:
    """Return an argument that is True or False; ``other`` says in an error what was perhaps meant."""
    if not isinstance(value, bool):
        raise ParameterError(f"{name}= is True or False, not {value!r}; {other}")
    return value


def _listing(tensors: dict[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} has shape {tuple(t.shape)}" for name, t in tensors.items())


def checked_shapes(tensors: dict[str, torch.Tensor], shares: bool) -> tuple[int, ...]:
    """Return the shape of the scores; with ``shares`` each head of k and v counts for several of q."""
    if any(t.dim() < 2 for t in tensors.values()):
        raise ShapeError(f"q, k and v have rows and columns: {_listing(tensors)}")
    q, k, v = (t.shape for t in tensors.values())
    if q[-1] != k[-1]:
        raise ShapeError(f"q and k must have the same number of columns: {_listing(tensors)}")
    if k[-2] != v[-2]:
        raise ShapeError(f"k and v have as many rows as each other: {_listing(tensors)}")
    if shares and (min(map(len, (q, k, v))) < 3 or k[-3] != v[-3] or not k[-3] or q[-3] % k[-3]):
        raise ShapeError(
            "with enable_gqa=True the heads of k and v, axis -3, are as many and divide those of q: "
            + _listing(tensors)
        )
    batches = [shape[:-3] + q[-3:-2] for shape in (q, k, v)] if shares else [shape[:-2] for shape in (q, k, v)]
    batch = broadcast([tuple(shape) for shape in batches])
    if batch is None:
        hint = (
            "; heads of q that share those of k and v are enable_gqa=True" if len({len(q), len(k), len(v)}) == 1 else ""
        )
        raise ShapeError(f"batch axes do not broadcast: {_listing(tensors)}{hint}")
    return *batch, q[-2], k[-2]


def grouped(arrays: Arrays, table: torch.Tensor | None, heads: int) -> tuple[Arrays, torch.Tensor | None]:
    """Return heads of q that share one of k and v on an axis of their own, along which k, v and the mask broadcast."""
    q, k, v = arrays.tensors.values()
    groups = k.shape[-3]
    tensors = {"q": q.unflatten(-3, (groups, -1)), "k": k.unsqueeze(-3), "v": v.unsqueeze(-3)}
    if table is not None and table.dim() > 2:
        table = table.unflatten(-3, (groups, -1)) if table.shape[-3] == heads else table.unsqueeze(-3)
    return arrays._replace(tensors=tensors), table


def checked_mask(mask: Any, q: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor | None:
    """Return a mask as a tensor of shape (..., l, s), or (..., 1, s) where all rows share it."""
    if mask is None:
        return None
    (table,), _ = unwrap(mask, names=["mask"])
    shape = tuple(table.shape)
    check_same_device([q, table], ["q", "mask"])
    if table.dtype != torch.bool and not table.is_floating_point():
        raise DtypeError(f"mask is {dtype_name(table.dtype)}; pass booleans, mask != 0, or numbers that are added")
    table = table if table.dim() > 1 else table.reshape(1, -1)
    try:
        fits = torch.broadcast_shapes(sizes, table.shape) == sizes
    except RuntimeError:
        fits = False
    if not fits or not table.dim():
        raise ShapeError(f"mask has shape {shape}, which does not broadcast to that of the scores, {sizes}")
    return table.expand(*table.shape[:-1], sizes[-1])


def checked_scale(scale: Any, score: Any, arrays: Arrays) -> Any:
    """Return a number, or a tensor of the type of the arithmetic; distances by name count with a minus."""
    multiplies = score is None or is_inner_product(score)
    sign = -1.0 if isinstance(score, str) and not multiplies else 1.0
    q = arrays.tensors["q"]
    if scale is None:
        return 1 / math.sqrt(max(1, q.shape[-1])) if multiplies else sign
    if isinstance(scale, torch.Tensor):
        if scale.dim() or not scale.is_floating_point():
            raise ParameterError(f"scale= is one number, not a tensor of shape {tuple(scale.shape)}, {scale.dtype}")
        return sign * scale.to(q.device, torch.float32 if q.dtype in HALVES else q.dtype)
    if not is_number(scale) or isinstance(scale, bool) or not math.isfinite(scale):
        raise ParameterError(f"scale= is a finite number, not {scale!r}")
    return sign * float(scale)
