"""CUDA C++ of the passes that find the gradients of neighbouring factors of a Kronecker product and apply these."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...backends.cuda.traits import SCALARS, members, shared_check, struct
from .back_axis_plan import BackAxisPlan
from .back_registers_plan import BackRegistersPlan
from .back_wgmma_plan import EXTENT, BackWgmmaPlan
from .chain_gradient_plan import ChainPlan
from .cuda_entry import LATER
from .gradient_cost import PassPlan
from .gradient_groups import Groups, Size

ENTRY = "km_back"
# What a pass gets (KronPass).
_PASS = f"{{(const T*)v, (const T*)x, (T*)out, (float*)parts, items, width, {LATER} != 0, (float)slope}}"
_NAMES = {BackWgmmaPlan: "Wgmma", BackAxisPlan: "Axis", BackRegistersPlan: "Registers"}


def emit(plan: PassPlan) -> str:
    """Return CUDA C++; the same plan always gives the same text."""
    return _emit_chain(plan) if isinstance(plan, ChainPlan) else _emit_slotted(plan)


def _emit_slotted(plan: BackWgmmaPlan | BackAxisPlan | BackRegistersPlan) -> str:
    (q0, p0), (q1, p1), *_ = *plan.axes, (EXTENT, EXTENT)
    name, kind = _NAMES[type(plan)], SCALARS[plan.stored]
    constants: dict[str, int | bool | str] = {
        "Q0": q0, "P0": p0, "Q1": q1, "P1": p1, "ROWS": plan.grid[0], "COLUMNS": plan.grid[1], "SLOT0": plan.slots[0],
        "SLOT1": plan.slots[1], "ITEMS": plan.items, "VECTOR": plan.vector, "PACK": plan.pack, "STAGES": plan.stages,
    }  # fmt: skip
    if isinstance(plan, BackRegistersPlan):
        constants |= {"THREADS": plan.threads, "ACROSS": plan.across, "BEFORE": plan.before, "TEAM": plan.team}
    else:
        constants |= {"COPIES": plan.copies, "LOADERS": plan.loaders}
    axes = range(len(plan.groups))
    firsts = [sum(map(len, plan.groups[:axis])) for axis in axes]
    shares = [
        [
            f"        const float* const joint = joint{axis};",
            *_shares(axis, plan.groups[axis], firsts[axis], plan.stored, plan.multiplying),
        ]
        for axis in axes
    ]
    text = [
        f"// {plan}",
        f'#include "kron_back_{name.lower()}.cuh"',
        *struct("Body", {"T": kind, "H": SCALARS["bf16" if plan.stored == "bf16" else "f16"]}, constants),
        *_group_structs(plan.groups, plan.stored, plan.multiplying),
        f"typedef km::KronBack{name}<Body> Back;",
        shared_check("Back::SHARED_BYTES", plan.shared),
        *_signature(plan),
        f"    typedef {kind} T;",
        *(_factor(axis, plan.groups[axis], firsts[axis]) for axis in axes),
        f"    const Back::Arguments g = {_PASS};",
        f"    Back::run(g, {', '.join(f'factor{axis}' for axis in axes)}, "
        f"[&]({', '.join(f'const float* joint{axis}' for axis in axes)}) {{",
        f"        float* own = g.parts + (long long)blockIdx.x * {plan.parts};",
        *(f"        {own.strip()}" for lot in shares for own in ("{", *lot, "}")),
        "    });",
        "}",
    ]  # fmt: skip
    return "\n".join(text) + "\n"


def _emit_chain(plan: ChainPlan) -> str:
    count, kind = len(plan.axes), SCALARS[plan.stored]
    constants: dict[str, int | bool | str] = {
        "AXES": count, "THREADS": plan.threads, "ITEMS": plan.items, "ACROSS": plan.across, "COLUMNS": plan.has_columns,
        "LISTED": plan.is_listed, "VECTOR": plan.vector, "SQUARE": plan.is_square,
    }  # fmt: skip
    sides = list(zip(*plan.axes, strict=True))
    pitches = [pitch for own in plan.pitches for pitch in own]
    text = [
        f"// {plan}",
        '#include "kron_chain.cuh"',
        "struct Body {",
        *members({"T": kind}, constants),
        _table("rows", "axis", sides[0]), _table("columns", "axis", sides[1]),
        _table("pitch", "stage, int axis", pitches, f"stage * {count} + axis"),
        "};",
        *_group_structs(plan.groups, plan.stored, plan.threads),
        shared_check("km::KronChain<Body>::shared_bytes()", plan.shared),
        *_signature(plan),
        "    typedef km::KronChain<Body> Chain;\n    typedef Body::T T;",
        "    extern __shared__ __align__(16) unsigned char raw[];",
        f"    float* const tables = (float*)raw;\n    T* const values = (T*)(tables + {plan.tables[-1][0]});",
        f"    unsigned short* const listed = (unsigned short*)(values + {plan.slots[-1]});",
        f"    const Chain::Arguments g = {{{_PASS}, listed}};",
        "    Chain::list_fibers(listed);",
        f"    const long long across = {f'(width + {plan.across - 1}) / {plan.across}' if plan.has_columns else '1'};",
        f"    const long long tiles = (items + {plan.items - 1}) / {plan.items} * across;",
        "    const auto fetch = [&](long long tile) {",
        f"        const long long item = tile / across * {plan.items}, column = tile % across * {plan.across};",
        *(f"        {own}" for own in _fetched(plan)),
        "    };",
        "    km::kron_begin(is_later != 0, [&]() {",
        *(f"    {own}" for own in _factors(plan)),
        "    }, [&]() {",
        "        if (blockIdx.x < tiles) fetch(blockIdx.x);  // on their way while a first pass reads the factors",
        "    });",
        *(f"    Chain::Sum<{axis}> sum{axis};" for axis in range(count)),
        "#pragma unroll 1",
        "    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {",
        f"        const long long item = tile / across * {plan.items}, column = tile % across * {plan.across};",
        *(f"        {own}" for own in _tile(plan)),
        "        if (tile + gridDim.x < tiles) fetch(tile + gridDim.x);",
        "    }",
        f"    float* own = g.parts + (long long)blockIdx.x * {plan.parts};",
        *(f"    {own}" for own in _results(plan)),
        "}",
    ]  # fmt: skip
    return "\n".join(text) + "\n"


def _signature(plan: PassPlan) -> list[str]:
    """Return how the kernel of a pass begins: its name and parameters."""
    numbers = range(len(plan.sizes))
    pointers = ["v", "x", "out", "parts", *(f"f{number}" for number in numbers)]
    integers = [*(f"{axis}{number}" for number in numbers for axis in ("row", "column")), "items", "width", LATER]
    parameters = [*(f"void* {name}" for name in pointers), *(f"long long {name}" for name in integers), "double slope"]
    bounds = f"__launch_bounds__({plan.threads}, {plan.blocks})"
    return [f'extern "C" __global__ void {bounds}', f"{ENTRY}({', '.join(parameters)}) {{"]


def _table(name: str, parameters: str, values: Sequence[int], index: str = "axis") -> str:
    """Return a function of constants."""
    found = str(values[-1])
    for number in reversed(range(len(values) - 1)):
        found = f"at == {number} ? {values[number]} : {found}"
    return f"    static __device__ constexpr int {name}(int {parameters}) {{ const int at = {index}; return {found}; }}"


def _first(plan: ChainPlan, axis: int) -> int:
    return sum(len(group) for group in plan.groups[:axis])


def _group_structs(groups: Groups, stored: str, threads: int) -> list[str]:
    """Return the structs of the factors of each axis that has several."""
    found: list[str] = []
    for axis, group in enumerate(groups):
        if len(group) == 1:
            continue
        sides = list(zip(*group, strict=True))
        constants = {
            "COUNT": len(group), "ENTRIES": math.prod(map(math.prod, group)), "COLUMNS": math.prod(sides[1]),
            "THREADS": threads, "SHORT": 1,
        }  # fmt: skip
        found += [
            f"struct Group{axis} {{",
            *members({"T": SCALARS[stored], "C": "float"}, constants),
            _table("rows", "axis", sides[0]), _table("columns", "axis", sides[1]),
            "};",
        ]  # fmt: skip
    return found


def _factor(axis: int, group: Sequence[Size], first: int) -> str:
    """Return the function of the entries of the product of a group of factors, the first by number."""
    terms: list[str] = []
    for index, (rows, columns) in enumerate(group):
        down, across = (math.prod(size[side] for size in group[index + 1 :]) for side in (0, 1))
        number = first + index
        entry = f"q / {down} % {rows} * row{number} + p / {across} % {columns} * column{number}"
        terms.append(f"km::convert<float>(km::load_pack<T, 1>((const T*)f{number} + {entry}).v[0])")
    return f"    const auto factor{axis} = [=](int q, int p) {{ return {' * '.join(terms)}; }};"


def _factors(plan: ChainPlan) -> list[str]:
    """Return the lines that put the factors of each axis, and their transposes, into shared memory."""
    found, first = list[str](), 0  # threads take up one table where they end the one before
    for axis, (group, (rows, columns)) in enumerate(zip(plan.groups, plan.axes, strict=True)):
        found.append(_factor(axis, group, _first(plan, axis)))
        for is_back, at in enumerate(plan.tables[axis]):
            if is_back or axis + 1 < len(plan.groups):
                kind = f"Chain::Table<{axis}, {str(bool(is_back)).lower()}>"
                found.append(f"    {kind}::prepare<{first}>(tables + {at}, factor{axis});")
                first = (first + 32 * -(-rows // 8) * -(-columns // 8)) % plan.threads
    return found


def _fetched(plan: ChainPlan) -> list[str]:
    """Return the lines that copy x and v of a tile."""
    count, (of_x, of_v) = len(plan.axes), plan.operands
    return [
        f"Chain::fetch<0>(values + {of_x}, g.x, g, item, column);",
        f"Chain::fetch<{count}>(values + {of_v}, g.v, g, item, column);",
    ]


def _tile(plan: ChainPlan) -> list[str]:
    """Return the lines of a tile."""
    count, slot, barrier = len(plan.axes), [f"values + {at}" for at in plan.slots], "__syncthreads();"
    found = ["km::ptx::cp_async_wait_all();", barrier]

    def applied(axis: int, is_back: bool, target: str, source: str) -> str:
        kind = f"{axis}, {str(is_back).lower()}, {str(is_back and axis == 0).lower()}"
        return f"Chain::apply<{kind}>({target}, {source}, tables + {plan.tables[axis][is_back]}, g, item, column);"

    for axis in range(count - 1):
        found += [applied(axis, False, slot[axis + 1], slot[axis]), barrier]
    source = slot[count]
    for axis in reversed(range(count)):
        target = "g.out" if axis == 0 else slot[count + 1] if axis == count - 1 else slot[axis + 1]
        found += [f"sum{axis}.add({source}, {slot[axis]}, listed);", applied(axis, True, target, source), barrier]
        source = target
    return found


def _results(plan: ChainPlan) -> list[str]:
    """Return the lines that write a block's share of all gradients."""
    found: list[str] = []
    for axis, group in enumerate(plan.groups):
        found += ["{", f"    const float* joint = sum{axis}.total((float*)raw);"]
        found += [*_shares(axis, group, _first(plan, axis), plan.stored, plan.threads), "}"]
    return found


def _shares(axis: int, group: Sequence[Size], first: int, stored: str, threads: int) -> list[str]:
    """Return what writes the gradients of a group of factors, the first by number, from ``joint`` to ``own``."""
    sizes = [rows * columns for rows, columns in group]
    if len(group) == 1:
        found = [f"    for (int n = threadIdx.x; n < {sizes[0]}; n += {threads}) own[n] = joint[n];"]
    else:
        kind = SCALARS[stored]
        matrices = ", ".join(f"{{(const {kind}*)f{n}, row{n}, column{n}}}" for n in range(first, first + len(group)))
        found = [
            f"    const km::KronMatrix<{kind}> matrices[{len(group)}] = {{{matrices}}};",
            f"    km::kron_separate_all<Group{axis}>(own, joint, matrices);",
        ]
    return [*found, f"    own += {sum(sizes)};"]
