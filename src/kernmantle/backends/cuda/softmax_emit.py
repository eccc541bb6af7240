"""CUDA C++ text of softmax-weighted sums of rows, their gradients and tangents: how an entry is made, the kernels."""

from __future__ import annotations

from ...compiler.softmax import DUALS, GRADIENTS, TANGENTS
from ...ir.reductions import SOFTMAX
from .abi import Arguments, launch_bounds, register_split
from .emit import body_of
from .row_reduce_emit import ENTRY, SPLIT, SPLITTERS, entry_of, outs_of
from .row_reduce_plan import CudaRowPlan
from .softmax_plan import FORWARD, by_columns_at_once
from .spelling import literal

COLUMNS, VALUES = "kernmantle_columns", "kernmantle_values"
"""Kernels of the gradients by x1 and v, or by x1 alone, and by v alone; that of the gradient by x0 is ``ENTRY``."""
_PRODUCERS = {1: 40, 2: 40, 3: 32}
_HANDED = {
    SOFTMAX: (("queries", "keys", "values"), ("query_units", "sides")),
    GRADIENTS: (("queries", "cotangents", "keys", "values"), ("row_sides", "column_sides")),
    TANGENTS: (("queries", "keys", "values"), ("row_sides", "column_sides")),
    DUALS: (("queries", "keys", "values"), ("row_sides", "column_sides")),
}
"""Pointers to bytes and to numbers that the kernels hand to each other."""
_TEMPLATES = {
    SOFTMAX: ("apply_softmax", "Weighing", "split_softmax"),
    GRADIENTS: ("vjp_softmax", "SoftmaxVjpArguments", "split_vjp"),
    TANGENTS: ("jvp_softmax", "SoftmaxJvpArguments", "split_jvp"),
    DUALS: ("jvp_softmax", "SoftmaxJvpArguments", "split_jvp"),
}
"""The template, in the file of its name, what its arguments are, and the function that packs."""


def _halves(plan: CudaRowPlan) -> tuple[str, int]:
    """Return the type that tensor cores multiply, and how many planes of it numbers take."""
    stored = plan.rows.matrix.operands[0].dtype
    return ("km::bf16" if stored == "bf16" else "km::f16"), 2 if stored == "f32" else 1


def main_kernels(plan: CudaRowPlan) -> tuple[str, ...]:
    """Return the names of the kernels behind the one that packs."""
    if plan.rows.how != GRADIENTS:
        return (ENTRY,)
    return (ENTRY, COLUMNS) if by_columns_at_once(plan.rows, plan.tile) else (ENTRY, COLUMNS, VALUES)


_PARTS = {
    ENTRY: ("Tile", "false, true, false"),
    COLUMNS: ("Columns", "true, true, {}"),
    VALUES: ("Values", "true, false, true"),
}
"""Tiles of gradients: whether they have rows of x1 and v, whether they make gradients by x0 or x1, and by v."""


def _tiles(plan: CudaRowPlan) -> list[str]:
    tile, (half, planes), how = plan.tile, _halves(plan), plan.rows.how
    shape = f"{half}, {planes}, {tile.depth}, {tile.unroll}, {tile.m // 64}"
    causal, names, (template, *_) = literal(plan.rows.causal, "bool"), ["Tile"], _TEMPLATES[how]
    if how == GRADIENTS:
        shape += f", {tile.stages}, {causal}"
        whole = literal(by_columns_at_once(plan.rows, tile), "bool")
        parts = {name: part.format(whole) for name, part in map(_PARTS.__getitem__, main_kernels(plan))}
        text, names = [f"typedef km::VjpTile<{shape}, {part}> {name};" for name, part in parts.items()], list(parts)
    elif how in FORWARD:
        both = literal(how == DUALS, "bool")
        text = [f"typedef km::SoftmaxJvpTile<{shape}, {tile.stages}, {causal}, {both}> Tile;"]
    else:
        text = [f"typedef km::SoftmaxTile<{shape}, {tile.n}, {tile.stages}, {causal}> Tile;"]
    return [
        *text,
        *(f'static_assert(km::{template}_shared_bytes<Apply, {name}>() <= {plan.shared}, "shared memory");'
          for name in names),
    ]  # fmt: skip


def _kernels(plan: CudaRowPlan) -> list[str]:
    """Return all kernels, which take the same arguments."""
    buffers, nest, how = plan.rows.buffers, plan.rows.matrix, plan.rows.how
    arguments = Arguments(len(buffers), plan.integers, len(nest.numbers), absent=buffers.index(nest.outs[0]))
    parameters = [*arguments.pointer_parameters, *arguments.integer_parameters, *arguments.number_parameters]
    packed, sides = _HANDED[how]
    main, _, packing = _TEMPLATES[how]
    parameters += [*(f"unsigned char* {name}" for name in packed), *(f"float* {name}" for name in sides)]
    values = ", ".join(arguments.values("Body::C"))
    arguments_of_kernel = [
        "    const Apply::Args g = {{",
        f"        {{{arguments.pointers}}}, {{{arguments.sizes}}},",
        f"        {{{arguments.strides}}},",
        f"        {{{values}}}}}, {', '.join((*packed, *sides))}}};",
    ]
    producer, consumer = register_split(plan.matrix.arch, plan.threads, 1, _PRODUCERS[plan.tile.m // 64])
    calls = [
        (name, plan.threads, f"{main}<Apply, {_PARTS[name][0]}, {producer}, {consumer}>") for name in main_kernels(plan)
    ]
    calls.append((SPLIT, SPLITTERS, f"{packing}<Apply, Tile>"))
    text: list[str] = []
    for name, threads, call in calls:
        text += ["", *launch_bounds(threads, 1, name, parameters), *arguments_of_kernel, f"    km::{call}(g);", "}"]
    return text


def emit_softmax(plan: CudaRowPlan) -> str:
    """Return the source of the kernels of a plan of softmax-weighted sums, of their gradients or tangents."""
    template, arguments, _ = _TEMPLATES[plan.rows.how]
    args = f"km::Arguments<{len(plan.rows.buffers)}, Numbers>"
    text = [
        f"// {plan}",
        f'#include "{template}.cuh"',
        "",
        *body_of(plan.matrix),
        "",
        "struct Apply : Body {",
        f"    typedef km::{arguments}<{args}> Args;",
        f"    static constexpr bool DIFFERENCES = {literal(plan.differences, 'bool')};",
        *entry_of(plan),
        *outs_of(plan),
        "",
        *_tiles(plan),
        *_kernels(plan),
    ]
    return "\n".join([*text, ""])
