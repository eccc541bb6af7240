"""CUDA C++ of the gradient of a Kronecker factor."""

from __future__ import annotations

from ...backends.cuda.traits import SCALARS, shared_check, struct
from .factor_gradient_plan import STAGES, GramPlan

ENTRY = "km_gram"


def emit(plan: GramPlan) -> str:
    """CUDA C++; the same plan always gives the same text."""
    tiles, down, across, along = plan.shape
    constants = {
        "Q": plan.rows, "P": plan.columns, "WARPS_Q": down, "WARPS_P": across, "WARPS_K": along, "TILES_P": tiles,
        "DEEP": plan.deep, "STAGES": STAGES, "VEC_V": plan.vec_v, "VEC_U": plan.vec_u, "ALONG": plan.along,
    }  # fmt: skip
    text = [
        f"// {plan}",
        '#include "kron_gram.cuh"',
        *struct("Body", {"T": SCALARS[plan.stored]}, constants),
        shared_check("km::KronGram<Body>::SHARED_BYTES", plan.shared),
        f'extern "C" __global__ void __launch_bounds__({plan.threads}, 2)',
        f"{ENTRY}(const void* v, const void* u, void* out, long long count, long long right) {{",
        "    km::KronGram<Body>::run((const Body::T*)v, (const Body::T*)u, (float*)out, count, right);",
        "}",
    ]
    return "\n".join(text) + "\n"
