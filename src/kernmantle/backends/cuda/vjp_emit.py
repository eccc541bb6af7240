"""CUDA C++ text of a VJP: functors for its factors and an entry for each of its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...compiler.nest import Buffer
from ...ir.node import Node
from .abi import Arguments, launch_bounds
from .emit import STORAGE, function, numbers_of
from .spelling import ExpressionEmitter, Typed, cast, literal
from .vjp_plan import VjpPlan
from .vjp_tiles import VjpTile

KINDS = {"plain": "PLAIN", "signs": "SIGNS", "powers": "POWERS"}
HEADERS = {"scalar": "vjp_scalar.cuh", "mma": "vjp_tensor.cuh", "wgmma": "vjp_wgmma.cuh"}
TEMPLATES = {"scalar": "ScalarTile", "mma": "MmaVjpTile", "wgmma": "WgmmaVjpTile"}
MAINS = {"scalar": "scalar", "mma": "mma_vjp", "wgmma": "wgmma_vjp"}
AROUND_THREADS = {"range_scan": 256, "pack": 256, "scale_weights": 256, "reduce_splits": 256, "fix_non_finite": 256}
SCRATCH = ("rows", "factors", "scale", "top", "wild", "peak", "dirty", "parts")
_TYPES = {"top": "unsigned*", "wild": "unsigned*", "peak": "unsigned*", "dirty": "unsigned char*"}
_COEFFICIENTS = tuple(f"q{i}" for i in range(6))
_GROUPS = (
    ("mn_operands", "MN_OPERANDS", "MnBuffer"),
    ("m_operands", "M_OPERANDS", "MBuffer"),
    ("n_operands", "N_OPERANDS", "NBuffer"),
    ("scalars", "SCALARS", "ScalarBuffer"),
    ("weights", "WEIGHTS", "WeightBuffer"),
    ("factors", "FACTORS", "FactorBuffer"),
    ("outers", "OUTERS", "OuterBuffer"),
)


def entry_name(kernel: str) -> str:
    """Return the name of a kernel: "main" or one of those around it."""
    return f"kernmantle_{kernel}"


def threads_of(plan: VjpPlan, kernel: str) -> int:
    """Return the threads of a block of a kernel."""
    return plan.tile.threads if kernel == "main" else AROUND_THREADS[kernel]


def _powers(plan: VjpPlan) -> bool:
    return plan.slope.kind == "powers"


def _elements(names: Sequence[str], array: str) -> dict[str, Typed]:
    return {name: (f"{array}[{i}]", "value") for i, name in enumerate(names)}


def _statements(node: Node, environment: Mapping[str, Typed]) -> list[str]:
    """Return the statements that return an expression."""
    emitter = ExpressionEmitter(environment, True, approximate=True)
    (value,) = emitter.expressions([node])
    return [*emitter.code, f"return {cast(value, 'value')};"]


def _slope(plan: VjpPlan) -> list[str]:
    environment = numbers_of(plan.nest) | {plan.rows: ("x", "value")}
    for group, array in (
        ("mn_operands", "of_mn"),
        ("m_operands", "of_m"),
        ("n_operands", "of_n"),
        ("scalars", "scalar"),
    ):
        environment |= _elements(getattr(plan, group), array)
    exact = _statements(plan.slope.exact, environment)
    if plan.slope.difference is None:
        return exact
    emitter = ExpressionEmitter(environment, True)
    ((gap, _),) = emitter.expressions([plan.slope.difference])
    if plan.slope.kind == "signs":
        quick = [f"return {gap};" if plan.split else f"return km::above({gap});"]
    else:
        to = "km::POWER_FIT" if plan.split else "0"
        coefficients = ", ".join(f"number.{name}" for name in _COEFFICIENTS)
        quick = [
            f"if (METHOD == km::BY_TABLE) return km::signed_table({gap}, table, bits, {coefficients});",
            f"return km::signed_unit({gap}, exponent(number), {to});",
        ]
    branches = ["if constexpr (METHOD == km::EXACT) {", *(f"    {text}" for text in exact), "} else {"]
    return [*branches, *(f"    {text}" for text in [*emitter.code, *quick]), "}"]


def _buffers(plan: VjpPlan) -> list[str]:
    names = [buffer.name for buffer in plan.nest.buffers]
    code = ["    struct X;", "    struct Out;"]
    code += [f"    template <int I> struct {template};" for *_, template in _GROUPS]
    code.append("};")
    code += _buffer("struct Body::X", plan.nest.buffers[names.index(plan.rows)], names.index(plan.rows), False)
    code += _buffer("struct Body::Out", plan.nest.outs[0], len(plan.nest.operands), False)
    for group, _, template in _GROUPS:
        for i, name in enumerate(getattr(plan, group)):
            argument = names.index(name)
            head = f"template <> struct Body::{template}<{i}>"
            code += _buffer(head, plan.nest.buffers[argument], argument, group == "weights" and name in plan.wide)
    return code


def _buffer(head: str, buffer: Buffer, argument: int, wide: bool) -> list[str]:
    return [
        f"{head} {{  // {buffer.name}",
        f"    typedef {STORAGE[buffer.dtype]} T;",
        f"    static constexpr int BUFFER = {argument}, VEC = {4 if wide else 1};",
        "};",
    ]


def _body(plan: VjpPlan) -> list[str]:
    counts = ", ".join(f"{count} = {len(getattr(plan, group))}" for group, count, _ in _GROUPS)
    number = "const Numbers& number"
    arrays = "const C* of_mn, const C* of_m, const C* of_n, const C* scalar, C x"
    numbers = numbers_of(plan.nest)
    coefficients = [f"        float {', '.join(_COEFFICIENTS)};"] if _powers(plan) else []
    exponent = _statements(plan.slope.exponent, numbers) if plan.slope.exponent is not None else ["return C(0);"]
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
        f"    typedef km::VjpArguments<km::Arguments<{len(plan.nest.buffers)}, Numbers>> Args;",
        *function(f"C exponent({number})", exponent),
        "    template <km::Method METHOD>",
        *function(f"C slope({arrays}, {number}, const float* table, unsigned bits)", _slope(plan)),
        *function(
            f"C weight(const C* w, {number})", _statements(plan.found.weight, numbers | _elements(plan.weights, "w"))
        ),
        *function(
            f"C coefficient(const C* c, {number})",
            _statements(plan.found.coefficient, numbers | _elements(plan.factors, "c")),
        ),
        *function(
            f"C outer(const C* e, {number})", _statements(plan.found.outer, numbers | _elements(plan.outers, "e"))
        ),
        *_buffers(plan),
    ]


def _tile(plan: VjpPlan, tile: VjpTile) -> list[str]:
    shape = [*map(str, tile.shape)]
    if tile.engine == "mma":
        shape.append(literal(plan.split, "bool"))
    own = f"km::{'scalar' if tile.engine == 'scalar' else 'tensor_vjp'}_shared_bytes<Body, Tile>()"
    return [
        f"typedef km::{TEMPLATES[tile.engine]}<{', '.join(shape)}> Tile;",
        f'static_assert({own} == {tile.shared(plan.slope.kind)}, "shared memory");',
    ]


def _entries(plan: VjpPlan, kernels: Sequence[str]) -> list[str]:
    nest = plan.nest
    own = Arguments(len(nest.buffers), plan.integers, len(nest.numbers))
    coefficients = _COEFFICIENTS if _powers(plan) else ()
    parameters = [*own.pointer_parameters, *own.integer_parameters, *own.number_parameters]
    parameters += [f"double {name}" for name in coefficients]
    parameters += [f"{_TYPES.get(name, 'float*')} {name}" for name in SCRATCH]
    parameters += ["km::i64 whole", "km::i64 splits", "km::i64 share"]
    values = [*own.values("float"), *(f"float({name})" for name in coefficients)]
    scratch = ", ".join([*SCRATCH, "whole", "splits", "share"])
    arguments = [
        "    const Body::Args g = {",
        f"        {{{{{own.pointers}}}, {{{own.sizes}}}, {{{own.strides}}}, {{{', '.join(values)}}}}},",
        f"        {scratch}}};",
    ]
    main = f"{MAINS[plan.tile.engine]}_main"
    code: list[str] = []
    for name in kernels:
        resident = plan.tile.resident if name == "main" else 1
        code += [
            *launch_bounds(threads_of(plan, name), resident, entry_name(name), parameters),
            *arguments,
            f"    km::{main if name == 'main' else name}<Body, Tile>(g);",
            "}",
        ]
    return code


def emit(plan: VjpPlan, kernels: Sequence[str] = ()) -> str:
    """Return the source of the kernels of a plan, or of some of them."""
    includes = [f'#include "{HEADERS[plan.tile.engine]}"', '#include "vjp_passes.cuh"']
    entries = _entries(plan, kernels or plan.kernels)
    return "\n".join([f"// {plan}", *includes, "", *_body(plan), "", *_tile(plan, plan.tile), "", *entries, ""])
