"""CUDA C++ text of a row plan: the functors of gram, how an entry is made of registers, how entries are reduced."""

from __future__ import annotations

from collections.abc import Sequence

from ...compiler.hoist import Folded, fold
from ...compiler.monotone import order
from ...compiler.nest import Buffer
from ...compiler.patterns import SCALED, scale
from ...compiler.softmax import DUALS, GRADIENTS, TANGENTS, slope
from ...ir.node import Node, variables
from . import wide_plan
from .abi import Arguments, register_split, table_parameters, table_values
from .emit import PRODUCER_REGISTERS, STORAGE, body_of, environment_of, function, numbers_of, registers_of, state_of
from .row_entries import ends
from .row_reduce_plan import JOINERS, CudaRowPlan
from .score_plan import SIDES
from .select_plan import SELECTORS, is_deep, resident_selectors, template_of, wanted_sign
from .spelling import TYPES, ExpressionEmitter, Typed, cast, literal

ENTRY, JOIN, SPLIT = "kernmantle_kernel", "kernmantle_join", "kernmantle_split"
SELECT, SCALE = "kernmantle_select", "kernmantle_scale"
SPLITTERS = 256
REGISTERS = {2: (24, 240), 3: (32, 160), 4: (32, 112)}
"""Registers of a thread of the producer's warpgroup and of consumers, by how many warpgroups consume."""
SELECT_PRODUCER, SELECT_CONSUMER = 40, 232
_TILES = ("int* list", "unsigned char* tiles0", "unsigned char* tiles1")
_HANDED = {
    "score": ("km::Scored<{}>", (*_TILES, "float2* rows", "float* columns_of"), "{tiles0, tiles1}, rows, columns_of"),
    "select": (
        "km::Candidates<{}>",
        (*_TILES, "float4* rows", "float* columns_of", "float2* groups", "km::i64 first", "km::i64 count"),
        "{tiles0, tiles1}, rows, columns_of, groups, first, count",
    ),
    "wide": ("km::Wide<{}>", ("int* list", "unsigned char* values", "float* columns_of"), "values, columns_of"),
    "columns": (
        "km::Columns<{}>",
        (*_TILES, "float2* rows", "float* columns_of", "unsigned char* values"),
        "{tiles0, tiles1}, rows, columns_of, values",
    ),
}
_HANDED["deep"] = _HANDED["columns"]  # fmt: skip
"""Arguments around those of every kernel, their parameters, and how these stand behind the list."""
_OTHERS = {
    "score": ((SPLIT, SPLITTERS, "split_scores<Apply, Source, Tile>"),),
    "select": (
        (SELECT, SELECTORS, "select_rows<Apply, Tile>"),
        (SPLIT, SPLITTERS, "split_candidates<Apply, Source, Tile>"),
    ),
    "select_deep": (
        (SELECT, SELECTORS, "select_rows<Apply, Tile>"),
        (SPLIT, SPLITTERS, "split_deep_candidates<Apply, Source, Tile>"),
    ),
    "wide": ((SCALE, SPLITTERS, "scale_columns<Apply, Tile>"), (SPLIT, SPLITTERS, "split_columns<Apply, Tile>")),
    "columns": (
        (SCALE, SPLITTERS, "scale_columns<Apply, Tile>"),
        (SPLIT, SPLITTERS, "split_points_and_columns<Apply, Source, Tile>"),
    ),
    "deep": (
        (SCALE, SPLITTERS, "scale_columns<Apply, Tile>"),
        (SPLIT, SPLITTERS, "split_deep_points_and_columns<Apply, Source, Tile>"),
    ),
}
"""Name, threads and function of the kernels besides the main one and the one that joins."""
_SCORES = ("score", "columns", "deep")
"""Forms whose entries are made of score tiles."""
_ON_TENSOR_CORES = (*_SCORES, "wide")
_ENDS = {"Row": "m", "Column": "n", "Cell": "mn"}
_RESULTS = {
    GRADIENTS: ("Result", "Statistic", "Cotangent", "ByRow", "ByColumn", "ByWeight"),
    TANGENTS: ("Result", "Statistic", "RowTangent", "ColumnTangent", "WeightTangent", "Tangent"),
    DUALS: ("RowTangent", "ColumnTangent", "WeightTangent", "Result", "Statistic", "Tangent"),
}
"""Names in the kernels of a softmax of the arrays that they write, and read again for derivatives."""
_APPROXIMATE = {"exp2": "exp2_fast", "sqrt": "root_fast", "rcp": "rcp_fast"}


