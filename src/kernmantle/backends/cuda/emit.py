"""CUDA C++ text of a plan: functors for the expressions and one instantiation of a template of ``kernels``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ...compiler.gradient_patterns import SignedProduct, differing
from ...compiler.nest import Buffer, Nest
from ...compiler.patterns import ARITHMETIC, log_product, negative
from ...ir.node import Node, postorder, variables
from ...ir.reductions import Reduction
from .abi import Arguments, launch_bounds, register_split, table_members, table_parameters, table_values
from .gram_plan import PRODUCTS, CudaPlan, register_kinds, staged
from .spelling import TYPES, WITHIN, ExpressionEmitter, Typed, cast, literal
from .squares_plan import planes, weight

ENTRY = "kernmantle_kernel"
PRODUCER_REGISTERS = 56  # of a thread of the warps that copy
STORAGE = {
    "f16": "km::f16", "bf16": "km::bf16", "f32": "float", "f64": "double", "i8": "signed char", "u8": "unsigned char",
    "i16": "short", "i32": "int", "i64": "km::i64", "bool": "km::boolean",
}  # fmt: skip
COMPUTE = {"f32": "float", "f64": "double", "i32": "int", "i64": "km::i64", "bool": "bool"}
_PREPARED = ("split", *PRODUCTS)
_STEP = "const C* a, const C* b, const C* c, const C* d"
_KINDS = (("rows", "Row"), ("columns", "Column"), ("vectors", "Vector"), ("cells", "Cell"))


PACKAGE = Path(__file__).parents[2]


@lru_cache(maxsize=1)
def headers() -> dict[str, str]:
    """Return the templates by the name under which they are included."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.cuh"))}


def _buffers(plan: CudaPlan) -> list[str]:
    code: list[str] = []
    names = [buffer.name for buffer in plan.nest.buffers]
    code += [f"    template <int I> struct {template};" for template in (*(name for _, name in _KINDS), "Out")]
    code.append("};")
    operands = staged(plan.nest)
    for kind, template in _KINDS:
        for index, buffer in enumerate(operands[kind]):
            argument = names.index(buffer.name)
            code += _buffer(template, index, buffer, argument, plan)
    first = len(plan.nest.operands)
    kinds = _out_kinds(plan)
    for index, buffer in enumerate(plan.nest.outs):
        access = plan.access[first + index]
        stored = STORAGE[buffer.dtype]
        code += [
            f"template <> struct Body::Out<{index}> {{  // {buffer.name}",
            f"    typedef {stored} T;",
            f"    static constexpr int BUFFER = {first + index};",
            f"    static constexpr bool UNIT = {literal(access.run == 'tile', 'bool')};",
            f"    static constexpr bool VECTOR = {literal(access.width > 1, 'bool')};",
            "    static __device__ __forceinline__ T of(const Outs& o) {",
            f"        return km::Store<T>::from({kinds[index]}(o.o{index}));",
            "    }",
            "};",
        ]
    return code


def _buffer(template: str, index: int, buffer: Buffer, argument: int, plan: CudaPlan) -> list[str]:
    access = plan.access[argument]
    tile = "ROLE_N" if template == "Column" else "ROLE_M"
    varies = bool(set(buffer.roles) & set("kl"))
    lookahead = 2 if buffer.name in differing(plan.nest) else 1 if buffer.name in variables(_prefix(plan)) else 0
    return [
        f"template <> struct Body::{template}<{index}> {{  // {buffer.name}",
        f"    typedef {'km::packed2' if plan.half2 else STORAGE[buffer.dtype]} T;",
        f"    static constexpr int BUFFER = {argument}, TILE = km::{tile}, VEC = {access.width // (1 + plan.half2)};",
        f"    static constexpr km::Run RUN = km::{'ALONG_K' if access.run in ('k', 'dense') else 'ALONG_TILE'};",
        f"    static constexpr bool VARIES = {literal(varies, 'bool')};",
        f"    static constexpr int GUARD = {lookahead if _has_cheap_form(plan) else 0};",
        f"    static constexpr bool DENSE = {literal(access.run == 'dense', 'bool')};",
        "};",
    ]


def _is_half(plan: CudaPlan) -> bool:
    return plan.product is not None and plan.product.sign == "half"


def _has_cheap_form(plan: CudaPlan) -> bool:
    """Return whether there is an approximate form besides the exact one."""
    return plan.power is not None or (plan.product is not None and plan.product.sign != "")


