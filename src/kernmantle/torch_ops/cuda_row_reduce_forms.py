"""Row reductions of several kernels: sums from score tiles, selections from these, by minima of groups or by a scan.

Plans on tensor cores have a fallback whose kernels are launched after theirs; counts that the first kernels write on
the device decide which of the two plans does the work, so the host never waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch

from ..backends.cuda import select_plan
from ..backends.cuda.columns_plan import list_bytes
from ..backends.cuda.columns_plan import splitters as columns_splitters
from ..backends.cuda.gram_plan import DeviceLimits
from ..backends.cuda.launch import Kernel
from ..backends.cuda.row_reduce_emit import ENTRY, JOIN, SCALE, SELECT, SPLIT, SPLITTERS, emit_rows
from ..backends.cuda.row_reduce_plan import JOINERS, MANY_COLUMNS, CudaRowPlan, minima_bytes, scan_bytes
from ..backends.cuda.score_plan import SAMPLERS, blocks_of
from ..backends.cuda.select_plan import BAND_BYTES, ROWS_A_BLOCK, SELECTORS, band_rows, tiles_of
from ..backends.cuda.wide_plan import LIST_BYTES
from ..compiler.nest import BATCH, byte_steps, size_slot, sizes_of
from ..compiler.row_reduce import RowNest
from ..runtime.launcher import Launcher, nothing
from .cuda import BY_ENTRIES, PRODUCTS_NEED, Entry, row_kernels, scratch, start
from .execute import allocate

Fallback = Callable[[Sequence[int], tuple[float, ...], int], None]
Run = Callable[[Sequence[int], tuple[float, ...]], None]


def launcher(
    chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, index: int, fallback: Fallback | None = None
) -> Launcher:
    """Return the kernels of a plan; ``fallback(pointers, numbers, counts)`` starts those of its fallback."""
    kernels = _load(chosen)
    if kernels is None or (fallback is None and chosen.fallback is not None):
        return Launcher(nothing, str(chosen))
    if fallback is None:
        return Launcher(_by_groups(chosen, kernels, values, own, index), str(chosen))
    from_tiles = _selected if chosen.form == "select" else _summed
    return Launcher(from_tiles(chosen, kernels, values, own, index, fallback), str(chosen))


def _load(chosen: CudaRowPlan) -> tuple[Kernel, ...] | None:
    """Return the kernels that split, the main one, and that which joins the parts or selects."""
    on_tensor_cores, form = chosen.fallback is not None, chosen.form
    names = () if not on_tensor_cores else (SPLIT,) if form in ("score", "select") else (SCALE, SPLIT)
    splits = [Entry(name, SPLITTERS, prefix="splitting for ") for name in names]
    last = (
        Entry(SELECT, SELECTORS, prefix="selection of ")
        if chosen.rows.selects
        else Entry(JOIN, JOINERS, prefix="joining of ")
    )
    fuse = on_tensor_cores or not chosen.matrix.nest.reproducible
    return row_kernels(chosen, emit_rows, *splits, Entry(ENTRY, chosen.threads, chosen.shared), last, fuse=fuse)


def _summed(
    chosen: CudaRowPlan, kernels: tuple[Kernel, ...], values: Sequence[int], own: DeviceLimits, index: int,
    fallback: Fallback,
) -> Run:  # fmt: skip
    """Split points or columns of v, sum from score tiles, and join the parts."""
    *splits, main, join = kernels
    sizes = sizes_of(values)
    width, entry = sizes["l"], chosen.rows.buffers.index(chosen.rows.matrix.outs[0])
    blocks, (tiles, columns) = chosen.blocks(sizes, own, width), chosen.tiles(sizes)
    layout, device = chosen.memory(sizes), torch.device("cuda", index)
    fixed = tuple(values[slot] for slot in chosen.integers)
    cleared, splitters = _splitting(chosen, sizes, own)
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)
    size = layout.size + chosen.work_bytes(blocks, width)

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        memory = scratch(size, device, PRODUCTS_NEED, BY_ENTRIES)
        base = memory.data_ptr()
        rest = (*numbers, *trailing(numbers))
        handed = tuple(base + offset for offset in layout.offsets)
        shared = (*pointers[:entry], *pointers[entry + 1 :], base + layout.size, *fixed, *rest, *handed)
        if cleared:
            memory[:cleared].zero_()
        for split, grid in zip(splits, splitters, strict=True):
            start(split, index, grid, shared)
        start(main, index, blocks, shared)
        if blocks > 1 and columns > 1:
            start(join, index, blocks - 1, (*shared, blocks, tiles, columns))
        fallback(pointers, numbers, handed[0])

    return run


def _splitting(chosen: CudaRowPlan, sizes: dict[str, int], own: DeviceLimits) -> tuple[int, tuple[int, ...]]:
    """Return the bytes of counts to clear first, and the blocks of the kernels that split."""
    down, across = blocks_of(chosen.tile, sizes)
    if chosen.form == "wide":
        return LIST_BYTES, (2 * own.sm_count, across)
    if chosen.form in MANY_COLUMNS:
        return list_bytes(sizes["l"]), (2 * own.sm_count, columns_splitters(chosen.tile, chosen.group, sizes))
    return 0, (SAMPLERS + down + across,)


def _selected(
    chosen: CudaRowPlan, kernels: tuple[Kernel, ...], values: Sequence[int], own: DeviceLimits, index: int,
    fallback: Fallback,
) -> Run:  # fmt: skip
    """Split the points, then find minima and the nearest columns for bands of rows."""
    split, minima, select = kernels
    sizes = sizes_of(values)
    tile, entry = chosen.tile, chosen.rows.buffers.index(chosen.rows.matrix.outs[0])
    layout, device = chosen.memory(sizes), torch.device("cuda", index)
    fixed = tuple(values[slot] for slot in chosen.integers)
    splitters, columns = sum(tiles_of(tile, sizes)), -(-sizes["n"] // tile.n)
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)
    band = band_rows(tile, sizes)
    bands = [(first, min(band, sizes["m"] - first)) for first in range(0, sizes["m"], band)]

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        memory = scratch(layout.size, device, "selections on tensor cores need", BY_ENTRIES)
        memory[: select_plan.LIST_BYTES].zero_()
        base = memory.data_ptr()
        rest = (*numbers, *trailing(numbers))
        counts, *handed, bounds = (base + offset for offset in layout.offsets)
        shared = (*pointers[:entry], *pointers[entry + 1 :], bounds, *fixed, *rest, counts, *handed)
        start(split, index, splitters, (*shared, 0, sizes["m"]))
        for first, count in bands:
            blocks = min(own.sm_count, -(-count // tile.m) * columns)
            start(minima, index, blocks, (*shared, first, count))
            start(select, index, -(-count // ROWS_A_BLOCK), (*shared, first, count))
        fallback(pointers, numbers, counts)

    return run


def _by_groups(
    chosen: CudaRowPlan, kernels: tuple[Kernel, ...], values: Sequence[int], own: DeviceLimits, index: int
) -> Run:
    """Write the minima of groups, or those of each block's columns, for bands of rows, and select from them."""
    find, select = kernels
    rows = chosen.rows
    sizes = sizes_of(values)
    nowhere, device = rows.buffers.index(rows.matrix.outs[0]), torch.device("cuda", index)
    steps = byte_steps(rows.buffers, values, "m")
    bands = [_band(chosen, values, own, first) for first in range(0, sizes["m"], _rows(chosen, sizes))]
    size = max(band.bytes for band in bands)
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        memory = allocate((size,), torch.uint8, device)
        rest = (*numbers, *trailing(numbers))
        for band in bands:
            at = [pointer + band.first * step for pointer, step in zip(pointers, steps, strict=True)]
            arguments = (*at[:nowhere], *at[nowhere + 1 :], memory.data_ptr(), *band.fixed, *rest)
            start(find, index, band.blocks, arguments)
            start(select, index, band.selectors, arguments)

    return run


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


def entry_values(values: Sequence[int]) -> list[int]:
    """Return the integers of one entry of a batch."""
    mine = list(values)
    for role in BATCH:
        mine[size_slot(role)] = 1
    return mine


def entry_alignment(rows: RowNest, values: Sequence[int], alignment: Sequence[int]) -> tuple[int, ...]:
    """Return what the pointers of every entry of a batch are multiples of, in bytes."""
    steps = zip(*(byte_steps(rows.buffers, values, role) for role in BATCH), strict=True)
    return tuple(math.gcd(own, *each) for own, each in zip(alignment, steps, strict=True))


def of_entries(one: Launcher, rows: RowNest, values: Sequence[int]) -> Launcher:
    """Launch the kernels of one entry for each entry of a batch, in order."""
    extents = [range(values[size_slot(role)]) for role in BATCH]
    steps = list(zip(*(byte_steps(rows.buffers, values, role) for role in BATCH), strict=True))
    offsets = [[sum(i * s for i, s in zip(at, step, strict=True)) for step in steps] for at in product(*extents)]

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        for offset in offsets:
            one.run([pointer + o for pointer, o in zip(pointers, offset, strict=True)], numbers)

    return Launcher(run, one.description)
