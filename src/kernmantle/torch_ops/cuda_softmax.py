"""Softmax-weighted sums of rows and their gradients on the GPU: a kernel that packs rows, then those that multiply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_reduce_emit import SPLIT, SPLITTERS
from ..backends.cuda.row_reduce_plan import CudaRowPlan, plan_softmax
from ..backends.cuda.softmax_emit import emit_softmax, main_kernels
from ..backends.cuda.softmax_plan import blocks_of
from ..compiler.nest import batch_of, sizes_and_layout
from ..compiler.row_reduce import RowNest
from ..runtime.launcher import Launcher, nothing
from .cuda import Entry, index_of, limits, row_kernels, scratch, start


class GpuSoftmax:
    """CUDA kernels for Hopper GPUs."""

    def prepare(
        self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device
    ) -> Launcher | None:
        """Compile the kernels or find them; None where two passes over the scores are right."""
        index = index_of(device)
        own = limits(index)
        values: list[int] = integers.tolist()
        sizes, strided = sizes_and_layout(values, alignment)
        chosen = plan_softmax(rows, sizes, own, strided)
        if chosen is None:
            return None
        kernels = _load(chosen)
        if kernels is None:
            return Launcher(nothing, str(chosen))
        split, *mains = kernels
        entry = rows.buffers.index(rows.matrix.outs[0])
        layout, count = chosen.memory(sizes), batch_of(sizes)
        down, across = blocks_of(rows, chosen.tile, sizes)
        groups = chosen.tile.m // 64
        grids = [min(own.sm_count, count * (pieces // groups)) for pieces in (down, across, across)]
        fixed = tuple(values[slot] for slot in chosen.integers)

        def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
            instead = "give it fewer batch entries at a time"
            memory = scratch(layout.size, device, "attention on tensor cores needs", instead)
            handed = (memory.data_ptr() + offset for offset in layout.offsets)
            passed = (*pointers[:entry], *pointers[entry + 1 :], *fixed, *numbers, *handed)
            start(split, index, count * (down + across), passed)
            for kernel, grid in zip(mains, grids, strict=False):
                start(kernel, index, grid, passed)

        return Launcher(run, str(chosen))


def _load(chosen: CudaRowPlan) -> tuple[Kernel, ...] | None:
    mains = [Entry(name, chosen.threads, chosen.shared) for name in main_kernels(chosen)]
    return row_kernels(chosen, emit_softmax, Entry(SPLIT, SPLITTERS, prefix="packing for "), *mains)


TARGET = GpuSoftmax