def _prefix(plan: CudaPlan) -> list[Node]:
    """Return the factor of a sign that is counted in halves."""
    return [plan.product.prefix] if plan.product is not None and _is_half(plan) else []


def _out_kinds(plan: CudaPlan) -> list[str]:
    """Return C++ types of the values the outputs are stored from."""
    if plan.nest.partial:
        return [TYPES[kind].replace("C", "Body::C") for kind in register_kinds(plan.nest)]
    _, values = _outputs(plan)
    return [TYPES[kind].replace("C", "Body::C") for _, kind in values]


def registers_of(plan: CudaPlan) -> list[tuple[Reduction, list[str]]]:
    """Per accumulator the names of its registers."""
    named: list[tuple[Reduction, list[str]]] = []
    count = 0
    for reduction in plan.nest.reductions:
        named.append((reduction, [f"r{count + i}" for i in range(len(reduction.kinds))]))
        count += len(reduction.kinds)
    return named


def numbers_of(nest: Nest) -> dict[str, Typed]:
    """Return the numbers by name."""
    return {name: (f"number.v{i}", "value") for i, name in enumerate(nest.numbers)}


def state_of(reduction: Reduction, names: list[str], owner: str, letter: str = "s") -> dict[str, Typed]:
    """Return the registers of one accumulator under the names of its reduction."""
    items = enumerate(zip(names, reduction.kinds, strict=True))
    return {f"{letter}{i}": (f"{owner}.{name}", kind) for i, (name, kind) in items}


def _floating(plan: CudaPlan) -> bool:
    return plan.nest.compute in ("f32", "f64")


def environment_of(plan: CudaPlan, letters: str) -> dict[str, Typed]:
    """Return the numbers and the operands held in the arrays of these letters."""
    operands = staged(plan.nest)
    environment = numbers_of(plan.nest)
    for letter, (kind, _) in zip("abcd", _KINDS, strict=True):
        if letter in letters:
            environment |= {buffer.name: (f"{letter}[{i}]", "value") for i, buffer in enumerate(operands[kind])}
    return environment


def _step(plan: CudaPlan, within: bool = False) -> list[str]:
    environment = environment_of(plan, "abcd") | {"index": ("position", "index")}
    approximate = plan.nest.compute == "f32" and not plan.nest.reproducible
    product = plan.product
    whole = product is not None and not _has_cheap_form(plan)
    degree = 0 if plan.power is None else plan.power.degree
    mapped = ExpressionEmitter(
        environment, _floating(plan), approximate=approximate, table=degree if product is None else 0, within=within
    )
    values: list[Typed] = [("C(0)", "value")] * len(plan.nest.map)
    live = [i for i, reduction in enumerate(plan.nest.reductions) if "t" in variables(reduction.step)]
    for output, value in zip(live, mapped.expressions([plan.nest.map[i] for i in live]), strict=True):
        values[output] = value
    code = mapped.code
    if product is not None:
        cheap = ExpressionEmitter(environment, _floating(plan), "p", approximate, table=degree)
        quick = _product(product, cheap)
        exact = ("C(0.5) * " if _is_half(plan) else "") + cast(values[0], "value")
        branches = ["C value;", "if (METHOD == km::EXACT) {", *(f"    {text}" for text in [*code, f"value = {exact};"])]
        branches += ["} else {", *(f"    {text}" for text in [*cheap.code, f"value = {quick};"]), "}"]
        code = [*cheap.code, f"const C value = {quick};"] if whole else branches
        values[0] = ("value", "value")
    for output, (reduction, names) in enumerate(registers_of(plan)):
        state = state_of(reduction, names, "s")
        emitter = ExpressionEmitter(environment | state | {"t": values[output]}, _floating(plan), f"u{output}_")
        new = emitter.expressions(reduction.step)
        code += emitter.code + _assign(reduction, names, new, f"w{output}_")
    return code


def _has_sines(plan: CudaPlan) -> bool:
    """Return whether the map has sines that are computed inline for moderate arguments."""
    plain = plan.schema == "gram" and plan.nest.compute == "f32" and plan.power is None and plan.product is None
    return plain and any(node.op in WITHIN for node in postorder(plan.nest.map))


def _sines(plan: CudaPlan) -> list[str]:
    """Return a step that reports large arguments of sines instead of computing them."""
    if not _has_sines(plan):
        return []
    head = f"void step_within(Registers& s, {_STEP}, const Numbers& number, km::i64 position, bool& large)"
    return ["    static constexpr bool HAS_SINES = true;", *function(head, _step(plan, within=True))]


