"""How the CPU runs a row nest: panels of the matrix are kept in the first cache, just long enough to be used up.

Vectors run along the rows of the result, so that nothing is ever joined across lanes. The micro-kernel of gram
computes a panel, some columns of the matrix for as many rows as a tile is wide, and the panel is reduced at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...compiler.nest import batch_of
from ...compiler.row_reduce import PRODUCT, RowNest
from ...ir.node import postorder
from .gram_plan import CpuPlan, Work, exchanged, plan, scratch

_BLOCK = 256  # rows of a panel, rounded up to those of a tile
_ROWS_BYTES = 512 << 10  # of operands over the rows of an item
_STATE_BYTES = 1 << 20  # of the accumulators of an item
_MOST_ROWS = 1024  # rows of an item
_CHAINS = 8  # sums in flight, which hide the latency of an addition
_POSITION_BYTES = 8  # of the position of a selected entry
_ITEM_TILES = 4  # tiles of columns of an item that a thread takes
_EPILOGUE_COST = 16  # operations that an epilogue counts as


@dataclass(frozen=True)
class CpuRowPlan:
    """Everything the emitter needs.

    In ``matrix`` the roles m and n have changed places: its columns are the rows of the result. ``group`` columns of
    v are taken at a time, and ``chains`` neighbours of n, so that additions need not wait for each other.
    """

    matrix: CpuPlan
    rows: RowNest
    group: int
    chains: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """Registers of the reduction."""
        return self.rows.reduction.kinds

    @property
    def panel_bytes(self) -> int:
        """Room for a panel of the matrix."""
        return self.matrix.row_block * self.matrix.columns * self.matrix.width

    @property
    def column_bytes(self) -> int:
        """Room for what is kept of a tile's rows for one column of the result."""
        columns, width = self.matrix.columns, self.matrix.width
        return columns * (width + _POSITION_BYTES) if self.rows.selects else columns * len(self.kinds) * width

    def __str__(self) -> str:
        how = f"{self.rows.count or ''} {self.rows.how}".strip()
        return f"apply {how} by {self.group} of {self.matrix}"


def plan_rows(rows: RowNest, host_vector_bytes: int, vector_registers: int, sizes: Mapping[str, int]) -> CpuRowPlan:
    """Choose how to run a row nest; of the extents only the columns of v matter, and only up to a power of two."""
    matrix = plan(exchanged(rows.matrix, "mn"), host_vector_bytes, vector_registers)
    block = -(-_BLOCK // matrix.rows) * matrix.rows
    by_role = max(1, len(matrix.column_buffers)) * matrix.depth * matrix.width
    states = sum(len(reduction.kinds) for reduction in rows.matrix.reductions) * block * matrix.width
    item = _ITEM_TILES * matrix.columns
    most = min(_MOST_ROWS, _ROWS_BYTES // by_role, _STATE_BYTES // states) // item * item
    matrix = replace(matrix, swap=True, row_block=block, column_block=max(item, most), item_rows=item)
    group = 1
    if rows.how == PRODUCT:
        limit = vector_registers // (2 * matrix.vectors)
        while group < min(sizes["l"], limit):
            group *= 2
    return CpuRowPlan(matrix, rows, group, max(1, min(4, _CHAINS // (group * matrix.vectors))))


def row_scratch(plan: CpuRowPlan, sizes: Mapping[str, int]) -> int:
    """Return bytes of scratch, laid out as the emitted kernel does: that of the matrix, a panel, v, what is kept."""
    matrix = plan.matrix
    columns = -(-sizes["l"] // plan.group) * plan.group
    weights = matrix.row_block * columns * matrix.width if plan.rows.v is not None else 0
    stored = matrix.column_block // matrix.columns * columns * plan.column_bytes
    return scratch(matrix, sizes) + plan.panel_bytes + weights + stored


def row_work(plan: CpuRowPlan, sizes: Mapping[str, int]) -> Work:
    """Return items, scratch and grain of a call with these extents."""
    items = batch_of(sizes) * -(-sizes["m"] // plan.matrix.item_rows)
    each = sizes["k"] * plan.matrix.cost + _EPILOGUE_COST * bool(postorder(plan.matrix.nest.outputs)) + sizes["l"]
    one = min(sizes["m"], plan.matrix.item_rows) * sizes["n"] * each
    return Work(items, row_scratch(plan, sizes), one)
