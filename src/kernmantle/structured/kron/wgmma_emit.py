"""CUDA C++ of Kronecker passes by wgmma: what the template needs to know of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.cuda.traits import SCALARS, shared_check
from .cuda_entry import entry
from .mma_emit import product_entry
from .passes import Pass
from .wgmma_plan import WgmmaPlan


def emit(plan: WgmmaPlan) -> str:
    """Return CUDA C++ of a pass; the same plan always gives the same text."""
    count = sum(len(part) for part in plan.run.parts)
    text = [
        f"// {plan}",
        '#include "kron_fibers.cuh"\n#include "kron_wgmma.cuh"',
        "struct Body {",
        f"    typedef {SCALARS[plan.stored]} T;\n    typedef {SCALARS[plan.tensor.half]} H;",
        f"    typedef km::KronArguments<{count}> Args;",
        f"    static constexpr int SIZE = {plan.size}, STAGES = {plan.stages}, SETS = {plan.sets};",
        f"    static constexpr int LOADER_REGISTERS = {plan.loader_registers};",
        f"    static constexpr bool TWO = {str(plan.is_two).lower()}, PREFETCH = {str(plan.is_prefetched).lower()};",
        *factor_entries(plan.run, plan.shapes),
        "};",
        "typedef km::KronWgmma<Body, Body::Args> Kernel;",
        shared_check("Kernel::SHARED_BYTES", plan.shared),
        entry(count, plan.threads, plan.layout.added, False, "Kernel::run(g);"),
    ]
    return "\n".join(text) + "\n"


def factor_entries(run: Pass, shapes: Sequence[tuple[int, int]]) -> list[str]:
    """Return the functions of the factors of a pass: their entries, and which of these lie beside each other."""
    begins = [sum(map(len, run.parts[:number])) for number in range(len(run.parts))]
    down: list[str] = []
    entries: list[str] = []
    for number, (first, part) in enumerate(zip(begins, run.parts, strict=True)):
        last, chosen = first + len(part) - 1, f"        if constexpr (NUMBER == {number}) return"
        down.append(f"{chosen} g.factor_stride[{last}][0] < g.factor_stride[{last}][1];")
        entries.append(f"{chosen} {product_entry(first, shapes[first : first + len(part)])};")
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
