"""CUDA C++ text of Kronecker-sparse plans: the parameters of the templates, each by its name, and their entries."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.cuda.tiles import CARDS
from ...backends.cuda.traits import SCALARS, shared_check, struct
from .activation_plan import ActivationPlan
from .cluster_plan import CLUSTER, ClusterPlan
from .dense_plan import DensePlan
from .factor_matrix_plan import CLUSTER as MATRIX_CLUSTER
from .factor_matrix_plan import THREADS as MATRIX_THREADS
from .factor_matrix_plan import FactorMatrix, MatrixGradientPlan, MatrixPlan
from .fma_plan import THREADS as FMA_THREADS
from .fma_plan import FmaPlan, OutputsPlan
from .grouped_plan import GroupedPlan, GroupedTile
from .narrow_plan import NarrowPlan
from .plan import ACTIVATIONS, KronSparsePlan
from .stream_mma_plan import StreamMmaPlan
from .stream_plan import StreamPlan
from .transpose_plan import TransposePlan, TransposeSumsPlan

ENTRY, PREPARE, PREPARE_NEIGHBOURS = "kernmantle_kernel", "kernmantle_prepare", "kernmantle_prepare_neighbours"
PREPARE_THREADS = 128
_SIZES = ("a", "b", "c", "d")
_GROUPED_NUMBERS = (
    *(f"{side}{step}_" for side in ("l", "r", "o") for step in range(6)), *(f"b{step}_" for step in range(5)),
    "p", "q", "n", "parts", *(f"size{axis}_" for axis in range(4)), *(f"inverse{axis}_" for axis in range(6)),
)  # fmt: skip
_GROUPED_PARTS = (0, 6), (6, 12), (12, 18), (18, 23), (23, 37)
_STRIDES = ("xg", "xn", "xf", "yg", "yn", "yf", "wg", "wi", "wj", "wk", "wl", "bg")


def _text(*parts: list[str] | str) -> str:
    return "\n".join(text for part in parts for text in ([part] if isinstance(part, str) else part))


def emit(plan: KronSparsePlan, neighbours: bool = False) -> str:
    """Return the source of a plan; ``neighbours``: weights that lie together are rearranged at the same time."""
    tile = plan.tile
    traits = {
        "WARP_L": tile.l, "WARPS_L": tile.sharers, "MMA_M": tile.m, "TILE_N": tile.columns, "WARPS_N": tile.sides,
        "TILE_K": tile.chunk, "STAGES": tile.stages, "WARPS": tile.warps, "X_BYTES": plan.x_bytes,
        "Y_RUN": plan.y_run, "PRODUCTS": plan.products, "ACTIVATION": ACTIVATIONS.index(plan.activation),
        "X_FIRST": plan.x_first, "Y_FIRST": plan.y_first, "FULL": plan.full, "RESIDENT": tile.resident,
        "GROUPED": tile.grouped, "AHEAD": tile.ahead, "BIAS": plan.bias,
    }  # fmt: skip
    return _text(
        '#include "kronsparse_pack.cuh"\n',
        struct("Traits", {"T": SCALARS[plan.dtype]}, traits),
        "typedef km::KronSparseTile<Traits> Tile;",
        shared_check(f"Tile::shared_bytes({tile.stages})", plan.shared_bytes(tile.stages)),
        "",
        _entry(f"Tile::THREADS, {tile.each}", "kron_sparse<Tile>"),
        _prepare(neighbours),
    )


def emit_narrow(plan: NarrowPlan) -> str:
    """Return the source of a narrow plan."""
    types = {"T": SCALARS[plan.dtype], "C": "double" if plan.dtype == "f64" else "float"}
    traits = {
        "ROWS": plan.rows, "COLUMNS": plan.columns, "VECTOR": plan.vector,
        "ACTIVATION": ACTIVATIONS.index(plan.activation), "FIRST": plan.first, "TOGETHER": plan.together,
        "BIAS": plan.bias,
    }  # fmt: skip
    return _text(
        '#include "kronsparse_narrow.cuh"\n',
        struct("Plan", types, traits),
        "",
        _entry(str(plan.threads), "kron_sparse_narrow<Plan>"),
    )


def emit_fma(plan: FmaPlan | OutputsPlan) -> str:
    """Return the source of a product by FMA instructions."""
    own: dict[str, int | bool] = {
        "D": plan.d, "WIDE": plan.wide, "ROWS": plan.rows, "VECTOR": plan.vector,
        "ACTIVATION": ACTIVATIONS.index(plan.activation), "BIAS": plan.bias,
    }  # fmt: skip
    if isinstance(plan, FmaPlan):
        header, call, bounds = "kronsparse_fma", "kron_sparse_fma", f"{FMA_THREADS}, {plan.each}"
        own |= {"OUTPUTS": plan.outputs, "STEPS": plan.steps, "FIRST": plan.first}
    else:
        header, bounds = "kronsparse_outputs", str(FMA_THREADS)
        call = "kron_sparse_outputs" if plan.first else "kron_sparse_outputs_last"
        own |= {"C": plan.c, "COLUMNS": plan.columns}
    return _text(
        f'#include "{header}.cuh"\n',
        struct("Plan", {"T": SCALARS[plan.dtype]}, own),
        "",
        _entry(bounds, f"{call}<Plan>"),
    )


def emit_stream(plan: StreamPlan) -> str:
    """Return the source of a product that reads the weights where they lie."""
    traits = _pattern(plan.pattern) | {
        "ROWS": plan.rows, "OWN": plan.own, "STEPS": plan.steps, "COLUMNS": plan.columns, "DEPTH": plan.depth,
        "X_ROW": plan.x_row, "ACTIVATION": ACTIVATIONS.index(plan.activation), "ALONG": plan.along, "BIAS": plan.bias,
        "LAST": plan.last, "THREADS": plan.threads, "VECTOR": plan.vector,
    }  # fmt: skip
    return _text(
        '#include "kronsparse_stream.cuh"\n',
        struct("Plan", {"T": SCALARS[plan.dtype]}, traits),
        "",
        _entry(f"{plan.threads}, {plan.each}", "kron_sparse_stream<Plan>"),
    )


def emit_stream_mma(plan: StreamMmaPlan) -> str:
    """Return the source of a product by tensor cores that reads the weights where they lie."""
    traits = _pattern(plan.pattern) | {
        "TILE_L": plan.tile_l, "WARP_L": plan.warp_l, "WARPS_L": plan.warps_l, "WARPS_J": plan.warps_j,
        "MMA_M": plan.m, "MMA_N": plan.n, "STAGES": plan.stages, "CLUSTER": plan.cluster, "ORDER": plan.order,
        "W_SKEW": plan.w_skew, "X_SKEW": plan.x_skew, "ACTIVATION": ACTIVATIONS.index(plan.activation),
        "BULK": plan.bulk, "ALONG": plan.along, "LAST": plan.last, "BIAS": plan.bias,
    }  # fmt: skip
    clusters = f" __cluster_dims__({plan.cluster})" if plan.cluster > 1 else ""
    return _text(
        '#include "kronsparse_stream_mma.cuh"\n',
        struct("Traits", {"T": SCALARS[plan.dtype]}, traits),
        "typedef km::KronSparseStreamMmaTile<Traits> Tile;",
        shared_check("Tile::SHARED_BYTES", plan.shared),
        "",
        _entry(f"Tile::THREADS, {plan.each(CARDS[plan.arch])}", "kron_sparse_stream_mma<Tile>", clusters),
    )


def _pattern(pattern: Sequence[int]) -> dict[str, int | bool]:
    return dict(zip("ABCD", pattern, strict=True))


def emit_cluster(plan: ClusterPlan) -> str:
    """Return the source of two factors for a few rows, in clusters of blocks."""
    (_, high, wide, _), (a, b, c, d) = plan.first, plan.second
    traits = {
        "B1": high, "C1": wide, "B2": b, "C2": c, "D2": d, "ROWS": plan.rows, "SPLIT": plan.split,
        "ACTIVATION": ACTIVATIONS.index(plan.activation), "BIAS": plan.bias,
    }  # fmt: skip
    if plan.mma:
        parts = {"FIRST": plan.part != "second", "SECOND": plan.part != "first"}
        traits |= {"A2": a, "WARPS": plan.warps, "BLOCKS": plan.ranks, **parts}
    header, name = ("chain_mma", "KronSparseChainMma") if plan.mma else ("chain", "KronSparseChainTile")
    bounds = f"{plan.threads}, {2 if plan.part else 1}" if plan.mma else plan.threads
    clusters = "" if plan.part else f" __cluster_dims__({CLUSTER})"
    return _text(
        f'#include "kronsparse_{header}.cuh"\n',
        struct("Plan", {"T": SCALARS[plan.dtype]}, traits),
        shared_check(f"km::{name}<Plan>::SHARED_BYTES", plan.shared),
        f"""
