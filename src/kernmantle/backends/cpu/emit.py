"""LLVM IR of a plan: an entry with its loops, the micro-kernel and what they call."""

from __future__ import annotations

from collections.abc import Sequence

from ...compiler.nest import Buffer
from .builder import ELEMENTS, loop_hints
from .functions import definitions
from .gram_plan import CpuPlan
from .horizontal import Across
from .loops import Entry
from .micro_kernel import Tile
from .pack import gather, pack, scatter
from .symmetric import mirror
from .vjp_emit import VjpEntry


def emit(plan: CpuPlan) -> str:
    """Return LLVM IR of a plan; the same plan always gives the same text."""
    entry = VjpEntry if plan.vjp else Entry
    return module(plan, str(plan), entry(plan).text(), set())


def module(
    plan: CpuPlan, title: str, entry: str, needed: set[tuple[str, str, int]], consumers: Sequence[str] = (),
    packed: Sequence[tuple[Buffer, int]] = (), results: Sequence[Buffer] = (),
) -> str:  # fmt: skip
    """Return an entry with its tiles, what consumes these, and all that they call.

    ``needed`` are functions that the consumers call, ``packed`` further operands in panels of a width, ``results``
    further outputs.
    """
    form = Across if plan.across else Tile
    element = ELEMENTS[plan.nest.compute]
    tiles = [form(plan, False, needed).text("!0")]
    if plan.optimistic:
        tiles.append(form(plan, True, needed).text("!2"))
    panels = ((plan.row_buffers, plan.rows), (plan.column_buffers, plan.columns), (plan.k_buffers, 1))
    packs = {(buffer.dtype, width) for buffers, width in panels for buffer in buffers}
    packs |= {(buffer.dtype, width) for buffer, width in packed}
    parts = [f"; {title}", entry, *tiles, *consumers]
    parts += [pack(stored, element, width) for stored, width in sorted(packs)]
    cells = sorted({buffer.dtype for buffer in plan.cell_buffers})
    parts += [gather(stored, element, plan.rows, plan.columns) for stored in cells]
    stored_outs = sorted({buffer.dtype for buffer in (*plan.nest.outs, *results)})
    parts += [scatter(stored, plan.columns) for stored in stored_outs]
    if plan.symmetric:
        parts += [mirror(stored, plan.columns, plan.lanes) for stored in stored_outs]
    parts += definitions(needed)
    parts.append(loop_hints(plan.unroll))
    return "\n\n".join(parts) + "\n"
