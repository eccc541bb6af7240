"""Selections from score tiles: a kernel that splits the points, then minima and the nearest columns for bands of rows.

The kernels of the fallback are launched after them; counts that the first kernels write on the device decide which
of the two plans does the work, so the host never waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product

import torch

from ..backends.cuda.gram_plan import DeviceLimits
from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_reduce_emit import ENTRY, SELECT, SPLIT, SPLITTERS, emit_rows
from ..backends.cuda.row_reduce_plan import CudaRowPlan
from ..backends.cuda.select_plan import LIST_BYTES, ROWS_A_BLOCK, SELECTORS, band_rows, tiles_of
from ..compiler.nest import BATCH, byte_steps, size_slot, sizes_of
from ..compiler.row_reduce import RowNest
from ..runtime.launcher import Launcher, nothing
from .cuda import BY_ENTRIES, Entry, row_kernels, scratch, start

Fallback = Callable[[Sequence[int], tuple[float, ...], int], None]


def launcher(
    chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, index: int, fallback: Fallback | None
) -> Launcher:
    """Return kernels of a plan of selections; ``fallback(pointers, numbers, counts)`` starts those of its fallback."""
    kernels = _load(chosen)
    if kernels is None or fallback is None:
        return Launcher(nothing, str(chosen))
    split, minima, select = kernels
    sizes = sizes_of(values)
    tile, entry = chosen.tile, chosen.rows.ports.index(chosen.rows.matrix.outs[0])
    layout, device = chosen.memory(sizes), torch.device("cuda", index)
    fixed = tuple(values[slot] for slot in chosen.integers)
    splitters, columns = sum(tiles_of(tile, sizes)), -(-sizes["n"] // tile.n)
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)
    band = band_rows(tile, sizes)
    bands = [(first, min(band, sizes["m"] - first)) for first in range(0, sizes["m"], band)]

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        memory = scratch(layout.size, device, "selections on tensor cores need", BY_ENTRIES)
        memory[:LIST_BYTES].zero_()
        base = memory.data_ptr()
        rest = (*numbers, *trailing(tuple(numbers)))
        counts, *handed, bounds = (base + offset for offset in layout.offsets)
        shared = (*pointers[:entry], *pointers[entry + 1 :], bounds, *fixed, *rest, counts, *handed)
        start(split, index, splitters, (*shared, 0, sizes["m"]))
        for first, count in bands:
            blocks = min(own.sm_count, -(-count // tile.m) * columns)
            start(minima, index, blocks, (*shared, first, count))
            start(select, index, -(-count // ROWS_A_BLOCK), (*shared, first, count))
        fallback(pointers, rest, counts)

    return Launcher(run, str(chosen))


def entry_values(values: Sequence[int]) -> list[int]:
    """Return the integers of one entry of a batch."""
    mine = list(values)
    for role in BATCH:
        mine[size_slot(role)] = 1
    return mine


def entry_alignment(rows: RowNest, values: Sequence[int], alignment: Sequence[int]) -> tuple[int, ...]:
    """Return what the pointers of every entry of a batch are multiples of, in bytes."""
    steps = zip(*(byte_steps(rows.ports, values, role) for role in BATCH), strict=True)
    return tuple(math.gcd(own, *each) for own, each in zip(alignment, steps, strict=True))


def of_entries(one: Launcher, rows: RowNest, values: Sequence[int]) -> Launcher:
    """Launch the kernels of one entry for each entry of a batch, in order."""
    extents = [range(values[size_slot(role)]) for role in BATCH]
    steps = list(zip(*(byte_steps(rows.ports, values, role) for role in BATCH), strict=True))
    offsets = [[sum(i * s for i, s in zip(at, step, strict=True)) for step in steps] for at in product(*extents)]

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        for offset in offsets:
            one.run([pointer + o for pointer, o in zip(pointers, offset, strict=True)], numbers)

    return Launcher(run, one.description)


def _load(chosen: CudaRowPlan) -> tuple[Kernel, ...] | None:
    split = Entry(SPLIT, SPLITTERS, prefix="splitting for ")
    main, select = Entry(ENTRY, chosen.threads, chosen.shared), Entry(SELECT, SELECTORS, prefix="selection of ")
    return row_kernels(chosen, emit_rows, split, main, select)