def _ranked(plan: CudaPlan) -> list[str]:
    """Return the value whose largest is found, and whether its bits are compared: a NaN of arithmetic has no sign."""
    if plan.schema != "position":
        return []
    (mapped,), least = plan.nest.map, plan.nest.reductions[0].name == "argmin"
    emitter = ExpressionEmitter(environment_of(plan, "abc"), _floating(plan), approximate=True)
    (found,) = emitter.expressions([negative(mapped) if least else mapped])
    head = "C ranked(const C* a, const C* b, const C* c, const Numbers& number)"
    by_bits = literal(mapped.op in ARITHMETIC, "bool")
    code = function(head, [*emitter.code, f"return {cast(found, 'value')};"])
    return [f"    static constexpr bool LEAST = {literal(least, 'bool')}, BY_BITS = {by_bits};", *code]


def _product(product: SignedProduct, emitter: ExpressionEmitter) -> str:
    """Return the value of a product, its statements left with the emitter."""
    roots = [product.prefix, *product.rest, *([product.difference] if product.difference is not None else [])]
    texts = [cast(typed, "value") for typed in emitter.expressions(roots)]
    first, rest = texts[0], texts[1 : 1 + len(product.rest)]
    if product.sign == "bit":
        first = f"km::with_sign({first}, {texts[-1]})"
    if product.sign == "half":
        rest = [f"km::above({texts[-1]})"]
    return " * ".join([first, *rest])


def _assign(reduction: Reduction, names: list[str], new: list[Typed], prefix: str) -> list[str]:
    """Return the statements that write all registers after all are computed."""
    casts = [cast(typed, kind) for typed, kind in zip(new, reduction.kinds, strict=True)]
    if len(names) == 1:
        return [f"s.{names[0]} = {casts[0]};"]
    kinds = zip(reduction.kinds, casts, strict=True)
    hold = [f"const {TYPES[kind]} {prefix}{i} = {text};" for i, (kind, text) in enumerate(kinds)]
    return hold + [f"s.{name} = {prefix}{i};" for i, name in enumerate(names)]


def _merge(plan: CudaPlan) -> list[str]:
    code: list[str] = []
    for output, (reduction, names) in enumerate(registers_of(plan)):
        if reduction.merge is None:
            continue
        environment = state_of(reduction, names, "s") | state_of(reduction, names, "r", "r") | numbers_of(plan.nest)
        emitter = ExpressionEmitter(environment, _floating(plan), f"u{output}_")
        new = emitter.expressions(reduction.merge)
        code += emitter.code + _assign(reduction, names, new, f"w{output}_")
    return code


def _outputs(plan: CudaPlan) -> tuple[ExpressionEmitter, list[Typed]]:
    environment = numbers_of(plan.nest)
    code: list[str] = []
    for argument, buffer in enumerate(plan.nest.operands):
        if not set(buffer.roles) & set("kl"):
            environment[buffer.name] = (f"e{argument}", "value")
    for output, (reduction, names) in enumerate(registers_of(plan)):
        finish = ExpressionEmitter(
            state_of(reduction, names, "s") | numbers_of(plan.nest), _floating(plan), f"u{output}_"
        )
        (environment[f"s{output}"],) = finish.expressions([reduction.finish])
        code += finish.code
    emitter = ExpressionEmitter(environment, _floating(plan), apart=True)
    values = emitter.expressions(plan.nest.outputs)
    used = variables(plan.nest.outputs)
    loads = [
        f"const C e{argument} = km::load_at<C, {STORAGE[buffer.dtype]}, {argument}>(g, p, {_coordinates(buffer)});"
        for argument, buffer in enumerate(plan.nest.operands)
        if buffer.name in used
    ]
    emitter.code = loads + code + emitter.code
    return emitter, values


def _coordinates(buffer: Buffer) -> str:
    return ", ".join(role if role in buffer.roles else "0" for role in "mn")


def _finish(plan: CudaPlan) -> tuple[list[str], list[str]]:
    """Return the members of the output record and the statements that fill it."""
    if plan.nest.partial:
        kinds = register_kinds(plan.nest)
        members = [f"{TYPES[kind]} o{i};" for i, kind in enumerate(kinds)]
        return members, ["Outs o;", *(f"o.o{i} = s.r{i};" for i in range(len(kinds))), "return o;"]
    emitter, values = _outputs(plan)
    members = [f"{TYPES[kind]} o{i};" for i, (_, kind) in enumerate(values)]
    fill = [f"o.o{i} = {text};" for i, (text, _) in enumerate(values)]
    return members, [*emitter.code, "Outs o;", *fill, "return o;"]


