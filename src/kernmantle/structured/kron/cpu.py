"""Kronecker products on the CPU: LLVM kernels for fused passes, the vendor's matrix product for large factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import add, itemgetter
from struct import Struct
from typing import Any

import numpy as np
import torch

from ...backends.cpu import jit
from ...backends.cpu.threads import SCRATCH
from ...config import current
from ...runtime.kernel_store import loaded
from ...runtime.launcher import nothing
from ...torch_ops.cpu import job_for
from ...torch_ops.dtypes import NAMES
from ...torch_ops.execute import allocate_as
from ..mode_product.cpu import along, operand
from ..mode_product.cpu_cost import SURE
from ..mode_product.cpu_start import Call
from .arrays import Arrays, batch_as_columns, columns_as_batch
from .cpu_cost import Work, seconds, vectors_along, with_kinds
from .cpu_plan import (  # fmt: skip
    ARRAYS,
    FIELDS,
    PIECE,
    SIZES,
    STEP,
    CpuKronPlan,
    chunking,
    is_exact,
    joined,
    lengthened,
    padded,
    plan,
    plans,
    run_steps,
    scratch,
    together,
    width,
)
from .modes import Mode
from .passes import ALONG, VENDOR, Pass, views
from .run import Dense, Launch, Numbers, Prepare, Start, layout_of

# Work counted in multiplications, an entry read and written as 8: of 1e10 to 8e10 a second on a core of 2021. A second
# thread prepares the factors for itself and fetches rows from the other core: on two cores of an Intel Xeon the median
# of 50 rows of 64 x 64 is 340 us alone and 400 with it, that of 100 rows 720 and 590.
_GRAIN, _ALONE = 1 << 20, 1 << 25
_MOVED = 8

NAME = "llvm"


def _kernel(stored: str, compute: str) -> jit.LoadedKernel | None:
    """Return the kernel, None if it was only collected."""
    own = jit.host()
    options = stored, compute, own.vector_bytes, own.vector_registers
    return loaded(
        ("kron llvm", *options), lambda: [job_for("structured.kron.cpu_emit:emit", options, f"kron {stored}")], jit.load
    )


def planned(modes: tuple[Mode, ...], arrays: Arrays, options: str) -> tuple[CpuKronPlan, Prepare]:
    """Return the passes for arrays, and what prepares their kernels."""
    compute = "f64" if arrays.x.dtype == torch.float64 else "f32"
    _, chosen = _cheapest(modes, arrays, compute, options.endswith(" fuse"))
    return chosen, partial(_prepare, compute=compute)


def arranged(modes: tuple[Mode, ...], arrays: Arrays, options: str) -> Arrays:
    """Return the arrays, or with other columns, of which there may be one, where the passes should take less by far."""
    compute, fuse = "f64" if arrays.x.dtype == torch.float64 else "f32", options.endswith(" fuse")
    found = [(_cheapest(modes, own, compute, fuse)[0], own) for own in _orientations(arrays)]
    return found[-1][1] if found[-1][0] < SURE * found[0][0] else arrays


def _cheapest(modes: tuple[Mode, ...], arrays: Arrays, compute: str, fuse: bool) -> tuple[float, CpuKronPlan]:
    """Return the plan of least time and its seconds, which are infinite where arrays have no such views."""
    x, out = arrays.x, arrays.out
    ends = (x, out) if arrays.y is None else (x, out, arrays.y)
    varies = any(size != 1 for factor in arrays.factors for size in factor.shape[:-2])
    apart = any(own.stride(-1 if own.shape[-1] > 1 else -2) != 1 for own in ends)
    work = Work(NAMES[x.dtype], math.prod(arrays.batch), x.shape[-1], jit.host().vector_bytes, apart, varies)
    # The vendor and tiles along an axis read whole arrays.
    dense = not varies and x.shape[:-2] == out.shape[:-2] and all(own.is_contiguous() for own in ends)
    found: list[tuple[float, CpuKronPlan]] = []
    for each in plans(modes, x.shape[-1], compute, fuse):
        own = with_kinds(each, modes, work)
        is_whole = any(run.kind in (VENDOR, ALONG) for run in own.passes)
        if dense if is_whole else _has_layouts(own.passes, modes, arrays):
            found.append((seconds(own, modes, work), own))
    return min(found, key=itemgetter(0)) if found else (math.inf, plan(modes, x.shape[-1], compute, fuse))


def _orientations(arrays: Arrays) -> list[Arrays]:
    """Return the arrays, and the same with the columns as a batch axis or the longest batch axis as columns."""
    if arrays.x.shape[-1] > 1:
        return [arrays, columns_as_batch(arrays)]
    shared = [
        axis
        for axis, extent in enumerate(arrays.batch)
        if extent > 1 and arrays.x.shape[axis] == extent and all(f.shape[axis] == 1 for f in arrays.factors)
    ]
    most = max(shared, key=arrays.batch.__getitem__, default=None)
    return [arrays] if most is None else [arrays, batch_as_columns(arrays, most)]


def _has_layouts(passes: Sequence[Pass], modes: Sequence[Mode], arrays: Arrays) -> bool:
    """Return whether every pass of our kernels reads and writes the arrays where they are."""
    first, last, seen = passes[0], passes[-1], views(modes, passes)
    ends = [layout_of(arrays.x, seen[0].left, first.columns, seen[0].right)]
    ends += [
        layout_of(own, seen[-1].left, last.rows, seen[-1].right) for own in (arrays.out, arrays.y) if own is not None
    ]
    return None not in ends


@dataclass(frozen=True)
class Along(Dense):
    """One factor by the tiles of Kronecker-sparse products, which share the matrix, along ``vectors``."""

    call: Call | None = None
    vectors: str = "rows"

    def product(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        """Return the product in new memory."""
        return self._into(x, factor, allocate_as(x, self.out[0]))

    def __call__(
        self, x: torch.Tensor, factor: torch.Tensor, y: torch.Tensor | None, out: torch.Tensor, numbers: Numbers
    ) -> None:
        """Write ``alpha`` times the product plus ``beta`` y."""
        value = self._into(x, factor, out if y is None else allocate_as(x, self.out[0]))
        if numbers[0] != 1:
            value *= numbers[0]
        if y is not None:
            torch.add(value, y.as_strided(*self.out), alpha=numbers[1], out=out.as_strided(*self.out))

    def _into(self, x: torch.Tensor, factor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert self.call is not None
        weight = factor if self.call.pack is None else operand(self.call, factor, None)  # held until the kernel has run
        sides = x.data_ptr(), weight.data_ptr()
        self.call.start.run(*(sides if self.vectors == "rows" else sides[::-1]), out.data_ptr())
        return out


def _along(own: Dense) -> Along:
    """Return the product along an axis by our tiles."""
    (sizes, _), (_, strides), (out, _) = own.x, own.factor, own.out
    if len(sizes) == 2:  # (rows of x, columns), and the transposed factor
        (count, columns), rows, right, steps = sizes, out[1], 1, strides[::-1]
    else:
        (count, columns, right), rows, steps = sizes, out[1], strides[1:]
    pattern = 1, rows, columns, right
    vectors = vectors_along(pattern, count, NAMES[own.dtype])[1]
    call = along(pattern, count, own.dtype, (steps[0], steps[1]), vectors)
    return Along(own.x, own.factor, own.out, own.dtype, call=call, vectors=vectors)


def workspace_along(own: Dense) -> tuple[int, int]:
    """Return the bytes of a thread's memory in a product along one axis, and those of its factor in panels."""
    call = _along(own).call
    return (0, 0) if call is None else (call.start.workspace, max(4, own.dtype.itemsize) * call.panels)


