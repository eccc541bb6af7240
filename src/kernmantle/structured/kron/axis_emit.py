"""CUDA C++ of Kronecker passes over one factor of any size by wgmma."""

from __future__ import annotations

from .axis_plan import AxisPlan
from .cuda_entry import emit_pass
from .mma_emit import product_entry


def emit(plan: AxisPlan) -> str:
    """Return CUDA C++ of a pass over one factor of any extents."""
    constants = {
        "ROWS": plan.mode.rows, "COLUMNS": plan.mode.columns, "VECTOR": plan.vector,
        "VECTOR_OUT": plan.layout.out_width, "BLOCKS": plan.blocks, "RIGHT": plan.packed, "SETS": plan.sets,
        "STAGES": plan.stages, "LOADER_REGISTERS": plan.loader_registers, "LAST": plan.is_last,
        "PREFETCH": plan.is_prefetched, "SCALED": plan.is_scaled,
    }  # fmt: skip
    functions = [
        "    // Whether neighbouring rows of the factor lie beside each other, and one of its entries.",
        "    static __device__ __forceinline__ bool down(const Args& g) {",
        f"        return g.factor_stride[{plan.factors - 1}][0] < g.factor_stride[{plan.factors - 1}][1];",
        "    }",
        "    static __device__ __forceinline__ float entry(const Args& g, int q, int p) {",
        "        typedef float C;",
        f"        return {product_entry(0, plan.shapes)};",
        "    }",
    ]
    return emit_pass(plan, "kron_axis.cuh", "KronWgmmaAxis", constants, functions)