extern "C" __global__ void __launch_bounds__({bounds}){clusters} {ENTRY}(
    const void* x, const void* first, const void* second, const void* bias, void* y, km::i64 count, km::i64 xn,
    km::i64 yn, km::i64 is_made) {{
    const km::KronSparseChain arguments = {{x, first, second, bias, y, count, xn, yn, is_made}};
    km::kron_sparse_{header}<Plan>(arguments);
}}
""",
    )


def _factor_matrix(own: FactorMatrix) -> dict[str, int | bool]:
    return {"B": own.b, "BLOCKS": own.blocks, "RANK": own.rank, "L": own.l, "DEPTH": own.depth}


def emit_matrix(plan: MatrixPlan) -> str:
    """Return the source of the matrix of two factors."""
    return _text(
        '#include "kronsparse_factor_matrix.cuh"\n',
        struct("Plan", {"T": SCALARS[plan.dtype]}, _factor_matrix(plan.matrix)),
        [shared_check("km::KronSparseFactorMatrix<Plan>::SHARED_BYTES", plan.shared)],
        f"""
extern "C" __global__ void __launch_bounds__({MATRIX_THREADS}) {ENTRY}(
    const void* first, const void* second, void* matrix) {{
    km::kron_sparse_factor_matrix<Plan>(first, second, matrix);
}}
""",
    )


def emit_matrix_gradient(plan: MatrixGradientPlan) -> str:
    """Return the source of the gradients of two factors from that of their matrix."""
    asked: dict[str, int | bool] = {
        "STAGES": plan.stages, "FIRST": plan.first, "SECOND": plan.second, "SUMS": plan.sums,
    }  # fmt: skip
    return _text(
        '#include "kronsparse_factor_matrix_gradient.cuh"\n',
        struct("Plan", {"T": SCALARS[plan.dtype]}, _factor_matrix(plan.matrix) | asked),
        [shared_check("km::KronSparseFactorMatrixGradient<Plan>::SHARED_BYTES", plan.shared)],
        f"""
