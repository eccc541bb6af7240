"""Kronecker products on the CPU: LLVM kernels for fused passes, the vendor's matrix product for large factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from ..config import current
from ..contraction.kron_cpu import (
    BATCH,
    FIELDS,
    PIECE,
    PORTS,
    SIZES,
    STEP,
    CpuKronPlan,
    chunking,
    is_exact,
    padded,
    plan,
    run_steps,
    scratch,
    width,
)  # fmt: skip
from ..contraction.kron_modes import Mode
from ..contraction.kron_passes import Pass, View, views
from ..runtime import llvm
from .cpu import job_for
from .dtypes import NAMES
from .kron_layout import Arrays, Port, arranged, port, spread, within
from .kron_torch import product
from .launcher import fetch
from .layout import merged

_GRAIN = 1 << 16
Numbers = tuple[float, float]


@lru_cache(maxsize=16)
def _kernel(stored: str, compute: str) -> llvm.LoadedKernel:
    own = llvm.host()
    given = stored, compute, own.vector_bytes, own.vector_registers
    binary = fetch(job_for("kron_llvm:emit", given, f"kron {stored}"))
    assert binary is not None
    return llvm.load(binary)


def execute(
    modes: tuple[Mode, ...], options: str, numbers: Numbers, x: torch.Tensor, factors: Sequence[torch.Tensor],
    y: torch.Tensor | None, out: torch.Tensor,
) -> str:  # fmt: skip
    """Write the product to ``out``; says what ran."""
    arrays = arranged(x, factors, y, out)
    compute = "f64" if x.dtype == torch.float64 else "f32"
    chosen = plan(modes, arrays.x.shape[-1], compute, options.endswith(" fuse"))
    run(chosen, modes, numbers, arrays)
    return f"llvm: {chosen}"


def run(chosen: CpuKronPlan, modes: Sequence[Mode], numbers: Numbers, arrays: Arrays) -> None:
    """All passes, one after the other."""
    value, size = arrays.x, math.prod(mode.columns for mode in modes)
    last = len(chosen.passes) - 1
    for place, (own, view) in enumerate(zip(chosen.passes, views(modes, chosen.passes), strict=True)):
        size = size // own.columns * own.rows
        ended = place == last
        into = arrays.out
        if not ended:
            into = value.new_empty((*arrays.batch, size, arrays.x.shape[-1]))
        given = within(arrays, value, into, arrays.y if ended else None)
        shares = (numbers[0] if place == 0 else 1.0, numbers[1] if ended else 0.0)
        _pass(own, view, modes, given, shares, chosen.compute)
        value = into


def _pass(run: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, numbers: Numbers, compute: str) -> None:
    if run.kind == "matmul":
        _dense(run, view, modes, arrays, numbers)
        return
    x = port(arrays.x, view.left, run.columns, view.right)
    out = port(arrays.out, view.left, run.rows, view.right)
    if out is None:
        target = torch.empty(arrays.out.shape, dtype=arrays.out.dtype)
        _pass(run, view, modes, within(arrays, arrays.x, target, arrays.y), numbers, compute)
        arrays.out.copy_(target)
        return
    if x is None:
        _pass(run, view, modes, within(arrays, arrays.x.contiguous(), arrays.out, arrays.y), numbers, compute)
        return
    y = out if arrays.y is None else port(arrays.y, view.left, run.rows, view.right)
    if y is None:
        assert arrays.y is not None
        _pass(run, view, modes, within(arrays, arrays.x, arrays.out, arrays.y.contiguous()), numbers, compute)
        return
    _start(run, view, modes, arrays, numbers, compute, {"x": x, "y": y, "out": out})


def _dense(run: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, numbers: Numbers) -> None:
    """One large factor by the vendor's matrix product."""
    mode = run.modes[0]
    factor = arrays.factors[modes[run.parts[0][0]].factor or 0]
    axes = (Mode(view.left, view.left), Mode(mode.columns, mode.rows, 0), Mode(view.right, view.right))
    wide = torch.float32 if arrays.x.dtype in (torch.float16, torch.bfloat16) else arrays.x.dtype
    result = product(arrays.x.to(wide), [factor.to(wide)], axes)
    if numbers[0] != 1:
        result *= numbers[0]
    if arrays.y is not None:
        result = torch.add(result, arrays.y.to(wide), alpha=numbers[1])
    arrays.out.copy_(result)


