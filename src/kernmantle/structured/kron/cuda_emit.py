"""CUDA C++ of Kronecker passes: a description of the tile and the phases around the templates."""

from __future__ import annotations

import math

from ...backends.cuda.traits import SCALARS, members, shared_check
from .cuda_entry import entry
from .fma_plan import FmaPlan


def _spread(plan: FmaPlan, extents: list[int], name: str) -> str:
    """Return the function from the run as it is outside to the run with room for every axis."""
    terms: list[str] = []
    for index in range(len(extents)):
        inner, padded_inner = math.prod(extents[index + 1 :]), math.prod(plan.extents[index + 1 :])
        digit = f"run / {inner}" if index == 0 else f"run / {inner} % {extents[index]}"
        terms.append(f"({digit}) * {padded_inner}")
    body = "run" if tuple(extents) == plan.extents else " + ".join(terms)
    return f"    static __device__ __forceinline__ int {name}(int run) {{ return {body}; }}"


def _offset(plan: FmaPlan, factor: int) -> int:
    modes = [mode for mode in plan.run.modes if mode.factor is not None]
    return sum(mode.columns * plan.pitch(mode) for mode in modes if (mode.factor or 0) < factor)


def _factors(plan: FmaPlan) -> list[str]:
    own = [(mode, mode.factor) for mode in plan.run.modes if mode.factor is not None]
    copies = [
        f"        km::KronFactorCopy<T, {mode.rows}, {mode.columns}, {plan.pitch(mode)}, THREADS> f{number};"
        for mode, number in own
    ]
    loads = [f"        f{number}.load(g, {number}, p);" for _, number in own]
    stores = [f"        f{number}.store(s + {_offset(plan, number)}, g, {number}, p);" for _, number in own]
    begin = "    static __device__ __forceinline__ void factors(C* s, const Args& g, const km::KronCoord& p) {"
    return [begin, *copies, *loads, *stores, "    }"]


def _phases(plan: FmaPlan) -> list[str]:
    text = [
        "    template <class Next>",
        "    static __device__ __forceinline__ void phases(C* s, const C* f, const T* ahead, const Args& g,",
        "            const km::KronCoord& p, const Next& next) {",
    ]
    for number, phase in enumerate(plan.phases):
        own = plan.extents[phase.first : phase.stop]
        right = math.prod(plan.extents[phase.stop :]) * plan.right
        share = f"km::KronShare<Body, {math.prod(own)}, {right}, {phase.across}, {phase.along}>"
        first = str(plan.direct_in and number == 0).lower()
        last = str(plan.direct_out and number == len(plan.phases) - 1).lower()
        values = math.prod(own) * phase.across * phase.along
        text.append(f"        km::kron_phase<Body, {share}, {first}, {last}>(s, ahead, g, p, [&](C (&v)[{values}]) {{")
        for index in _order(plan, phase.first, phase.stop):
            mode = plan.run.modes[index]
            left = phase.across * math.prod(plan.extents[phase.first : index])
            inner = math.prod(plan.extents[index + 1 : phase.stop]) * phase.along
            shared = plan.slices_of(mode)
            sizes = f"{shared}, {left}, {plan.extents[index]}, {mode.rows}, {mode.columns}, {inner}, {plan.pitch(mode)}"
            factor = f"km::SharedFactor<C>{{f + {_offset(plan, mode.factor or 0)}}}"
            text.append(f"            km::kron_apply<{sizes}>(v, {factor});")
        text.append("        });")
        if number + 1 < len(plan.phases) or last == "false":
            text.append("        __syncthreads();")
        if plan.ahead and number == 0:
            text.append("        next();")
    return [*text, "    }"]


def _order(plan: FmaPlan, first: int, stop: int) -> list[int]:
    return [index for index in plan.run.order if first <= index < stop]


def emit(plan: FmaPlan) -> str:
    """Return CUDA C++ of a pass; the same plan always gives the same text."""
    gap = plan.gap
    index = f"i + i / {gap[0]} * {gap[1]}" if gap else "i"
    layout = plan.layout
    constants = {
        "ITEMS": plan.items, "RIGHT": plan.right, "THREADS": plan.threads, "RUN": math.prod(plan.extents),
        "RUN_IN": plan.run.columns, "RUN_OUT": plan.run.rows, "VEC_IN": layout.in_width, "VEC_OUT": layout.out_width,
        "FACTOR_WORDS": plan.factor_words, "ADDED": layout.added, "VARIES": layout.varies,
        "DIRECT_IN": plan.direct_in, "DIRECT_OUT": plan.direct_out, "TILED": plan.tile > 0,
        "AHEAD": plan.ahead,
    }  # fmt: skip
    types = {
        "T": SCALARS[plan.stored], "C": SCALARS[plan.compute], "Args": f"km::KronArguments<{len(plan.run.parts)}>",
    }  # fmt: skip
    text = [
        f"// {plan}",
        '#include "kron_fma.cuh"',
        "struct Body {",
        *members(types, constants),
        f"    static __device__ __forceinline__ constexpr int tile_offset(int i) {{ return {index}; }}",
        _spread(plan, [mode.columns for mode in plan.run.modes], "spread_in"),
        _spread(plan, [mode.rows for mode in plan.run.modes], "spread_out"),
        *_factors(plan),
        *_phases(plan),
        "};",
        shared_check("km::kron_fma_shared_bytes<Body>()", plan.shared),
        entry(len(plan.run.parts), plan.threads, layout.added, layout.varies, "km::kron_fma<Body>(g);"),
    ]
    return "\n".join(text) + "\n"
