"""CUDA C++ of a pass of the gradients of a Kronecker product."""

from __future__ import annotations

from ...backends.cuda.traits import SCALARS, shared_check, struct
from .cuda_entry import OVERLAP
from .gradient_groups import whole
from .gradient_plan import THREADS, BackPlan

ENTRY = "km_back"
FACTORS = 4


def emit(plan: BackPlan) -> str:
    """Return CUDA C++; the same plan always gives the same text."""
    template = "KronHalves" if plan.splits else "KronBack"
    constants: dict[str, int | bool | str] = {
        "JOINED": plan.extents[1] if plan.has_columns else 0, "A": plan.extents[0], "W": plan.across,
        "VEC": plan.vector, "USED": plan.items,
    }  # fmt: skip
    for number, group in enumerate(plan.groups):
        sizes = (*whole(group), *(group[1] if len(group) > 1 else (0, 0)))
        names = [f"{name}{number}" for name in ("Q", "P", "INNER_Q", "INNER_P")]
        constants |= dict(zip(names, sizes, strict=True))
    numbers = range(FACTORS)
    pointers = ["v", "x", "out", "parts", *(f"f{number}" for number in numbers)]
    integers = [*(f"{axis}{number}" for number in numbers for axis in ("row", "column")), "items", "width"]
    parameters = [*(f"void* {name}" for name in pointers), *(f"long long {name}" for name in integers), "double slope"]
    text = [
        f"// {plan}",
        f'#include "kron_{"halves" if plan.splits else "back"}.cuh"',
        *struct("Body", {"T": SCALARS[plan.stored]}, constants),
        shared_check(f"km::{template}<Body>::SHARED_BYTES", plan.shared),
        f'extern "C" __global__ void __launch_bounds__({THREADS}, {plan.blocks})',
        f"{ENTRY}({', '.join(parameters)}) {{",
        OVERLAP,
        "    typedef Body::T T;",
        f"    km::{template}<Body>::Arguments g;",
        "    g.v = (const T*)v;\n    g.x = (const T*)x;\n    g.out = (T*)out;\n    g.parts = (float*)parts;",
        *(f"    g.factor[{n}] = (const T*)f{n};" for n in numbers),
        *(f"    g.stride[{n}][0] = row{n};\n    g.stride[{n}][1] = column{n};" for n in numbers),
        "    g.items = items;\n    g.width = width;\n    g.slope = (float)slope;",
        f"    km::{template}<Body>::run(g);",
        "}",
    ]
    return "\n".join(text) + "\n"