class ApproximateEmitter(ExpressionEmitter):
    """Statements that may use the special function unit's own accuracy."""

    def _operation(self, node: Node) -> Typed:
        if node.op in _APPROXIMATE:
            (text, kind) = self._emitted[id(node.args[0])]
            return f"km::{_APPROXIMATE[node.op]}({cast((text, kind), 'value')})", "value"
        return super()._operation(node)


class PolynomialEmitter(ApproximateEmitter):
    """Statements whose exponentials leave the special function unit to others."""

    def _operation(self, node: Node) -> Typed:
        if node.op == "exp2":
            (text, kind) = self._emitted[id(node.args[0])]
            return f"km::exp2_polynomial({cast((text, kind), 'value')})", "value"
        return super()._operation(node)


def _emitter(plan: CudaRowPlan, names: dict[str, Typed]) -> ExpressionEmitter:
    return (ApproximateEmitter if plan.approximate else ExpressionEmitter)(names, True, approximate=plan.approximate)


def _fixed(plan: CudaRowPlan) -> tuple[list[str], Folded, dict[str, Typed]]:
    """Return what entries read that is the same for all of them: its record, the entry that reads it, its names."""
    nest = plan.rows.matrix
    scalars = [buffer for buffer in nest.operands if not buffer.roles]
    outputs = [*nest.outputs, *([slope(plan.rows)] if plan.rows.how in _RESULTS or plan.linear else [])]
    folded = fold(outputs, [*nest.numbers, *(buffer.name for buffer in scalars)], letter="f")
    left = set(variables(folded.outputs))
    loaded = [buffer for buffer in scalars if buffer.name in left]
    needed = set(variables([*folded.values])) | {buffer.name for buffer in loaded}
    names = dict(numbers_of(plan.matrix.nest))
    loads: list[str] = []
    for buffer in scalars:
        if buffer.name in needed:
            argument = nest.operands.index(buffer)
            names[buffer.name] = (f"e{argument}", "value")
            loads.append(f"const C e{argument} = km::load_at<C, {STORAGE[buffer.dtype]}, {argument}>(g, p, 0, 0);")
    emitter = ExpressionEmitter(names, True)
    values = emitter.expressions(folded.values)
    members = [*folded.names, *(buffer.name for buffer in loaded)]
    texts = [cast(value, "value") for value in values] + [names[buffer.name][0] for buffer in loaded]
    code = ["struct Fixed {", *(f"    C {name};" for name in members), "};"]
    fill = ["const Numbers& number = g.number;", *loads, *emitter.code, "Fixed f;"]
    fill += [*(f"f.{name} = {text};" for name, text in zip(members, texts, strict=True)), "return f;"]
    code = [f"    {text}" for text in code] + function("Fixed fixed(const Args& g, const km::Coord& p)", fill)
    return code, folded, {name: (f"fixed.{name}", "value") for name in members}


