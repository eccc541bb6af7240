"""Row nests on tensor cores: kernels that split points or columns of v, one that reduces, one that joins its parts.

The kernels of the fallback are launched after them; counts that the first kernels write on the device decide which
of the two plans does the work, so the host never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from ..backends.cuda.columns_plan import list_bytes
from ..backends.cuda.columns_plan import splitters as columns_splitters
from ..backends.cuda.gram_plan import DeviceLimits
from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_reduce_emit import ENTRY, JOIN, SCALE, SPLIT, SPLITTERS, emit_rows
from ..backends.cuda.row_reduce_plan import JOINERS, MANY_COLUMNS, CudaRowPlan
from ..backends.cuda.score_plan import SAMPLERS, blocks_of
from ..backends.cuda.wide_plan import LIST_BYTES
from ..compiler.nest import sizes_of
from ..runtime.launcher import Launcher, nothing
from .cuda import BY_ENTRIES, PRODUCTS_NEED, Entry, row_kernels, scratch, start

Fallback = Callable[[Sequence[int], tuple[float, ...], int], None]


def launcher(
    chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, index: int, fallback: Fallback | None
) -> Launcher:
    """Return kernels of a plan of score tiles; ``fallback(pointers, numbers, counts)`` starts those of its fallback."""
    kernels = _load(chosen)
    if kernels is None or fallback is None:
        return Launcher(nothing, str(chosen))
    *splits, main, join = kernels
    sizes = sizes_of(values)
    width, entry = sizes["l"], chosen.rows.ports.index(chosen.rows.matrix.outs[0])
    blocks, (tiles, columns) = chosen.blocks(sizes, own, width), chosen.tiles(sizes)
    layout, device = chosen.memory(sizes), torch.device("cuda", index)
    fixed = tuple(values[slot] for slot in chosen.integers)
    cleared, splitters = _splitting(chosen, sizes, own)
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)
    size = layout.size + chosen.work_bytes(blocks, width)

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        memory = scratch(size, device, PRODUCTS_NEED, BY_ENTRIES)
        base = memory.data_ptr()
        rest = (*numbers, *trailing(tuple(numbers)))
        handed = tuple(base + offset for offset in layout.offsets)
        shared = (*pointers[:entry], *pointers[entry + 1 :], base + layout.size, *fixed, *rest, *handed)
        if cleared:
            memory[:cleared].zero_()
        for split, grid in zip(splits, splitters, strict=True):
            start(split, index, grid, shared)
        start(main, index, blocks, shared)
        if blocks > 1 and columns > 1:
            start(join, index, blocks - 1, (*shared, blocks, tiles, columns))
        fallback(pointers, rest, handed[0])

    return Launcher(run, str(chosen))


def _splitting(chosen: CudaRowPlan, sizes: dict[str, int], own: DeviceLimits) -> tuple[int, tuple[int, ...]]:
    """Return the bytes of counts to clear first, and the blocks of the kernels that split."""
    down, across = blocks_of(chosen.tile, sizes)
    if chosen.form == "wide":
        return LIST_BYTES, (2 * own.sm_count, across)
    if chosen.form in MANY_COLUMNS:
        return list_bytes(sizes["l"]), (2 * own.sm_count, columns_splitters(chosen.tile, chosen.group, sizes))
    return 0, (SAMPLERS + down + across,)


def _load(chosen: CudaRowPlan) -> tuple[Kernel, ...] | None:
    names = (SPLIT,) if chosen.form == "score" else (SCALE, SPLIT)
    splits = [Entry(name, SPLITTERS, prefix="splitting for ") for name in names]
    main, join = Entry(ENTRY, chosen.threads, chosen.shared), Entry(JOIN, JOINERS, prefix="joining of ")
    return row_kernels(chosen, emit_rows, *splits, main, join)
