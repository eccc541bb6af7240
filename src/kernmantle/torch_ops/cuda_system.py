"""Batches of small systems on the GPU: one kernel that factors and solves, on torch's current stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from ..backends.cuda.device import core
from ..backends.cuda.launch import BoundLaunch, Kernel
from ..backends.cuda.system_plan import ENTRY, MOST, THREADS, SystemPlan, emit, width_for
from ..errors import BackendError
from .cuda import Entry, bind_launch, index_of, limits, load_kernel, start
from .dtypes import NAMES


@dataclass
class Arrays:
    """Matrices (count, n, n) of any strides and what is made of them; None where it is not wanted.

    ``factor`` and ``x`` may be the memory of ``a`` and ``b``; pivots (count, n) and infos (count,) are contiguous.
    """

    a: torch.Tensor
    factor: torch.Tensor | None = None
    pivots: torch.Tensor | None = None
    info: torch.Tensor | None = None
    b: torch.Tensor | None = None
    x: torch.Tensor | None = None

    def arguments(self) -> list[int]:
        """Return the arguments in the order of the kernel's parameters."""
        everything = (self.a, self.factor, self.pivots, self.info, self.b, self.x)
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in everything]
        sizes = [*self.a.shape[:2], 0 if self.b is None else self.b.shape[2]]
        for tensor in (self.a, self.factor, self.b, self.x):
            sizes += (0, 0, 0) if tensor is None else tensor.stride()
        return pointers + sizes


@lru_cache(maxsize=1)
def compiles() -> bool:
    """Return whether kernels can be compiled here."""
    try:
        core()
    except BackendError:
        return False
    return True


def takes(a: torch.Tensor) -> bool:
    """Return whether matrices (..., n, n) are small and on a GPU for which kernels can be compiled."""
    return a.is_cuda and 0 < a.shape[-1] <= MOST and a.numel() > 0 and compiles()


def run(arrays: Arrays, pivoted: bool, transposed: bool = False) -> None:
    """Factor if there are infos, and solve if there are right-hand sides, without waiting for the device."""
    index = index_of(arrays.a.device)
    kernel, blocks = _prepared(arrays, pivoted, transposed, index)
    if kernel is not None:
        start(kernel, index, blocks, tuple(arrays.arguments()))


def bind(arrays: Arrays, pivoted: bool) -> BoundLaunch | None:
    """Return what solves systems of the same layout, by the addresses of a, infos, b and x; None while collecting."""
    index = index_of(arrays.a.device)
    kernel, blocks = _prepared(arrays, pivoted, False, index)
    return None if kernel is None else bind_launch(kernel, arrays.arguments(), (0, 3, 4, 5), index, blocks)


def _prepared(arrays: Arrays, pivoted: bool, transposed: bool, index: int) -> tuple[Kernel | None, int]:
    """Return the kernel for arrays, None if it was only collected, and its blocks."""
    own = limits(index)
    count, order = arrays.a.shape[:2]
    factors, solves = arrays.info is not None, arrays.b is not None
    chosen = SystemPlan(NAMES[arrays.a.dtype], width_for(order), pivoted, transposed, factors, solves, own.arch)
    return load_kernel(chosen, emit, Entry(ENTRY, THREADS)), chosen.blocks(count, own.sm_count)
