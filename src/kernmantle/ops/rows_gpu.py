"""Row nests on the GPU: two CUDA kernels on torch's current stream, one that reduces and one that joins its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch

from ..codegen.cuda_apply import ENTRY, JOIN, emit_rows
from ..contraction.apply import PRODUCT, RowNest
from ..contraction.cuda_apply import JOINERS, CudaRowPlan, plan_rows
from ..contraction.cuda_plan import Facts
from ..contraction.nest import ROLES, SIZES
from ..runtime.launch import Kernel
from .execute import allocate
from .gpu import index_of, job_for, limits, start
from .launcher import Launcher, collecting, fetch, nothing

_MOST_COLUMNS, _MOST_KEPT, _FEWEST_ROWS = 128, 32, 16
_LOADED: dict[CudaRowPlan, tuple[Kernel, Kernel]] = {}


class GpuRows:
    """CUDA kernels for NVIDIA GPUs from sm_80 on."""

    binary = True

    def takes(self, rows: RowNest, sizes: Mapping[str, int], device: torch.device) -> bool:
        """Not few rows, whose tiles would be empty, and not where a vendor's product does most of the work."""
        most = _MOST_COLUMNS if rows.how == PRODUCT else _MOST_KEPT
        return sizes["m"] >= _FEWEST_ROWS and sizes["l"] <= most

    def prepare(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernels or find them."""
        index = index_of(device)
        own = limits(index)
        values: list[int] = integers.tolist()
        sizes: dict[str, int] = dict(zip(SIZES, values, strict=False))
        strides = tuple(tuple(values[len(SIZES) + p * len(ROLES) :][: len(ROLES)]) for p in range(len(rows.ports)))
        chosen = plan_rows(rows, sizes, own, Facts(strides, tuple(alignment)))
        kernels = _load(chosen)
        if kernels is None:
            return Launcher(nothing, str(chosen))
        width = sizes["l"]
        blocks = chosen.blocks(sizes, own, width)
        tiles, columns = chosen.tiles(sizes)
        fixed = [values[slot] for slot in chosen.integers]
        work = chosen.work_bytes(blocks, width)
        nowhere = rows.ports.index(rows.matrix.outs[0])
        trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)

        def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
            memory = allocate((work,), torch.uint8, torch.device("cuda", index))
            given = (*pointers[:nowhere], *pointers[nowhere + 1 :], memory.data_ptr(), *fixed, *numbers)
            given = (*given, *trailing(tuple(numbers)))
            start(kernels[0], index, blocks, given)
            if blocks > 1 and columns > 1:
                start(kernels[1], index, blocks - 1, (*given, blocks, tiles, columns))

        return Launcher(run, str(chosen))


def _load(chosen: CudaRowPlan) -> tuple[Kernel, Kernel] | None:
    """The kernels of a plan, compiled if the cache does not have them; None if they were only noted."""
    found = None if collecting() else _LOADED.get(chosen)
    if found is None:
        matrix = chosen.matrix
        binary = fetch(job_for(emit_rows(chosen), matrix.arch, str(chosen), not matrix.nest.reproducible))
        if binary is None:
            return None
        main = Kernel(binary, ENTRY, chosen.threads, chosen.shared, title=str(chosen))
        found = _LOADED[chosen] = main, Kernel(binary, JOIN, JOINERS, 0, title=f"joining of {chosen}")
    return found


TARGET = GpuRows()
