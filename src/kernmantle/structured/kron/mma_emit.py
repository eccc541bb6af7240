"""CUDA C++ of Kronecker passes on tensor cores: the phases and the offsets of their fibers around the templates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...backends.cuda.traits import SCALARS, shared_check
from .cuda_entry import entry
from .mma_plan import LANES, MmaPhase, MmaPlan
from .tensor_plan import TensorPlan


def _function(name: str, phase: MmaPhase, weights: Mapping[int, int], modulo: int = 0) -> str:
    """A function of a fiber's number: the sum of its digits, modulo a number if one is given, times their weights."""
    terms: list[str] = []
    inner = 1
    for index, (axis, extent) in enumerate(phase.digits):
        digit = "line" if inner == 1 else f"line / {inner}"
        if index + 1 < len(phase.digits):
            digit += f" % {extent}"
        if modulo:
            digit += f" % {modulo}"
        if weights.get(axis, 0) and extent > 1:
            terms.append(digit if weights[axis] == 1 else f"{digit} * {weights[axis]}")
        inner *= extent
    body = " + ".join(terms) or "0"
    return f"    static __device__ __forceinline__ int {name}(int line) {{ return {body}; }}"


def _phase(plan: MmaPlan, number: int) -> list[str]:
    """Return a phase as a struct."""
    phase, modes, count = plan.phases[number], plan.run.modes, len(plan.run.modes)
    final = number + 1 == len(plan.phases)
    sizes = f"{phase.mode.rows}, {phase.mode.columns}"
    last = str(phase.last).lower()
    factor = f"km::KronFactor<{last}, {sizes}, {plan.tensor.products}>"
    if plan.compute == "f64":
        factor = f"km::KronDouble<{last}, {sizes}>"
    offset = sum(plan.words(earlier.mode) for earlier in plan.phases[:number])
    right_of = math.prod(mode.rows for mode in modes[phase.axis + 1 :])
    before = {axis: math.prod(mode.columns for mode in modes[axis + 1 :]) for axis in range(phase.axis)}
    after = {
        axis: math.prod(mode.rows for mode in modes[axis + 1 :])
        for axis in range(phase.axis + 1, count - (plan.right == 1))
    }
    indices = {axis: stride for axis, stride in plan.strides.items() if axis != count}
    swizzles = {plan.swizzled_axis: 8} if plan.swizzled_axis is not None and phase.axis < plan.swizzled_axis else {}
    constants = {
        "TILES": phase.tiles, "FIBERS": phase.fibers, "UNITS": phase.units, "OFFSET": offset,
        "NUMBER": modes[phase.axis].factor or 0, "STRIDE": right_of, "EXTENT": modes[-1].rows,
        "PITCH": plan.strides[phase.axis], "TOGETHER": phase.together,
    }  # fmt: skip
    flags = {
        "FINAL": final,
        "LOCAL": number > 0 and _is_local(plan, number),
        "ROW_SWIZZLED": plan.swizzled_axis is not None and phase.axis >= plan.swizzled_axis,
    }
    return [
        f"struct Phase{number} {{",
        f"    typedef {factor} F;",
        f"    static constexpr int {', '.join(f'{name} = {value}' for name, value in constants.items())};",
        f"    static constexpr bool {', '.join(f'{name} = {str(value).lower()}' for name, value in flags.items())};",
        _function("item", phase, {-1: 1}),
        _function("run", phase, before),
        _function("run_out", phase, after),
        _function("right", phase, {count: LANES}),
        _function("tile_offset", phase, indices),
        _function("swizzle", phase, swizzles, 4),
        "};",
    ]


