"""CUDA C++ of Kronecker passes by wgmma: what the template needs to know of a plan."""

from __future__ import annotations

from .cuda_entry import emit_pass
from .mma_emit import product_entry
from .tensor_plan import TensorPlan
from .wgmma_plan import WgmmaPlan


def emit(plan: WgmmaPlan) -> str:
    """Return CUDA C++ of a pass; the same plan always gives the same text."""
    constants = {
        "SIZE": plan.size, "STAGES": plan.stages, "SETS": plan.sets, "LOADER_REGISTERS": plan.loader_registers,
        "TWO": plan.is_two, "PREFETCH": plan.is_prefetched,
    }  # fmt: skip
    return emit_pass(plan, "kron_wgmma.cuh", "KronWgmma", constants, factor_entries(plan))


def factor_entries(plan: TensorPlan) -> list[str]:
    """Return the functions of the factors of a pass: their entries, and which of these lie beside each other."""
    down: list[str] = []
    entries: list[str] = []
    for part in range(len(plan.run.parts)):
        first, shapes = plan.members(part)
        last, chosen = first + len(shapes) - 1, f"        if constexpr (NUMBER == {part}) return"
        down.append(f"{chosen} g.factor_stride[{last}][0] < g.factor_stride[{last}][1];")
        entries.append(f"{chosen} {product_entry(first, shapes)};")
    return [
        "    // Whether neighbouring rows of a factor lie beside each other, and one of its entries.",
        "    template <int NUMBER>",
        "    static __device__ __forceinline__ bool down(const Args& g) {",
        *down,
        "    }",
        "    template <int NUMBER>",
        "    static __device__ __forceinline__ float entry(const Args& g, int q, int p) {",
        "        typedef float C;",
        *entries,
        "    }",
    ]
