"""CUDA C++ text of plans of sums over the batch, which are the gradients of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...backends.cuda.traits import SCALARS, shared_check, struct
from .block_sum_plan import BlockSumPlan
from .column_sum_plan import ColumnSumPlan
from .cuda_emit import ENTRY
from .fma_sum_plan import FmaSumPlan
from .row_sum_plan import RowSumPlan
from .weight_gradient_plan import PartsPlan
from .wide_sum_plan import WideSumPlan

_Plan = RowSumPlan | ColumnSumPlan | BlockSumPlan | WideSumPlan
_SIZES = ("groups", "a", "b", "c", "d", "slots")


def _text(header: str, declared: list[str], *rest: str) -> str:
    return "\n".join([f'#include "{header}"\n', *declared, *rest])


def _emit(
    name: str, plan: _Plan | FmaSumPlan, traits: Mapping[str, int], blocks: int,
    arguments: str = "KronSparseSums", sizes: Sequence[str] = _SIZES,
) -> str:  # fmt: skip
    """Return the source of sums by a template, of which so many blocks share a multiprocessor."""
    kind, small = SCALARS[plan.dtype], name.lower()
    declared, cast = (", ".join(f"{word}{size}" for size in sizes) for word in ("km::i64 ", "(int)"))
    return _text(
        f"kronsparse_{small}_sums.cuh",
        struct("Traits", {"T": kind, "OUT": kind if plan.whole else "float"}, traits),
        f"typedef km::KronSparse{name}SumTile<Traits> Tile;",
        shared_check("Tile::SHARED_BYTES", plan.shared),
        f"""
extern "C" __global__ void __launch_bounds__(Tile::THREADS, {blocks}) {ENTRY}(
    const void* x, const void* grad, void* out, km::i64 count, {declared},
    km::i64 xg, km::i64 xs, km::i64 yg, km::i64 ys) {{
    const km::{arguments} arguments = {{x, grad, out, count, {cast}, xg, xs, yg, ys}};
    km::kron_sparse_{small}_sums<Tile>(arguments);
}}
""",
    )


def emit_tile_sum(plan: _Plan) -> str:
    """Return the source of the gradient of weights by tensor cores."""
    if isinstance(plan, WideSumPlan):
        return emit_wide_sum(plan)
    if isinstance(plan, BlockSumPlan):
        return emit_block_sum(plan)
    return emit_row_sum(plan) if isinstance(plan, RowSumPlan) else emit_column_sum(plan)


def emit_row_sum(plan: RowSumPlan) -> str:
    """Return the source of the gradient of weights over rows whose features lie together."""
    traits = {
        "FULL": plan.full, "WARP_L": plan.warp_l, "WARPS_L": plan.warps_l, "MMA_M": plan.m, "WARPS_J": plan.warps_j,
        "MMA_N": plan.n, "WARPS_K": plan.warps_k, "STEPS": plan.steps, "STAGES": plan.stages, "X_BYTES": plan.x_bytes,
        "Y_BYTES": plan.y_bytes, "SHIFTED": plan.shifted, "TILE_L": plan.extents[2], "WRITE_N": 1,
        "ALONE": plan.alone, "PRODUCTS": plan.products,
    }  # fmt: skip
    return _emit("Row", plan, traits, 1)


def emit_column_sum(plan: ColumnSumPlan) -> str:
    """Return the source of the gradient of weights over a batch that lies together."""
    traits = {
        "TILE_L": plan.deep, "WARPS_L": plan.warps_l, "MMA_M": plan.m, "WARPS_J": plan.warps_j, "MMA_N": plan.n,
        "WARPS_K": plan.warps_k, "PIECE": plan.piece, "STAGES": plan.stages, "SHIFTED": plan.shifted,
        "WRITE_N": plan.n, "ALONE": plan.alone, "PRODUCTS": plan.products,
    }  # fmt: skip
    return _emit("Column", plan, traits, plan.resident // plan.warps)


def emit_block_sum(plan: BlockSumPlan) -> str:
    """Return the source of the gradient of weights over transposed rows."""
    traits = {
        "TILE_L": plan.d, "WARP_L": plan.warp_l, "WARPS_L": plan.warps_l, "MMA_M": plan.m, "WARPS_J": plan.warps_j,
        "MMA_N": plan.n, "WARPS_K": plan.warps_k, "STEPS": plan.steps, "STAGES": plan.stages, "WRITE_N": 1, "ALONE": 0,
    }  # fmt: skip
    return _emit("Block", plan, traits, max(1, plan.resident // plan.warps))


def emit_wide_sum(plan: WideSumPlan) -> str:
    """Return the source of the gradient of weights of wide blocks by wgmma."""
    traits = {
        "FIRST": plan.first, "SHIFTED": plan.shifted, "GROUPS": plan.groups, "TILE_K": plan.positions,
        "STAGES": plan.stages, "EACH": plan.each, "PRODUCTS": plan.products,
    }  # fmt: skip
    return _emit("Wide", plan, traits, plan.each)


def emit_fma_sum(plan: FmaSumPlan) -> str:
    """Return the source of the gradient of weights by FMA instructions."""
    traits = dict(zip("ABCD", plan.pattern, strict=True)) | {
        "WIDE": plan.wide, "OWN_J": plan.own_j, "OWN_K": plan.own_k, "DEPTH": plan.depth, "COLUMNS": plan.columns,
        "SHARE": plan.share, "VECTOR": plan.vector, "ROWS": plan.rows, "FIRST": plan.first,
    }  # fmt: skip
    return _emit("Fma", plan, traits, plan.each, "KronSparseFmaSums", ("groups", "slots"))


def emit_parts(plan: PartsPlan) -> str:
    """Return the source that adds the parts of gradients of weights."""
    kind = SCALARS[plan.dtype]
    return _text(
        "kronsparse_add_parts.cuh",
        [],
        f"""
extern "C" __global__ void __launch_bounds__({plan.threads}) {ENTRY}(
    const float* parts, {kind}* out, km::i64 slots, km::i64 count) {{
    km::add_parts<{kind}, {plan.rows}, {plan.threads}>(parts, out, slots, count);
}}
""",
    )
