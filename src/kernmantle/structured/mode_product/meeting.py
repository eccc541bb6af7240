"""The matrix of two factors of halves that meet on NVIDIA GPUs.

Weights are (a, b, c, d), the matrix (1, features out, features in, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ...backends.cuda.launch import ReadyLaunch
from ...torch_ops.cuda import index_of, limits, start
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .cuda import OVERLAPPED, load
from .meeting_plan import DTYPES, THREADS, JoinPlan, join_plan

Maybe = torch.Tensor | None
_ALIGNED, _OPERANDS = 16, 3  # bytes; addresses of a launch


@dataclass(frozen=True, eq=False)
class BoundJoin:
    """The matrix of two factors in one launch."""

    route: str
    launch: Callable[[tuple[int, ...]], None]

    def run(self, operands: tuple[Maybe, ...]) -> None:
        """Launch on the second factor, the first one and the matrix."""
        second, first, out, *_ = (0 if tensor is None else tensor.data_ptr() for tensor in operands)
        self.launch((first, second, out))


def bind_join(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> BoundJoin | None:
    """Return the launch for weights in one piece; None for what it does not take."""
    if not _has_kernels(out):
        return None
    index = index_of(out.device)
    plan = join_plan(_pattern(first), _pattern(second), NAMES[out.dtype], limits(index))
    if plan is None or not all(_lies_ready(weight, out.dtype) for weight in (first, second, out)):
        return None
    return BoundJoin(str(plan), _launch(plan, index))


def _has_kernels(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and NAMES.get(tensor.dtype) in DTYPES


def _pattern(weight: torch.Tensor) -> tuple[int, int, int, int]:
    a, b, c, d = weight.shape
    return a, b, c, d


def _lies_ready(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    return weight.dtype == dtype and weight.is_contiguous() and weight.data_ptr() % _ALIGNED == 0


def _launch(plan: JoinPlan, index: int) -> Callable[[tuple[int, ...]], None]:
    early = limits(index).has(OVERLAPPED)
    loaded = load(
        (plan, early), lambda: cuda_emit.emit_join(plan), plan.arch, (cuda_emit.ENTRY, THREADS, plan.shared, early),
    )  # fmt: skip
    if loaded is None:
        return _nothing
    ready = ReadyLaunch(loaded[0], _OPERANDS * (0,), (0,), _OPERANDS)
    return partial(start, ready, index, plan.blocks)


def _nothing(_: tuple[int, ...]) -> None:
    """Launch nothing, of a kernel that was only collected."""