def _prepare(launch: Launch | Dense, compute: str) -> Any:
    """Return what starts the kernel, once more for batch entries that do not fill a block."""
    if isinstance(launch, Dense):
        return _along(launch)
    starts = [(_started(own, compute), offsets) for own, offsets in blocks(launch, compute)]
    if len(starts) == 1:
        return starts[0][0]

    def start(pointers: Sequence[int], numbers: Numbers) -> None:
        for own, offsets in starts:
            own([*map(add, pointers, offsets), *pointers[len(offsets) :]], numbers)

    return start


def blocks(launch: Launch, compute: str) -> list[tuple[Launch, tuple[int, ...]]]:
    """Return a launch as those over blocks of several batch entries and over the rest, and where each begins, in bytes.

    Batch entries are together where each array has them one behind the other and no factor varies.
    """
    if all(layout.right == 1 and layout.run == launch.right for layout in launch.layouts.values()):
        longer = lengthened(launch.run, launch.right, compute)
        if longer is not None:
            layouts = {name: replace(layout, run=1) for name, layout in launch.layouts.items()}
            launch = replace(launch, run=longer, right=1, layouts=layouts)
    run, (extent, strides) = launch.run, launch.dims[-1]
    lengths = {"x": run.columns, "y": run.rows, "out": run.rows}
    follow = all(
        stride == launch.layouts[name].run * lengths[name] for name, stride in zip(ARRAYS, strides, strict=False)
    )
    block = width(run, launch.right, compute)
    count = together(run, extent, block, launch.right, compute) if follow and not any(strides[len(ARRAYS) :]) else 1
    whole, rest = divmod(extent, count)
    dims = (*launch.dims[:-1], (whole, tuple([stride * count for stride in strides])))
    found = [(replace(launch, run=joined(run, count), dims=dims), (0,) * len(ARRAYS))]
    if rest:
        offsets = tuple([whole * count * stride * launch.arrays.x.element_size() for stride in strides[: len(ARRAYS)]])
        dims = (*launch.dims[:-1], (1, (0,) * len(strides)))
        found.append((replace(launch, run=joined(run, rest), dims=dims), offsets))
    return found


