"""Backward passes of rows: how large their blocks of the matrix are, and gradients from one block, bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..runtime.dispatch import PLANS
from ..runtime.kernel_store import compile_only
from . import blocks
from .autograd import bound_gradients
from .call_key import program_key
from .derivation import BoundBackward, differentiable
from .dtypes import DTYPES
from .execute import BoundProgram, Types, prepare
from .layout import Geometry
from .row_reduce import Task
from .row_reduce_blocks import LEAST_IN_KERNELS, block_shape, product
from .row_reduce_execute import whole_geometry

Tensors = Sequence[torch.Tensor]
COPIES = 6
"""Arrays as large as a block of the matrix that a backward pass has at a time."""


def block_geometry(task: Task, tensors: Tensors) -> tuple[Geometry, int, int]:
    """Return the extents and batch axes, and the shape of a block of the matrix in a backward pass."""
    geo = whole_geometry(task.apply, [tuple(tensor.shape) for tensor in tensors])
    device, itemsize = tensors[0].device, DTYPES[Types.parse(task.types).compute].itemsize
    limit = blocks.LARGEST * (1 if device.type == "cpu" else blocks.ON_GPU)
    entries = max(1, limit // (COPIES * itemsize * max(1, math.prod(geo.batch))))
    return geo, *block_shape(geo.sizes[task.apply.row], geo.sizes[task.apply.column], entries, device)


def entry_types(types: str) -> str:
    """Return the types of a program whose output is the entries, in the type of the arithmetic."""
    own = Types.parse(types)
    return replace(own, outs=(own.compute,)).text


@dataclass(frozen=True, eq=False)
class BoundBlock:
    """The gradients of a product whose matrix is one block: its entries, and what follows from their cotangent.

    ``saves`` is the number of accumulators that gradients read. Without ``entries`` another algorithm is used.
    """

    entries: BoundProgram | None = None
    gradients: BoundBackward | None = None
    saves: int = 0
    route = "one block of the matrix"

    def __call__(self, tensors: Tensors, numbers: Sequence[Any], cotangent: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the gradients by the tensors of the matrix; v is the last tensor."""
        assert self.entries is not None
        assert self.gradients is not None
        results = self.entries.results(tensors[:-1], numbers)
        saved = results[len(results) - self.saves :]
        return self.gradients([*tensors[:-1], *saved, product(cotangent, tensors[-1].mT)], numbers)


def in_one_block(
    task: Task, tensors: Tensors, cotangent: torch.Tensor, needed: tuple[bool, ...]
) -> list[torch.Tensor | None] | None:
    """Return the gradients by the tensors of the matrix from a bound call; None if one block does not apply."""
    if compile_only():
        return None
    options = task.types, needed, blocks.LARGEST, blocks.ON_GPU
    key = program_key(("gradients of rows", task.text), options, (*tensors, cotangent))
    plan: BoundBlock | None = PLANS.get(key)
    if plan is not None:
        return None if plan.entries is None else plan(tensors, task.numbers, cotangent)
    if not _is_one_block(task, tensors, needed):
        PLANS[key] = BoundBlock()
        return None
    *operands, v = tensors
    program = differentiable(task.apply.inner.text, entry_types(task.types))
    entries = prepare(program.full, program.full_types, operands)
    results = entries.results(operands, task.numbers)
    count = program.accumulators if program.saves else 0
    saved = [*operands, *results[len(results) - count :]]
    found, gradients = bound_gradients(program, saved, task.numbers, [product(cotangent, v.mT)], needed[:-1])
    PLANS[key] = BoundBlock(entries, gradients, count)
    return found


def _is_one_block(task: Task, tensors: Tensors, needed: tuple[bool, ...]) -> bool:
    """Return whether a product without batch axes goes back through its whole matrix, in the type it computes in."""
    dtype = DTYPES[Types.parse(task.types).compute]
    wanted = task.apply.weighted and any(needed[:-1]) and all(tensor.dtype == dtype for tensor in tensors)
    if not wanted or 0 in tensors[-1].shape or tensors[-1].dim() != 2:
        return False
    geo, height, width = block_geometry(task, tensors)
    rows, columns = geo.sizes[task.apply.row], geo.sizes[task.apply.column]
    fits = not geo.batch and height >= rows and width >= columns
    return fits and (tensors[0].device.type == "cpu" or rows * columns < LEAST_IN_KERNELS)