def function(head: str, code: list[str]) -> list[str]:
    """Return a static member of a functor."""
    return [f"    static __device__ __forceinline__ {head} {{", *(f"        {text}" for text in code), "    }"]


def body_of(plan: CudaPlan) -> list[str]:
    """Return the functors of a plan, in a record ``Body``."""
    nest, operands = plan.nest, staged(plan.nest)
    members, finish = _finish(plan)
    registers = [
        f"        {TYPES[kind]} {name};"
        for red, names in registers_of(plan)
        for kind, name in zip(red.kinds, names, strict=True)
    ]
    initial = [
        f"s.{name} = {literal(init, kind)};"
        for red, names in registers_of(plan)
        for init, kind, name in zip(red.init, red.kinds, names, strict=True)
    ]
    counts = ", ".join(f"{kind.upper()} = {len(operands[kind])}" for kind, _ in _KINDS)
    more = "km::i64 position, const float* scale"
    return [
        "struct Body {",
        f"    typedef {COMPUTE[nest.compute]} C;",
        f"    static constexpr int {counts}, OUTS = {len(nest.outs)};",
        f"    static constexpr bool OUTER_LOOP = {literal(nest.has_outer_loop, 'bool')};",
        f"    static constexpr bool MODERATE = {literal(_has_cheap_form(plan), 'bool')};",
        f"    static constexpr bool HALVES = {literal(_is_half(plan), 'bool')};",
        f"    static constexpr bool POWERS = {literal(plan.power is not None, 'bool')};",
        f"    static constexpr bool PACKED2 = {literal(plan.half2, 'bool')};",
        f"    static constexpr int SHARE = {plan.power.share if plan.power is not None else 0};",
        "    struct Numbers {",
        *(f"        C v{i};  // {name}" for i, name in enumerate(nest.numbers)),
        *([f"        {table_members(plan.power.degree)}"] if plan.power is not None else []),
        "    };",
        f"    typedef {_argument_type(plan).format(f'km::Arguments<{len(nest.buffers)}, Numbers>')} Args;",
        "    struct Registers {",
        *registers,
        "    };",
        "    struct Outs {",
        *(f"        {member}" for member in members),
        "    };",
        *function("void initial(Registers& s)", initial),
        "    template <km::Method METHOD>",
        *function(f"void step(Registers& s, {_STEP}, const Numbers& number, {more})", _step(plan)),
        *_sines(plan),
        *_ranked(plan),
        *_power(plan),
        *_weight(plan),
        *function("void merge(Registers& s, const Registers& r)", _merge(plan)),
        *function(
            "Outs outputs(const Args& g, const km::Coord& p, km::i64 m, km::i64 n, const Registers& s)",
            ["const Numbers& number = g.number;", *finish],
        ),
        *_buffers(plan),
    ]


def _power(plan: CudaPlan) -> list[str]:
    """Return the functors of the table of a power, and of what is subtracted from sums of halves."""
    code: list[str] = []
    good = "true"
    if plan.power is not None:
        emitter = ExpressionEmitter(numbers_of(plan.nest), True)
        ((exponent, _),) = emitter.expressions([plan.power.exponent])
        code += function("float exponent(const Numbers& number)", [*emitter.code, f"return {exponent};"])
        head = "void octave(float* scale, int biased, float size, const Numbers& number)"
        code += function(head, ["km::fill_octave(scale, biased, size, number.s0, number.s1, number.s2, number.s3);"])
        good = "number.good != 0.0f"
    if _has_cheap_form(plan):
        code += function("bool good(const Numbers& number)", [f"return {good};"])
    if _is_half(plan):
        emitter = ExpressionEmitter(environment_of(plan, "ac"), True)
        ((prefix, _),) = emitter.expressions(_prefix(plan))
        head = "C once(const C* a, const C* c, const Numbers& number)"
        code += function(head, [*emitter.code, f"return {prefix};"])
        code += function("void sum_of_signs(Registers& s, C total)", ["s.r0 = C(2) * s.r0 - total;"])
    return code


