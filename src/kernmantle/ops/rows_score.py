"""Row nests from score tiles: a kernel that splits the points, one that reduces, one that joins its parts.

Behind them the kernels of the fallback are started too; the counts that the first ones leave on the device decide
which of the two plans does the work, so that the host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from ..codegen.cuda_apply import ENTRY, JOIN, SPLIT, SPLITTERS, emit_rows
from ..contraction.cuda_apply import JOINERS, CudaRowPlan
from ..contraction.cuda_plan import DeviceLimits
from ..contraction.cuda_score import SAMPLERS, blocks_of
from ..contraction.nest import SIZES
from ..errors import OutOfMemoryError
from ..runtime.launch import Kernel
from ..runtime.lru import LRUCache
from .gpu import job_for, start
from .launcher import Launcher, collecting, fetch, nothing

Fallback = Callable[[Sequence[int], tuple[float, ...], int], None]
_LOADED: LRUCache[CudaRowPlan, tuple[Kernel, Kernel, Kernel]] = LRUCache(256)


def launcher(
    chosen: CudaRowPlan, values: Sequence[int], own: DeviceLimits, index: int, fallback: Fallback | None
) -> Launcher:
    """Kernels of a plan of score tiles; ``fallback(pointers, numbers, counts)`` starts those of its fallback."""
    kernels = _load(chosen)
    if kernels is None or fallback is None:
        return Launcher(nothing, str(chosen))
    split, main, join = kernels
    sizes: dict[str, int] = dict(zip(SIZES, values, strict=False))
    width, entry = sizes["l"], chosen.rows.ports.index(chosen.rows.matrix.outs[0])
    blocks, (tiles, columns) = chosen.blocks(sizes, own, width), chosen.tiles(sizes)
    layout, device = chosen.memory(sizes), torch.device("cuda", index)
    fixed = tuple(values[slot] for slot in chosen.integers)
    splitters = SAMPLERS + sum(blocks_of(chosen.tile, sizes))
    trailing = lru_cache(maxsize=64)(chosen.matrix.trailing)
    size = layout.size + chosen.work_bytes(blocks, width)

    def run(pointers: Sequence[int], numbers: Sequence[float]) -> None:
        try:
            memory = torch.empty(size, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise OutOfMemoryError(
                f"products on tensor cores need {size / 2**30:.1f} GiB on {device} beside the result; "
                'precision="ieee" takes entries as they are written and needs less'
            ) from error
        base = memory.data_ptr()
        rest = (*numbers, *trailing(tuple(numbers)))
        handed = tuple(base + offset for offset in layout.offsets)
        shared = (*pointers[:entry], *pointers[entry + 1 :], base + layout.size, *fixed, *rest, *handed)
        start(split, index, splitters, shared)
        start(main, index, blocks, shared)
        if blocks > 1 and columns > 1:
            start(join, index, blocks - 1, (*shared, blocks, tiles, columns))
        fallback(pointers, rest, handed[0])

    return Launcher(run, str(chosen))


def _load(chosen: CudaRowPlan) -> tuple[Kernel, Kernel, Kernel] | None:
    """The kernels of a plan, compiled if the cache does not have them; None if they were only noted."""
    found = None if collecting() else _LOADED.get(chosen)
    if found is None:
        binary = fetch(job_for(emit_rows(chosen), chosen.matrix.arch, str(chosen)))
        if binary is None:
            return None
        split = Kernel(binary, SPLIT, SPLITTERS, 0, title=f"splitting for {chosen}")
        main = Kernel(binary, ENTRY, chosen.threads, chosen.shared, title=str(chosen))
        found = _LOADED[chosen] = split, main, Kernel(binary, JOIN, JOINERS, 0, title=f"joining of {chosen}")
    return found
