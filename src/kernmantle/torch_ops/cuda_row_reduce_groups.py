"""Selections by the minima of groups on the GPU: for bands of rows a kernel that writes them and one that selects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ..backends.cuda.gram_plan import DeviceLimits
from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_reduce_emit import ENTRY, SELECT, emit_rows
from ..backends.cuda.row_reduce_plan import CudaRowPlan, minima_bytes
from ..backends.cuda.select_plan import BAND_BYTES, ROWS_A_BLOCK, SELECTORS
from ..compiler.nest import BYTES, SIZES, size_slot, stride_slot
from ..runtime.kernel_store import loaded
from ..runtime.launcher import Launcher, nothing
from .cuda import job_for, start
from .execute import allocate


def launcher(chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, index: int) -> Launcher:
    """Kernels of a plan of selections by groups."""
    kernels = _load(chosen)
    if kernels is None:
        return Launcher(nothing, str(chosen))
    minima, select = kernels
    rows, sizes = chosen.rows, dict(zip(SIZES, values, strict=False))
    nowhere, tile, device = rows.ports.index(rows.matrix.outs[0]), chosen.tile, torch.device("cuda", index)
    steps = [
        BYTES[port.dtype] * values[stride_slot(place, "m")] * ("m" in port.roles)
        for place, port in enumerate(rows.ports)
    ]
    each = minima_bytes(chosen, sizes)
    band = min(-(-sizes["m"] // tile.m), max(1, BAND_BYTES // (each * tile.m))) * tile.m
    bands: list[tuple[int, tuple[int, ...], int, int]] = []
    for first in range(0, sizes["m"], band):
        mine = list(values)
        mine[size_slot("m")] = count = min(band, sizes["m"] - first)
        tiles = -(-count // tile.m) * -(-sizes["n"] // tile.n)
        blocks = min(own.sm_count * chosen.resident, tiles)
        bands.append((first, tuple(mine[slot] for slot in chosen.integers), blocks, -(-count // ROWS_A_BLOCK)))
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        memory = allocate((min(band, sizes["m"]) * each,), torch.uint8, device)
        rest = (*numbers, *trailing(tuple(numbers)))
        for first, fixed, blocks, selectors in bands:
            at = [pointer + first * step for pointer, step in zip(pointers, steps, strict=True)]
            given = (*at[:nowhere], *at[nowhere + 1 :], memory.data_ptr(), *fixed, *rest)
            start(minima, index, blocks, given)
            start(select, index, selectors, given)

    return Launcher(run, str(chosen))


def _load(chosen: CudaRowPlan) -> tuple[Kernel, Kernel] | None:
    """Return the kernels of a plan, compiled if the cache does not have them; None if they were only collected."""
    fuse = not chosen.matrix.nest.reproducible
    return loaded(
        chosen,
        lambda: [job_for(emit_rows(chosen), chosen.matrix.arch, str(chosen), fuse)],
        lambda binary: (
            Kernel(binary, ENTRY, chosen.threads, chosen.shared, title=str(chosen)),
            Kernel(binary, SELECT, SELECTORS, 0, title=f"selection of {chosen}"),
        ),
    )
