"""CUDA C++ of Kronecker passes by classes of templates: what these need to know of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...backends.cuda.traits import SCALARS, members, shared_check
from .axis_plan import AxisPlan
from .cluster_plan import CUBE, ClusterPlan
from .cuda_entry import entry
from .mma_emit import largest_entries, product_entry
from .tensor_plan import TensorPlan
from .two_axis_plan import TwoAxisPlan
from .wgmma_plan import WgmmaPlan
from .wide_plan import WidePlan, wide_part

# Registers of a thread that loads, of float32 and of halves.
_LOADER_REGISTERS = {True: 72, False: 64}


def emit_pass(
    plan: TensorPlan, header: str, template: str, constants: Mapping[str, int | bool], functions: Sequence[str],
    types: Mapping[str, str] | None = None, blocks: int = 1, cluster: int = 0,
) -> str:  # fmt: skip
    """Return CUDA C++ of a pass by a class of a template: what it needs to know of the plan, and the kernel."""
    own = {
        "T": SCALARS[plan.stored], "H": SCALARS[plan.tensor.half], "Args": f"km::KronArguments<{plan.factors}>",
    }  # fmt: skip
    text = [
        f"// {plan}",
        f'#include "kron_fibers.cuh"\n#include "{header}"',
        "struct Body {",
        *members({**own, **(types or {})}, constants),
        *functions,
        "};",
        f"typedef km::{template}<Body, Body::Args> Kernel;",
        shared_check("Kernel::SHARED_BYTES", plan.shared),
        entry(plan.factors, plan.threads, plan.layout.added, False, "Kernel::run(g);", blocks, cluster),
    ]
    return "\n".join(text) + "\n"


def _factor_entries(plan: TensorPlan) -> list[str]:
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


def emit_wgmma(plan: WgmmaPlan) -> str:
    """Return CUDA C++ of a pass over the last two factors by wgmma."""
    constants = {
        "SIZE": plan.size, "STAGES": plan.stages, "SETS": plan.sets, "LOADER_REGISTERS": plan.loader_registers,
        "PREFETCH": plan.is_prefetched,
    }  # fmt: skip
    return emit_pass(plan, "kron_wgmma.cuh", "KronWgmma", constants, _factor_entries(plan))


def _one_factor(plan: AxisPlan | WidePlan) -> list[str]:
    """Return the functions of the first factor of a pass: which entries lie beside each other, and one of them."""
    first, shapes = plan.members(wide_part(plan.run) if isinstance(plan, WidePlan) else 0)
    last = first + len(shapes) - 1
    return [
        "    // Whether neighbouring rows of the factor lie beside each other, and one of its entries.",
        "    static __device__ __forceinline__ bool down(const Args& g) {",
        f"        return g.factor_stride[{last}][0] < g.factor_stride[{last}][1];",
        "    }",
        "    static __device__ __forceinline__ float entry(const Args& g, int q, int p) {",
        "        typedef float C;",
        f"        return {product_entry(first, shapes)};",
        "    }",
    ]


def emit_axis(plan: AxisPlan) -> str:
    """Return CUDA C++ of a pass over one factor of any extents by wgmma."""
    constants = {
        "ROWS": plan.mode.rows, "COLUMNS": plan.mode.columns, "VECTOR": plan.vector,
        "VECTOR_OUT": plan.layout.out_width, "BLOCKS": plan.blocks, "RIGHT": plan.packed, "SETS": plan.sets,
        "STAGES": plan.stages, "LOADER_REGISTERS": plan.loader_registers, "PREFETCH": plan.is_prefetched,
        "SCALED": plan.is_scaled, "COPIES": plan.copies,
    }  # fmt: skip
    functions = _one_factor(plan)
    return emit_pass(plan, "kron_axis.cuh", "KronWgmmaAxis", constants, functions)


def emit_wide(plan: WidePlan) -> str:
    """Return CUDA C++ of a pass over one wide factor by wgmma whose operand in shared memory it is."""
    constants = {
        "ROWS": plan.mode.rows, "COLUMNS": plan.mode.columns, "SHARING": plan.sharing, "WIDE": plan.wide,
        "GROUPS": plan.teams, "STAGES": max(1, plan.ahead), "ITEMS": plan.items, "SPAN": plan.span,
        "APART": plan.apart, "OUT_RUN": plan.out_run, "STAGE": plan.stage, "OUT": plan.out, "DENSE": plan.is_dense,
        "MERGES": plan.merges, "OVERLAYS": plan.ahead == 0,
        "SPREAD": plan.spread, "SCALED": plan.is_scaled, "LEFT": plan.is_left, "SMALL": plan.has_small,
    }  # fmt: skip
    functions = _one_factor(plan)
    if plan.has_small:
        functions += [
            "    static __device__ __forceinline__ float small(const Args& g, int q, int p) {",
            "        typedef float C;",
            f"        return {product_entry(*plan.members(1 - wide_part(plan.run)))};",
            "    }",
        ]
    return emit_pass(plan, "kron_wide.cuh", "KronWide", constants, functions)


def emit_two_axes(plan: TwoAxisPlan) -> str:
    """Return CUDA C++ of a pass over two axes whose first product stays in registers."""
    constants = {
        "THREADS": plan.threads, "WARPS": plan.warps, "GROUP": plan.group, "STAGES": plan.stages, "ITEMS": plan.items,
        "BLOCKS": plan.blocks, "TOGETHER": plan.together, "AT_ONCE": plan.at_once, "VECTOR": plan.vector,
        "VECTOR_OUT": plan.layout.out_width, "PITCH": plan.pitch, "STAGE": plan.stage, "OUT_STAGE": plan.out_stage,
        "OUTS": plan.outs, "SAVES": plan.run.saves, "VECTOR_SAVED": plan.saved_width, "SAVED_STAGE": plan.saved_stage,
        "LAST_STAYS": plan.stays[0], "FIRST_STAYS": plan.stays[1],
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
        measured += largest_entries(plan, f"tops + {number} * WARPS", first, shapes)
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


def emit_clusters(plan: ClusterPlan) -> str:
    """Return CUDA C++ of a pass over whole rows by a block or a cluster."""
    constants: dict[str, int | bool] = {"PREFETCH": plan.is_prefetched}
    if plan.cluster > 1:
        constants["CLUSTER"] = plan.cluster
    if plan.size == CUBE:
        name, header = "KronCube", "kron_cube.cuh"
        constants["WARPS"] = plan.warps
    elif plan.stages:
        name, header = "KronClusterWgmma", "kron_cluster_wgmma.cuh"
        constants |= {"SIZE": plan.size, "STAGES": plan.stages, "SETS": 2}
        constants["LOADER_REGISTERS"] = _LOADER_REGISTERS[plan.stored == "f32"]
    else:
        name, header = "KronCluster", "kron_cluster.cuh"
        constants |= {"WARPS": plan.warps, "AT_ONCE": plan.at_once}
    entries = _factor_entries(plan)
    return emit_pass(plan, header, name, constants, entries, blocks=plan.blocks, cluster=plan.cluster)
