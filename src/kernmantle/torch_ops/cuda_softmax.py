"""Softmax-weighted sums of rows and their gradients on the GPU: a kernel that packs rows, then those that multiply."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..backends.cuda.gram_plan import Layout
from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_reduce_emit import SPLIT, SPLITTERS
from ..backends.cuda.row_reduce_plan import CudaRowPlan, plan_softmax
from ..backends.cuda.softmax_emit import emit_softmax, main_kernels
from ..backends.cuda.softmax_plan import blocks_of
from ..compiler.nest import ROLES, SIZES
from ..compiler.row_reduce import RowNest
from ..errors import OutOfMemoryError
from ..runtime.kernel_store import loaded
from ..runtime.launcher import Launcher, nothing
from .cuda import index_of, job_for, limits, start


class GpuSoftmax:
    """CUDA kernels for Hopper GPUs."""

    def prepare(
        self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device
    ) -> Launcher | None:
        """Compile the kernels or find them; None where two passes over the scores are right."""
        index = index_of(device)
        own = limits(index)
        values: list[int] = integers.tolist()
        sizes: dict[str, int] = dict(zip(SIZES, values, strict=False))
        strides = tuple(tuple(values[len(SIZES) + p * len(ROLES) :][: len(ROLES)]) for p in range(len(rows.ports)))
        chosen = plan_softmax(rows, sizes, own, Layout(strides, tuple(alignment)))
        if chosen is None:
            return None
        kernels = _load(chosen)
        if kernels is None:
            return Launcher(nothing, str(chosen))
        split, *mains = kernels
        entry = rows.ports.index(rows.matrix.outs[0])
        layout, count = chosen.memory(sizes), sizes["a"] * sizes["b"] * sizes["c"]
        down, across = blocks_of(rows, chosen.tile, sizes)
        groups = chosen.tile.m // 64
        grids = [min(own.sm_count, count * (pieces // groups)) for pieces in (down, across, across)]
        fixed = tuple(values[slot] for slot in chosen.integers)

        def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
            try:
                memory = torch.empty(layout.size, dtype=torch.uint8, device=device)
            except RuntimeError as error:
                raise OutOfMemoryError(
                    f"attention on tensor cores needs {layout.size / 2**30:.1f} GiB on {device} in addition to the "
                    "result; give it fewer batch entries at a time"
                ) from error
            handed = (memory.data_ptr() + offset for offset in layout.offsets)
            passed = (*pointers[:entry], *pointers[entry + 1 :], *fixed, *numbers, *handed)
            start(split, index, count * (down + across), passed)
            for kernel, grid in zip(mains, grids, strict=False):
                start(kernel, index, grid, passed)

        return Launcher(run, str(chosen))


def _load(chosen: CudaRowPlan) -> tuple[Kernel, ...] | None:
    """Return the kernels of a plan, compiled if the cache does not have them; None if they were only collected."""
    return loaded(
        chosen,
        lambda: [
            job_for(emit_softmax(chosen), chosen.matrix.arch, str(chosen), expression=chosen.matrix.nest.expression)
        ],
        lambda binary: (
            Kernel(binary, SPLIT, SPLITTERS, 0, title=f"packing for {chosen}"),
            *(Kernel(binary, name, chosen.threads, chosen.shared, title=str(chosen)) for name in main_kernels(chosen)),
        ),
    )


TARGET = GpuSoftmax
