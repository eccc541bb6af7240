"""CUDA C++ of Kronecker passes by clusters: what the template needs to know of a plan."""

from __future__ import annotations

from .cluster_plan import CUBE, ClusterPlan
from .cuda_entry import emit_pass
from .wgmma_emit import factor_entries

# Registers of a thread that loads, of float32 and of halves.
LOADER_REGISTERS = {True: 72, False: 64}


def emit(plan: ClusterPlan) -> str:
    """Return CUDA C++ of a pass; the same plan always gives the same text."""
    constants: dict[str, int | bool] = {"PREFETCH": plan.is_prefetched}
    if plan.cluster > 1:
        constants["CLUSTER"] = plan.cluster
    if plan.size == CUBE:
        name, header = "KronCube", "kron_cube.cuh"
        constants["WARPS"] = plan.warps
    elif plan.stages:
        name, header = "KronClusterWgmma", "kron_cluster_wgmma.cuh"
        constants |= {"SIZE": plan.size, "STAGES": plan.stages, "SETS": 2, "TWO": True}
        constants["LOADER_REGISTERS"] = LOADER_REGISTERS[plan.stored == "f32"]
    else:
        name, header = "KronCluster", "kron_cluster.cuh"
        constants |= {"WARPS": plan.warps, "AT_ONCE": plan.at_once}
    entries = factor_entries(plan)
    return emit_pass(plan, header, name, constants, entries, blocks=plan.blocks, cluster=plan.cluster)
