"""Row reductions on the GPU: two CUDA kernels on torch's current stream, one that reduces and one that joins parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch

from ..backends.cuda.gram_plan import DeviceLimits
from ..backends.cuda.launch import Kernel, NumberedLaunch
from ..backends.cuda.row_reduce_emit import ENTRY, JOIN, emit_rows
from ..backends.cuda.row_reduce_plan import JOINERS, CudaRowPlan, is_worth_it, plan_rows
from ..backends.cuda.select_plan import part_count
from ..compiler.nest import Layout, batch_of, byte_steps, size_slot, sizes_and_layout, sizes_of
from ..compiler.row_reduce import RowNest
from ..runtime.launcher import Launcher, nothing
from . import cuda_row_reduce_forms, cuda_row_reduce_parts
from .cuda import Entry, Numbers, index_of, limits, numbered, row_kernels
from .execute import allocate


class GpuRows:
    """CUDA kernels for NVIDIA GPUs from sm_80 on."""

    binary = True

    def takes(self, rows: RowNest, sizes: Mapping[str, int], device: torch.device) -> bool:
        """Return False for few rows, which leave tiles empty, and if the vendor's products are faster."""
        return is_worth_it(rows, sizes, limits(index_of(device)))

    def prepare(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernels or find them."""
        index = index_of(device)
        own = limits(index)
        values: list[int] = integers.tolist()
        sizes, layout = sizes_and_layout(values, alignment)
        if rows.selects and batch_of(sizes) > 1:
            alone = cuda_row_reduce_forms.entry_values(values)
            each = Layout(layout.strides, cuda_row_reduce_forms.entry_alignment(rows, values, alignment))
            alike = plan_rows(rows, sizes | dict.fromkeys("abc", 1), own, each)
            in_parts = part_count(rows, sizes | dict.fromkeys("abc", 1), own)
            if alike.form in ("select", "scan") or alike.grouped or in_parts:
                one = self.prepare(rows, np.array(alone, np.int64), each.alignment, device)
                return cuda_row_reduce_forms.of_entries(one, rows, values)
        chosen = plan_rows(rows, sizes, own, layout)
        if chosen.fallback is not None:
            fallback = _starter(chosen.fallback, values, own, index)
            return cuda_row_reduce_forms.launcher(chosen, values, own, index, fallback)
        if chosen.grouped or chosen.form == "scan":
            return cuda_row_reduce_forms.launcher(chosen, values, own, index)
        in_parts = rows.selects and part_count(rows, sizes, own) > 0
        starts = _starter(replace(chosen, gated=in_parts), values, own, index)
        run = nothing if starts is None else starts
        if not in_parts:
            return Launcher(run, str(chosen))
        found = cuda_row_reduce_parts.launcher(self.prepare, rows, values, alignment, own, device, run)
        return found if starts is not None else Launcher(nothing, found.description)


def _starter(chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, index: int) -> Callable[..., None] | None:
    """Start the kernels of a plan: of pointers, numbers and, if gated, the address of the counts."""
    kernels = _load(chosen)
    if kernels is None:
        return None
    rows = chosen.rows
    sizes = sizes_of(values)
    width, nowhere = sizes["l"], rows.buffers.index(rows.matrix.outs[0])
    steps = byte_steps(rows.buffers, values, "m")
    band = sizes["m"] if chosen.gated else chosen.band(sizes, own, width)
    bands = [_cut(chosen, values, own, first, band) for first in range(0, sizes["m"], band)]
    work, device = max(chosen.work_bytes(each.blocks, width) for each in bands), torch.device("cuda", index)
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)
    launches = [(each.first, _launches(kernels, each, trailing, index, chosen.gated)) for each in bands]

    def starts(pointers: Sequence[int], numbers: Numbers, *counts: int) -> None:
        memory = allocate((work,), torch.uint8, device)
        for first, each in launches:
            at = [p + first * step for p, step in zip(pointers, steps, strict=True)] if first else pointers
            addresses = [*at, memory.data_ptr(), *counts]
            del addresses[nowhere]
            for launch in each:
                launch(addresses, numbers)

    return starts


@dataclass(frozen=True)
class _Band:
    """The rows of one launch: the first, the integers that the kernels take, and how it is cut into tiles."""

    first: int
    fixed: tuple[int, ...]
    blocks: int
    tiles: int
    columns: int


def _cut(chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, first: int, band: int) -> _Band:
    mine = list(values)
    mine[size_slot("m")] = min(band, values[size_slot("m")] - first)
    sizes = sizes_of(mine)
    blocks = chosen.blocks(sizes, own, sizes["l"])
    return _Band(first, tuple(mine[slot] for slot in chosen.integers), blocks, *chosen.tiles(sizes))


def _launches(
    kernels: tuple[Kernel, ...], band: _Band, trailing: Callable[[Numbers], tuple[float, ...]], index: int, gated: bool
) -> list[NumberedLaunch]:
    """Return the launch that reduces, and the one that joins parts where there are some."""

    def described(kernel: Kernel, numbers: Numbers) -> tuple[Kernel, tuple[float, ...]]:
        return kernel, (*band.fixed, *numbers, *trailing(numbers))

    main, join = (partial(described, kernel) for kernel in kernels)
    found = [numbered(index, band.blocks, main, last=int(gated))]
    if band.blocks > 1 and band.columns > 1:
        tail = band.blocks, band.tiles, band.columns
        found.append(numbered(index, band.blocks - 1, join, tail, int(gated)))
    return found


def _load(chosen: CudaRowPlan) -> tuple[Kernel, ...] | None:
    kernels = Entry(ENTRY, chosen.threads, chosen.shared), Entry(JOIN, JOINERS, prefix="joining of ")
    return row_kernels(chosen, emit_rows, *kernels, fuse=not chosen.matrix.nest.reproducible)


TARGET = GpuRows
