"""Runs an apply on tensors: a kernel that never stores the matrix, or blocks of the matrix and the vendor's functions.

Blocks are used if a kernel would leave the device idle (few rows, many columns of v), and if there is no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from ..backend import Backend
from ..compiler.lower import Lowering
from ..compiler.nest import SIZES
from ..compiler.row_reduce import COLUMNS, Apply, RowNest, can_lower, lower_rows
from ..config import current
from ..ir.equation import broadcast
from ..ir.ops import evaluate
from ..ir.program import Program
from ..runtime.dispatch import bound
from ..runtime.launcher import Launcher
from .call_key import program_key
from .dtypes import DTYPES, NAMES
from .execute import BoundProgram, Runner, Types, no_work
from .info import RunInfo
from .layout import Geometry, arguments, contiguous, geometry, strided
from .row_reduce_blocks import run_blocks
from .targets import backend_for

Tensors = Sequence[torch.Tensor]
_LARGEST = {"f32": float(np.finfo(np.float32).max), "f64": math.inf}


@runtime_checkable
class RowTarget(Protocol):
    """A machine that compiles row nests; with ``binary`` its exponentials are powers of two."""

    binary: bool

    def takes(self, rows: RowNest, sizes: Mapping[str, int], device: torch.device) -> bool:
        """Return whether a kernel of its own is worth it for these extents."""
        ...

    def prepare(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it."""
        ...


def shapes(apply: Apply, geo: Geometry) -> tuple[int, ...]:
    """Return the shape of every result."""
    return geo.out_shape(apply.out)


def whole_geometry(apply: Apply, tensors: Sequence[tuple[int, ...]]) -> Geometry:
    """Return the sizes and batch from the shapes of the inner program's tensors, and of v behind them."""
    inner = geometry(apply.inner, tensors[: len(apply.inner.tensors)])
    leading, width = [inner.batch], max(1, apply.count)
    if apply.weighted:
        leading.append(tensors[-1][:-2])
        width = tensors[-1][-1]
    batch = broadcast(leading)
    assert batch is not None
    return Geometry({**inner.sizes, COLUMNS: width}, batch)


def run(
    text: str, types: str, tensors: Tensors, numbers: Sequence[float], info: RunInfo | None = None
) -> list[torch.Tensor]:
    """Return the results of an apply; ``info`` takes the route."""
    if any(tensor.is_neg() for tensor in tensors):
        tensors = [tensor.resolve_neg() for tensor in tensors]
    program = prepare(text, types, tensors)
    if info is not None:
        info.route = program.route
    return program.results(tensors, numbers)


def prepare(text: str, types: str, tensors: Tensors) -> BoundProgram:
    """Return the bound call of an apply on such tensors."""
    key = program_key(("rows", text), (types,), tensors)
    return bound(key, lambda: _bind(Apply.parse(text), Types.parse(types), tensors))


def _bind(apply: Apply, types: Types, tensors: Tensors) -> BoundProgram:
    types = types.configured(current().precision)
    geo = whole_geometry(apply, [tuple(t.shape) for t in tensors])
    backend = backend_for(tensors[0].device)
    target = None if backend is None or not backend.row_reductions else row_target(backend)
    launch, route = planned(apply, types, geo, tensors, target)
    dtypes = tuple(DTYPES[name] for name in types.outs)
    return BoundProgram(launch, shapes(apply, geo), dtypes, tensors[0].device, route)


def planned(
    apply: Apply, types: Types, geo: Geometry, tensors: Tensors, target: RowTarget | None
) -> tuple[Runner, str]:
    """Return what runs an apply on such tensors, by the kernels of ``target`` where it takes it, and its description.

    Without them it runs by blocks of the matrix.
    """
    if 0 in shapes(apply, geo):
        return no_work, "nothing: the result is empty"
    if geo.sizes[apply.column] == 0:
        return _of_nothing(apply), "nothing to reduce"
    if target is not None and can_lower(apply, types.compute):
        found = _kernel(target, apply, types, geo, tensors)
        if found is not None:
            return found
    return partial(run_blocks, apply, types), "blocks of the matrix"