def _is_local(plan: MmaPlan, number: int) -> bool:
    """Return whether a unit of a phase reads only what the unit of that number wrote in the phase before."""
    before, own = plan.phases[number - 1], plan.phases[number]
    if plan.group == 1:
        return True
    rows, columns = own.mode.columns, LANES * own.tiles
    whole = -(-plan.run.modes[-1].rows // LANES) * LANES
    return number == 1 and before.last and LANES * before.tiles == rows and columns == whole


def _prepare(plan: MmaPlan) -> list[str]:
    """Return the text that brings factors, or products of several, into shared memory: measured, then scaled."""
    measured: list[str] = []
    scaled: list[str] = []
    for number, phase in enumerate(plan.phases):
        first, shapes = plan.members(phase.mode.factor or 0)
        fits = str(plan.stored == plan.tensor.half and len(shapes) == 1).lower()
        value = f"                [&](int q, int p) {{ return {product_entry(first, shapes)}; }});"
        tops = f"tops + {number} * WARPS"
        target = f"to + Phase{number}::OFFSET, backs + Phase{number}::NUMBER"
        measured += largest_entries(plan, tops, first, shapes)
        scaled += [f"        Phase{number}::F::prepare<Body, {fits}>({target}, {tops},", value]
    return [*measured, "        __syncthreads();", *scaled]


def largest_entries(plan: TensorPlan, tops: str, first: int, shapes: Sequence[tuple[int, int]]) -> list[str]:
    """Return the text by which each warp finds the largest entry of a product of factors, where it is to be scaled.

    That is the product of the largest of each: of the factor with most entries a warp takes a share, of others all.
    """
    if plan.tensor.half != "f16" or (plan.stored == "f16" and len(shapes) == 1):
        return []
    most = max(range(len(shapes)), key=lambda index: math.prod(shapes[index]))
    terms = [
        f"km::kron_largest_entry<T, {q}, {p}, {'THREADS' if index == most else 32}>(g, {first + index})"
        for index, (q, p) in enumerate(shapes)
    ]
    return [f"        km::kron_keep_largest({tops}, {' * '.join(terms)});"]


def product_entry(first: int, shapes: Sequence[tuple[int, int]]) -> str:
    """Return the entry (q, p) of the product of factors of these shapes, the first of which has that number."""
    rows = columns = 1
    terms: list[str] = []
    for index, (q, p) in reversed(list(enumerate(shapes))):
        row = f"q / {rows} % {q}" if index else f"q / {rows}"
        column = f"p / {columns} % {p}" if index else f"p / {columns}"
        terms.append(f"km::kron_entry<T, C>(g, {first + index}, {row}, {column})")
        rows, columns = rows * q, columns * p
    return " * ".join(reversed(terms))


def emit(plan: MmaPlan) -> str:
    """Return CUDA C++ of a pass; the same plan always gives the same text."""
    text = [f"// {plan}", '#include "kron_mma.cuh"']
    for number in range(len(plan.phases)):
        text += _phase(plan, number)
    constants = {
        "THREADS": plan.threads, "WARPS": plan.warps, "GROUP": plan.group, "STAGES": plan.stages,
        "ITEMS": plan.items, "RIGHT": plan.right, "PRODUCTS": plan.tensor.products,
        "COPY": 2 if plan.is_shifted else plan.layout.copy,
        "VEC_OUT": plan.layout.out_width, "PITCH": plan.pitch, "STAGE": plan.stage, "TILE": plan.tile,
        "FACTORS": len(plan.phases), "FACTOR_WORDS": sum(plan.words(mode) for mode in plan.run.modes),
        "UNROLL": 1 + plan.tensor.is_rounded,
        "TABLE_WORDS": plan.table, "OUT_PITCH": plan.out_pitch, "OUT_STAGE": plan.out_stage, "VEC_RUN": plan.run_width,
    }  # fmt: skip
    later = [
        f"        km::KronMma<Body, Args>::later<Phase{number}>(g, p, tile, factors, backs, group, warp, lane);"
        for number in range(1, len(plan.phases))
    ]
    text += [
        "struct Body {",
        f"    typedef {SCALARS[plan.stored]} T;\n    typedef {SCALARS[plan.tensor.half]} H;",
        f"    typedef {SCALARS[plan.compute]} C;\n    typedef {SCALARS[plan.between]} S;",
        f"    typedef km::KronArguments<{plan.factors}> Args;\n    typedef Phase0 First;",
        f"    typedef Phase{len(plan.phases) - 1} Final;",
        f"    static constexpr int {', '.join(f'{name} = {value}' for name, value in constants.items())};",
        f"    static constexpr bool ADDED = {str(plan.layout.added).lower()}, DENSE = {str(plan.is_dense).lower()};",
        f"    static constexpr bool COALESCED = {str(plan.is_coalesced).lower()}, "
        f"WHOLE = {str(plan.is_whole).lower()};",
        "    static __device__ __forceinline__ void prepare(unsigned* to, C* backs, float* tops, const Args& g) {",
        *_prepare(plan),
        "    }",
        "    static __device__ __forceinline__ void later(const Args& g, const km::KronTileScheduler<ITEMS, RIGHT>& p,",
        "            S* tile, const unsigned* factors, const C* backs, int group, int warp, int lane) {",
        *later,
        "    }",
        "};",
        shared_check("km::kron_mma_shared_bytes<Body>()", plan.shared),
        entry(plan.factors, plan.threads, plan.layout.added, False, "km::KronMma<Body, Body::Args>::run(g);"),
    ]
    return "\n".join(text) + "\n"
