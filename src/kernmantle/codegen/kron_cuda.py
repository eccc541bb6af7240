"""CUDA C++ of Kronecker passes: a description of the tile and the phases around the templates."""

from __future__ import annotations

import math

from ..contraction.kron_cuda import Facts, FmaPlan

ENTRY = "km_kron"
_TYPES = {"f16": "km::f16", "bf16": "km::bf16", "f32": "float", "f64": "double"}
_AXES = ("a", "b", "c", "run", "right")
_BATCH = ("a", "b", "c")


def parameters(factors: int, facts: Facts) -> list[str]:
    """Names of the integer parameters of a pass, in their order: those it does not read are left out."""
    ports = ("x", "y", "out") if facts.added else ("x", "out")
    names = [f"{port}_{axis}" for port in ("size", *ports) for axis in _AXES]
    beside = _BATCH if facts.varies else ()
    return names + [f"f{number}_{axis}" for number in range(factors) for axis in ("row", "column", *beside)]


def _entry(plan: FmaPlan, body: str) -> str:
    """The kernel: its parameters, collected for the template."""
    factors, given = len(plan.run.parts), parameters(len(plan.run.parts), plan.facts)
    pointers = ["const void* x", "const void* y", "void* out", *(f"const void* f{i}" for i in range(factors))]
    integers = [f"long long {name}" for name in given]
    lines = [
        f'extern "C" __global__ void __launch_bounds__({plan.threads}, 1)',
        f"{ENTRY}({', '.join([*pointers, *integers, 'double alpha', 'double beta'])}) {{",
        f"    km::KronArguments<{factors}> g;",
        "    g.x = x;\n    g.y = y;\n    g.out = out;\n    g.alpha = alpha;\n    g.beta = beta;",
    ]
    lines += [f"    g.factor[{i}] = f{i};" for i in range(factors)]
    for place, axis in enumerate(_AXES):
        lines.append(f"    g.size[{place}] = size_{axis};")
        lines += [
            f"    g.{port}_stride[{place}] = {port}_{axis};" for port in ("x", "y", "out") if f"{port}_{axis}" in given
        ]
    for number in range(factors):
        for place, axis in enumerate(("row", "column", *_BATCH)):
            value = f"f{number}_{axis}" if f"f{number}_{axis}" in given else "0"
            lines.append(f"    g.factor_stride[{number}][{place}] = {value};")
    return "\n".join([*lines, f"    {body}", "}"])


def _spread(plan: FmaPlan, extents: list[int], name: str) -> str:
    """Function from the run as it is outside to the run with room for every axis."""
    terms: list[str] = []
    for place in range(len(extents)):
        behind, room = math.prod(extents[place + 1 :]), math.prod(plan.extents[place + 1 :])
        digit = f"run / {behind}" if place == 0 else f"run / {behind} % {extents[place]}"
        terms.append(f"({digit}) * {room}")
    body = "run" if tuple(extents) == plan.extents else " + ".join(terms)
    return f"    static __device__ __forceinline__ int {name}(int run) {{ return {body}; }}"


def _offset(plan: FmaPlan, factor: int) -> int:
    modes = [mode for mode in plan.run.modes if mode.factor is not None]
    return sum(mode.columns * plan.pitch(mode) for mode in modes if (mode.factor or 0) < factor)


def _factors(plan: FmaPlan) -> list[str]:
    lines = ["    static __device__ __forceinline__ void factors(C* s, const Args& g, const km::KronPlace& p) {"]
    for mode in plan.run.modes:
        if mode.factor is not None:
            sizes = f"{mode.rows}, {mode.columns}, {plan.pitch(mode)}, THREADS"
            lines.append(f"        km::kron_factor<T, {sizes}>(s + {_offset(plan, mode.factor)}, g, {mode.factor}, p);")
    return [*lines, "    }"]


def _phases(plan: FmaPlan) -> list[str]:
    lines = [
        "    static __device__ __forceinline__ void phases(C* s, const C* f, const Args& g, const km::KronPlace& p) {"
    ]
    for number, phase in enumerate(plan.phases):
        own = plan.extents[phase.first : phase.stop]
        right = math.prod(plan.extents[phase.stop :]) * plan.right
        share = f"km::KronShare<Body, {math.prod(own)}, {right}, {phase.across}, {phase.along}>"
        first = str(plan.direct_in and number == 0).lower()
        last = str(plan.direct_out and number == len(plan.phases) - 1).lower()
        values = math.prod(own) * phase.across * phase.along
        lines.append(f"        km::kron_phase<Body, {share}, {first}, {last}>(s, g, p, [&](C (&v)[{values}]) {{")
        for place in _order(plan, phase.first, phase.stop):
            mode = plan.run.modes[place]
            left = phase.across * math.prod(plan.extents[phase.first : place])
            behind = math.prod(plan.extents[place + 1 : phase.stop]) * phase.along
            shared = max(1, min(plan.group, 32 // mode.rows))
            sizes = (
                f"{shared}, {left}, {plan.extents[place]}, {mode.rows}, {mode.columns}, {behind}, {plan.pitch(mode)}"
            )
            factor = f"km::SharedFactor<C>{{f + {_offset(plan, mode.factor or 0)}}}"
            lines.append(f"            km::kron_apply<{sizes}>(v, {factor});")
        lines.append("        });")
        if number + 1 < len(plan.phases) or last == "false":
            lines.append("        __syncthreads();")
    return [*lines, "    }"]


def _order(plan: FmaPlan, first: int, stop: int) -> list[int]:
    return [place for place in plan.run.order if first <= place < stop]


def emit(plan: FmaPlan) -> str:
    """CUDA C++ of a pass; the same plan always gives the same text."""
    gap = plan.gap
    place = f"i + i / {gap[0]} * {gap[1]}" if gap else "i"
    facts = plan.facts
    constants = {
        "ITEMS": plan.items, "RIGHT": plan.right, "THREADS": plan.threads, "RUN": math.prod(plan.extents),
        "RUN_IN": plan.run.columns, "RUN_OUT": plan.run.rows, "VEC_IN": facts.in_width, "VEC_OUT": facts.out_width,
        "FACTOR_ROOM": plan.factor_room,
    }  # fmt: skip
    flags = {
        "ADDED": facts.added, "VARIES": facts.varies, "DIRECT_IN": plan.direct_in,
        "DIRECT_OUT": plan.direct_out,
    }  # fmt: skip
    lines = [
        f"// {plan}",
        '#include "kron_fma.cuh"',
        "struct Body {",
        f"    typedef {_TYPES[plan.stored]} T;\n    typedef {_TYPES[plan.compute]} C;",
        f"    typedef km::KronArguments<{len(plan.run.parts)}> Args;",
        f"    static constexpr int {', '.join(f'{name} = {value}' for name, value in constants.items())};",
        f"    static constexpr bool {', '.join(f'{name} = {str(value).lower()}' for name, value in flags.items())};",
        f"    static __device__ __forceinline__ constexpr int place(int i) {{ return {place}; }}",
        _spread(plan, [mode.columns for mode in plan.run.modes], "spread_in"),
        _spread(plan, [mode.rows for mode in plan.run.modes], "spread_out"),
        *_factors(plan),
        *_phases(plan),
        "};",
        _entry(plan, "km::kron_fma<Body>(g);"),
    ]
    return "\n".join(lines) + "\n"
