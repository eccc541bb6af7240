"""Runs an apply on tensors: a kernel that never stores the matrix, or blocks of the matrix and the vendor's functions.

Blocks are right where a kernel would idle: few rows, many columns of v, maps and backends that have no such kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Protocol

import numpy as np
import torch

from ..config import current
from ..contraction.apply import COLUMNS, Apply, RowNest, can_lower, lower_rows
from ..contraction.equation import broadcast
from ..contraction.nest import SIZES
from ..expr.ops import evaluate
from ..runtime.lru import LRUCache
from .dtypes import DTYPES, NAMES
from .execute import Prepared, Runner, Types, allocate
from .launcher import Launcher, collecting
from .layout import Geometry, arguments, geometry, strided
from .row_blocks import run_blocks
from .targets import target_for

Tensors = Sequence[torch.Tensor]
_LARGEST = {"f32": float(np.finfo(np.float32).max), "f64": math.inf}
_DOORS = {"cpu": ".rows_cpu", "cuda": ".rows_gpu"}
_PREPARED: LRUCache[tuple[object, ...], Prepared] = LRUCache(1024)


class RowTarget(Protocol):
    """A machine that compiles row nests; with ``binary`` its exponentials are powers of two."""

    binary: bool

    def takes(self, rows: RowNest, sizes: Mapping[str, int], device: torch.device) -> bool:
        """Whether a kernel of its own is worth it for these extents."""
        ...

    def prepare(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it."""
        ...


def shapes(apply: Apply, geo: Geometry) -> tuple[int, ...]:
    """Shape of every result."""
    return geo.out_shape(apply.out)


def whole_geometry(apply: Apply, tensors: Sequence[tuple[int, ...]]) -> Geometry:
    """Sizes and batch from the shapes of the inner program's tensors, and of v behind them."""
    inner = geometry(apply.inner, tensors[: len(apply.inner.tensors)])
    leading, width = [inner.batch], max(1, apply.count)
    if apply.weighted:
        leading.append(tensors[-1][:-2])
        width = tensors[-1][-1]
    batch = broadcast(leading)
    assert batch is not None
    return Geometry({**inner.sizes, COLUMNS: width}, batch)


def run(text: str, types: str, tensors: Tensors, numbers: Sequence[float]) -> tuple[list[torch.Tensor], str]:
    """Results of an apply, and what ran it."""
    if any(tensor.is_neg() for tensor in tensors):
        tensors = [tensor.resolve_neg() for tensor in tensors]
    prepared = prepare(text, types, tensors)
    outs = [allocate(prepared.shape, DTYPES[name], tensors[0].device) for name in Types.parse(types).outs]
    prepared.run(tensors, numbers, outs)
    return outs, prepared.route


def prepare(text: str, types: str, tensors: Tensors) -> Prepared:
    """Plan of a call, kept by shapes, strides and types."""
    settings = current()
    facts = tuple((t.shape, t.stride(), t.dtype, t.device, t.data_ptr() % 16) for t in tensors)
    key = (text, types, settings.backend, settings.precision, facts)
    found = None if collecting() else _PREPARED.get(key)
    if found is None:
        found = _prepare(Apply.parse(text), Types.parse(types).configured(settings.precision), tensors)
        if not collecting():
            _PREPARED[key] = found
    return found


def _prepare(apply: Apply, types: Types, tensors: Tensors) -> Prepared:
    geo = whole_geometry(apply, [tuple(t.shape) for t in tensors])
    shape = shapes(apply, geo)
    device = tensors[0].device
    if 0 in shape:
        return Prepared(_no_work, shape, "nothing: the result is empty")
    if geo.sizes[apply.column] == 0:
        return Prepared(_of_nothing(apply), shape, "nothing to reduce")
    if target_for(device) is not None and device.type in _DOORS and can_lower(apply, types.compute):
        found = _kernel(apply, types, geo, tensors, device)
        if found is not None:
            return Prepared(found[0], shape, found[1])
    return Prepared(partial(run_blocks, apply, types), shape, "blocks of the matrix")


def _no_work(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
    pass


def _of_nothing(apply: Apply) -> Runner:
    (value,) = evaluate([apply.reduction.finish], {f"s{i}": init for i, init in enumerate(apply.reduction.init)})

    def fill(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        outs[0].fill_(float(value))

    return fill


def _kernel(
    apply: Apply, types: Types, geo: Geometry, tensors: Tensors, device: torch.device
) -> tuple[Runner, str] | None:
    """A kernel for the call and what it is, if the machine has one."""
    target: RowTarget = import_module(_DOORS[device.type], __package__).TARGET
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
    rank = len(geo.batch)
    named = [operand for operand in apply.inner.operands if not operand.number]
    axes = [*(operand.axes for operand in named), *([apply.column + COLUMNS] if apply.weighted else [])]
    ports = [strided(own, t.shape, t.stride(), rank) for own, t in zip(axes, tensors, strict=True)]
    shape = shapes(apply, geo)
    result = strided(apply.out, shape, _contiguous(shape), rank)
    nowhere = strided("", (), (), rank)
    ports = [*ports[: len(named)], nowhere, *ports[len(named) :], *(result for _ in types.outs)]
    calls = arguments(lowering.matrix, geo, ports, [])
    alignment = [t.data_ptr() % 16 or 16 for t in tensors]
    alignment = [*alignment[: len(named)], 16, *alignment[len(named) :], *(16 for _ in types.outs)]
    launcher = target.prepare(rows, calls.integers, alignment, device)
    sizes_of = [t.element_size() for t in tensors] + [DTYPES[name].itemsize for name in types.outs]
    sizes_of.insert(len(named), 1)
    names = [operand.name for operand in apply.inner.numbers]
    largest = _LARGEST[types.compute]

    def with_folded(numbers: tuple[float, ...]) -> tuple[float, ...]:
        known = dict(zip(names, numbers, strict=True))
        folded = (max(-largest, min(largest, float(value))) for value in evaluate(rows.folded, known))
        return (*numbers, *folded)

    remembered = lru_cache(maxsize=64)(with_folded)

    def run(tensors: Tensors, numbers: Sequence[float], outs: Tensors) -> None:
        given = tuple(map(float, numbers))
        values = with_folded(given) if 0.0 in given else remembered(given)  # -0.0 is 0.0 as a key
        pointers = [t.data_ptr() for t in (*tensors, *outs)]
        pointers.insert(len(named), 0)
        for offsets in calls.offsets:
            start = [p + o * size for p, o, size in zip(pointers, offsets, sizes_of, strict=True)]
            launcher.run(start, values)

    return run, f"{device.type}: {launcher.description}"


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * max(extent, 1))
    return tuple(reversed(strides))