def entry_of(plan: CudaRowPlan) -> list[str]:
    """Return the functors that make an entry of the matrix."""
    code, folded, names = _fixed(plan)
    names |= numbers_of(plan.matrix.nest)
    uniform = set(names)
    for kind, role in _ENDS.items():
        names |= {buffer.name: (f"{kind.lower()}s[{i}]", "value") for i, buffer in enumerate(ends(plan.rows, role))}
    finished: list[str] = []
    for index, (reduction, registers) in enumerate(registers_of(plan.matrix)):
        finish = ExpressionEmitter(
            numbers_of(plan.matrix.nest) | state_of(reduction, registers, "s"), True, f"u{index}_"
        )
        (names[f"s{index}"],) = finish.expressions([reduction.finish])
        finished += finish.code
    output, *others = folded.outputs
    code += _making(plan, "entry", output, names, finished)
    scales = plan.form == "thin" or (plan.form in _SCORES and plan.differences) or plan.powers
    found = scale(plan.rows.matrix, output, uniform) if scales else None
    code.append(f"    static constexpr bool SCALES = {literal(found is not None, 'bool')};")
    if others:
        code += _slope(plan, others[0], uniform, names, finished)
    if plan.form == "select":
        code += _ordered(plan, output, uniform, names)
    if found is None:
        return code
    (factor, _) = names[found.factor.name]
    root = "f" if found.degree == 1 or plan.form in _ON_TENSOR_CORES else "km::sqrt(f)"
    fill = [f"const C f = -{factor};", f"return f > C(0) && f < C(1e30) ? {root} : C(0);"]
    code += function("C scale(const Fixed& fixed, const Numbers& number)", fill)
    names |= {SCALED: names["s0"]}
    code += _making(plan, "scaled_entry", found.output, names, finished)
    if plan.expands:
        code += _making(plan, "polynomial_entry", found.output, names, finished, PolynomialEmitter(names, True))
    return code


def _ordered(plan: CudaRowPlan, output: Node, uniform: set[str], names: dict[str, Typed]) -> list[str]:
    """Return whether entries come in the wanted order of their sums, which a factor decides at run time."""
    found = order(output, uniform)
    assert found is not None
    test = "true"
    if found.factor is not None:
        (factor, _) = names[found.factor.name]
        test = f"{factor} {'>' if found.sign == wanted_sign(plan.rows) else '<'} C(0)"
    return function("bool ordered(const Fixed& fixed, const Numbers& number)", [f"return {test};"])


def _slope(
    plan: CudaRowPlan, output: Node, uniform: set[str], names: dict[str, Typed], finished: list[str]
) -> list[str]:
    """Return the derivative of an entry by its sum, and whether it is the same for all of them."""
    constant = set(variables([output])) <= uniform
    code = [f"    static constexpr bool CONSTANT_SLOPE = {literal(constant, 'bool')};"]
    if not constant:
        return code + _making(plan, "slope", output, names, finished)
    emitter = _emitter(plan, names)
    (value,) = emitter.expressions([output])
    head = "C constant_slope(const Fixed& fixed, const Numbers& number)"
    return code + function(head, [*emitter.code, f"return {cast(value, 'value')};"])


def _making(
    plan: CudaRowPlan, name: str, output: Node, names: dict[str, Typed], finished: list[str],
    emitter: ExpressionEmitter | None = None,
) -> list[str]:  # fmt: skip
    emitter = emitter or _emitter(plan, names)
    (value,) = emitter.expressions([output])
    ends_of = ", ".join(f"const C* {name.lower()}s" for name in _ENDS)
    head = f"C {name}(const Fixed& fixed, const Numbers& number, {ends_of}, const Registers& s)"
    return function(head, [*finished, *emitter.code, f"return {cast(value, 'value')};"])


def _first(plan: CudaRowPlan) -> list[str]:
    """Return the first step of sums, which need not add to zero."""
    nest, sums = plan.rows.matrix, all(reduction.name == "sum" for reduction in plan.rows.matrix.reductions)
    code = [f"    static constexpr bool STARTS = {literal(sums, 'bool')};"]
    if plan.form not in ("thin", "wide") or not sums:
        return code
    names = environment_of(plan.matrix, "abc") | {"index": ("km::i64(0)", "index")}
    emitter = ExpressionEmitter(names, True, approximate=nest.compute == "f32" and not nest.reproducible)
    values = emitter.expressions(nest.map)
    fill = [f"s.r{i} = {cast(value, 'value')};" for i, value in enumerate(values)]
    head = "void start(Registers& s, const C* a, const C* b, const C* c, const Numbers& number)"
    return code + function(head, [*emitter.code, *fill])