extern "C" __global__ void __launch_bounds__({MATRIX_THREADS}, {plan.each}) __cluster_dims__({MATRIX_CLUSTER}) {ENTRY}(
    const void* first, const void* second, const void* matrix, void* of_first, void* of_second, const void* summed,
    void* sums, km::i64 count, km::i64 apart) {{
    const km::FactorMatrixGradientArguments arguments = {{
        first, second, matrix, of_first, of_second, summed, sums, count, apart}};
    km::kron_sparse_factor_matrix_gradient<Plan>(arguments);
}}
""",
    )


def _grouped_tile(plan: GroupedPlan, tile: GroupedTile, index: int) -> tuple[list[str], str]:
    """Return the tile of one of several products, and the function that computes it."""
    if tile.alone:
        own = f"{SCALARS[plan.dtype]}, {plan.warps}, {plan.rounds}, {str(tile.packed).lower()}"
        return [], f"grouped_sum<{own}>"
    traits = {
        "WARPS": plan.warps, "WARP_L": tile.l, "MMA_M": tile.m, "MMA_N": tile.n, "LEFT": f"km::{tile.left}",
        "RIGHT": f"km::{tile.right}", "DEEP": tile.deep, "PRODUCTS": plan.products,
        "ACTIVATION": ACTIVATIONS.index(plan.activation if index == len(plan.tiles) - 1 else ""),
        "PACKED": tile.packed, "BIAS": tile.bias,
    }  # fmt: skip
    declaration = struct(f"Traits{index}", {"T": SCALARS[plan.dtype]}, traits)
    return [*declaration, f"typedef km::GroupedTile<Traits{index}> Tile{index};"], f"grouped_product<Tile{index}>"


def emit_grouped(plan: GroupedPlan) -> str:
    """Return the source of several small products, each with the numbers of ``_GROUPED_NUMBERS`` and its blocks.

    Those of a level wait for the blocks of the levels before it.
    """
    tiles: list[str] = []
    parameters, calls, before = list[str](), "", dict[int, str]()
    for level in range(1, len(plan.levels)):
        first = sum(plan.levels[:level])
        before |= dict.fromkeys(range(first, first + plan.levels[level]), _blocks(first))
    for index, tile in enumerate(plan.tiles):
        traits, call = _grouped_tile(plan, tile, index)
        tiles += traits
        used = (
            f"km::grouped_sum_shared_bytes<{SCALARS[plan.dtype]}, {plan.warps}>()"
            if tile.alone
            else f"Tile{index}::SHARED_BYTES"
        )
        tiles.append(f'static_assert({used} <= {plan.shared}, "bytes of shared memory exceed the plan");')
        named = [f"{name}{index}" for name in _GROUPED_NUMBERS]
        numbers = ", ".join(f"km::i64 {name}" for name in (*named, f"blocks{index}"))
        operands = f"const void* left{index}, const void* right{index}, void* out{index}, const void* bias{index}"
        parameters.append(f"    {operands},\n    {numbers}")
        left, right, out, bias, rest = (", ".join(named[begin:end]) for begin, end in _GROUPED_PARTS)
        job = f"{{left{index}, {left}}}, {{right{index}, {right}}}, out{index}, {out}, bias{index}, {bias}, {rest}"
        ready = f"        km::wait_for_blocks(arrived, {before[index]});\n" if index in before else ""
        done = f"km::{call}(product, block, shared);\n        return km::arrive_block(arrived);"
        calls += f"""    if (block < blocks{index}) {{
{ready}        const km::GroupedProduct product = {{{job}}};
        {done if plan.levels else f"return km::{call}(product, block, shared);"}
    }}
    block -= (unsigned)blocks{index};