def _started(launch: Launch, compute: str) -> Start:
    stored = NAMES[launch.arrays.x.dtype]
    block = width(launch.run, launch.right, compute)
    kernel = _kernel(stored, compute)
    integers = _integers(launch, block, compute, stored)
    items = math.prod(extent for extent, _ in launch.dims) * -(-launch.right // block)
    taken = sum(step.products for step in run_steps(launch.run, block))
    cost = taken + _MOVED * (launch.run.columns + launch.run.rows) * block
    alone, grain = items * cost < _ALONE, max(1, _GRAIN // cost)
    scratch_bytes = workspace_bytes(launch.run, block, compute)
    order = [3 + number for part in _parts(launch.run) for number in part]
    arranged, packed, numbers_of = itemgetter(0, 1, 2, *order), Struct(f"{3 + len(order)}Q").pack, Struct("2d").pack

    def start_alone(pointers: Sequence[int], numbers: Numbers, kernel: jit.LoadedKernel) -> None:
        values = numbers_of(*numbers)
        kernel.entry(packed(*arranged(pointers)), integers, values, 0, items, SCRATCH.take(scratch_bytes))

    def start(pointers: Sequence[int], numbers: Numbers, kernel: jit.LoadedKernel) -> None:
        threads = current().threads or torch.get_num_threads()
        jit.run(kernel, items, scratch_bytes, arranged(pointers), integers, numbers, threads, grain)

    return nothing if kernel is None else partial(start_alone if alone and items else start, kernel=kernel)


def workspace_bytes(run: Pass, block: int, compute: str) -> int:
    """Return the bytes of a thread's memory in a pass on blocks of so many columns."""
    return scratch(run, block, compute).elements * SIZES[compute] + 64


def _parts(run: Pass) -> list[list[int]]:
    """Return the numbers of every step's factors among those of the pass, in the order of the steps."""
    firsts = [0]
    for part in run.parts:
        firsts.append(firsts[-1] + len(part))
    numbers = [run.modes[index].factor or 0 for index in run.order]
    return [list(range(firsts[number], firsts[number + 1])) for number in numbers]


def _integers(launch: Launch, block: int, compute: str, stored: str) -> bytes:
    """Return the arguments of a launch in the order of the kernel's fields."""
    run, layouts, dims, added = launch.run, launch.layouts, launch.dims, launch.added
    flat, taken, own = block == 1, run_steps(run, block), scratch(run, block, compute)
    inner = chunking(run, block, compute)
    same = stored == compute
    first, last = taken[0], taken[-1]
    direct_in = same and flat and layouts["x"].run == 1 and (first.right == 1 or is_exact(first))
    direct_out = same and flat and layouts["out"].run == 1 and is_exact(last) and not added and len(taken) > direct_in
    head = {
        "steps": len(taken), "columns": run.columns, "rows": run.rows, "right": launch.right, "width": block,
        "flat": flat,
        "direct_in": direct_in, "direct_out": direct_out, "varies": launch.varies, "added": added, "pieces": own.packed,
        "piece": own.piece, "chunk": own.chunks, "chunk_room": own.chunk, "buffers": own.buffers,
        "buffer": own.buffer, "inner": inner.steps, "chunks": inner.count, "chunk_in": inner.before,
        "chunk_out": inner.pitch,
    }  # fmt: skip
    values = [int(head[name]) for name in FIELDS] + [extent for extent, _ in dims]
    for index, name in enumerate(ARRAYS):
        values += [strides[index] for _, strides in dims] + [layouts[name].run, layouts[name].right]
    packed = begun = 0
    for index, (step, part) in enumerate(zip(taken, _parts(run), strict=True)):
        wide = padded(step.mode.rows)
        record = {
            "left": step.left // (inner.count if index < inner.steps else 1), "columns": step.mode.columns,
            "rows": step.mode.rows, "padded": wide, "right": step.right,
            "pitch": inner.pitch if inner.padding and index == inner.steps else step.right,
            "packed": packed, "first": begun, "stop": begun + len(part),
        }  # fmt: skip
        values += [record[name] for name in STEP]
        packed += step.mode.columns * wide
        begun += len(part)
    for index in (number for part in _parts(run) for number in part):
        piece = launch.factors[index]
        record = {
            "rows": piece.shape[-2], "columns": piece.shape[-1],
            "row_stride": piece.stride(-2), "column_stride": piece.stride(-1),
        } | {name: strides[len(ARRAYS) + index] for name, (_, strides) in zip("abc", dims, strict=True)}  # fmt: skip
        values += [record[name] for name in PIECE]
    return np.array(values, dtype=np.int64).tobytes()
