"""CUDA C++ of small systems: an instantiation of ``system.cuh``."""

from __future__ import annotations

from .system_plan import THREADS, SystemPlan

ENTRY = "km_system"
_TYPES = {"f32": "float", "f64": "double"}
_POINTERS = (
    "const void* a", "void* factor", "int* pivots", "int* info", "const void* b", "void* x"
)  # fmt: skip
_STRIDED = ("a", "factor", "b", "x")


def emit(plan: SystemPlan) -> str:
    """CUDA C++ of a plan; parameters are pointers, sizes, and the strides of items, rows and columns of each array."""
    strides = [f"{name}_{axis}" for name in _STRIDED for axis in ("item", "row", "column")]
    parameters = [*_POINTERS, *(f"long long {name}" for name in ("count", "order", "columns", *strides))]
    flags = (plan.pivoted, plan.transposed, plan.factors, plan.solves)
    choices = ", ".join([_TYPES[plan.compute], str(plan.width), str(THREADS), *(str(flag).lower() for flag in flags)])
    rows = ", ".join(f"{{{', '.join(strides[i : i + 3])}}}" for i in range(0, len(strides), 3))
    return "\n".join(
        [
            f"// {plan}",
            '#include "system.cuh"',
            f'extern "C" __global__ void __launch_bounds__({THREADS})',
            f"{ENTRY}({', '.join(parameters)}) {{",
            f"    const km::SystemArguments g = {{a, factor, pivots, info, b, x, count, order, columns, {rows}}};",
            f"    km::systems<{choices}>(g);",
            "}",
            "",
        ]
    )
