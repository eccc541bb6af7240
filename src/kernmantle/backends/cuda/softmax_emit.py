"""CUDA C++ text of softmax-weighted sums of rows and of their gradients: how an entry is made, and the kernels."""

from __future__ import annotations

from ...compiler.softmax import GRADIENTS
from .abi import Arguments, launch_bounds, register_split
from .emit import body_of
from .row_reduce_emit import ENTRY, SPLIT, SPLITTERS, entry_of, outs_of
from .row_reduce_plan import CudaRowPlan
from .spelling import literal

COLUMNS = "kernmantle_columns"
"""The kernel of the gradients by x1 and v; that of the gradient by x0 is ``ENTRY``."""
_PRODUCERS = {2: 40, 3: 32}
_HANDED = ("queries", "keys", "values"), ("query_units", "sides")
_PULLED = ("queries", "cotangents", "keys", "values"), ("row_sides", "column_sides")


def _halves(plan: CudaRowPlan) -> tuple[str, int]:
    """Return the type that tensor cores multiply, and how many planes of it numbers take."""
    stored = plan.rows.matrix.operands[0].dtype
    return ("km::bf16" if stored == "bf16" else "km::f16"), 2 if stored == "f32" else 1


def _tiles(plan: CudaRowPlan) -> list[str]:
    tile, (half, planes) = plan.tile, _halves(plan)
    shape = f"{half}, {planes}, {tile.depth}, {tile.unroll}, {tile.m // 64}"
    causal = literal(plan.rows.causal, "bool")
    if plan.rows.how == GRADIENTS:
        shape += f", {tile.stages}, {causal}"
        text = [f"typedef km::PullTile<{shape}, false> Tile;", f"typedef km::PullTile<{shape}, true> Columns;"]
        names, template = ("Tile", "Columns"), "pull_softmax"
    else:
        text = [f"typedef km::SoftmaxTile<{shape}, {tile.n}, {tile.stages}, {causal}> Tile;"]
        names, template = ("Tile",), "apply_softmax"
    return [
        *text,
        *(f'static_assert(km::{template}_shared_bytes<Apply, {name}>() <= {plan.shared}, "shared memory");'
          for name in names),
    ]  # fmt: skip


def _kernels(plan: CudaRowPlan) -> list[str]:
    """Return all kernels, which take the same arguments."""
    ports, nest, pulled = plan.rows.ports, plan.rows.matrix, plan.rows.how == GRADIENTS
    arguments = Arguments(len(ports), plan.integers, len(nest.numbers), absent=ports.index(nest.outs[0]))
    parameters = [*arguments.pointer_parameters, *arguments.integer_parameters, *arguments.number_parameters]
    packed, sides = _PULLED if pulled else _HANDED
    parameters += [*(f"unsigned char* {name}" for name in packed), *(f"float* {name}" for name in sides)]
    values = ", ".join(arguments.values("Body::C"))
    arguments_of_kernel = [
        "    const Apply::Args g = {{",
        f"        {{{arguments.pointers}}}, {{{arguments.sizes}}},",
        f"        {{{arguments.strides}}},",
        f"        {{{values}}}}}, {', '.join((*packed, *sides))}}};",
    ]
    producer, consumer = register_split(plan.matrix.arch, plan.threads, 1, _PRODUCERS[plan.tile.m // 64])
    main = "pull_softmax" if pulled else "apply_softmax"
    calls = [(ENTRY, plan.threads, f"{main}<Apply, Tile, {producer}, {consumer}>")]
    if pulled:
        calls.append((COLUMNS, plan.threads, f"{main}<Apply, Columns, {producer}, {consumer}>"))
    calls.append((SPLIT, SPLITTERS, "split_pull<Apply, Tile>" if pulled else "split_softmax<Apply, Tile>"))
    text: list[str] = []
    for name, threads, call in calls:
        text += ["", *launch_bounds(threads, 1, name, parameters), *arguments_of_kernel, f"    km::{call}(g);", "}"]
    return text


def emit_softmax(plan: CudaRowPlan) -> str:
    """Return the source of the kernels of a plan of softmax-weighted sums, or of their gradients."""
    pulled = plan.rows.how == GRADIENTS
    args = f"km::Arguments<{len(plan.rows.ports)}, Numbers>"
    text = [
        f"// {plan}",
        f'#include "{"pull" if pulled else "apply"}_softmax.cuh"',
        "",
        *body_of(plan.matrix),
        "",
        "struct Apply : Body {",
        f"    typedef km::{'Pulling' if pulled else 'Weighing'}<{args}> Args;",
        *entry_of(plan),
        *outs_of(plan),
        "",
        *_tiles(plan),
        *_kernels(plan),
    ]
    return "\n".join([*text, ""])
