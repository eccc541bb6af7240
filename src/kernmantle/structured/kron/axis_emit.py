"""CUDA C++ of Kronecker passes over one factor of any size by wgmma."""

from __future__ import annotations

from ...backends.cuda.traits import SCALARS, members, shared_check
from .axis_plan import AxisPlan
from .cuda_entry import entry
from .mma_emit import product_entry


def emit(plan: AxisPlan) -> str:
    """Return CUDA C++ of a pass over one factor of any extents."""
    count = len(plan.run.parts[0])
    constants = {
        "ROWS": plan.mode.rows, "COLUMNS": plan.mode.columns, "VECTOR": plan.vector,
        "VECTOR_OUT": plan.layout.out_width, "BLOCKS": plan.blocks, "RIGHT": plan.packed, "SETS": plan.sets,
        "STAGES": plan.stages, "LOADER_REGISTERS": plan.loader_registers, "LAST": plan.is_last,
        "PREFETCH": plan.is_prefetched, "SCALED": plan.is_scaled,
    }  # fmt: skip
    types = {"T": SCALARS[plan.stored], "H": SCALARS[plan.tensor.half], "Args": f"km::KronArguments<{count}>"}
    text = [
        f"// {plan}",
        '#include "kron_fibers.cuh"\n#include "kron_axis.cuh"',
        "struct Body {",
        *members(types, constants),
        "    // Whether neighbouring rows of the factor lie beside each other, and one of its entries.",
        "    static __device__ __forceinline__ bool down(const Args& g) {",
        f"        return g.factor_stride[{count - 1}][0] < g.factor_stride[{count - 1}][1];",
        "    }",
        "    static __device__ __forceinline__ float entry(const Args& g, int q, int p) {",
        "        typedef float C;",
        f"        return {product_entry(0, plan.shapes)};",
        "    }",
        "};",
        "typedef km::KronWgmmaAxis<Body, Body::Args> Kernel;",
        shared_check("Kernel::SHARED_BYTES", plan.shared),
        entry(count, plan.threads, plan.layout.added, False, "Kernel::run(g);"),
    ]
    return "\n".join(text) + "\n"
