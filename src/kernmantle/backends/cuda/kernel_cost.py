"""Predicted times of contraction kernels on a card: their start, memory, and arithmetic by the models of their plans.

A plan's model counts clocks of a device that issues without stalls. How many such clocks a second has was fitted on an
H200 for each kind of kernel: ``fitted.TIMES``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...compiler.nest import BYTES, ROLES, Buffer, Layout, Nest
from ...compiler.row_reduce import PRODUCT
from ...ir.node import Node, postorder
from ...ir.ops import OPS
from .cards import Card
from .columns_plan import clocks, passes
from .fitted import TIMES
from .gram_plan import CudaPlan, cost, is_heavy
from .pow_tables import table_power
from .row_reduce_plan import CudaRowPlan
from .score_plan import multiplied
from .squares_plan import SquaresPlan, cycles
from .vjp_plan import VjpPlan, vjp_cycles

START, PRODUCTS = TIMES.start, TIMES.products
_LANES = 128  # of a multiprocessor
_COSTS = {"instruction": 1.0, "short": 4.0, "function": 30.0, "long": 24.0}  # issue slots by class of cost
_OWN_COSTS = {"neg": 0.0, "abs": 0.0, "div": 10.0, "rcp": 8.0, "sqrt": 8.0, "rsqrt": 8.0, "pow": 12.0}
"""Issue slots of operations that their class does not fit."""
_JOIN_KERNELS, _JOIN_BYTES = 16, 45  # of torch, and what they take for each entry: its ranks, positions and values
_ROOTS = (0.5, 1.5, 2.5)
_ROOT_POWER = 8.0  # issue slots of a power that is a root


@dataclass(frozen=True)
class Launch:
    """Kernels that run one after another: seconds of launches, memory and arithmetic; bytes of intermediate arrays.

    ``total`` are the seconds of all together, if a separate model predicts them.
    """

    name: str
    start: float
    memory: float
    work: float
    scratch: int = 0
    total: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        overlapped = max(self.memory, self.work) + TIMES.overlap * min(self.memory, self.work)
        return self.total or self.start + overlapped

    def times(self, count: int) -> Launch:
        """Return ``count`` such launches as one."""
        start, memory, work, total = (count * part for part in (self.start, self.memory, self.work, self.total))
        return replace(self, start=start, memory=memory, work=work, total=total)


def vendor_product(rows: int, columns: int, depth: int, count: int, dtype: str, card: Card) -> Launch:
    """``count`` products of rows x depth by depth x columns by the vendor's library."""
    tile = 128 if BYTES[dtype] == 2 else 64
    padded = count * float(math.ceil(rows / tile) * tile) * math.ceil(columns / tile) * tile
    moved = BYTES[dtype] * count * float(rows * depth + depth * columns + rows * columns)
    work = padded * max(depth, 16) / PRODUCTS[dtype]
    return Launch("product of the vendor's", TIMES.vendor_start, moved / card.memory_rate, work)


def slots(expressions: Iterable[Node]) -> float:
    """Return how many issue slots expressions take; signs are free, and so is an addition of a product."""
    total = 0.0
    for node in postorder(expressions):
        if node.args:
            root = node.op == "pow" and node.args[1].number in _ROOTS
            total += _ROOT_POWER if root else _OWN_COSTS.get(node.op, _COSTS[OPS[node.op].cost])
            total -= node.op in ("add", "sub") and any(arg.op == "mul" for arg in node.args)
    return total


def _step_slots(nest: Nest) -> float:
    """Return slots of the map and the reductions for one element."""
    steps = [node for reduction in nest.reductions for node in reduction.step]
    fused = sum(
        node.op == "mul" and reduction.name == "sum" for node, reduction in zip(nest.map, nest.reductions, strict=False)
    )
    return slots(nest.map) + slots(steps) - fused


def _bytes(buffers: Iterable[Buffer], layout: Layout, sizes: Mapping[str, int]) -> float:
    """Return bytes of all arrays, each read or written once."""
    total = 0.0
    for buffer, strides in zip(buffers, layout.strides, strict=True):
        extents = [sizes[role] for role, stride in zip(ROLES, strides, strict=True) if stride]
        total += BYTES[buffer.dtype] * float(math.prod(extents))
    return total


