"""From a program on axes to a loop nest on roles: which axis is tiled, looped, batched or split.

The last two output axes are the tile (m, n), further ones are batch axes. At most two reduced axes are looped
in the kernel; others, and one of them when the output has no axis, become output axes of partial registers
that are joined afterwards, in order, so every reduction is deterministic. VJPs keep an axis of outputs l.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.node import Node
from ..ir.ops import OPS
from ..ir.program import Program
from .gradient_patterns import Vjp
from .nest import Buffer, Nest
from .patterns import product

_SMALL_OUTPUT = 1 << 14  # eight times the entries a thread or multiprocessor beyond which nothing is split
_LONG_REDUCTION = 1 << 12  # terms of a part of a sum; shorter sums are not split


@dataclass(frozen=True)
class Lowering:
    """A nest and where the program's axes went in it."""

    nest: Nest
    roles: Mapping[str, str]
    batch: str
    partial: str
    splits: int

    @property
    def is_partial(self) -> bool:
        """Return whether registers are written and joined afterwards."""
        return self.nest.partial


def result_kind(node: Node, program: Program) -> str:
    """Return the kind of an output: "value", "bool" or "index"."""
    if node.op == "var" and node.name.startswith("s"):
        return program.reductions[int(node.name[1:])].result
    return "bool" if (node.op != "var" and node.op != "const" and OPS[node.op].boolean) else "value"


def _assign(program: Program, sizes: Mapping[str, int]) -> tuple[dict[str, str], str, str]:
    """Return roles of the tiled and looped axes, the batch axes, and the reduced axes kept in partial outputs."""
    out, reduced = program.out, list(program.reduced)
    partial = ""
    while len(reduced) > 2 or (not out and not partial and len(reduced) == 2):
        longest = max(reduced, key=lambda axis: sizes[axis])
        reduced.remove(longest)
        partial += longest
    tiled = out + partial
    roles = dict(zip(reversed(tiled[-2:]), "nm", strict=False))
    users = {axis: sum(axis in operand.axes for operand in program.operands) for axis in reduced}
    reduced.sort(key=lambda axis: users[axis], reverse=True)
    roles |= dict(zip(reduced, "kl", strict=False))
    return roles, tiled[:-2], partial


def _splits(program: Program, sizes: Mapping[str, int], roles: Mapping[str, str], parallel: int) -> int:
    if any(reduction.is_fold for reduction in program.reductions):
        return 1
    loops = {role: sizes[axis] for axis, role in roles.items() if role in "kl"}
    length = loops.get("l", loops.get("k", 1))
    tile = math.prod(sizes[axis] for axis, role in roles.items() if role in "mn")
    if tile * 8 > _SMALL_OUTPUT * parallel or math.prod(loops.values()) < _LONG_REDUCTION:
        return 1
    return max(1, min(8 * parallel, length // 8, math.prod(loops.values()) // _LONG_REDUCTION))


def lower(
    program: Program, sizes: Mapping[str, int], dtypes: Sequence[str], out_dtypes: Sequence[str], compute: str,
    parallel: int = 1, vjp: Vjp | None = None,
) -> Lowering:  # fmt: skip
    """Return the nest of a program; ``dtypes`` are the storage types of its array operands (the alias x1 included).

    ``vjp`` is the program as a VJP, to be run as one.
    """
    maps, outputs = program.map, program.outputs
    if vjp is None:
        roles, batch, partial = _assign(program, sizes)
        splits = _splits(program, sizes, roles, parallel)
    else:
        roles, partial, splits = vjp.roles, "", 1
        batch = "".join(axis for axis in program.out if axis not in roles)
        maps = (product([vjp.coefficient, product([vjp.weight, vjp.slope])]),)
        outputs = (product([vjp.outer, *outputs]),)
    arrays = [operand for operand in program.operands if not operand.number]
    buffers = tuple(
        Buffer(operand.name, "".join(sorted((roles[a] for a in operand.axes if a in roles), key="mnkl".index)), dtype)
        for operand, dtype in zip(arrays, dtypes, strict=True)
    )
    tile = "".join(role for role in ("mn" if vjp is None else "mnl") if role in roles.values())
    joined = bool(partial) or splits > 1
    if joined:
        kinds = {"value": compute, "bool": "bool", "index": "i64"}
        stored = [kinds[kind] for reduction in program.reductions for kind in reduction.kinds]
    else:
        stored = list(out_dtypes)
    outs = tuple(Buffer(f"out{i}", tile, dtype) for i, dtype in enumerate(stored))
    nest = Nest(
        buffers, tuple(operand.name for operand in program.numbers), outs, maps, program.reductions,
        () if joined else outputs, compute, program.symmetric, joined, vjp=vjp is not None,
        reproducible=program.rounds_alike,
    )  # fmt: skip
    return Lowering(nest, roles, batch, partial, splits)
