"""LLVM IR of a plan: an entry with its loops, the micro-kernel and what they call."""

from __future__ import annotations

from .builder import ELEMENTS, loop_hints
from .functions import definitions
from .gram_plan import CpuPlan
from .horizontal import Across
from .loops import Entry
from .micro_kernel import Tile
from .pack import gather, pack, scatter
from .symmetric import mirror
from .vjp_emit import PullbackEntry


def emit(plan: CpuPlan) -> str:
    """Return LLVM IR of a plan; the same plan always gives the same text."""
    needed: set[tuple[str, str, int]] = set()
    nest = plan.nest
    element = ELEMENTS[nest.compute]
    form = Across if plan.across else Tile
    entry = PullbackEntry if plan.pulled else Entry
    tiles = [form(plan, False, needed).text("!0")]
    if plan.optimistic:
        tiles.append(form(plan, True, needed).text("!2"))
    widths = [(ports, width) for ports, width in (
        (plan.row_ports, plan.rows), (plan.column_ports, plan.columns), (plan.k_ports, 1))]  # fmt: skip
    packs = sorted({(port.dtype, width) for ports, width in widths for port in ports})
    parts = [f"; {plan}", entry(plan).text(), *tiles]
    parts += [pack(stored, element, width) for stored, width in packs]
    cells = sorted({port.dtype for port in plan.cell_ports})
    parts += [gather(stored, element, plan.rows, plan.columns) for stored in cells]
    stored_outs = sorted({port.dtype for port in nest.outs})
    parts += [scatter(stored, plan.columns) for stored in stored_outs]
    if plan.symmetric:
        parts += [mirror(stored, plan.columns, plan.lanes) for stored in stored_outs]
    parts += definitions(needed)
    parts.append(loop_hints(plan.unroll))
    return "\n\n".join(parts) + "\n"