def _reducers(plan: CudaRowPlan) -> list[str]:
    """Return the functors that reduce entries."""
    rows = plan.rows
    flags = [
        f"    static constexpr bool SELECTS = {literal(rows.selects, 'bool')};",
        f"    static constexpr bool LARGEST = {literal(rows.how == 'largest', 'bool')};",
        f"    static constexpr bool WEIGHTED = {literal(rows.v is not None, 'bool')};",
        f"    static constexpr int GROUP = {plan.group};",
    ]
    if plan.grouped:
        flags.append("    static constexpr bool GROUPED = true;")
    if rows.selects:
        return [*flags, "    typedef km::Ranked<C> Running;"]
    reduction = rows.reduction
    names = [f"r{i}" for i in range(len(reduction.kinds))]
    members = [f"        {TYPES[kind]} {name};" for kind, name in zip(reduction.kinds, names, strict=True)]
    own: dict[str, Typed] = {f"s{i}": (f"k.{name}", "value") for i, name in enumerate(names)}
    other: dict[str, Typed] = {f"r{i}": (f"o.{name}", "value") for i, name in enumerate(names)}
    begin = [f"k.{name} = {literal(init)};" for name, init in zip(names, reduction.init, strict=True)]
    product = rows.v is not None
    steps = ["k.r0 += w * v;"] if product else _updates(reduction.step, own | {"t": ("w", "value")}, names)
    assert reduction.merge is not None
    finish = ExpressionEmitter(own, True)
    ((value, _),) = finish.expressions([reduction.finish])
    return [
        *flags,
        "    struct Running {", *members, "    };",
        *function("void begin(Running& k)", begin),
        *function("void take(Running& k, C w, C v)", steps),
        *function("void join(Running& k, const Running& o)", _updates(reduction.merge, own | other, names)),
        *function("C finish(const Running& k)", [*finish.code, f"return {value};"]),
    ]  # fmt: skip


def _updates(nodes: tuple[Node, ...], environment: dict[str, Typed], names: list[str]) -> list[str]:
    """Return the statements that write all registers after all are computed."""
    emitter = ExpressionEmitter(environment, True)
    values = [cast(value, "value") for value in emitter.expressions(nodes)]
    hold = [f"const C n{i} = {text};" for i, text in enumerate(values)]
    return [*emitter.code, *hold, *(f"k.{name} = n{i};" for i, name in enumerate(names))]


def outs_of(plan: CudaRowPlan) -> list[str]:
    """Return the structs of buffers that are no operands of the map."""
    rows, buffers = plan.rows, plan.rows.buffers
    counts = ", ".join(f"{name.upper()}_ENDS = {len(ends(rows, role))}" for name, role in _ENDS.items())
    code = [f"    static constexpr int {counts};"]
    code += [f"    template <int I> struct {name}End;" for name in _ENDS]
    if rows.v is not None:
        code += ["    struct Weight {", *_buffer(rows.v, buffers.index(rows.v))]
        code.append("    };")
    names = _RESULTS.get(rows.how, ("Result", "Statistic") if plan.form == "softmax" else ("Result",))
    for name, buffer in zip(names, rows.outs, strict=False):
        code += [f"    struct {name} {{", *_buffer(buffer, buffers.index(buffer)), "    };"]
    code.append("};")
    for name, role in _ENDS.items():
        for i, buffer in enumerate(ends(rows, role)):
            head = f"template <> struct Apply::{name}End<{i}> {{  // {buffer.name}"
            code += [head, *_buffer(buffer, buffers.index(buffer)), "};"]
    return code


def _buffer(buffer: Buffer, argument: int) -> list[str]:
    return [f"        typedef {STORAGE[buffer.dtype]} T;", f"        static constexpr int BUFFER = {argument};"]