def _start(
    run: Pass, view: View, modes: Sequence[Mode], arrays: Arrays, numbers: Numbers, compute: str, ports: dict[str, Port]
) -> None:
    right = view.right * arrays.x.shape[-1]
    block = width(run, right, compute)
    pieces = [arrays.factors[modes[place].factor or 0] for part in _parts(run) for place in part]
    extents = (*arrays.batch, view.left)
    strides = [(*spread(piece.stride()[:-2], piece.shape[:-2]), 0) for piece in pieces]
    every = [*(ports[name].batch for name in PORTS), *strides]
    dims = merged([(extent, tuple(own[axis] for own in every)) for axis, extent in enumerate(extents)])
    extra, inner = dims[: max(0, len(dims) - BATCH)], dims[max(0, len(dims) - BATCH) :]
    inner = [(1, (0,) * len(every))] * (BATCH - len(inner)) + inner
    integers = _integers(run, right, block, compute, NAMES[arrays.x.dtype], ports, inner, pieces, arrays.y is not None)
    kernel = _kernel(NAMES[arrays.x.dtype], compute)
    own = scratch(run, block, compute)
    items = math.prod(extent for extent, _ in inner) * -(-right // block)
    grain = max(1, _GRAIN // (run.most * block))
    tensors = [arrays.x, arrays.out if arrays.y is None else arrays.y, arrays.out, *pieces]
    threads = current().threads or torch.get_num_threads()
    for offsets in _offsets(extra, len(every)):
        pointers = [t.data_ptr() + offset * t.element_size() for t, offset in zip(tensors, offsets, strict=True)]
        llvm.run(kernel, items, own.elements * SIZES[compute] + 64, pointers, integers, numbers, threads, grain)


def _parts(run: Pass) -> list[tuple[int, ...]]:
    """Positions of every step's factors, in the order of the steps."""
    return [run.parts[run.modes[place].factor or 0] for place in run.order]


def _offsets(dims: Sequence[tuple[int, tuple[int, ...]]], ports: int) -> list[tuple[int, ...]]:
    offsets = [(0,) * ports]
    for extent, strides in dims:
        offsets = [
            tuple(base + place * stride for base, stride in zip(start, strides, strict=True))
            for start in offsets
            for place in range(extent)
        ]
    return offsets


def _integers(
    run: Pass, right: int, block: int, compute: str, stored: str, ports: dict[str, Port],
    dims: Sequence[tuple[int, tuple[int, ...]]], pieces: Sequence[torch.Tensor], added: bool,
) -> bytes:  # fmt: skip
    """Arguments of a launch in the order of the kernel's fields."""
    flat, taken, own = block == 1, run_steps(run, block), scratch(run, block, compute)
    inner = chunking(run, block, compute)
    same = stored == compute
    first, last = taken[0], taken[-1]
    direct_in = same and flat and ports["x"].run == 1 and (first.right == 1 or is_exact(first))
    direct_out = same and flat and ports["out"].run == 1 and is_exact(last) and not added and len(taken) > direct_in
    varies = any(any(strides[len(PORTS) :]) for _, strides in dims)
    head = {
        "steps": len(taken), "columns": run.columns, "rows": run.rows, "right": right, "width": block, "flat": flat,
        "direct_in": direct_in, "direct_out": direct_out, "varies": varies, "added": added, "pieces": own.packed,
        "piece": own.piece, "chunk": own.chunks, "chunk_room": own.chunk, "buffers": own.buffers,
        "buffer": own.buffer, "inner": inner.steps, "chunks": inner.count, "chunk_in": inner.before,
        "chunk_out": inner.pitch,
    }  # fmt: skip
    values = [int(head[name]) for name in FIELDS] + [extent for extent, _ in dims]
    for place, name in enumerate(PORTS):
        values += [strides[place] for _, strides in dims] + [ports[name].run, ports[name].right]
    packed = begun = 0
    for place, (step, part) in enumerate(zip(taken, _parts(run), strict=True)):
        wide = padded(step.mode.rows)
        record = {
            "left": step.left // (inner.count if place < inner.steps else 1), "columns": step.mode.columns,
            "rows": step.mode.rows, "padded": wide, "right": step.right,
            "pitch": inner.pitch if inner.padding and place == inner.steps else step.right,
            "packed": packed, "first": begun, "stop": begun + len(part),
        }  # fmt: skip
        values += [record[name] for name in STEP]
        packed += step.mode.columns * wide
        begun += len(part)
    for place, piece in enumerate(pieces):
        record = {
            "rows": piece.shape[-2], "columns": piece.shape[-1],
            "row_stride": piece.stride(-2), "column_stride": piece.stride(-1),
        } | {name: strides[len(PORTS) + place] for name, (_, strides) in zip("abc", dims, strict=True)}  # fmt: skip
        values += [record[name] for name in PIECE]
    return np.array(values, dtype=np.int64).tobytes()
