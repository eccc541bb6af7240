"""Predicted times of operators on a GPU that is not present: plans are made for its limits, and nothing is compiled.

``PREDICTIONS`` is the table of what each operator launches, entered beside the models that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..backends.cuda import kernel_cost, vjp_plan
from ..backends.cuda.cards import Card
from ..backends.cuda.gram_plan import plan
from ..backends.cuda.kernel_cost import START, Launch, vendor_product
from ..backends.cuda.row_reduce_plan import CudaRowPlan, is_worth_it, minima_bytes, plan_rows, scan_bytes
from ..backends.cuda.select_plan import BAND_BYTES, part_count
from ..backends.cuda.squares_plan import squares_plan
from ..compiler.gradient_patterns import Vjp
from ..compiler.nest import BYTES, Layout, Nest, size_slot, sizes_and_layout, sizes_of
from ..compiler.row_reduce import Apply, RowNest
from ..config import current
from ..ir.program import Program
from ..runtime.launcher import Launcher, nothing
from .cuda_row_reduce_parts import band_rows, part_of
from .execute import PartialLaunch, Types, finishing, is_matmul, planned
from .layout import geometry
from .row_reduce_blocks import BLOCK_BYTES, block_shape, cut
from .row_reduce_execute import RowLaunch, whole_geometry
from .row_reduce_execute import planned as planned_rows

Tensors = Sequence[torch.Tensor]
Predict = Callable[..., list[Launch]]
PREDICTIONS: dict[str, Predict] = {}


def predicted(name: str) -> Callable[[Predict], Predict]:
    """Register what predicts an operator's launches from a card and the operator's arguments, on "meta"."""

    def enter(function: Predict) -> Predict:
        PREDICTIONS[name] = function
        return function

    return enter


class CardTarget:
    """A card for which contractions are planned; ``launches`` has the predicted times of the planned kernels."""

    name = "cuda"

    def __init__(self, card: Card) -> None:
        self._card = card
        self.launches: list[Launch] = []

    def parallel(self, device: torch.device) -> int:
        """Return the blocks that keep it busy."""
        return self._card.limits.sm_count

    def takes_vjp(self, found: Vjp, program: Program, sizes: Mapping[str, int], compute: str) -> bool:
        """Return whether the VJP is large enough for several kernels."""
        return vjp_plan.takes_vjp(found, program, sizes, compute)

    def prepare(self, nest: Nest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Plan the kernels, and record their predicted times."""
        sizes, layout = sizes_and_layout(integers.tolist(), alignment)
        self.launches.append(self._launch(nest, sizes, layout))
        return Launcher(nothing, self.launches[-1].name)

    def _launch(self, nest: Nest, sizes: Mapping[str, int], layout: Layout) -> Launch:
        card = self._card
        vjp = vjp_plan.plan_vjp(nest, sizes, card.limits, layout)
        if vjp is not None:
            between = vjp_plan.workspace(vjp, sizes, layout, vjp_plan.schedule(vjp, sizes, card.limits)).size
            return kernel_cost.vjp(vjp, sizes, layout, between, card)
        squares = squares_plan(nest, sizes, card.limits, layout)
        if squares is not None:
            return kernel_cost.squares(squares, sizes, layout, card)
        return kernel_cost.gram(plan(nest, sizes, card.limits, layout), sizes, layout, card)


