"""Kronecker products on the GPU: CUDA kernels for fused passes, the vendor's matrix product for large factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import torch

from ..codegen.kron_cuda import ENTRY, emit, parameters
from ..contraction.kron_cuda import CudaKronPlan, Facts, FmaPlan, fma, plan
from ..contraction.kron_modes import Mode
from ..runtime.launch import Kernel
from .dtypes import NAMES
from .gpu import job_for, limits, start
from .kron_layout import Arrays, Port
from .kron_run import Launch, Numbers, Prepare, Start
from .launcher import collecting, fetch

_PER_SM = 16
NAME = "cuda"
_LOADED: dict[FmaPlan, Kernel] = {}


def planned(modes: tuple[Mode, ...], arrays: Arrays, options: str) -> tuple[CudaKronPlan, Prepare]:
    """Passes for arrays, and what prepares their kernels."""
    compute = "f64" if arrays.x.dtype == torch.float64 else "f32"
    device = arrays.x.device
    index = torch.cuda.current_device() if device.index is None else device.index
    chosen = plan(modes, arrays.x.shape[-1], compute, limits(index).shared_per_block, options.endswith(" fuse"))
    return chosen, partial(_prepare, compute=compute, index=index)


def _kernel(chosen: FmaPlan) -> Kernel | None:
    """The kernel of a pass, None if it was only noted."""
    found = None if collecting() else _LOADED.get(chosen)
    if found is None:
        binary = fetch(job_for(emit(chosen), chosen.arch, str(chosen)))
        if binary is None:
            return None
        found = _LOADED[chosen] = Kernel(binary, ENTRY, chosen.threads, chosen.shared, title=str(chosen))
    return found


def _prepare(launch: Launch, compute: str, index: int) -> Start:
    entries = launch.dims[2][0]
    stored = NAMES[launch.arrays.x.dtype]
    chosen = fma(launch.run, stored, compute, _facts(launch), entries, launch.right, limits(index))
    kernel = _kernel(chosen)
    if kernel is None:
        return _nothing
    integers = _integers(launch, chosen.facts)
    tiles = chosen.tiles(entries, launch.right) * launch.dims[0][0] * launch.dims[1][0]
    blocks = min(tiles, _resident(kernel, index) * limits(index).sm_count)

    def begin(pointers: Sequence[int], numbers: Numbers) -> None:
        start(kernel, index, blocks, (*pointers, *integers, *numbers))

    return begin


def _nothing(pointers: Sequence[int], numbers: Numbers) -> None:
    """What a noted kernel runs as."""


@lru_cache(maxsize=4096)
def _resident(kernel: Kernel, index: int) -> int:
    with torch.cuda.device(index):
        return max(1, kernel.occupancy())


def _facts(launch: Launch) -> Facts:
    arrays = launch.arrays
    size = arrays.x.element_size()
    into = [(launch.ports["out"], arrays.out.data_ptr())]
    if arrays.y is not None:
        into.append((launch.ports["y"], arrays.y.data_ptr()))
    x = [(launch.ports["x"], arrays.x.data_ptr())]
    before, after = ([mode.columns for mode in launch.run.modes], [mode.rows for mode in launch.run.modes])
    widths = [_width(launch, x, before, size), _width(launch, into, after, size)]
    return Facts(widths[0], widths[1], launch.added, launch.varies)


def _width(launch: Launch, ports: Sequence[tuple[Port, int]], extents: Sequence[int], size: int) -> int:
    """Neighbours that one access may take: along the run, or beside it where something lies there."""
    vector = 16 // (8 if size == 8 else 4)
    rooms = [max(mode.rows, mode.columns) for mode in launch.run.modes]
    if launch.right > 1:
        lengths = [launch.right]
    else:
        lengths = [math.prod(extents)] if rooms == list(extents) else [extents[-1], rooms[-1]]
    for own, pointer in ports:
        unit, *others = (own.right, own.run) if launch.right > 1 else (own.run, 0)
        steps = [*others, *own.batch, *lengths]
        if unit != 1 or any(step % vector for step in steps) or pointer % (vector * size):
            return 1
    return vector


def _integers(launch: Launch, facts: Facts) -> list[int]:
    """Arguments in the order of the kernel's parameters."""
    names = [("x", 0), ("y", 1), ("out", 2)] if facts.added else [("x", 0), ("out", 2)]
    values = {f"size_{axis}": extent for axis, (extent, _) in zip("abc", launch.dims, strict=True)}
    values |= {"size_run": launch.run.columns, "size_right": launch.right}
    for name, place in names:
        own = launch.ports[name]
        values |= {f"{name}_{axis}": strides[place] for axis, (_, strides) in zip("abc", launch.dims, strict=True)}
        values |= {f"{name}_run": own.run, f"{name}_right": own.right}
    for number, factor in enumerate(launch.factors):
        values |= {f"f{number}_row": factor.stride(-2), f"f{number}_column": factor.stride(-1)}
        values |= {f"f{number}_{axis}": own[3 + number] for axis, (_, own) in zip("abc", launch.dims, strict=True)}
    return [values[name] for name in parameters(len(launch.factors), facts)]
