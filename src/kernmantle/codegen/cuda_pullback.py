"""CUDA C++ text of a pullback: functors for its factors and an entry for each of its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..contraction.cuda_pull_tiles import PullTile
from ..contraction.cuda_pullback import PullPlan
from ..contraction.nest import ROLES, SIZES, Port, size_slot, stride_slot
from ..expr.node import Node
from .cuda import STORAGE
from .cuda_spell import Typed, Writer, cast, literal

KINDS = {"plain": "PLAIN", "signs": "SIGNS", "powers": "POWERS"}
HEADERS = {"scalar": "pull_scalar.cuh", "mma": "pull_tensor.cuh", "wgmma": "pull_wgmma.cuh"}
TEMPLATES = {"scalar": "ScalarTile", "mma": "MmaPullTile", "wgmma": "WgmmaPullTile"}
MAINS = {"scalar": "scalar", "mma": "mma_pull", "wgmma": "wgmma_pull"}
AROUND_THREADS = {"survey": 256, "prepare": 256, "weigh": 256, "finish": 256, "mend": 256}
SCRATCH = ("rows", "factors", "scale", "top", "wild", "peak", "dirty", "parts")
_TYPES = {"top": "unsigned*", "wild": "unsigned*", "peak": "unsigned*", "dirty": "unsigned char*"}
_COEFFICIENTS = tuple(f"q{i}" for i in range(6))
_GROUPS = (
    ("cells", "CellPort"), ("spots", "SpotPort"), ("lines", "LinePort"), ("ones", "OnePort"),
    ("weights", "WeightPort"), ("factors", "FactorPort"), ("outers", "OuterPort"),
)  # fmt: skip


def entry_name(kernel: str) -> str:
    """Name of a kernel: "main" or one of those around it."""
    return f"kernmantle_{kernel}"


def threads_of(plan: PullPlan, kernel: str) -> int:
    """Threads of a block of a kernel."""
    return plan.tile.threads if kernel == "main" else AROUND_THREADS[kernel]


def _powers(plan: PullPlan) -> bool:
    return plan.slope.kind == "powers"


def _numbers(plan: PullPlan) -> dict[str, Typed]:
    return {name: (f"number.v{i}", "value") for i, name in enumerate(plan.nest.numbers)}


def _held(names: Sequence[str], array: str) -> dict[str, Typed]:
    return {name: (f"{array}[{i}]", "value") for i, name in enumerate(names)}


def _lines(node: Node, environment: Mapping[str, Typed]) -> list[str]:
    """Statements that return an expression."""
    writer = Writer(environment, True, near=True)
    (value,) = writer.expressions([node])
    return [*writer.lines, f"return {cast(value, 'value')};"]


def _function(head: str, lines: Sequence[str]) -> list[str]:
    return [f"    static __device__ __forceinline__ {head} {{", *(f"        {line}" for line in lines), "    }"]


def _slope(plan: PullPlan) -> list[str]:
    environment = _numbers(plan) | {plan.rows: ("x", "value")}
    for group, array in (("cells", "cell"), ("spots", "spot"), ("lines", "line"), ("ones", "one")):
        environment |= _held(getattr(plan, group), array)
    exact = _lines(plan.slope.exact, environment)
    if plan.slope.difference is None:
        return exact
    writer = Writer(environment, True)
    ((gap, _),) = writer.expressions([plan.slope.difference])
    if plan.slope.kind == "signs":
        quick = [f"return {gap};" if plan.split else f"return km::above({gap});"]
    else:
        to = "km::POWER_FIT" if plan.split else "0"
        coefficients = ", ".join(f"number.{name}" for name in _COEFFICIENTS)
        quick = [
            f"if (WAY == km::BY_TABLE) return km::signed_table({gap}, table, bits, {coefficients});",
            f"return km::signed_unit({gap}, exponent(number), {to});",
        ]
    ways = ["if constexpr (WAY == km::EXACT) {", *(f"    {line}" for line in exact), "} else {"]
    return [*ways, *(f"    {line}" for line in [*writer.lines, *quick]), "}"]


def _outer(plan: PullPlan) -> Node:
    """What a sum is multiplied by: for slopes as written, their own factor is not taken out."""
    return plan.found.outer


def _ports(plan: PullPlan) -> list[str]:
    names = [port.name for port in plan.nest.ports]
    lines = ["    struct X;", "    struct Out;"]
    lines += [f"    template <int I> struct {template};" for _, template in _GROUPS]
    lines.append("};")
    lines += _port("struct Body::X", plan.nest.ports[names.index(plan.rows)], names.index(plan.rows), False)
    lines += _port("struct Body::Out", plan.nest.outs[0], len(plan.nest.operands), False)
    for group, template in _GROUPS:
        for i, name in enumerate(getattr(plan, group)):
            place = names.index(name)
            head = f"template <> struct Body::{template}<{i}>"
            lines += _port(head, plan.nest.ports[place], place, group == "weights" and name in plan.wide)
    return lines


def _port(head: str, port: Port, place: int, wide: bool) -> list[str]:
    return [
        f"{head} {{  // {port.name}",
        f"    typedef {STORAGE[port.dtype]} T;",
        f"    static constexpr int PORT = {place}, VEC = {4 if wide else 1};",
        "};",
    ]


def _body(plan: PullPlan) -> list[str]:
    counts = ", ".join(f"{group.upper()} = {len(getattr(plan, group))}" for group, _ in _GROUPS)
    number = "const Numbers& number"
    arrays = "const C* cell, const C* spot, const C* line, const C* one, C x"
    numbers = _numbers(plan)
    coefficients = [f"        float {', '.join(_COEFFICIENTS)};"] if _powers(plan) else []
    exponent = _lines(plan.slope.exponent, numbers) if plan.slope.exponent is not None else ["return C(0);"]
    return [
        "struct Body {",
        "    typedef float C;",
        f"    static constexpr km::Kind KIND = km::{KINDS[plan.slope.kind]};",
        f"    static constexpr int {counts}, MIX = 2;",
        f"    static constexpr km::Run WEIGHT_RUN = km::{'ALONG_TILE' if plan.run == 'tile' else 'ALONG_K'};",
        "    struct Numbers {",
        *(f"        C v{i};  // {name}" for i, name in enumerate(plan.nest.numbers)),
        *coefficients,
        "    };",
        f"    typedef km::Pulled<km::Arguments<{len(plan.nest.ports)}, Numbers>> Args;",
        *_function(f"C exponent({number})", exponent),
        "    template <km::Way WAY>",
        *_function(f"C slope({arrays}, {number}, const float* table, unsigned bits)", _slope(plan)),
        *_function(f"C weight(const C* w, {number})", _lines(plan.found.weight, numbers | _held(plan.weights, "w"))),
        *_function(
            f"C coefficient(const C* c, {number})",
            _lines(plan.found.coefficient, numbers | _held(plan.factors, "c")),
        ),
        *_function(f"C outer(const C* e, {number})", _lines(_outer(plan), numbers | _held(plan.outers, "e"))),
        *_ports(plan),
    ]


def _tile(plan: PullPlan, tile: PullTile) -> list[str]:
    shape = [*map(str, tile.shape)]
    if tile.engine == "mma":
        shape.append(literal(plan.split, "bool"))
    own = f"km::{MAINS[tile.engine]}_shared_bytes<Body, Tile>()"
    return [
        f"typedef km::{TEMPLATES[tile.engine]}<{', '.join(shape)}> Tile;",
        f'static_assert({own} == {tile.shared(plan.slope.kind)}, "shared memory");',
    ]


def _entries(plan: PullPlan, kernels: Sequence[str]) -> list[str]:
    nest, slots = plan.nest, set(plan.integers)

    def integer(slot: int, otherwise: int) -> str:
        return f"i{slot}" if slot in slots else str(otherwise)

    parameters = [f"void* p{i}" for i in range(len(nest.ports))]
    parameters += [f"km::i64 i{slot}" for slot in plan.integers]
    parameters += [f"double v{i}" for i in range(len(nest.numbers))]
    quotients = _COEFFICIENTS if _powers(plan) else ()
    parameters += [f"double {name}" for name in quotients]
    parameters += [f"{_TYPES.get(name, 'float*')} {name}" for name in SCRATCH]
    parameters += ["km::i64 whole", "km::i64 splits", "km::i64 share"]
    sizes = ", ".join(integer(size_slot(role), 1) for role in SIZES)
    strides = ", ".join(
        "{" + ", ".join(integer(stride_slot(place, role), 0) for role in ROLES) + "}"
        for place in range(len(nest.ports))
    )
    values = [f"float(v{i})" for i in range(len(nest.numbers))] + [f"float({name})" for name in quotients]
    pointers = ", ".join(f"p{i}" for i in range(len(nest.ports)))
    given = ", ".join([*SCRATCH, "whole", "splits", "share"])
    arguments = [
        "    const Body::Args g = {",
        f"        {{{{{pointers}}}, {{{sizes}}}, {{{strides}}}, {{{', '.join(values)}}}}},",
        f"        {given}}};",
    ]
    main = f"{MAINS[plan.tile.engine]}_main"
    lines: list[str] = []
    for name in kernels:
        resident = plan.tile.resident if name == "main" else 1
        bounds = f"__launch_bounds__({threads_of(plan, name)}, {resident})"
        lines += [
            f'extern "C" __global__ void {bounds} {entry_name(name)}(',
            f"    {', '.join(parameters)}) {{",
            *arguments,
            f"    km::{main if name == 'main' else name}<Body, Tile>(g);",
            "}",
        ]
    return lines


def emit(plan: PullPlan, kernels: Sequence[str] = ()) -> str:
    """Source of the kernels of a plan, or of some of them."""
    includes = [f'#include "{HEADERS[plan.tile.engine]}"', '#include "pull_passes.cuh"']
    entries = _entries(plan, kernels or plan.kernels)
    return "\n".join([f"// {plan}", *includes, "", *_body(plan), "", *_tile(plan, plan.tile), "", *entries, ""])
