"""Eigenvalues of batches of small symmetric matrices on the GPU: one kernel, on torch's current stream."""

from __future__ import annotations

import torch

from ..backends.cuda.eigen_plan import ENTRY, MOST, EigenPlan, emit, width_for
from .cuda import Entry, index_of, limits, load_kernel, start
from .cuda_system import compiles
from .dtypes import NAMES


def takes(a: torch.Tensor) -> bool:
    """Return whether matrices (..., n, n) are small and on a GPU for which kernels can be compiled."""
    return a.is_cuda and 0 < a.shape[-1] <= MOST and a.numel() > 0 and compiles()


def run(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor | None, info: torch.Tensor) -> None:
    """Compute eigenvalues (count, n), ascending, and vectors of matrices (count, n, n) of any strides, without waiting.

    The lower triangles are read; v may be the memory of a. ``w`` and ``info`` are contiguous.
    """
    index = index_of(a.device)
    own = limits(index)
    count, order = a.shape[:2]
    chosen = EigenPlan(NAMES[a.dtype], width_for(order), v is not None, own.arch)
    kernel = load_kernel(chosen, emit, Entry(ENTRY, chosen.threads))
    if kernel is None:
        return
    pointers = (a.data_ptr(), w.data_ptr(), 0 if v is None else v.data_ptr(), info.data_ptr())
    strides = (*a.stride(), *((0, 0, 0) if v is None else v.stride()))
    start(kernel, index, chosen.blocks(count, own.sm_count), (*pointers, count, order, *strides))
