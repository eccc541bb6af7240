"""CUDA C++ of eigenvalues of small matrices: an instantiation of ``eigen.cuh`` or ``eigen_block.cuh``."""

from __future__ import annotations

from .eigen_plan import BY_LANES, THREADS, EigenPlan

ENTRY = "km_eigen"
_TYPES = {"f32": "float", "f64": "double"}
_STRIDES = [f"{name}_{axis}" for name in ("a", "v") for axis in ("item", "row", "column")]


def emit(plan: EigenPlan) -> str:
    """CUDA C++ of a plan; parameters are pointers, sizes, and the strides of items, rows and columns of a and v."""
    numbers = ", ".join(f"long long {name}" for name in ("count", "order", *_STRIDES))
    strides = ", ".join(f"{{{', '.join(_STRIDES[i : i + 3])}}}" for i in (0, 3))
    by_block = plan.width > BY_LANES
    header = "eigen_block.cuh" if by_block else "eigen.cuh"
    choices = f"{_TYPES[plan.compute]}, {plan.width}" + f", {THREADS}" * (not by_block)
    name = "eigenpairs" + "_by_block" * by_block
    return "\n".join(
        [
            f"// {plan}",
            f'#include "{header}"',
            f'extern "C" __global__ void __launch_bounds__({plan.threads}, {plan.resident})',
            f"{ENTRY}(const void* a, void* w, void* v, int* info, {numbers}) {{",
            f"    const km::EigenArguments g = {{a, w, v, info, count, order, {strides}}};",
            f"    km::{name}<{choices}>(g, {str(plan.vectors).lower()});",
            "}",
            "",
        ]
    )