def _weight(plan: CudaPlan) -> list[str]:
    """Return the weight of squared differences before they are split, or what operands add to exponents."""
    if plan.schema not in (*_PREPARED, "score", "select", "columns", "deep"):
        return []
    logs = log_product(plan.nest)
    if logs is not None:
        code = ["    static constexpr bool WEIGHTED = false, LOGS = true;"]
        for name, part, operand in (("row", logs.row_part, logs.row), ("column", logs.column_part, logs.column)):
            emitter = ExpressionEmitter(environment_of(plan, "c") | {operand: ("value", "value")}, True)
            (found,) = emitter.expressions([part])
            head = f"C {name}_part(C value, const C* c, const Numbers& number)"
            code += function(head, [*emitter.code, f"return {cast(found, 'value')};"])
        return code
    found = weight(plan.nest)
    code = [f"    static constexpr bool WEIGHTED = {literal(found is not None, 'bool')};"]
    if found is None:
        return code
    emitter = ExpressionEmitter(environment_of(plan, "c"), True)
    ((value, _),) = emitter.expressions([found])
    return [*code, *function("C weight(const C* c, const Numbers& number)", [*emitter.code, f"return {value};"])]


def _argument_type(plan: CudaPlan) -> str:
    """Return the type of the further arguments, besides those that every kernel has."""
    return "km::Prepared<{}>" if plan.schema in _PREPARED else "km::Listed<{}>" if plan.listed else "{}"


def _handed(plan: CudaPlan) -> tuple[list[str], str]:
    """Return the parameters for what kernels leave to each other, and how these stand among the arguments."""
    if plan.listed:
        return ["const int* list"], "list"
    if plan.schema not in _PREPARED:
        return [], ""
    parameters = ["int* list", *(f"unsigned char* plane{i}" for i in range(2)), *(f"float2* row{i}" for i in range(2))]
    return parameters, "{list, {plane0, plane1}, {row0, row1}}"


def _entry(plan: CudaPlan) -> list[str]:
    nest = plan.nest
    paired = len(nest.operands) if plan.half2 else 0
    arguments = Arguments(len(nest.buffers), plan.integers, len(nest.numbers), paired=paired)
    handed, workspace = _handed(plan)
    parameters = [*handed, *arguments.pointer_parameters, *arguments.integer_parameters, *arguments.number_parameters]
    parameters += table_parameters(plan.power.degree) if plan.power is not None else []
    numbers = [*arguments.values("Body::C"), *(table_values(plan.power.degree) if plan.power is not None else [])]
    return [
        *_template(plan),
        "",
        *launch_bounds(plan.threads, plan.resident, ENTRY, parameters),
        f"    const Body::Args g = {'{{' if workspace else '{'}",
        f"        {{{arguments.pointers}}}, {{{arguments.sizes}}},",
        f"        {{{arguments.strides}}},",
        f"        {{{', '.join(numbers)}}}}}{f', {workspace}}}' if workspace else ''};",
        f"    km::{_call(plan)}(g);",
        "}",
    ]


def _template(plan: CudaPlan) -> list[str]:
    tile, mirrored = plan.tile, [literal(plan.symmetric, "bool")]
    if plan.schema == "thin":
        shape: tuple[int, ...] = (tile.rows, tile.columns // 4, tile.threads, tile.depth)
        mirrored = []
    elif plan.schema == "split":
        shape = (planes(plan.nest),)
    elif plan.schema in PRODUCTS:
        shape = (*((tile.n,) if plan.schema == "wgmma" else ()), tile.stages, planes(plan.nest))
    elif plan.schema in ("pipelined", "position"):
        shape = (tile.threads_m // 4, tile.threads_n // 8, tile.rows, tile.columns, tile.stages)
    else:
        shape = (tile.threads_m, tile.threads_n, tile.rows, tile.columns, tile.depth, tile.groups, tile.unroll)
    return [
        f"typedef km::{plan.schema.capitalize()}Tile<{', '.join([*map(str, shape), *mirrored])}> Tile;",
        f'static_assert(km::{plan.schema}_shared_bytes<Body, Tile>() <= {plan.shared}, "shared memory");',
    ]


def _call(plan: CudaPlan) -> str:
    if plan.schema not in ("pipelined", "position"):
        return f"{plan.schema}<Body, Tile>"
    producer, consumer = register_split(plan.arch, plan.threads, plan.resident, PRODUCER_REGISTERS)
    return f"{plan.schema}<Body, Tile, {producer}, {consumer}>"


def emit(plan: CudaPlan) -> str:
    """Return the source of the kernel ``ENTRY`` that runs a plan."""
    includes = [plan.schema, *(["scratch"] if plan.listed else [])]
    code = [f"// {plan}", *(f'#include "{name}.cuh"' for name in includes), "", *body_of(plan), "", *_entry(plan), ""]
    return "\n".join(code)
