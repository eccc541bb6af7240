"""Memory layout of a nest's buffers: extents and strides by role, batch axes merged if possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..compiler.lower import Lowering
from ..compiler.nest import BATCH, ROLES, SIZES, size_slot, stride_slot
from ..ir.equation import broadcast
from ..ir.program import Program


@dataclass(frozen=True)
class Geometry:
    """Sizes of a program's axes and of its broadcast batch, and each operand's leading shape."""

    sizes: Mapping[str, int]
    batch: tuple[int, ...]

    def out_shape(self, axes: str) -> tuple[int, ...]:
        """Return the shape of an output over these axes."""
        return (*self.batch, *(self.sizes[axis] for axis in axes))


def geometry(program: Program, shapes: Sequence[tuple[int, ...]]) -> Geometry:
    """Return the sizes from the shapes of ``program.tensors``, already known to fit."""
    sizes: dict[str, int] = {}
    leading: list[tuple[int, ...]] = []
    for operand, shape in zip(program.tensors, shapes, strict=True):
        rank = len(shape) - len(operand.axes)
        sizes.update(zip(operand.axes, shape[rank:], strict=True))
        leading.append(shape[:rank])
    if program.symmetric:
        row, column = program.operand("x0").axes, program.operand("x1").axes
        sizes.update((new, sizes[old]) for old, new in zip(row, column, strict=True))
    batch = broadcast(leading)
    assert batch is not None
    return Geometry(sizes, batch)


@dataclass(frozen=True)
class Strided:
    """One array over named axes: its strides for the axes and for the batch."""

    axes: Mapping[str, int]
    batch: tuple[int, ...]


def strided(axes: str, shape: Sequence[int], strides: Sequence[int], batch_rank: int) -> Strided:
    """Return the strides of an array by axis; shared batch axes get stride 0."""
    rank = len(shape) - len(axes)
    lead = [0 if size == 1 else stride for size, stride in zip(shape[:rank], strides[:rank], strict=True)]
    return Strided(dict(zip(axes, strides[rank:], strict=True)), (0,) * (batch_rank - rank) + tuple(lead))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor of this shape without gaps."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * max(extent, 1))
    return tuple(reversed(strides)) if shape else ()


def merged(dims: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the batch dimensions (extent, stride per buffer), those of length 1 dropped and neighbours merged."""
    result: list[tuple[int, tuple[int, ...]]] = []
    for extent, strides in dims:
        if extent == 1:
            continue
        if result and all(outer == inner * extent for outer, inner in zip(result[-1][1], strides, strict=True)):
            result[-1] = (result[-1][0] * extent, strides)
        else:
            result.append((extent, strides))
    return result


@dataclass(frozen=True)
class Calls:
    """Integer arguments of a launch; with too many batch axes there are several, each with offsets by buffer."""

    integers: np.ndarray
    offsets: tuple[tuple[int, ...], ...]


def arguments(lowering: Lowering, geo: Geometry, buffers: Sequence[Strided], split_strides: Sequence[int]) -> Calls:
    """Integer arguments for buffers given in the nest's order; ``split_strides`` belong to the outputs."""
    batch = [(extent, tuple(buffer.batch[index] for buffer in buffers)) for index, extent in enumerate(geo.batch)] + [
        (geo.sizes[axis], tuple(buffer.axes.get(axis, 0) for buffer in buffers)) for axis in lowering.batch
    ]
    dims = merged(batch)
    extra, inner = dims[: max(0, len(dims) - len(BATCH))], dims[max(0, len(dims) - len(BATCH)) :]
    integers = np.zeros(len(SIZES) + len(buffers) * len(ROLES), dtype=np.int64)
    integers[: len(SIZES)] = 1
    integers[size_slot("splits")] = lowering.splits
    for axis, role in lowering.roles.items():
        integers[size_slot(role)] = geo.sizes[axis]
        for index, buffer in enumerate(buffers):
            integers[stride_slot(index, role)] = buffer.axes.get(axis, 0)
    for role, (extent, strides) in zip(BATCH[len(BATCH) - len(inner) :], inner, strict=True):
        integers[size_slot(role)] = extent
        for index, stride in enumerate(strides):
            integers[stride_slot(index, role)] = stride
    first_out = len(buffers) - len(split_strides)
    for index, stride in enumerate(split_strides):
        integers[stride_slot(first_out + index, "k")] = stride
    return Calls(integers, _offsets(extra, len(buffers)))


def _offsets(dims: Sequence[tuple[int, tuple[int, ...]]], buffers: int) -> tuple[tuple[int, ...], ...]:
    offsets = [(0,) * buffers]
    for extent, strides in dims:
        offsets = [
            tuple(base + index * stride for base, stride in zip(start, strides, strict=True))
            for start in offsets
            for index in range(extent)
        ]
    return tuple(offsets)


def aligned(tensor: torch.Tensor, axes: str, order: str) -> torch.Tensor:
    """View with the axes in ``order``, missing ones of length 1; batch axes stay on the left."""
    rank = tensor.dim() - len(axes)
    permutation = sorted(range(len(axes)), key=lambda index: order.index(axes[index]))
    view = tensor.permute([*range(rank), *(rank + index for index in permutation)])
    for index, axis in enumerate(order):
        if axis not in axes:
            view = view.unsqueeze(rank + index)
    return view
