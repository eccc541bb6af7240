"""CUDA C++ text of a Kronecker-sparse plan: one instantiation of the templates, and two entries."""

from __future__ import annotations

from ..contraction.kronsparse_few import FewPlan
from ..contraction.kronsparse_narrow import NarrowPlan
from ..contraction.kronsparse_pair import EDGE, PairPlan
from ..contraction.kronsparse_plan import ACTIVATIONS, KronSparsePlan
from ..contraction.kronsparse_sum import SumPlan

ENTRY, PREPARE = "kernmantle_kernel", "kernmantle_prepare"
PREPARE_THREADS, TURN_THREADS = 128, 256
_TYPES = {"f32": "float", "f16": "km::f16", "bf16": "km::bf16", "f64": "double"}
_SIZES = ("a", "b", "c", "d")
_PAIR_SIZES = ("p", "c", "rank", "inner", "b", "a", "d", "slice", "columns")
_FEW_NUMBERS = (
    *(f"{side}{step}_" for side in ("l", "r", "o") for step in range(6)), *(f"b{step}_" for step in range(5)),
    "p", "q", "n", "parts", *(f"size{axis}_" for axis in range(4)), *(f"inverse{axis}_" for axis in range(6)),
)  # fmt: skip
_FEW_PARTS = (0, 6), (6, 12), (12, 18), (18, 23), (23, 37)
_STRIDES = ("xg", "xn", "xf", "yg", "yn", "yf", "wg", "wi", "wj", "wk", "wl", "bg")


def emit(plan: KronSparsePlan) -> str:
    """Source of a plan."""
    tile = plan.tile
    flags = [plan.x_first, plan.y_first, plan.full]
    numbers = [tile.l, tile.sharers, tile.m, tile.columns, tile.chunk, tile.stages, tile.warps]
    last = [plan.x_bytes, plan.y_run, plan.products]
    parameters = [
        _TYPES[plan.dtype], *map(_flag, flags), *map(str, numbers), _flag(tile.resident), _flag(tile.grouped),
        *map(str, last),
        _flag(plan.bias), str(ACTIVATIONS.index(plan.activation)), _flag(tile.ahead), str(tile.sides),
    ]  # fmt: skip
    return f"""#include "kronsparse_prepare.cuh"

typedef km::KronSparseTile<{", ".join(parameters)}> Tile;

{_entry("Tile::THREADS, 1", "kron_sparse<Tile>")}
{_prepare()}"""


def emit_narrow(plan: NarrowPlan) -> str:
    """Source of a narrow plan."""
    parameters = [
        _TYPES[plan.dtype], "double" if plan.dtype == "f64" else "float", _flag(plan.first), str(plan.rows),
        str(plan.columns), str(plan.vector), _flag(plan.together), _flag(plan.bias),
        str(ACTIVATIONS.index(plan.activation)),
    ]  # fmt: skip
    return f"""#include "kronsparse_narrow.cuh"

typedef km::KronSparseNarrow<{", ".join(parameters)}> Plan;

{_entry(str(plan.threads), "kron_sparse_narrow<Plan>")}"""


def emit_pair(plan: PairPlan) -> str:
    """Source of two products as one."""
    layout = [_TYPES[plan.dtype], "true, false, true, 1, 1, 1", str(EDGE), str(EDGE), "2, 4, false, false, 4, 1"]
    flags = [plan.x_first, plan.y_first, plan.vector, plan.across, plan.bias]
    x_first, y_first, *rest, bias = map(_flag, flags)
    parameters = ["Tile", x_first, y_first, str(plan.m), str(plan.warps), *rest, str(plan.run), bias]
    sizes = ", ".join(f"km::i64 {name}" for name in _PAIR_SIZES)
    cast = ", ".join(f"(int){name}" for name in _PAIR_SIZES)
    return f"""#include "kronsparse_pair.cuh"

typedef km::KronSparseTile<{", ".join(layout)}, {plan.products}, false, 0> Tile;
typedef km::KronSparsePairTile<{", ".join(parameters)}, {ACTIVATIONS.index(plan.activation)}> Pair;

extern "C" __global__ void __launch_bounds__(Pair::THREADS) {ENTRY}(
    const void* x, const void* first, const void* second, const void* first_image, const void* second_image,
    const void* bias, const float* first_scale, const float* second_scale, void* y, km::i64 count,
    {sizes},
    km::i64 xn, km::i64 xf, km::i64 yn, km::i64 yf) {{
    const km::KronSparsePair given = {{x, first, second, first_image, second_image, bias, first_scale, second_scale, y,
                                      count, {cast}, xn, xf, yn, yf}};
    km::kron_sparse_pair<Pair>(given);
}}
{_prepare()}"""