def _of_nothing(apply: Apply) -> Runner:
    (value,) = evaluate([apply.reduction.finish], {f"s{i}": init for i, init in enumerate(apply.reduction.init)})

    def fill(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        outs[0].fill_(float(value))

    return fill


@lru_cache(maxsize=8)
def row_target(backend: Backend) -> RowTarget:
    """Return what compiles row reductions for a backend that has such kernels."""
    return backend.module(backend.row_reductions).TARGET()


def _kernel(
    target: RowTarget, apply: Apply, types: Types, geo: Geometry, tensors: Tensors
) -> tuple[Runner, str] | None:
    """Return a kernel for the call and its description, None where the target takes no such call."""
    device = tensors[0].device
    stored = [NAMES[t.dtype] for t in tensors]
    binary = target.binary and types.compute == "f32" and types.precision != "ieee"
    own = stored[: len(apply.inner.tensors)]
    lowering = lower_rows(apply, own, stored[-1], types.outs, types.compute, binary)
    rows = lowering.rows
    sizes: dict[str, int] = dict.fromkeys(map(str, SIZES), 1)
    for axis, role in lowering.matrix.roles.items():
        sizes[role] = geo.sizes[axis]
    if not target.takes(rows, sizes, device):
        return None
    outs = [(apply.out, shapes(apply, geo)) for _ in types.outs]
    column = apply.column + COLUMNS if apply.weighted else ""
    return bind_rows(target.prepare, rows, lowering.matrix, apply.inner, geo, tensors, column, outs)


def bind_rows(
    prepare: Callable[..., Launcher | None], rows: RowNest, matrix: Lowering, inner: Program, geo: Geometry,
    tensors: Tensors, column: str, outs: Sequence[tuple[str, Sequence[int]]],
) -> tuple[RowLaunch, str] | None:  # fmt: skip
    """Return the kernel of a row nest on such tensors and its description; None where ``prepare`` has none.

    ``column`` are the axes of v, the last tensor, "" without one; ``outs`` axes and shape of each result.
    """
    rank, device = len(geo.batch), tensors[0].device
    named = [operand for operand in inner.operands if not operand.number]
    axes = [*(operand.axes for operand in named), *([column] if column else [])]
    buffers = [strided(own, t.shape, t.stride(), rank) for own, t in zip(axes, tensors, strict=True)]
    buffers.insert(len(named), strided("", (), (), rank))
    buffers += [strided(own, shape, contiguous(shape), rank) for own, shape in outs]
    calls = arguments(matrix, geo, buffers, [])
    alignment = [t.data_ptr() % 16 or 16 for t in tensors]
    alignment.insert(len(named), 16)
    launcher = prepare(rows, calls.integers, [*alignment, *(16 for _ in outs)], device)
    if launcher is None:
        return None
    itemsizes = [t.element_size() for t in tensors]
    itemsizes.insert(len(named), 1)
    itemsizes += [DTYPES[buffer.dtype].itemsize for buffer in rows.outs]
    fold = partial(_with_folded, tuple(operand.name for operand in inner.numbers), rows)
    launch = RowLaunch(launcher.run, len(named), calls.offsets, tuple(itemsizes), fold, lru_cache(maxsize=64)(fold))
    return launch, f"{device.type}: {launcher.description}"


@dataclass(frozen=True, eq=False)
class RowLaunch:
    """A launch of a row kernel for each offset of the batch axes; its buffer ``entry`` has no memory.

    ``fold`` gives the numbers with those that the kernel needs of them, ``cached_fold`` from the last calls.
    """

    start: Callable[[Sequence[int], tuple[float, ...]], None]
    entry: int
    offsets: tuple[tuple[int, ...], ...]
    itemsizes: tuple[int, ...]
    fold: Callable[[tuple[float, ...]], tuple[float, ...]]
    cached_fold: Callable[[tuple[float, ...]], tuple[float, ...]]

    def __call__(self, tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        """Start all of them."""
        own = tuple(map(float, numbers))
        values = self.fold(own) if 0.0 in own else self.cached_fold(own)  # -0.0 is 0.0 as a key
        pointers = [t.data_ptr() for t in (*tensors, *outs)]
        pointers.insert(self.entry, 0)
        if len(self.offsets) == 1:
            self.start(pointers, values)
            return
        for offsets in self.offsets:
            self.start([p + o * size for p, o, size in zip(pointers, offsets, self.itemsizes, strict=True)], values)


def _with_folded(names: tuple[str, ...], rows: RowNest, numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Return the numbers of a program, then the further numbers that its kernel reads."""
    largest, values = _LARGEST[rows.matrix.compute], dict(zip(names, numbers, strict=True))
    return (*numbers, *(max(-largest, min(largest, float(value))) for value in evaluate(rows.folded, values)))
