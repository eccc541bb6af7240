"""CUDA C++ of a pass of the gradients of a Kronecker product."""

from __future__ import annotations

from ..contraction.kron_back import THREADS, BackPlan
from .kron_entry import TYPES

ENTRY = "km_back"
FACTORS = 4


def emit(plan: BackPlan) -> str:
    """CUDA C++; the same plan always gives the same text."""
    inner = [group[1] if len(group) > 1 else 1 for group in (plan.first, plan.last)]
    template = "KronHalves" if plan.splits else "KronBack"
    pair = plan.last[0] if plan.beside and plan.last else 0
    constants = {"PAIR": pair, "A": plan.extent, "W": plan.across, "INNER0": inner[0], "INNER1": inner[1]}
    numbers = range(FACTORS)
    pointers = ["v", "x", "out", "parts", *(f"f{number}" for number in numbers)]
    integers = [*(f"{axis}{number}" for number in numbers for axis in ("row", "column")), "lines", "width"]
    given = [*(f"void* {name}" for name in pointers), *(f"long long {name}" for name in integers), "double slope"]
    lines = [
        f"// {plan}",
        f'#include "kron_{"halves" if plan.splits else "back"}.cuh"',
        "struct Body {",
        f"    typedef {TYPES[plan.stored]} T;",
        f"    static constexpr int {', '.join(f'{name} = {value}' for name, value in constants.items())};",
        f"    static constexpr bool LAST = {str(bool(plan.last) and not plan.beside).lower()};",
        "};",
        f'extern "C" __global__ void __launch_bounds__({THREADS}, {plan.blocks})',
        f"{ENTRY}({', '.join(given)}) {{",
        "    typedef Body::T T;",
        f"    km::{template}<Body>::Arguments g;",
        "    g.v = (const T*)v;\n    g.x = (const T*)x;\n    g.out = (T*)out;\n    g.parts = (float*)parts;",
        *(f"    g.factor[{n}] = (const T*)f{n};" for n in numbers),
        *(f"    g.stride[{n}][0] = row{n};\n    g.stride[{n}][1] = column{n};" for n in numbers),
        "    g.lines = lines;\n    g.width = width;\n    g.slope = (float)slope;",
        f"    km::{template}<Body>::run(g);",
        "}",
    ]
    return "\n".join(lines) + "\n"
