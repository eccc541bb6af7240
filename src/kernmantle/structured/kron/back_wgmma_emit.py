"""CUDA C++ of the gradients of the last two axes by wgmma: what the template needs to know of a plan."""

from __future__ import annotations

from ...backends.cuda.traits import SCALARS, shared_check, struct
from .back_wgmma_plan import MULTIPLYING, BackWgmmaPlan
from .chain_gradient_emit import emit_factor, emit_shares, group_structs, parameters
from .cuda_entry import OVERLAP

ENTRY = "km_back_wgmma"


def emit(plan: BackWgmmaPlan) -> str:
    """Return CUDA C++; the same plan always gives the same text."""
    (q0, p0), (q1, p1), kind = *plan.axes, SCALARS[plan.stored]
    firsts = 0, len(plan.groups[0])
    constants: dict[str, int | bool | str] = {
        "Q0": q0, "P0": p0, "Q1": q1, "P1": p1, "ROWS": plan.grid[0], "COLUMNS": plan.grid[1], "SLOT0": plan.slots[0],
        "SLOT1": plan.slots[1], "ITEMS": plan.items, "VECTOR": plan.vector, "PACK": plan.pack,
        "STAGES": plan.stages, "COPIES": plan.copies,
    }  # fmt: skip
    shares = [
        [
            f"        const float* const joint = joint{axis};",
            *emit_shares(axis, group, firsts[axis], plan.stored, MULTIPLYING),
        ]
        for axis, group in enumerate(plan.groups)
    ]
    text = [
        f"// {plan}",
        '#include "kron_back_wgmma.cuh"',
        *struct("Body", {"T": kind, "H": SCALARS["bf16" if plan.stored == "bf16" else "f16"]}, constants),
        *group_structs(plan.groups, plan.stored, MULTIPLYING),
        "typedef km::KronBackWgmma<Body> Back;",
        shared_check("Back::SHARED_BYTES", plan.shared),
        f'extern "C" __global__ void __launch_bounds__({plan.threads}, 1)',
        f"{ENTRY}({', '.join(parameters(len(plan.sizes)))}) {{",
        OVERLAP,
        f"    typedef {kind} T;",
        *(emit_factor(axis, group, firsts[axis]) for axis, group in enumerate(plan.groups)),
        "    const Back::Arguments g = {(const T*)v, (const T*)x, (T*)out, (float*)parts, items, (float)slope};",
        "    Back::run(g, factor0, factor1, [&](const float* joint0, const float* joint1) {",
        f"        float* own = g.parts + (long long)blockIdx.x * {plan.parts};",
        *(f"        {own.strip()}" for lot in shares for own in ("{", *lot, "}")),
        "    });",
        "}",
    ]  # fmt: skip
    return "\n".join(text) + "\n"
