"""Selections of more columns than score tiles select at once: the best of those selected from parts of the columns.

Of P parts, part i has the columns i, i + P, i + 2 P and so on. If the worst column selected from a part is among the
best of all, further columns of that part may be too: then the kernel that compares all columns does the work. It is
always launched afterwards, and reads on the device whether it has to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
import torch

from ..backends.cuda.select_plan import MOST, part_count
from ..backends.cuda.tiles import DeviceLimits
from ..compiler.nest import BYTES, byte_steps, size_slot, sizes_of, stride_slot
from ..compiler.row_reduce import RowNest
from ..runtime.launcher import Launcher
from .dtypes import DTYPES

_BAND_BYTES = 256 << 20
"""Most bytes of values and positions selected from the parts at a time."""
_KINDS = {2: "<i2", 4: "<f4", 8: "<i8"}
Prepare = Callable[[RowNest, np.ndarray, Sequence[int], torch.device], Launcher]
Fallback = Callable[[Sequence[int], tuple[float, ...], int], None]


@dataclass(frozen=True)
class _View:
    """Memory of a contiguous tensor, in the form that torch.as_tensor takes."""

    address: int
    shape: tuple[int, ...]
    kind: str

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (self.address, False), "shape": self.shape, "typestr": self.kind, "version": 3, "strides": None}


def part_of(
    rows: RowNest, values: Sequence[int], alignment: Sequence[int], parts: int
) -> tuple[RowNest, list[int], list[int]]:
    """Return the selection from one of the parts: its nest, its integers but for its rows and columns, alignments."""
    first, own = len(rows.buffers) - len(rows.outs), list(values)
    own[size_slot("l")] = MOST
    for i in range(len(rows.buffers)):
        if i >= first:
            own[stride_slot(i, "m")], own[stride_slot(i, "l")] = parts * MOST, 1
        elif "n" in rows.buffers[i].roles:
            own[stride_slot(i, "n")] *= parts
    steps = byte_steps(rows.buffers, values, "m"), byte_steps(rows.buffers, values, "n")
    aligned = [gcd(*each) for each in zip(alignment, *steps, strict=True)]
    return replace(rows, count=MOST, outs=(replace(rows.outs[0], dtype="f32"), rows.outs[1])), own, aligned


def band_rows(parts: int) -> int:
    """Return how many rows are selected from at a time."""
    return max(1, _BAND_BYTES // (12 * parts * MOST))


def launcher(
    prepare: Prepare, rows: RowNest, values: Sequence[int], alignment: Sequence[int], own: DeviceLimits,
    device: torch.device, fallback: Fallback,
) -> Launcher:  # fmt: skip
    """Return the selections of all parts and of the best of these; ``fallback(pointers, numbers, counts)``."""
    sizes = sizes_of(values)
    parts, m, width, stored = part_count(rows, sizes, own), sizes["m"], sizes["l"], rows.outs[0].dtype
    first = len(rows.buffers) - len(rows.outs)
    by_row, by_column = (byte_steps(rows.buffers, values, role) for role in "mn")
    short, mine, aligned = part_of(rows, values, alignment, parts)
    band = band_rows(parts)
    bands = [(start, min(band, m - start)) for start in range(0, m, band)]
    extents = [len(range(part, sizes["n"], parts)) for part in range(parts)]
    launchers: dict[tuple[int, int], Launcher] = {}
    for shape in dict.fromkeys((height, extent) for _, height in bands for extent in extents):
        mine[size_slot("m")], mine[size_slot("n")] = shape
        launchers[shape] = prepare(short, np.array(mine, np.int64), aligned, device)

    def run(pointers: Sequence[int], numbers: tuple[float, ...]) -> None:
        result = torch.as_tensor(_View(pointers[first], (m, width), _KINDS[BYTES[stored]]), device=device)
        indices = torch.as_tensor(_View(pointers[first + 1], (m, width), _KINDS[8]), device=device)
        counts = torch.zeros(4, dtype=torch.int32, device=device)
        for start, height in bands:
            found = torch.empty(height, parts, MOST, device=device)
            positions = torch.empty(height, parts, MOST, device=device, dtype=torch.int64)
            for part, extent in enumerate(extents):
                at = [
                    p + start * row + part * column for p, row, column in zip(pointers, by_row, by_column, strict=True)
                ]
                at[first:] = [found.data_ptr() + 4 * MOST * part, positions.data_ptr() + 8 * MOST * part]
                launchers[height, extent].run(at, numbers)
            best, where, incomplete = best_of_parts(found, positions, width, largest=rows.how == "largest")
            result.view(DTYPES[stored])[start : start + height] = best
            indices[start : start + height] = where
            counts[3] += incomplete
        fallback(pointers, numbers, counts.data_ptr())

    description = launchers[bands[0][1], extents[0]].description
    return Launcher(run, f"{width} of {parts} parts of the columns, of each: {description}")


def best_of_parts(
    found: torch.Tensor, positions: torch.Tensor, count: int, *, largest: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the best values of all parts in order, their positions, and whether a part may have more of the best.

    ``found`` and ``positions`` have the shape (rows, parts, best first); ``positions`` are those inside of the part.
    """
    rows, parts, _ = found.shape
    keys = found.neg() if largest else found
    bits = (keys + 0.0).view(torch.int32).long()  # -0.0 is 0.0
    bits = torch.where(keys.isnan(), 0x7FFFFFFF, torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
    positions = positions * parts + torch.arange(parts, device=found.device)[:, None]
    ranks = (bits << 32) + positions
    chosen = ranks.view(rows, -1).topk(count, -1, False)
    incomplete = (ranks[:, :, -1] <= chosen.values[:, -1:]).any()
    pick = chosen.indices
    return found.view(rows, -1).gather(-1, pick), positions.view(rows, -1).gather(-1, pick), incomplete
