"""Plans of nests on the GPU: the tile, the vector widths and the arguments, computed from sizes and strides.

A plan depends on sizes only through the choices that it records, so one compiled kernel serves all sizes with the same
choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...compiler.gradient_patterns import SignedProduct, match_signed_product
from ...compiler.nest import BYTES, ROLES, Buffer, Layout, Nest, batch_of, integer_slots
from ...compiler.patterns import is_abs_difference
from ...errors import ParameterError
from ...ir.node import Node, postorder, variables
from ...ir.ops import is_transcendental
from .fitted import GRAM
from .pow_tables import TABLE_SIXTEENTHS, TablePower, gathered, table_power
from .tiles import TILES, DeviceLimits, Tile, blocks_per_sm

_WIDEST = 16  # bytes of one load
_GRID_LIMIT = 2**31 - 1  # blocks
_PRODUCERS = {
    "pipelined": 128, "position": 128, "wgmma": 128, "score": 128, "select": 128, "wide": 128, "columns": 128,
    "deep": 128, "softmax": 128,
}  # fmt: skip
PRODUCTS = ("wgmma", "mma")
TABLE_BYTES = 8192  # of shared memory for the table of a power
_PIPELINED_OPERATIONS = 5  # operations a term
_THIN = 8  # terms of a sum


Argument = int | float
"""Pointers and integers are int, numbers float (float64 to the kernel), a pair of float32 the int of its bits."""


@dataclass(frozen=True)
class Access:
    """Access to a buffer: the axis along which it is vectorised, and the elements of one access.

    An axis is "k", "tile" or "any"; "dense" is k without gaps between the rows.
    """

    run: str
    width: int


@dataclass(frozen=True)
class CudaPlan:
    """Everything the emitter needs, and nothing of the sizes.

    ``listed``: it runs the tiles of a list that another kernel wrote.
    """

    nest: Nest
    arch: str
    schema: str
    tile: Tile
    access: tuple[Access, ...]
    symmetric: bool
    batch: str
    integers: tuple[int, ...]
    shared: int
    resident: int
    numerics: str
    power: TablePower | None = None
    product: SignedProduct | None = None
    listed: bool = False
    half2: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block, copying threads included."""
        return self.tile.threads + _PRODUCERS.get(self.schema, 0)

    def blocks(self, sizes: Mapping[str, int], limits: DeviceLimits) -> int:
        """Return the blocks to launch for these sizes."""
        return _launched(self, sizes, limits)

    def arguments(
        self, pointers: Sequence[int], integers: Sequence[int], numbers: Sequence[float]
    ) -> tuple[Argument, ...]:
        """Return the arguments of a launch, from the argument lists of ``compiler.nest``."""
        return (*pointers, *self.fixed(integers), *numbers, *self.trailing(numbers))

    def fixed(self, integers: Sequence[int]) -> tuple[int, ...]:
        """Return the arguments between the pointers and the numbers."""
        return tuple(integers[slot] for slot in self.integers)

    def trailing(self, numbers: Sequence[float]) -> tuple[Argument, ...]:
        """Return the arguments after the numbers, which depend on these."""
        return () if self.power is None else self.power.arguments(tuple(numbers))

    def of_degree(self, degree: int) -> CudaPlan:
        """Return the plan with polynomials of this degree for its power."""
        return replace(self, power=replace(self.power, degree=degree)) if self.power is not None else self

    def __str__(self) -> str:
        tile, split = self.tile, f" x {self.tile.groups} ranges of k" if self.tile.groups > 1 else ""
        widths = ", ".join(
            f"{buffer.name} {access.width}{access.run[0]}"
            for buffer, access in zip(self.nest.buffers, self.access, strict=True)
        )
        return (
            f"{self.schema} {self.arch} tile {tile.m}x{tile.n}x{tile.depth} ({tile.rows}x{tile.columns} a thread, "
            f"{tile.threads} threads{split}) access [{widths}] {'symmetric ' if self.symmetric else ''}{self.numerics}"
        )