def _kernels(plan: CudaRowPlan) -> list[str]:
    """Return all kernels, which take the same arguments."""
    buffers, nest = plan.rows.buffers, plan.rows.matrix
    arguments = Arguments(len(buffers), plan.integers, len(nest.numbers), absent=buffers.index(nest.outs[0]))
    power = plan.matrix.power
    parameters = [*arguments.pointer_parameters, "void* work", *arguments.integer_parameters]
    parameters += [*arguments.number_parameters, *(table_parameters(power.degree) if power else [])]
    values = ", ".join([*arguments.values("Body::C"), *(table_values(power.degree) if power else [])])
    score = plan.form in _HANDED
    _, handed, passed = _HANDED.get(plan.form, ("", (), ""))
    packing = [
        f"    const Apply::Args g = {{{'{' * score}{{",
        f"        {{{arguments.pointers}}}, {{{arguments.sizes}}},",
        f"        {{{arguments.strides}}},",
        f"        {{{values}}}}}, work}}{f', list, {passed}}}' * score};",
    ]
    parameters += handed
    if plan.gated:
        parameters.append("const int* list")
    test = "km::uses_differences(list, g.size[km::ROLE_M], g.size[km::ROLE_N])"
    if plan.rows.selects:
        test = "km::selects_by_differences(list, g.size[km::ROLE_M])"
    gate = [f"    if (!{test}) return;"] * plan.gated
    head = 'extern "C" __global__ void __launch_bounds__'
    taken = f"    {', '.join(parameters)}"

    def kernel(bounds: str, name: str, call: str, more: str = "", first: Sequence[str] = ()) -> list[str]:
        return [f"{head}({bounds}) {name}(", f"{taken}{more}) {{", *packing, *first, f"    km::{call};", "}"]

    code = kernel(f"{plan.threads}, {plan.resident}", ENTRY, f"{_call(plan)}(g)", first=gate)
    if plan.grouped or plan.form == "scan":
        name = "scanned" if plan.form == "scan" else "groups"
        code += ["", *kernel(str(SELECTORS), SELECT, f"select_{name}<Apply, Tile>(g)")]
    elif plan.form != "select":
        last = [f"    if ({test}) return;"] if plan.form in _HANDED else gate
        more, call = ", km::i64 blocks, km::i64 tiles, km::i64 columns", "join_runs<Apply, Tile::BM>"
        code += ["", *kernel(str(JOINERS), JOIN, f"{call}(g, blocks, tiles, columns)", more, last)]
    for name, threads, call in _OTHERS.get(_header(plan), ()):
        bounds = f"{threads}, {resident_selectors(plan.tile)}" if name == SELECT else str(threads)
        code += ["", *kernel(bounds, name, f"{call}(g)")]
    return code


