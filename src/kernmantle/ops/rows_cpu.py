"""Row nests on the CPU: LLVM kernels on as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..config import current
from ..contraction.apply import PRODUCT, RowNest
from ..contraction.cpu_apply import CpuRowPlan, plan_rows, row_work
from ..contraction.nest import SIZES, stride_slot
from ..runtime import llvm
from ..runtime.lru import LRUCache
from .cpu import job_for
from .launcher import Launcher, collecting, fetch, nothing

_MOST_COLUMNS, _FEWEST_ROWS = 64, 8
_MOST_KEPT = 1024
_LOADED: LRUCache[CpuRowPlan, llvm.LoadedKernel] = LRUCache(1024)


class CpuRows:
    """LLVM kernels for this machine's vectors."""

    binary = False

    def takes(self, rows: RowNest, sizes: Mapping[str, int], device: torch.device) -> bool:
        """Not where vectors along the rows would be empty, and not where a vendor's product does most of the work."""
        most = _MOST_COLUMNS if rows.how == PRODUCT else _MOST_KEPT
        return sizes["m"] >= _FEWEST_ROWS and sizes["l"] <= most

    def prepare(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it."""
        own = llvm.host()
        sizes: dict[str, int] = dict(zip(SIZES, integers.tolist(), strict=False))
        chosen = plan_rows(rows, own.vector_bytes, own.vector_registers, sizes)
        kernel = _load(chosen)
        if kernel is None:
            return Launcher(nothing, str(chosen))
        todo = row_work(chosen, sizes)
        place = rows.ports.index(rows.matrix.outs[0])
        integers[[stride_slot(place, "m"), stride_slot(place, "n")]] = 1, chosen.matrix.columns
        packed = integers.tobytes()

        def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
            threads = current().threads or torch.get_num_threads()
            llvm.run(kernel, todo.items, todo.scratch_bytes, pointers, packed, numbers, threads, todo.grain)

        return Launcher(run, str(chosen))


def _load(chosen: CpuRowPlan) -> llvm.LoadedKernel | None:
    """The kernel of a plan, compiled if the cache does not have it; None if it was only noted."""
    found = None if collecting() else _LOADED.get(chosen)
    if found is None:
        binary = fetch(job_for("llvm_apply:emit_rows", (chosen,), str(chosen)))
        if binary is None:
            return None
        found = _LOADED.setdefault(chosen, llvm.load(binary))
    return found


TARGET = CpuRows()