"""
    parameters += ["    unsigned* arrived"] * bool(plan.levels)
    declared = ",\n".join(parameters)
    return _text(
        '#include "kronsparse_grouped.cuh"',
        '#include "ptx_grid.cuh"\n' if plan.levels else "",
        tiles,
        f"""
extern "C" __global__ void __launch_bounds__({plan.threads}, {plan.each}) {ENTRY}(
{declared}) {{
    extern __shared__ __align__(16) float shared[];
    km::ptx::griddepcontrol_launch_dependents();
    unsigned block = blockIdx.x;
{calls}}}
""",
    )


def _blocks(products: int) -> str:
    """Return the expression for the blocks of so many products."""
    return "(unsigned)(" + " + ".join(f"blocks{index}" for index in range(products)) + ")"


def emit_dense(plan: DensePlan) -> str:
    """Return the source that makes the dense matrix of weights."""
    strides = ", ".join(f"km::i64 w{name}" for name in "ijkl")
    return _text(
        '#include "kronsparse_dense.cuh"\n',
        f"""
extern "C" __global__ void __launch_bounds__({plan.threads}) {ENTRY}(
    const void* weight, void* out, {", ".join(f"km::i64 {name}" for name in _SIZES)}, {strides}) {{
    const km::KronSparseDense arguments = {{weight, out, (int)a, (int)b, (int)c, (int)d, wi, wj, wk, wl}};
    km::kron_sparse_dense<km::Word<{plan.size}>::type, {str(plan.whole).lower()}>(arguments);
}}
""",
    )


def emit_activation(plan: ActivationPlan) -> str:
    """Return the source of an activation, or of a gradient times its slope."""
    grad = ("const void* grad, ", "grad") if plan.slope else ("", "nullptr")
    kind = f"{SCALARS[plan.dtype]}, {ACTIVATIONS.index(plan.activation)}, {str(plan.slope).lower()}"
    return _text(
        '#include "kronsparse_activation.cuh"\n',
        f"""
