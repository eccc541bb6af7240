"""CUDA C++ of Kronecker passes over the last two axes."""

from __future__ import annotations

from .mma_emit import product_entry
from .tensor_emit import emit_pass
from .two_axis_plan import TwoAxisPlan


def emit(plan: TwoAxisPlan) -> str:
    """Return CUDA C++ of a pass over two axes whose first product stays in registers."""
    constants = {
        "THREADS": plan.threads, "WARPS": plan.warps, "GROUP": plan.group, "STAGES": plan.stages, "ITEMS": plan.items,
        "BLOCKS": plan.blocks, "TOGETHER": plan.together, "AT_ONCE": plan.at_once, "VECTOR": plan.vector,
        "VECTOR_OUT": plan.layout.out_width, "PITCH": plan.pitch, "STAGE": plan.stage, "OUT_STAGE": plan.out_stage,
        "OUTS": plan.outs, "LAST_STAYS": plan.stays[0], "FIRST_STAYS": plan.stays[1],
        "FITS": plan.tensor.half != "f16" or len(plan.run.parts[1]) == 1,
    }  # fmt: skip
    products = plan.tensor.products
    types = {
        "C": "float",
        "First": f"km::KronFactor<false, {plan.first.rows}, {plan.first.columns}, {products}, true>",
        "Last": f"km::KronFactor<true, {plan.last.rows}, {plan.last.columns}, {products}, true>",
    }  # fmt: skip
    measured: list[str] = []
    scaled: list[str] = []
    for number, (name, axis) in enumerate((("Last", 1), ("First", 0))):
        first, shapes = plan.members(axis)
        fits = str(plan.stored == plan.tensor.half and len(shapes) == 1).lower()
        value = f"            [&](int q, int p) {{ return {product_entry(first, shapes)}; }});"
        own = first + len(shapes) - 1
        down = f"g.factor_stride[{own}][0] < g.factor_stride[{own}][1]"
        measured += [f"        {name}::measure<Body, {fits}>(tops + {number} * WARPS, {down},", value]
        scaled += [
            f"        {name}::prepare<Body, {fits}>({name.lower()}, backs + {number}, tops + {number} * WARPS,",
            value,
        ]
    functions = [
        "    static __device__ __forceinline__ void prepare(unsigned* last, unsigned* first, float* backs,",
        "            float* tops, const Args& g) {",
        *measured,
        "        __syncthreads();",
        *scaled,
        "    }",
    ]
    return emit_pass(plan, "kron_two_axis.cuh", "KronTwoAxis", constants, functions, types)
