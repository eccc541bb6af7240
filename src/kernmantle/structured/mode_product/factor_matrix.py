"""The matrix of two factors on NVIDIA GPUs, and gradients of both from that of the matrix, for halves.

Weights are (a, b, c, d), the matrix (1, features out, features in, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...torch_ops.cuda import Entry, index_of, limits, load_kernel
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .bound_products import bind_ready, no_launch
from .factor_matrix_plan import DTYPES, THREADS, MatrixGradientPlan, MatrixPlan, matrix_gradient_plan, matrix_plan

Maybe = torch.Tensor | None
_ALIGNED = 16  # bytes


@dataclass(frozen=True, eq=False)
class BoundMatrix:
    """The matrix of two factors in one launch."""

    route: str
    launch: Callable[[tuple[int, ...]], None]

    def run(self, operands: tuple[Maybe, ...]) -> None:
        """Launch on the second factor, the first one and the matrix."""
        second, first, out, *_ = (0 if tensor is None else tensor.data_ptr() for tensor in operands)
        self.launch((first, second, out))

    def on_addresses(self, first: int, second: int, out: int) -> tuple[int, ...]:
        """Return the operands of the launch, from positions of both factors and the matrix."""
        return first, second, out


def bind_matrix(first: torch.Tensor, second: torch.Tensor, out: torch.Tensor) -> BoundMatrix | None:
    """Return the launch for weights in one piece; None for what it does not take."""
    if not _has_kernels(out):
        return None
    index = index_of(out.device)
    plan = matrix_plan(_pattern(first), _pattern(second), NAMES[out.dtype], limits(index))
    if plan is None or not all(_lies_ready(weight, out.dtype) for weight in (first, second, out)):
        return None
    return BoundMatrix(str(plan), _launch(plan, cuda_emit.emit_matrix, plan.blocks, (), 3, index))


@dataclass(frozen=True, eq=False)
class BoundMatrixGradient:
    """Gradients of two factors from that of their matrix, and sums over the rows of another gradient, in one launch."""

    route: str
    launch: Callable[[tuple[int, ...]], None]

    def __call__(
        self, first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, of_first: Maybe, of_second: Maybe,
        summed: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:  # fmt: skip
        """Write them; ``summed``: a gradient (..., features), and where sums over its rows are written."""
        tensors = first, second, grad, of_first, of_second, *(summed or (None, None))
        self.launch(tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors]))

    def on_addresses(
        self, first: int, second: int, grad: int, of_first: int, of_second: int
    ) -> tuple[Callable[[tuple[int, ...]], None], tuple[int, ...]]:
        """Return the launch and its operands, from positions of both factors and gradients; 0 is none."""
        return self.launch, (first, second, grad, of_first, of_second, 0, 0)


def bind_matrix_gradient(
    first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, of_first: Maybe, of_second: Maybe, summed: Maybe
) -> BoundMatrixGradient | None:
    """Return the launch for tensors in one piece; ``summed`` is a gradient (1, N, features) or None."""
    if not _has_kernels(grad):
        return None
    needed, index = (of_first is not None, of_second is not None), index_of(grad.device)
    sums = summed is not None
    plan = matrix_gradient_plan(_pattern(first), _pattern(second), NAMES[grad.dtype], needed, sums, limits(index))
    if plan is None or not all(_lies_ready(weight, grad.dtype) for weight in (first, second, grad)):
        return None
    rest = 0, 0
    if summed is not None:
        rest = summed.shape[1], summed.stride(1)
        access = math.gcd(_ALIGNED, summed.data_ptr(), summed.stride(1) * summed.element_size())
        if summed.stride(2) != 1 or access < _ALIGNED:
            return None
    return BoundMatrixGradient(str(plan), _launch(plan, cuda_emit.emit_matrix_gradient, plan.blocks, rest, 7, index))


def _has_kernels(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and NAMES.get(tensor.dtype) in DTYPES


def _pattern(weight: torch.Tensor) -> tuple[int, int, int, int]:
    a, b, c, d = weight.shape
    return a, b, c, d


def _lies_ready(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    return weight.dtype == dtype and weight.is_contiguous() and weight.data_ptr() % _ALIGNED == 0


def _launch(
    plan: MatrixPlan | MatrixGradientPlan, source: Callable[[Any], str], blocks: int, rest: tuple[int, ...],
    operands: int, index: int,
) -> Callable[[tuple[int, ...]], None]:  # fmt: skip
    kernel = load_kernel(plan, source, Entry(cuda_emit.ENTRY, THREADS, plan.shared, waits=True))
    return no_launch if kernel is None else bind_ready(kernel, operands, rest, index, blocks)