def staged(nest: Nest) -> dict[str, tuple[Buffer, ...]]:
    """Operands of the map by how they are staged: "rows" and "columns" of the tile, "vectors" along k, "cells"."""
    steps = [node for reduction in nest.reductions for node in reduction.step]
    used = set(variables([*nest.map, *steps]))
    kinds: dict[str, list[Buffer]] = {"rows": [], "columns": [], "vectors": [], "cells": []}
    for buffer in nest.operands:
        if buffer.name in used:
            over_m, over_n = "m" in buffer.roles, "n" in buffer.roles
            kind = {(True, True): "cells", (True, False): "rows", (False, True): "columns"}.get(
                (over_m, over_n), "vectors"
            )
            kinds[kind].append(buffer)
    return {kind: tuple(buffers) for kind, buffers in kinds.items()}


def register_kinds(nest: Nest) -> tuple[str, ...]:
    """Return kinds of all registers of all accumulators, in order."""
    return tuple(kind for reduction in nest.reductions for kind in reduction.kinds)


def cell_words(nest: Nest) -> int:
    """32-bit registers of one output cell."""
    value = max(1, BYTES[nest.compute] // 4)
    kinds = {"value": value, "bool": 1, "index": 2}
    return sum(kinds[kind] for kind in register_kinds(nest)) + value * len(staged(nest)["cells"])


def has_one_operand_a_side(nest: Nest) -> bool:
    """Return whether rows and columns of the tile have an operand each, and its cells none."""
    operands = staged(nest)
    return len(operands["rows"]) == len(operands["columns"]) == 1 and not operands["cells"]


def is_heavy(nest: Nest) -> bool:
    """Return whether a step calls a function: many threads with few cells hide its latency best."""
    steps = [node for reduction in nest.reductions for node in reduction.step]
    return any(is_transcendental(node) and not _is_product(node) for node in postorder([*nest.map, *steps]))


def _is_product(node: Node) -> bool:
    return node.op == "pow" and not isinstance(node.args[1].number, bool) and node.args[1].number in (1, 2, 3, 4)


def _stage_words(nest: Nest, tile: Tile) -> int:
    value = BYTES[nest.compute]
    wide = min(4, _WIDEST // value)
    kinds = staged(nest)

    def pitch(span: int) -> int:
        return span if span % wide else span + wide

    return tile.depth * (
        len(kinds["rows"]) * pitch(tile.m) + len(kinds["columns"]) * pitch(tile.n) + len(kinds["vectors"])
    )


def register_bytes(nest: Nest) -> int:
    """Return the bytes of one cell's registers as the compiler lays them out."""
    sizes = [{"value": BYTES[nest.compute], "bool": 1, "index": 8}[kind] for kind in register_kinds(nest)]
    offset = 0
    for size in sizes:
        offset = -(-offset // size) * size + size
    widest = max(sizes, default=1)
    return -(-offset // widest) * widest


def shared_bytes(nest: Nest, tile: Tile) -> int:
    """Return the dynamic shared memory of a block."""
    if tile.schema in ("thin", "scan"):
        return 0
    if tile.schema in ("pipelined", "position"):
        return tile.stages * ((tile.m + tile.n + len(staged(nest)["vectors"])) * 128 + 16)
    stages = 2 * tile.groups * _stage_words(nest, tile) * BYTES[nest.compute]
    merge = tile.threads * tile.rows * tile.columns * register_bytes(nest) if tile.groups > 1 else 0
    return max(stages, merge) + (TABLE_BYTES if table_power(nest) is not None else 0)


def _width(strides: Sequence[int], sizes: Mapping[str, int], along: str, size: int, alignment: int) -> int:
    """Return the elements of one access along a role: it must be contiguous, other strides multiples of the width."""
    if sizes[along] > 1 and strides[ROLES.index(along)] != 1:
        return 1
    others = [stride for role, stride in zip(ROLES, strides, strict=True) if role != along and sizes[role] > 1]
    width = _WIDEST // size
    while width > 1 and (alignment % (width * size) or any(stride % width for stride in others)):
        width //= 2
    return min(width, 8)


def _is_dense(strides: Sequence[int], sizes: Mapping[str, int], tile_role: str) -> bool:
    """Return whether rows of k, contiguous in memory, follow each other without a gap along the tile."""
    step = dict(zip(ROLES, strides, strict=True))
    others = [step[role] for role in "abc" if sizes[role] > 1]
    packed = step[tile_role] == sizes["k"] and (step["k"] == 1 or sizes["k"] == 1)
    return packed and not any(stride % 4 for stride in others)


def _access(buffer: Buffer, strides: Sequence[int], sizes: Mapping[str, int], alignment: int) -> Access:
    tile_role = "n" if "n" in buffer.roles and "m" not in buffer.roles else "m"
    size = BYTES[buffer.dtype]
    if _is_dense(strides, sizes, tile_role) and sizes["k"] <= _THIN and alignment % _WIDEST == 0:
        return Access("dense", _width(strides, sizes, "k", size, alignment))
    along_k = sizes["k"] > 1 and "k" in buffer.roles and strides[ROLES.index("k")] == 1
    if along_k or tile_role not in buffer.roles:
        return Access("k", _width(strides, sizes, "k", size, alignment) if along_k else 1)
    contiguous = sizes[tile_role] > 1 and strides[ROLES.index(tile_role)] == 1
    return Access("tile", _width(strides, sizes, tile_role, size, alignment) if contiguous else 1)


def _out_access(buffer: Buffer, strides: Sequence[int], sizes: Mapping[str, int], alignment: int, run: int) -> Access:
    """Return the access to an output: ``run`` neighbouring columns at a time if that is one aligned access."""
    size = BYTES[buffer.dtype]
    contiguous = sizes["n"] > 1 and strides[ROLES.index("n")] == 1
    others = [s for role, s in zip(ROLES, strides, strict=True) if role != "n" and (sizes[role] > 1 or role == "k")]
    fits = run > 1 and contiguous and run * size <= _WIDEST and alignment % (run * size) == 0
    return Access("tile" if contiguous else "any", run if fits and not any(s % run for s in others) else 1)


def column_run(nest: Nest, tile: Tile) -> int:
    """Return the number of neighbouring columns that a thread owns."""
    wide = min(4, _WIDEST // BYTES[nest.compute])
    if tile.schema == "thin":
        return 4
    if tile.schema in PRODUCTS:
        return 2
    if tile.columns % wide == 0:
        return wide
    return 2 if tile.columns % 2 == 0 and wide >= 2 else 1


def _tiles(tile: Tile, sizes: Mapping[str, int], symmetric: bool) -> int:
    rows, columns = -(-sizes["m"] // tile.m), -(-sizes["n"] // tile.n)
    outer = batch_of(sizes) * sizes["splits"]
    return (rows * (rows + 1) // 2 if symmetric else rows * columns) * outer


def _launched(plan: CudaPlan, sizes: Mapping[str, int], limits: DeviceLimits) -> int:
    loops = plan.schema in ("pipelined", "position", *PRODUCTS) or plan.listed
    persistent = limits.sm_count * plan.resident if loops else _GRID_LIMIT
    return max(1, min(_tiles(plan.tile, sizes, plan.symmetric), persistent))


def cost(tile: Tile, nest: Nest, sizes: Mapping[str, int], symmetric: bool, limits: DeviceLimits) -> float:
    """Return cycles by a coarse model: issue slots of the busiest multiprocessor, a latency per wave and per stage.

    The cost is infinite for a tile without measured efficiency.
    """
    if tile.efficiency == 0:
        return math.inf
    tiles = _tiles(tile, sizes, symmetric)
    together = blocks_per_sm(tile, cell_words(nest), shared_bytes(nest, tile), limits)
    heavy = is_heavy(nest) or table_power(nest) is not None
    steps = sizes["k"] * sizes["l"] / sizes["splits"]
    slots = steps * (GRAM.heavy if heavy else 1.0) + GRAM.cell
    efficiency = 64 * (tile.heavy if heavy else tile.efficiency)
    issue = math.ceil(tiles / limits.sm_count) * tile.m * tile.n * slots / efficiency
    stages = math.ceil(steps / tile.groups / tile.depth)
    waited = GRAM.wave + GRAM.stage * stages + GRAM.group * tile.groups
    return issue + math.ceil(tiles / (limits.sm_count * together)) * waited


def supports_warp_specialized(nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits) -> bool:
    """Return whether the warp-specialised template can run a nest: one register a cell, one operand a side, float32."""
    plain = has_one_operand_a_side(nest)
    steps = [node for reduction in nest.reductions for node in reduction.step]
    heavy = is_heavy(nest) or table_power(nest) is not None
    operations = sum(bool(node.args) for node in postorder([*nest.map, *steps]))
    operations += 100 * heavy
    outer = nest.partial or nest.has_outer_loop
    small = nest.compute == "f32" and cell_words(nest) == 1 and operations <= _PIPELINED_OPERATIONS
    return limits.has(("warp_specialized",)) and plain and small and not outer and sizes["k"] >= 32


def finds_positions(nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits) -> bool:
    """Return whether the warp-specialised template of positions can run a nest: one argmin or argmax in float32."""
    plain = has_one_operand_a_side(nest)
    single = [reduction.name for reduction in nest.reductions] in (["argmin"], ["argmax"]) and nest.compute == "f32"
    operations = sum(bool(node.args) for node in postorder(nest.map))
    small = not is_heavy(nest) and operations <= _PIPELINED_OPERATIONS
    outer = nest.partial or nest.has_outer_loop
    fits = 32 <= sizes["k"] < _GRID_LIMIT and not outer
    return limits.has(("warp_specialized",)) and plain and single and small and fits


def _sums_half2(nest: Nest) -> bool:
    """Return whether sums of |x - y| may be taken in pairs of float16; pairs of bfloat16 were slower than float32."""
    stored = [buffer.dtype for buffer in nest.operands]
    if nest.precision != "half" or stored != ["f16", "f16"] or len(nest.map) != 1:
        return False
    return nest.reductions[0].name == "sum" and is_abs_difference(nest.map[0])


def _is_thin(nest: Nest, sizes: Mapping[str, int]) -> bool:
    """Return whether the reduction is so short that writing a large result dominates."""
    plain = has_one_operand_a_side(nest) and not nest.symmetric
    outer = nest.partial or nest.has_outer_loop
    large = sizes["n"] >= 1024 and sizes["m"] * sizes["n"] >= 1 << 21
    return plain and not outer and large and 1 <= sizes["k"] <= _THIN and BYTES[nest.compute] == 4


def _fits(tile: Tile, nest: Nest, sizes: Mapping[str, int], symmetric: bool, limits: DeviceLimits) -> bool:
    if not limits.has(tile.requires):
        return False
    if tile.schema == "pipelined":
        square = tile.m == tile.n or not symmetric
        two_at_a_time = not tile.half2 or (_sums_half2(nest) and sizes["k"] % 2 == 0)
        return square and two_at_a_time and supports_warp_specialized(nest, sizes, limits)
    if tile.schema == "thin":
        return _is_thin(nest, sizes)
    if tile.schema == "position":
        return not symmetric and finds_positions(nest, sizes, limits)
    cells = tile.rows * tile.columns
    fits = cells * cell_words(nest) <= 72 or cells == 1
    power = table_power(nest)
    small = cells <= 16 or (not is_heavy(nest) and power is None)
    if tile.table_power and (power is None or power.share != TABLE_SIXTEENTHS):
        return False
    if tile.matrix_operand:
        fits = _has_matrix_operand(nest)
    in_order = tile.groups == 1 or not any(reduction.is_fold for reduction in nest.reductions)
    square = tile.m == tile.n or not symmetric
    return fits and small and in_order and square and shared_bytes(nest, tile) <= limits.shared_per_block


def _has_matrix_operand(nest: Nest) -> bool:
    """Return whether large threads leave room for one operand over the tile besides the accumulators."""
    operands = staged(nest)
    plain = len(operands["rows"]) == len(operands["columns"]) == len(operands["cells"]) == 1 and not operands["vectors"]
    return plain and nest.compute == "f32" and cell_words(nest) == 2 and "k" not in operands["cells"][0].roles


def _in_order(tile: Tile) -> Tile:
    """Return the tile without split-K groups, for reductions that must run in order."""
    return replace(tile, groups=1, resident=1)


def _used_integers(nest: Nest, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return slots of the extents and strides the kernel takes; ranges of a partial result take the place of k."""
    roles = "".join(role for role in "mnkl" if any(role in buffer.roles for buffer in nest.buffers))
    outs = [replace(buffer, roles=f"{buffer.roles}k") if nest.partial else buffer for buffer in nest.outs]
    return integer_slots([*nest.operands, *outs], sizes, roles, nest.partial)


def candidates(nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits) -> tuple[Tile, ...]:
    """Return every tile that can run a nest, the one predicted to be fastest first, unmeasured ones last."""
    symmetric = nest.mirrors
    folds = any(reduction.is_fold for reduction in nest.reductions)
    family = [_in_order(tile) if folds and tile.schema == "gram" else tile for tile in TILES]
    family = [replace(tile, depth=sizes["k"]) if tile.schema == "thin" else tile for tile in family]
    valid = [tile for tile in family if _fits(tile, nest, sizes, symmetric, limits)]
    return tuple(sorted(valid, key=lambda tile: cost(tile, nest, sizes, symmetric, limits)))


def plan(
    nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout, tile: str | None = None
) -> CudaPlan:
    """Choose how to run a nest on buffers of a layout, operands first.

    ``tile`` names one of the ``candidates`` to take instead of the one that should be quickest.
    """
    for one in candidates(nest, sizes, limits):
        if tile in (None, one.name) and is_choice(nest, sizes, limits, layout, one):
            return planned(nest, sizes, limits, layout, one)
    raise ParameterError(f"tile {tile!r} cannot run this nest on {limits.arch}")


def is_choice(nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout, tile: Tile) -> bool:
    """Return whether a candidate suits the layout of the arrays: pairs must be read in one access."""
    chosen = planned(nest, sizes, limits, layout, tile)
    return not chosen.half2 or all(access.run == "k" and access.width > 1 for access in chosen.access[:2])


def _uses_approximate_power(nest: Nest) -> bool:
    """Return whether the map holds powers that are approximated."""
    powers = [node for node in postorder(nest.map) if node.op == "pow" and not _is_product(node)]
    approximate = bool(powers) or table_power(nest) is not None
    return nest.compute == "f32" and approximate and not nest.reproducible


def _numerics(nest: Nest, tile: Tile) -> str:
    if tile.half2:
        return f"{nest.compute} of sums of 16 in {nest.operands[0].dtype}"
    return f"{nest.compute} {'powers to 2e-6' if _uses_approximate_power(nest) else 'ieee'}"


def _resident(tile: Tile, nest: Nest) -> int:
    """Return the blocks a multiprocessor must have room for: what the registers of the cells leave room for."""
    words = cell_words(nest)
    if tile.schema == "thin":
        return 1 if tile.depth > 4 else tile.resident
    if tile.schema in ("pipelined", "position") or tile.matrix_operand or words == 1:
        return tile.resident
    return min(tile.resident, 2) if tile.rows * tile.columns * words <= 48 else 1


def planned(nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout, tile: Tile) -> CudaPlan:
    """Return the plan in a tile, which need not be a row of the table."""
    nest = gathered(nest)
    accesses: list[Access] = []
    for index, buffer in enumerate(nest.buffers):
        strides, alignment = layout.strides[index], layout.alignment[index]
        if index < len(nest.operands):
            accesses.append(_access(buffer, strides, sizes, alignment))
        else:
            accesses.append(_out_access(buffer, strides, sizes, alignment, column_run(nest, tile)))
    shared = shared_bytes(nest, tile)
    return CudaPlan(
        nest, limits.arch, tile.schema, tile, tuple(accesses), nest.mirrors,
        "".join(role for role in "abc" if sizes[role] > 1), _used_integers(nest, sizes), shared,
        _resident(tile, nest), _numerics(nest, tile), table_power(nest) if tile.schema == "gram" else None,
        match_signed_product(nest) if tile.schema == "gram" else None, half2=tile.half2,
    )  # fmt: skip
