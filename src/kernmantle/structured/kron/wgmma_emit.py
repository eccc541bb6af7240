"""CUDA C++ of Kronecker passes by wgmma: what the template needs to know of a plan."""

from __future__ import annotations

from ...backends.cuda.traits import SCALARS, shared_check
from .cuda_entry import entry
from .mma_emit import product_entry
from .wgmma_plan import WgmmaPlan


def emit(plan: WgmmaPlan) -> str:
    """Return CUDA C++ of a pass; the same plan always gives the same text."""
    count = sum(len(part) for part in plan.run.parts)
    begins = [sum(map(len, plan.run.parts[:number])) for number in range(len(plan.run.parts))]
    text = [
        f"// {plan}",
        '#include "kron_fibers.cuh"\n#include "kron_wgmma.cuh"',
        "struct Body {",
        f"    typedef {SCALARS[plan.stored]} T;\n    typedef {SCALARS[plan.tensor.half]} H;",
        f"    typedef km::KronArguments<{count}> Args;",
        f"    static constexpr int SIZE = {plan.size}, STAGES = {plan.stages}, SETS = {plan.sets};",
        f"    static constexpr int LOADER_REGISTERS = {plan.loader_registers};",
        f"    static constexpr bool TWO = {str(plan.is_two).lower()}, PREFETCH = {str(plan.is_prefetched).lower()};",
        "    // Whether neighbouring rows of a factor lie beside each other, and one of its entries.",
        "    template <int NUMBER>",
        "    static __device__ __forceinline__ bool down(const Args& g) {",
    ]
    for number, (first, part) in enumerate(zip(begins, plan.run.parts, strict=True)):
        last = first + len(part) - 1
        text.append(
            f"        if constexpr (NUMBER == {number}) return g.factor_stride[{last}][0] < g.factor_stride[{last}][1];"
        )
    text += [
        "    }",
        "    template <int NUMBER>",
        "    static __device__ __forceinline__ float entry(const Args& g, int q, int p) {",
        "        typedef float C;",
    ]
    for number, (first, part) in enumerate(zip(begins, plan.run.parts, strict=True)):
        shapes = plan.shapes[first : first + len(part)]
        text.append(f"        if constexpr (NUMBER == {number}) return {product_entry(first, shapes)};")
    text += [
        "    }",
        "};",
        "typedef km::KronWgmma<Body, Body::Args> Kernel;",
        shared_check("Kernel::SHARED_BYTES", plan.shared),
        entry(count, plan.threads, plan.layout.added, False, "Kernel::run(g);"),
    ]
    return "\n".join(text) + "\n"
