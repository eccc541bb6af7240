"""CUDA C++ of the gradients of two axes, or of one, in one pass: what the templates know of a plan."""

from __future__ import annotations

from ...backends.cuda.traits import SCALARS, shared_check, struct
from .back_axis_plan import BackAxisPlan
from .back_registers_plan import BackRegistersPlan
from .back_wgmma_plan import EXTENT, BackWgmmaPlan
from .chain_gradient_emit import emit_factor, emit_shares, group_structs, parameters
from .cuda_entry import OVERLAP

ENTRY = "km_back_wgmma"
_NAMES = {BackWgmmaPlan: "Wgmma", BackAxisPlan: "Axis", BackRegistersPlan: "Registers"}


def emit(plan: BackWgmmaPlan | BackAxisPlan | BackRegistersPlan) -> str:
    """Return CUDA C++; the same plan always gives the same text."""
    (q0, p0), (q1, p1), *_ = *plan.axes, (EXTENT, EXTENT)
    name, kind = _NAMES[type(plan)], SCALARS[plan.stored]
    constants: dict[str, int | bool | str] = {
        "Q0": q0, "P0": p0, "Q1": q1, "P1": p1, "ROWS": plan.grid[0], "COLUMNS": plan.grid[1], "SLOT0": plan.slots[0],
        "SLOT1": plan.slots[1], "ITEMS": plan.items, "VECTOR": plan.vector, "PACK": plan.pack, "STAGES": plan.stages,
    }  # fmt: skip
    if isinstance(plan, BackRegistersPlan):
        constants |= {"THREADS": plan.threads, "ACROSS": plan.across, "BEFORE": plan.before, "TEAM": plan.team}
    else:
        constants |= {"COPIES": plan.copies, "LOADERS": plan.loaders}
    axes = range(len(plan.groups))
    firsts = [sum(map(len, plan.groups[:axis])) for axis in axes]
    shares = [
        [
            f"        const float* const joint = joint{axis};",
            *emit_shares(axis, plan.groups[axis], firsts[axis], plan.stored, plan.multiplying),
        ]
        for axis in axes
    ]
    text = [
        f"// {plan}",
        f'#include "kron_back_{name.lower()}.cuh"',
        *struct("Body", {"T": kind, "H": SCALARS["bf16" if plan.stored == "bf16" else "f16"]}, constants),
        *group_structs(plan.groups, plan.stored, plan.multiplying),
        f"typedef km::KronBack{name}<Body> Back;",
        shared_check("Back::SHARED_BYTES", plan.shared),
        f'extern "C" __global__ void __launch_bounds__({plan.threads}, {plan.blocks})',
        f"{ENTRY}({', '.join(parameters(len(plan.sizes)))}) {{",
        OVERLAP,
        f"    typedef {kind} T;",
        *(emit_factor(axis, plan.groups[axis], firsts[axis]) for axis in axes),
        "    const Back::Arguments g = {(const T*)v, (const T*)x, (T*)out, (float*)parts, items, width, (float)slope};",
        f"    Back::run(g, {', '.join(f'factor{axis}' for axis in axes)}, "
        f"[&]({', '.join(f'const float* joint{axis}' for axis in axes)}) {{",
        f"        float* own = g.parts + (long long)blockIdx.x * {plan.parts};",
        *(f"        {own.strip()}" for lot in shares for own in ("{", *lot, "}")),
        "    });",
        "}",
    ]  # fmt: skip
    return "\n".join(text) + "\n"
