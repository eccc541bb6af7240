"""Row nests on the CPU: LLVM kernels on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..backends.cpu import jit
from ..backends.cpu.row_reduce_plan import CpuRowPlan, plan_rows, row_work
from ..compiler.nest import sizes_of, stride_slot
from ..compiler.row_reduce import PRODUCT, RowNest
from ..runtime.kernel_store import loaded
from ..runtime.launcher import Launcher, nothing
from .cpu import job_for, launch

_MOST_COLUMNS, _FEWEST_ROWS = 64, 8  # columns of v, and rows, within which the fused loop is taken
_MOST_RESULTS = 1024  # numbers that a row may have as its result


class CpuRows:
    """LLVM kernels for this machine's vectors."""

    binary = False

    def takes(self, rows: RowNest, sizes: Mapping[str, int], device: torch.device) -> bool:
        """Return False for rows too few to fill vectors, and if a vendor's product would do most of the work."""
        most = _MOST_COLUMNS if rows.how == PRODUCT else _MOST_RESULTS
        return sizes["m"] >= _FEWEST_ROWS and sizes["l"] <= most

    def prepare(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it."""
        own = jit.host()
        sizes = sizes_of(integers.tolist())
        chosen = plan_rows(rows, own.vector_bytes, own.vector_registers, sizes)
        kernel = _load(chosen)
        if kernel is None:
            return Launcher(nothing, str(chosen))
        buffer = rows.buffers.index(rows.matrix.outs[0])
        integers[[stride_slot(buffer, "m"), stride_slot(buffer, "n")]] = 1, chosen.matrix.columns
        own = launch(kernel, row_work(chosen, sizes), integers, len(rows.buffers), len(rows.matrix.numbers))
        return Launcher(own, str(chosen))


def _load(chosen: CpuRowPlan) -> jit.LoadedKernel | None:
    """Return the kernel of a plan, compiled if the cache does not have it; None if it was only collected."""
    return loaded(
        chosen,
        lambda: [
            job_for("backends.cpu.row_reduce_emit:emit_rows", (chosen,), str(chosen), chosen.matrix.nest.expression)
        ],
        jit.load,
    )


TARGET = CpuRows