class CardRows:
    """The card for reductions of the rows of a matrix that is not stored."""

    binary = True

    def __init__(self, card: Card) -> None:
        self._card = card
        self.launches: list[Launch] = []

    def takes(self, rows: RowNest, sizes: Mapping[str, int], device: torch.device) -> bool:
        """Return whether a kernel is quicker than blocks of the matrix."""
        return is_worth_it(rows, sizes, self._card.limits)

    def prepare(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Plan the kernels, and record their predicted times."""
        sizes, layout = sizes_and_layout(integers.tolist(), alignment)
        parts = part_count(rows, sizes, self._card.limits)
        if parts:
            return self._prepare_parts(rows, integers, alignment, parts)
        chosen = plan_rows(rows, sizes, self._card.limits, layout)
        between = _between(chosen, sizes, self._card)
        self.launches.append(kernel_cost.rows(chosen, sizes, layout, between, self._card))
        return Launcher(nothing, str(chosen))

    def _prepare_parts(self, rows: RowNest, integers: np.ndarray, alignment: Sequence[int], parts: int) -> Launcher:
        """Return the plan of the best of what is selected from parts of the columns, in bands of rows."""
        sizes = sizes_of(integers.tolist())
        short, own, aligned = part_of(rows, integers.tolist(), alignment, parts)
        height = min(sizes["m"], band_rows(parts))
        bands = -(-sizes["m"] // height)
        own[size_slot("m")], own[size_slot("n")] = height, -(-sizes["n"] // parts)
        found = self.prepare(short, np.array(own, np.int64), aligned, torch.device("cuda"))
        self.launches[-1] = self.launches[-1].times(parts * bands)
        self.launches.append(kernel_cost.best_of_parts(height * parts * own[size_slot("l")], self._card).times(bands))
        return found


def _between(chosen: CudaRowPlan, sizes: Mapping[str, int], card: Card) -> int:
    """Return the bytes that the kernels of a plan hand to each other."""
    width, limits = sizes["l"], card.limits
    if chosen.form == "scan":
        blocks = min(limits.sm_count * chosen.resident, -(-sizes["n"] // chosen.tile.threads))
        return scan_bytes(chosen, blocks, width)
    if chosen.grouped:
        each = minima_bytes(chosen, sizes)
        return each * min(sizes["m"], max(chosen.tile.m, BAND_BYTES // each))
    if chosen.form == "select":
        return chosen.memory(sizes).size
    work = chosen.work_bytes(chosen.blocks(sizes, limits, width), width)
    if chosen.fallback is not None:
        own = chosen.fallback
        work += chosen.memory(sizes).size + own.work_bytes(own.blocks(sizes, limits, width), width)
    return work


def _pass(name: str, moved: float, card: Card, kernels: int = 1) -> Launch:
    """Return the launch of torch's elementwise operations that move so many bytes."""
    return Launch(name, kernels * START, moved / card.memory_rate, 0.0)


@predicted("contract")
def contraction(card: Card, tensors: Tensors, numbers: Any, values: Any, text: str, types: str) -> list[Launch]:
    """Return the launches of a program on tensors of these shapes, types and strides."""
    program, own = Program.parse(text), Types.parse(types).configured(current().precision)
    geo = geometry(program, [tuple(tensor.shape) for tensor in tensors])
    results = [BYTES[name] * float(math.prod(geo.out_shape(program.out))) for name in own.outs]
    product = is_matmul(program, own)
    if product is not None and all((*geo.out_shape(program.out), *geo.sizes.values())):
        axes = [program.operand(name).axes for name in (product.left, product.right)]
        rows, columns = (math.prod(geo.sizes[axis] for axis in own if axis != product.reduced) for own in axes)
        count = math.prod(geo.batch)
        found = [vendor_product(rows, columns, geo.sizes[product.reduced], count, own.compute, card)]
        if finishing(program) is not None:
            found.append(_pass("outputs from the product", results[0] + sum(results), card))
        return found
    target = CardTarget(card)
    launch, route = planned(program, own, geo, tensors, None, target)
    if not target.launches:
        return [_pass(route, sum(results), card)] if sum(results) else []
    (kernel,) = target.launches
    if not isinstance(launch, PartialLaunch):
        return [kernel]
    found = [kernel.times(len(launch.calls.offsets))]
    if launch.lowering.is_partial:
        outs = launch.lowering.nest.outs
        parts = sum(BYTES[buffer.dtype] for buffer in outs) * float(math.prod(launch.shape))
        found[0] = replace(found[0], scratch=found[0].scratch + int(parts))
        found.append(_pass("joining of ranges", parts + sum(results), card, 2 * len(outs)))
    return found


@predicted("apply")
def row_reduction(card: Card, tensors: Tensors, numbers: Any, values: Any, text: str, types: str) -> list[Launch]:
    """Return the launches of a product with a matrix that is not stored, or of a reduction of its rows."""
    apply, own = Apply.parse(text), Types.parse(types).configured(current().precision)
    geo = whole_geometry(apply, [tuple(tensor.shape) for tensor in tensors])
    target = CardRows(card)
    launch, route = planned_rows(apply, own, geo, tensors, target)
    if target.launches:
        count = len(launch.offsets) if isinstance(launch, RowLaunch) else 1
        return [kernel.times(count) for kernel in target.launches]
    results = math.prod(geo.out_shape(apply.out)) * sum(BYTES[name] for name in own.outs)
    if not isinstance(launch, partial):
        return [_pass(route, float(results), card)] if results else []
    return _blocks(card, apply, own, tensors)


def _blocks(card: Card, apply: Apply, types: Types, tensors: Tensors) -> list[Launch]:
    """Return the launches by blocks of the matrix: each is written, then multiplied or reduced by torch."""
    inner = geometry(apply.inner, [tuple(tensor.shape) for tensor in tensors[: len(apply.inner.tensors)]])
    batch, size = math.prod(inner.batch), BYTES[types.compute]
    extent = inner.sizes[apply.row], inner.sizes[apply.column]
    height, width = block_shape(*extent, BLOCK_BYTES["cuda"] // (size * batch), torch.device("cuda"))
    count = -(-extent[0] // height) * -(-extent[1] // width)
    parts = cut(apply, tensors, slice(0, height), slice(0, width))
    written = Types(types.compute, (types.compute,), types.precision).text
    found = contraction(card, parts, (), None, apply.inner.text, written)
    entries = float(batch * height * width * size)
    if apply.weighted:
        found.append(vendor_product(height, tensors[-1].shape[-1], width, batch, types.compute, card))
    else:
        found.append(_pass("reduction of a block's rows", entries * (4 if apply.selects else 2), card, 4))
    found[0] = replace(found[0], scratch=found[0].scratch + int(entries))
    return [launch.times(count) for launch in found]