def _template(plan: CudaRowPlan) -> list[str]:
    tile = plan.tile
    shape = {
        "thin": (tile.threads, tile.rows, tile.depth, tile.columns, tile.unroll),
        "tile": (tile.threads_m, tile.rows, tile.columns, tile.depth, tile.unroll),
        "pipelined": (tile.threads_m // 4, tile.threads_n // 8, tile.rows, tile.columns, tile.stages),
        "score": (tile.depth, tile.unroll, tile.threads // 128, tile.stages, SIDES),
        "select": template_of(tile)[1],
        "wide": (tile.depth, tile.unroll, tile.threads // 128, tile.stages, wide_plan.CHUNK),
        "columns": (
            tile.depth, tile.unroll, plan.group, tile.threads // 128, tile.n, tile.stages,
            literal(tile.fragments, "bool"),
        ),
        "scan": (tile.rows,),
        "deep": (plan.group, tile.stages),
    }[plan.form]  # fmt: skip
    if plan.form in _HANDED:
        source = ["struct Source : Body {", "    typedef Apply::Args Args;", "};", ""]
        bytes_of = f"km::apply_{plan.form}_shared_bytes<Apply, Tile>()"
        name = template_of(tile)[0] if plan.form == "select" else f"{plan.form.capitalize()}Tile"
        tiles = f"typedef km::{name}<{', '.join(map(str, shape))}> Tile;"
        return [*source, tiles, f'static_assert({bytes_of} <= {plan.shared}, "shared memory");']
    name = f"km::Apply{plan.form.capitalize()}<{', '.join(map(str, shape))}>"
    bytes_of = f"km::apply_{plan.form}_shared_bytes<Apply, Tile>()"
    return [f"typedef {name} Tile;", f'static_assert({bytes_of} <= {plan.shared}, "shared memory");']


def _call(plan: CudaRowPlan) -> str:
    if plan.form == "select":
        deep = "deep_" * is_deep(plan.tile)
        return f"find_{deep}minima<Apply, Tile, {SELECT_PRODUCER}, {SELECT_CONSUMER}>"
    if plan.form not in ("pipelined", *_ON_TENSOR_CORES):
        return f"apply_{plan.form}<Apply, Tile>" if plan.form in ("thin", "scan") else "gram<Apply, Tile>"
    if plan.form in _ON_TENSOR_CORES:
        producer, consumer = REGISTERS[plan.tile.threads // 128]
        return f"apply_{plan.form}<Apply, Tile, {producer}, {consumer}>"
    producer, consumer = register_split(plan.matrix.arch, plan.threads, plan.resident, PRODUCER_REGISTERS)
    return f"pipelined<Apply, Tile, {producer}, {consumer}>"


def _header(plan: CudaRowPlan) -> str:
    """Return which header has the templates, without its prefix."""
    if plan.form == "select" and is_deep(plan.tile):
        return "select_deep"
    return "groups" if plan.grouped else plan.form


def emit_rows(plan: CudaRowPlan) -> str:
    """Return the source of the kernels ``ENTRY`` and ``JOIN`` that run a row plan."""
    gate = [f'#include "{"select" if plan.rows.selects else "score"}_gate.cuh"'] * plan.gated
    code = [
        f"// {plan}",
        f'#include "apply_{_header(plan)}.cuh"',
        *gate,
        "",
        *body_of(plan.matrix),
        "",
        "struct Apply : Body {",
    ]
    args = f"km::Working<km::Arguments<{len(plan.rows.buffers)}, Numbers>>"
    code.append(f"    typedef {_HANDED[plan.form][0].format(args) if plan.form in _HANDED else args} Args;")
    if plan.form in _ON_TENSOR_CORES:
        code += ["    struct Running;", "    typedef Running State;"]
    if plan.form in _SCORES:
        code.append(f"    static constexpr bool DIFFERENCES = {literal(plan.differences, 'bool')};")
        code.append(f"    static constexpr bool MANY = {literal(plan.form != 'score', 'bool')};")
        code.append(f"    static constexpr bool LOG_SUMS = {literal(plan.rows.how == 'logsumexp', 'bool')};")
        code.append(f"    static constexpr bool LINEAR = {literal(plan.linear, 'bool')};")
    if plan.form in _ON_TENSOR_CORES:
        code.append(f"    static constexpr bool POWERS_OF_2 = {literal(plan.powers, 'bool')};")
    if plan.sums_exponentials:
        code.append("    static constexpr bool SUMS_EXPONENTIALS = true;")
    if plan.form == "thin":
        code.append(f"    static constexpr int EXPANDS = {int(plan.expands)};")
    if plan.form in ("score", "thin"):
        sums = not plan.rows.selects and plan.rows.reduction.name == "sum"
        code.append(f"    static constexpr bool SUMS = {literal(sums, 'bool')};")
    code += [
        *_first(plan),
        *entry_of(plan),
        *_reducers(plan),
        *outs_of(plan),
        "",
        *_template(plan),
        "",
        *_kernels(plan),
    ]
    return "\n".join([*code, ""])
