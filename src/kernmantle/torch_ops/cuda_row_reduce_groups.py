"""Selections by the minima of groups on the GPU: for bands of rows a kernel that writes them and one that selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..backends.cuda.gram_plan import DeviceLimits
from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_reduce_emit import ENTRY, SELECT, emit_rows
from ..backends.cuda.row_reduce_plan import CudaRowPlan, minima_bytes, scan_bytes
from ..backends.cuda.select_plan import BAND_BYTES, ROWS_A_BLOCK, SELECTORS
from ..compiler.nest import byte_steps, size_slot, sizes_of
from ..runtime.launcher import Launcher, nothing
from .cuda import Entry, row_kernels, start
from .execute import allocate


def launcher(chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, index: int) -> Launcher:
    """Return the kernels of a plan of selections by groups or of a few rows."""
    kernels = _load(chosen)
    if kernels is None:
        return Launcher(nothing, str(chosen))
    find, select = kernels
    rows = chosen.rows
    sizes = sizes_of(values)
    nowhere, device = rows.ports.index(rows.matrix.outs[0]), torch.device("cuda", index)
    steps = byte_steps(rows.ports, values, "m")
    bands = [_band(chosen, values, own, first) for first in range(0, sizes["m"], _rows(chosen, sizes))]
    size = max(band.bytes for band in bands)
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        memory = allocate((size,), torch.uint8, device)
        rest = (*numbers, *trailing(tuple(numbers)))
        for band in bands:
            at = [pointer + band.first * step for pointer, step in zip(pointers, steps, strict=True)]
            arguments = (*at[:nowhere], *at[nowhere + 1 :], memory.data_ptr(), *band.fixed, *rest)
            start(find, index, band.blocks, arguments)
            start(select, index, band.selectors, arguments)

    return Launcher(run, str(chosen))


@dataclass(frozen=True)
class _Band:
    """The rows of two launches: the first, the integers that the kernels take, their blocks, bytes between them."""

    first: int
    fixed: tuple[int, ...]
    blocks: int
    selectors: int
    bytes: int


def _rows(chosen: CudaRowPlan, sizes: Mapping[str, int]) -> int:
    """Return the rows of a band."""
    tile = chosen.tile
    if chosen.form == "scan":
        return tile.rows
    return min(-(-sizes["m"] // tile.m), max(1, BAND_BYTES // (minima_bytes(chosen, sizes) * tile.m))) * tile.m


def _band(chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, first: int) -> _Band:
    sizes = sizes_of(values)
    mine, tile = list(values), chosen.tile
    mine[size_slot("m")] = count = min(_rows(chosen, sizes), sizes["m"] - first)
    fixed, most = tuple(mine[slot] for slot in chosen.integers), own.sm_count * chosen.resident
    if chosen.form == "scan":
        blocks = min(most, -(-sizes["n"] // tile.threads))
        return _Band(first, fixed, blocks, count, scan_bytes(chosen, blocks, sizes["l"]))
    blocks = min(most, -(-count // tile.m) * -(-sizes["n"] // tile.n))
    return _Band(first, fixed, blocks, -(-count // ROWS_A_BLOCK), count * minima_bytes(chosen, sizes))


def _load(chosen: CudaRowPlan) -> tuple[Kernel, ...] | None:
    kernels = Entry(ENTRY, chosen.threads, chosen.shared), Entry(SELECT, SELECTORS, prefix="selection of ")
    return row_kernels(chosen, emit_rows, *kernels, fuse=not chosen.matrix.nest.reproducible)