def emit_few(plan: FewPlan) -> str:
    """Source of several small products, each with the numbers of ``_FEW_NUMBERS`` and its last block's place."""
    tiles, given, calls = "", "", ""
    for place, tile in enumerate(plan.tiles):
        parameters = [
            _TYPES[plan.dtype], str(plan.warps), str(tile.l), str(tile.m), str(tile.n), f"km::{tile.left}",
            f"km::{tile.right}", str(tile.deep), _flag(tile.packed), _flag(tile.bias),
            str(ACTIVATIONS.index(plan.activation) if tile.bias else 0), str(plan.products),
        ]  # fmt: skip
        call = (
            f"few_sum<{_TYPES[plan.dtype]}, {plan.warps}, {plan.rounds}, {_flag(tile.packed)}>"
            if tile.alone
            else f"few<Tile{place}>"
        )
        tiles += "" if tile.alone else f"typedef km::FewTile<{', '.join(parameters)}> Tile{place};\n"
        named = [f"{name}{place}" for name in _FEW_NUMBERS]
        given += (
            f"    const void* left{place}, const void* right{place}, void* out{place}, const void* bias{place},\n    "
        )
        given += ", ".join(f"km::i64 {name}" for name in (*named, f"blocks{place}")) + ",\n"
        left, right, out, bias, rest = (", ".join(named[begin:end]) for begin, end in _FEW_PARTS)
        job = f"{{left{place}, {left}}}, {{right{place}, {right}}}, out{place}, {out}, bias{place}, {bias}, {rest}"
        calls += f"""    if (block < blocks{place}) {{
        const km::FewJob job = {{{job}}};
        return km::{call}(job, block, shared);
    }}
    block -= (unsigned)blocks{place};
"""
    return f"""#include "kronsparse_few.cuh"

{tiles}
extern "C" __global__ void __launch_bounds__({plan.threads}, {plan.each}) {ENTRY}(
{given[:-2]}) {{
    extern __shared__ __align__(16) float shared[];
    km::ptx::griddepcontrol_launch_dependents();
    unsigned block = blockIdx.x;
{calls}}}
"""


def emit_sum(plan: SumPlan) -> str:
    """Source of the gradient of weights."""
    flags = _flag(plan.x_first), _flag(plan.y_first)
    parameters = [_TYPES[plan.dtype], *flags, str(plan.l), str(plan.products)]
    sizes = ", ".join(f"km::i64 {name}" for name in ("groups", *_SIZES, "slots"))
    cast = ", ".join(f"(int){name}" for name in ("groups", *_SIZES, "slots"))
    return f"""#include "kronsparse_sum.cuh"

typedef km::KronSparseSumTile<{", ".join(parameters)}> Tile;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, {plan.blocks_each}) {ENTRY}(
    const void* x, const void* grad, float* out, km::i64 count, {sizes},
    km::i64 xg, km::i64 xn, km::i64 xf, km::i64 yg, km::i64 yn, km::i64 yf) {{
    const km::KronSparseSum given = {{x, grad, out, count, {cast}, xg, xn, xf, yg, yn, yf}};
    km::kron_sparse_sum<Tile>(given);
}}
"""


def emit_turn(size: int, lanes: int) -> str:
    """Source of the pass that turns matrices of numbers of ``size`` bytes; so many ``lanes`` lie along a column."""
    names = ("count", "a", "high", "wide", "xn", "yn")
    sizes = ", ".join(f"km::i64 {name}" for name in names)
    return f"""#include "kronsparse_turn.cuh"

extern "C" __global__ void __launch_bounds__({TURN_THREADS}) {ENTRY}(
    const void* x, void* y, {sizes}) {{
    const km::KronSparseTurn given = {{x, y, count, (int)a, (int)high, (int)wide, xn, yn}};
    km::kron_sparse_turn<{size}, {lanes}>(given);
}}
"""


def _prepare() -> str:
    """The kernel that brings weights into the order of a tile."""
    own = ", ".join(f"km::i64 {name}" for name in ("groups", *_SIZES))
    cast = ", ".join(f"(int){name}" for name in ("groups", *_SIZES))
    return f"""extern "C" __global__ void __launch_bounds__({PREPARE_THREADS}) {PREPARE}(
    const void* weight, void* image, float* scale, {own},
    km::i64 wg, km::i64 wi, km::i64 wj, km::i64 wk, km::i64 wl) {{
    const km::KronSparseWeights given = {{weight, image, scale, {cast}, wg, wi, wj, wk, wl}};
    km::kron_sparse_prepare<Tile>(given);
}}
"""


def _entry(bounds: str, call: str) -> str:
    """The kernel, which every plan is launched with the same arguments of."""
    strides = ", ".join(f"km::i64 {name}" for name in _STRIDES)
    sizes = ", ".join(f"km::i64 {name}" for name in (*_SIZES, "tiles", "slots"))
    cast = ", ".join(f"(int){name}" for name in (*_SIZES, "tiles", "slots"))
    return f"""extern "C" __global__ void __launch_bounds__({bounds}) {ENTRY}(
    const void* x, const void* weight, const void* image, const void* bias, const float* scale, void* y, km::i64 count,
    {sizes},
    {strides}) {{
    const km::KronSparse given = {{x, weight, image, bias, scale, y, count, {cast},
                                  xg, xn, xf, yg, yn, yf, wg, wi, wj, wk, wl, bg}};
    km::{call}(given);
}}
"""


def _flag(value: bool) -> str:
    return str(value).lower()