extern "C" __global__ void __launch_bounds__({plan.threads}) {ENTRY}(
    const void* value, {grad[0]}void* out, km::i64 vectors) {{
    km::kron_sparse_activation<{kind}>(value, {grad[1]}, out, vectors);
}}
""",
    )


def emit_transpose(plan: TransposePlan) -> str:
    """Source of a pass that brings the entries of blocks together and pads them, or takes them apart again."""
    kind = f", {SCALARS[plan.bias]}" if plan.bias else ""
    call, declared = f"kron_sparse_transpose_squares<{plan.size}, {plan.lanes}{kind}>", list[str]()
    parameter, argument = (", const void* bias", ", bias") if plan.bias else ("", "")
    if not plan.lanes:
        types = {"T": "unsigned" if plan.size == 4 else "unsigned short"}
        traits = {
            "L": plan.l, "TILE_L": plan.tile_l, "TILE_K": plan.tile_k, "UNITS": plan.units, "HIGH": plan.high,
            "LANES_L": plan.lanes_l, "WARPS": plan.warps, "PADS": plan.pads,
        }  # fmt: skip
        check = shared_check("km::KronSparseTransposer<Traits>::SHARED_BYTES", plan.shared)
        call, declared = f"kron_sparse_transpose<Traits{kind}>", [*struct("Traits", types, traits), check]
    sizes = ", ".join(f"km::i64 {name}" for name in ("count", "a", "high", "pitch", "xn", "yn"))
    return _text(
        '#include "kronsparse_transpose.cuh"\n',
        declared,
        f"""
extern "C" __global__ void __launch_bounds__({plan.threads}) {ENTRY}(
    const void* x, void* y, {sizes}{parameter}) {{
    const km::KronSparseTranspose arguments = {{x, y, count, (int)a, (int)high, (int)pitch, xn, yn}};
    km::{call}(arguments{argument});
}}
""",
    )


def emit_transpose_sums(plan: TransposeSumsPlan) -> str:
    """Source of a pass that brings the entries of blocks together and sums the rows."""
    sizes = ", ".join(f"km::i64 {name}" for name in ("count", "a", "high", "pitch", "xn", "yn"))
    traits = {"DOWN": plan.lanes, "WARPS": plan.warps, "TILES": plan.tiles}
    return _text(
        '#include "kronsparse_transpose_sums.cuh"\n',
        struct("Traits", {"T": SCALARS[plan.dtype]}, traits),
        "typedef km::KronSparseTransposeSums<Traits> Pass;",
        shared_check("Pass::SHARED_BYTES", plan.shared),
        f"""
extern "C" __global__ void __launch_bounds__({plan.threads}) {ENTRY}(const void* x, void* y, float* sums, {sizes}) {{
    Pass::run({{x, y, count, (int)a, (int)high, (int)pitch, xn, yn}}, sums);
}}
""",
    )


def _prepare(neighbours: bool) -> str:
    """Return the kernel that brings weights into the order of a tile."""
    sizes = ("groups", *_SIZES)
    own, cast = (", ".join(f"{kind}{name}" for name in sizes) for kind in ("km::i64 ", "(int)"))
    name, call, more, sharing = PREPARE, "kron_sparse_pack", "", ""
    if neighbours:
        name, call, more, sharing = PREPARE_NEIGHBOURS, f"{call}_neighbours", ", km::i64 sharing", ", (int)sharing"
    return f"""extern "C" __global__ void __launch_bounds__({PREPARE_THREADS}) {name}(
    const void* weight, void* packed, float* scale, {own},
    km::i64 wg, km::i64 wi, km::i64 wj, km::i64 wk, km::i64 wl{more}) {{
    const km::KronSparseWeights arguments = {{weight, packed, scale, {cast}, wg, wi, wj, wk, wl}};
    km::{call}<Tile>(arguments{sharing});
}}
"""


def _entry(bounds: str, call: str, clusters: str = "") -> str:
    """Return the kernel, which every plan is launched with the same arguments of."""
    strides = ", ".join(f"km::i64 {name}" for name in _STRIDES)
    sizes = ", ".join(f"km::i64 {name}" for name in (*_SIZES, "tiles", "slots"))
    cast = ", ".join(f"(int){name}" for name in (*_SIZES, "tiles", "slots"))
    return f"""extern "C" __global__ void __launch_bounds__({bounds}){clusters} {ENTRY}(
    const void* x, const void* weight, const void* packed, const void* bias, const float* scale, void* y, km::i64 count,
    {sizes},
    {strides}) {{
    const km::KronSparse arguments = {{x, weight, packed, bias, scale, y, count, {cast},
                                  xg, xn, xf, yg, yn, yf, wg, wi, wj, wk, wl, bg}};
    km::{call}(arguments);
}}
"""
