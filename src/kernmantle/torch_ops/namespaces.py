"""Torch and numpy as array namespaces of the reference evaluator."""

from __future__ import annotations

import math
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..backends.reference.evaluate import Namespace, lookup
from ..ir.ops import OPS

_TORCH = SimpleNamespace(where=torch.where, sign=lambda x: torch.where(x != x, x, torch.sign(x)))


def _extreme(number: Any, limits: Any) -> Any:
    """Return a number, an infinity as the extreme of an integer type."""
    if isinstance(number, float) and math.isinf(number):
        return limits.max if number > 0 else limits.min
    return number


@lru_cache(maxsize=64)
def torch_namespace(dtype: torch.dtype, device: torch.device, stored: torch.dtype | None = None) -> Namespace:
    """Torch arithmetic in ``dtype`` on ``device``; infinities are the extremes of the integer type ``stored``."""
    kinds = {"value": dtype, "bool": torch.bool, "index": torch.int64}

    def full(shape: tuple[int, ...], number: Any, kind: str) -> torch.Tensor:
        if not kinds[kind].is_floating_point and kind != "bool":
            limits = torch.iinfo(kinds[kind])
            if stored is not None and kind == "value":
                limits = min(limits, torch.iinfo(stored), key=lambda each: each.max)
            number = _extreme(number, limits)
        return torch.full(shape, number, dtype=kinds[kind], device=device)

    def cast(array: torch.Tensor, kind: str) -> torch.Tensor:
        return array if kind == "index" else array.to(kinds[kind])

    return Namespace(
        function=lru_cache(maxsize=None)(lambda op: lookup(OPS[op], (_TORCH, torch), OPS[op].torch or (op,))),
        full=full,
        cast=cast,
        is_bool=lambda array: array.dtype == torch.bool,
        concatenate=lambda arrays, axis: torch.cat(list(arrays), axis),
        arange=lambda start, stop: torch.arange(start, stop, device=device),
        permute=lambda array, order: array.permute(tuple(order)),
        broadcast=torch.broadcast_to,
    )


def _numpy_erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


_NUMPY = SimpleNamespace(erf=_numpy_erf)


@lru_cache(maxsize=16)
def numpy_namespace(dtype: str = "float64") -> Namespace:
    """Return the numpy arithmetic in ``dtype``."""
    kinds: dict[str, Any] = {"value": np.dtype(dtype), "bool": np.dtype(bool), "index": np.dtype(np.int64)}

    def full(shape: tuple[int, ...], number: Any, kind: str) -> Any:
        if kinds[kind].kind == "i":
            number = _extreme(number, np.iinfo(kinds[kind]))
        return np.full(shape, number, dtype=kinds[kind])

    def cast(array: Any, kind: str) -> Any:
        return array if kind == "index" else array.astype(kinds[kind])

    return Namespace(
        function=lambda op: lookup(OPS[op], (_NUMPY, np), (OPS[op].numpy, op)),
        full=full,
        cast=cast,
        is_bool=lambda array: array.dtype == bool,
        concatenate=np.concatenate,
        arange=np.arange,
        permute=np.transpose,
        broadcast=np.broadcast_to,
    )