def gram(plan: CudaPlan, sizes: Mapping[str, int], layout: Layout, card: Card) -> Launch:
    """Return one kernel that reduces along k."""
    nest, heavy = plan.nest, is_heavy(plan.nest) or table_power(plan.nest) is not None
    moved = _bytes(nest.buffers, layout, sizes) / card.memory_rate
    if plan.schema == "thin":
        return Launch(str(plan), START, moved, 0.0)
    relative = _step_slots(nest) / (TIMES.usual_heavy if heavy else TIMES.usual)
    if plan.schema == "position":
        relative = TIMES.positions
    counted = cost(plan.tile, nest, sizes, plan.symmetric, card.limits) * max(relative, 0.5)
    counted *= 2 if BYTES[nest.compute] == 8 else 1
    rate = TIMES.heavy if heavy else TIMES.pipelined if plan.schema == "pipelined" else TIMES.light
    return Launch(str(plan), START, moved, counted / rate)


def squares(plan: SquaresPlan, sizes: Mapping[str, int], layout: Layout, card: Card) -> Launch:
    """Products on tensor cores for differences or logarithms: three kernels, where few entries lose digits."""
    nest = plan.main.nest
    moved = _bytes(nest.buffers, layout, sizes) / card.memory_rate
    if all(BYTES[buffer.dtype] == 2 for buffer in nest.operands if "k" in buffer.roles):
        nest = replace(nest, precision="tf32")  # what halves leave over is zero, and is not multiplied
    work = cycles(plan.main.tile, nest, sizes, plan.main.symmetric, card.limits) / TIMES.squares
    return Launch(str(plan), 3 * START, moved, work, plan.scratch.size)


def best_of_parts(entries: int, card: Card) -> Launch:
    """Return torch's operations that choose the best among so many entries that were selected from parts of columns."""
    moved = entries * TIMES.joined / card.memory_rate
    return Launch("best of parts", _JOIN_KERNELS * START, moved, 0.0, _JOIN_BYTES * entries)


def vjp(plan: VjpPlan, sizes: Mapping[str, int], layout: Layout, scratch: int, card: Card) -> Launch:
    """Return a VJP and the kernels before and after it."""
    moved = _bytes(plan.nest.buffers, layout, sizes) / card.memory_rate
    work = vjp_cycles(plan.tile, plan.slope, sizes, card.limits) / TIMES.clock
    return Launch(str(plan), len(plan.kernels) * START, moved, work, scratch)


def rows(plan: CudaRowPlan, sizes: Mapping[str, int], layout: Layout, scratch: int, card: Card) -> Launch:
    """Rows of a matrix that is not stored: its entries, what is made of them, and products on tensor cores."""
    nest, width, own = plan.rows.matrix, sizes["l"], card.limits
    entries = float(math.prod(sizes[role] for role in "abcmn"))
    rate = _LANES * own.sm_count * TIMES.clock
    tensor = own.generation.half_products * own.sm_count * TIMES.clock * TIMES.tensor
    made, entry = _step_slots(nest) * sizes["k"], slots(nest.outputs)
    if plan.rows.selects:
        reduced = TIMES.selected + TIMES.selected_more * width**2
    else:
        reduced = TIMES.column * width if plan.rows.how == PRODUCT else slots(plan.rows.reduction.step)
    share, products = TIMES.shares.get(plan.form, 1.0), 0.0
    if plan.form == "score":
        made, products = TIMES.scored, entries * multiplied(plan.tile) / tensor
    elif plan.form == "select":
        made, entry, products = 0.0, 0.0, entries * -(-sizes["k"] // 16) * 16 / tensor
    elif plan.form in ("columns", "deep"):
        made, entry, reduced = 0.0, entry * passes(plan.group, sizes), 0.0
        products = entries * clocks(plan.tile, plan.group, sizes) / (own.sm_count * TIMES.clock)
    elif plan.form == "wide":
        made, reduced, products = made + TIMES.scored, 0.0, 3 * entries * plan.tile.unroll / tensor
    if plan.form == "scan":
        entry = reduced = 0.0
    issued = entries * (made + entry + reduced) / (rate * share)
    issued *= 2 if BYTES[nest.compute] == 8 else 1
    both = {"wide": 1.0, "select": 0.5}.get(plan.form, 0.0)
    work = max(issued, products) + both * min(issued, products)
    buffers = [buffer for buffer in plan.rows.buffers if buffer is not nest.outs[0]]
    strides = [
        each for buffer, each in zip(plan.rows.buffers, layout.strides, strict=True) if buffer is not nest.outs[0]
    ]
    moved = _bytes(buffers, Layout(tuple(strides), ()), sizes)
    return Launch(str(plan), 3 * START, moved / card.memory_rate, work, scratch)
