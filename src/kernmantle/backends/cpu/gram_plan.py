"""How the CPU runs a nest: which tile role is vectorised, how many accumulators stay in registers, which blocks.

A plan depends on the nest and on the vectors of the machine, never on strides; on extents only through ``swap``,
``across`` and ``symmetric``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...compiler.nest import BYTES, Buffer, Nest, batch_of
from ...compiler.patterns import never_negative
from ...ir.node import Node, postorder, variables
from ...ir.ops import is_transcendental

_WIDTH = {"f32": 4, "f64": 8, "i32": 4, "i64": 8, "bool": 4}  # bytes of an accumulator
_PANEL_BYTES = 32 << 10  # of one packed panel, which stays in the first cache
_ROWS_BYTES = 128 << 10  # of the packed rows of a block
_COLUMNS_BYTES = 1536 << 10  # of the packed columns of a block
_STATE_BYTES = 1 << 20  # of accumulators between ranges of k
_CELLS_BYTES = 256 << 10  # of operands over m, n and k, for one tile
_GRAIN = 1 << 20  # operations that a thread is started for
_HEAVY_COST = 16  # operations that a transcendental function counts as
_ALIGNMENT = 64  # bytes
_ITEM_TILES = 4  # tiles of rows of an item that a thread takes
_WIDEST_BLOCK = 4096  # columns
_SHORTEST_ACROSS = 8  # vectors of k, for extents of m and n below one vector
# Cells take that many operations each before half of them is worth mirroring: 36 where a result of up to 8 MiB stays
# in the caches, else 120 (2 cores of a Xeon, float32 and float64 sums of |x - y|: even at k = 12 and 40).
_MIRRORED_COST, _MIRRORED_COST_FAR = 36, 120
_CACHED_BYTES = 8 << 20  # of a result that stays in the caches
_POINTS_BYTES = 256 << 10  # of the points of an item of a VJP
_MOST_POINTS = 32  # points of an item of a VJP
_MOST_OUTPUTS = 64  # outputs of a pass of a VJP
_PANELS = 4  # panels of columns in a block of a VJP


@dataclass(frozen=True)
class Work:
    """How a call is cut up: independent items, scratch of one thread, and what an item costs, in operations."""

    items: int
    scratch_bytes: int
    cost: int

    @property
    def grain(self) -> int:
        """Return how many items are worth a thread."""
        return max(1, _GRAIN // max(1, self.cost))


@dataclass(frozen=True)
class CpuPlan:
    """Everything the emitter needs.

    The tile has ``rows`` rows of ``vectors`` vectors of ``lanes`` elements. With ``swap`` the roles m and n have
    changed places in ``nest``: what it calls n, the vectorised role, is m among the kernel's integers. Buffers are
    held as packed ``row_buffers`` (m), packed ``column_buffers`` (n), ``k_buffers`` (neither) and ``cell_buffers``
    (both). ``depth`` is the block of k, ``row_block`` and ``column_block`` those of m and n; an item is
    ``item_rows`` rows. With ``optimistic`` a first form of the kernel runs which leaves out the rare cases of the
    arithmetic and, where it meets one, calls the exact form. With ``across`` the vectors run along k, for outputs
    too small to fill one: the tile is then a single cell. With ``vjp`` the nest is a VJP whose roles m and l
    have changed places: the rows of a tile are outputs, an item is ``item_rows`` points, and a block of columns is
    reduced for all of them before the next.
    """

    nest: Nest
    schema: str
    swap: bool
    lanes: int
    rows: int
    vectors: int
    row_buffers: tuple[Buffer, ...]
    column_buffers: tuple[Buffer, ...]
    k_buffers: tuple[Buffer, ...]
    cell_buffers: tuple[Buffer, ...]
    depth: int
    row_block: int
    column_block: int
    item_rows: int
    unroll: int
    symmetric: bool
    optimistic: bool
    across: bool
    cost: int
    vjp: bool = False

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return 1 if self.across else self.lanes * self.vectors

    def copies(self, buffer: Buffer) -> int:
        """Return how many packed copies of an operand are held at once: one for each point of an item, or one."""
        return self.item_rows if self.vjp and "l" in buffer.roles else 1

    def strip_bytes(self, buffer: Buffer) -> int:
        """Room for the tiles of an output above each other."""
        return _round_up(self.row_block * self.columns * BYTES[buffer.dtype], _ALIGNMENT)

    @property
    def width(self) -> int:
        """Bytes of a packed element."""
        return _WIDTH[self.nest.compute]

    @property
    def looped(self) -> bool:
        """Return whether there is anything to reduce."""
        return any(set(buffer.roles) & set("kl") for buffer in self.nest.operands)

    @property
    def state_bytes(self) -> int:
        """Room for the registers of one tile."""
        count = sum(len(reduction.kinds) for reduction in self.nest.reductions)
        return count * self.rows * self.columns * self.width

    def actual(self, role: str) -> str:
        """Return the role among the kernel's integers of a role of ``nest``."""
        if self.vjp:
            return {"m": "l", "l": "m"}.get(role, role)
        return {"m": "n", "n": "m"}.get(role, role) if self.swap else role

    def __str__(self) -> str:
        names = ", ".join(
            f"{kind} {' '.join(buffer.name for buffer in buffers)}"
            for kind, buffers in (
                ("rows", self.row_buffers), ("columns", self.column_buffers),
                ("lines", self.k_buffers), ("cells", self.cell_buffers),
            )
            if buffers
        )  # fmt: skip
        flags = "".join(
            f" {word}"
            for word, on in (
                ("swap", self.swap),
                ("symmetric", self.symmetric),
                ("optimistic", self.optimistic),
                ("across", self.across),
                ("vjp", self.vjp),
            )
            if on
        )
        return (
            f"{self.schema} tile {self.rows}x{self.columns} ({self.vectors} vectors of {self.lanes}) "
            f"blocks {self.row_block}x{self.column_block}x{self.depth} [{names}]{flags} {self.nest.compute}"
        )


def exchanged(nest: Nest, roles: str) -> Nest:
    """Return the nest with two roles in each other's place."""
    table = str.maketrans(roles, roles[::-1])

    def oriented(buffer: Buffer) -> Buffer:
        return replace(buffer, roles="".join(sorted(buffer.roles.translate(table), key="mnkl".index)))

    return replace(nest, operands=tuple(map(oriented, nest.operands)), outs=tuple(map(oriented, nest.outs)))


def _should_swap(nest: Nest, lanes: int, sizes: Mapping[str, int] | None) -> bool:
    """Vectorise over n, unless only m is there or n is shorter than a vector and m is not."""
    roles = {role for buffer in nest.buffers for role in buffer.roles}
    if "n" not in roles or "m" not in roles:
        return "m" in roles
    return sizes is not None and sizes["n"] < lanes and sizes["m"] >= 2 * sizes["n"]


def _mirroring_pays(nest: Nest, cost: int, sizes: Mapping[str, int] | None) -> bool:
    """Return whether computing a cell takes longer than copying it to the other side of the diagonal."""
    if sizes is None or cost >= _HEAVY_COST:
        return True
    is_cached = sizes["m"] * sizes["n"] * BYTES[nest.outs[0].dtype] <= _CACHED_BYTES
    return sizes["k"] * sizes.get("l", 1) * cost >= (_MIRRORED_COST if is_cached else _MIRRORED_COST_FAR)


def expressions(nest: Nest) -> list[Node]:
    """Return what is evaluated inside the reduced loops."""
    return [*nest.map, *(node for reduction in nest.reductions for node in reduction.step)]


def dependence(node: Node, roles: Mapping[str, str]) -> frozenset[str]:
    """Return roles that an expression varies with, given those of the variables."""
    return frozenset("".join(roles.get(name, "") for name in variables([node])))


def fast_power(node: Node, roles: Mapping[str, str]) -> bool:
    """Return whether a power has a short form: its base is never negative and its exponent the same everywhere."""
    return node.op == "pow" and never_negative(node.args[0]) and not dependence(node.args[1], roles)


def _is_optimistic(nest: Nest, roles: Mapping[str, str]) -> bool:
    if nest.compute not in ("f32", "f64"):
        return False
    nodes = postorder(nest.map)
    powers = any(node.op == "pow" and fast_power(node, roles) and "k" in dependence(node, roles) for node in nodes)
    powers = powers and not nest.reproducible
    return powers or any(reduction.extremum for reduction in nest.reductions)


def _runs_across(nest: Nest, lanes: int, sizes: Mapping[str, int] | None) -> bool:
    """Vectors run along k where neither output role fills one, k does, and the order of positions is free."""
    if sizes is None or max(sizes["m"], sizes["n"]) >= lanes or sizes["k"] < _SHORTEST_ACROSS * lanes:
        return False
    if any({"m", "n", "k"} <= set(buffer.roles) for buffer in nest.operands):
        return False
    ordered = any(reduction.is_fold or "index" in reduction.kinds for reduction in nest.reductions)
    return not ordered and "index" not in variables(expressions(nest))


def _cost(nodes: list[Node]) -> int:
    return sum(_HEAVY_COST if is_transcendental(node) else 1 for node in postorder(nodes) if node.args)


def _tile(nest: Nest, registers: int, heavy: bool, cells: int) -> tuple[int, int]:
    """Return the rows and vectors of the tile, so that accumulators and hoisted cells stay in registers."""
    roles = {role for buffer in nest.buffers for role in buffer.roles}
    if "n" not in roles:
        return 1, 1
    budget = registers // 2
    if "m" not in roles:
        return 1, max(1, min(4, budget // cells))
    shapes = ((2, 2), (2, 1), (1, 1)) if heavy else ((4, 2), (2, 2), (2, 1), (1, 1))
    return next((shape for shape in shapes if shape[0] * shape[1] * cells <= budget), (1, 1))


def _per_cell(nest: Nest, roles: Mapping[str, str]) -> int:
    """Vectors that every cell of the tile keeps: registers of accumulators over both roles, hoisted cells."""
    count = 0
    for value, reduction in zip(nest.map, nest.reductions, strict=True):
        nodes = reduction.step if reduction.is_fold else (value,)
        if {"m", "n"} <= set().union(*(dependence(node, roles) for node in nodes)):
            count += len(reduction.kinds)
    return max(1, count + sum({"m", "n"} <= dependence(node, roles) for node in _hoisted(nest, roles)))


def _hoisted(nest: Nest, roles: Mapping[str, str]) -> list[Node]:
    """Return the largest subexpressions that do not vary with k although their user does."""
    found: dict[int, Node] = {}
    dependences: dict[int, frozenset[str]] = {}
    for node in postorder(expressions(nest)):
        own = roles.get(node.name, "") if node.op == "var" else ""
        dependences[id(node)] = frozenset(own).union(*(dependences[id(arg)] for arg in node.args))
        if "k" in dependences[id(node)]:
            found |= {id(arg): arg for arg in node.args if dependences[id(arg)] and "k" not in dependences[id(arg)]}
    return list(found.values())


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _clamp(value: int, low: int, high: int, step: int) -> int:
    return max(low, min(high, value // step * step))


def plan(nest: Nest, host_vector_bytes: int, vector_registers: int, sizes: Mapping[str, int] | None = None) -> CpuPlan:
    """Choose how to run a nest with vector registers of so many bytes; ``sizes`` decide whether m is vectorised."""
    width = _WIDTH[nest.compute]
    lanes = max(2, host_vector_bytes // width)
    if nest.vjp:
        return _vjp_plan(nest, lanes, vector_registers, sizes["l"] if sizes else _MOST_OUTPUTS)
    swap = _should_swap(nest, lanes, sizes)
    oriented = exchanged(nest, "mn") if swap else nest
    roles = {buffer.name: buffer.roles for buffer in oriented.operands} | {"t": "k", "index": "k", "s0": "k", "s1": "k"}
    by_role = _buffers_by_role(oriented)
    cost = max(1, _cost(expressions(oriented)))
    heavy = cost >= _HEAVY_COST
    rows, vectors = _tile(oriented, vector_registers, heavy, _per_cell(oriented, roles))
    looped = any(set(buffer.roles) & set("kl") for buffer in oriented.operands)
    across = looped and _runs_across(oriented, lanes, sizes)
    if across:
        states = sum(len(reduction.kinds) for reduction in oriented.reductions)
        rows, vectors = 1, max(1, min(2 if heavy else 4, vector_registers // (2 * states)))
    depth, row_block, column_block = _blocks(oriented, by_role, rows, 1 if across else lanes * vectors, looped)
    if across:
        buffers = sum("k" in buffer.roles for kind in by_role.values() for buffer in kind)
        depth = _clamp(_PANEL_BYTES // (max(1, buffers) * width), 512, 4096, 512)
    return CpuPlan(
        nest=oriented, schema="gram" if looped else "elementwise", swap=swap, lanes=lanes, rows=rows, vectors=vectors,
        row_buffers=by_role["m"], column_buffers=by_role["n"], k_buffers=by_role[""], cell_buffers=by_role["mn"],
        depth=depth, row_block=row_block, column_block=column_block, item_rows=_ITEM_TILES * rows,
        unroll=1 if heavy else 2,
        symmetric=nest.mirrors and not (nest.partial or swap) and _mirroring_pays(nest, cost, sizes),
        optimistic=looped and _is_optimistic(oriented, roles), across=across, cost=cost,
    )  # fmt: skip


def _vjp_tile(registers: int, heavy: bool, outputs: int) -> tuple[int, int]:
    """Return the rows and vectors: the outputs of a tile share what the slope costs, the more the dearer it is."""
    most = 16 if heavy else 8
    rows = next(count for count in (2, 4, 8, 16) if count >= min(outputs, most))
    return rows, 2 if 2 * rows <= registers // 2 else 1


def _vjp_plan(nest: Nest, lanes: int, registers: int, outputs: int) -> CpuPlan:
    """Return a tile of outputs and columns; the slope is computed once for all rows of it."""
    oriented = exchanged(nest, "ml")
    roles = {buffer.name: buffer.roles for buffer in oriented.operands}
    by_role = _buffers_by_role(oriented)
    cost = max(1, _cost(expressions(oriented)))
    rows, vectors = _vjp_tile(registers, cost >= _HEAVY_COST, outputs)
    columns = lanes * vectors
    width = _WIDTH[nest.compute]
    depth = _clamp(_PANEL_BYTES // (columns * width), 64, 512, 8)
    block = _PANELS * columns
    most = min(_MOST_OUTPUTS, _round_up(outputs, rows))
    return CpuPlan(
        nest=oriented, schema="vjp", swap=False, lanes=lanes, rows=rows, vectors=vectors, row_buffers=by_role["m"],
        column_buffers=by_role["n"], k_buffers=by_role[""], cell_buffers=by_role["mn"], depth=depth, row_block=most,
        column_block=block, item_rows=_clamp(_POINTS_BYTES // (most * block * width), 4, _MOST_POINTS, 4), unroll=1,
        symmetric=False, optimistic=_is_optimistic(oriented, roles), across=False, cost=cost, vjp=True,
    )  # fmt: skip


def _buffers_by_role(nest: Nest) -> dict[str, tuple[Buffer, ...]]:
    """Return the operands that anything reads, by their tile roles."""
    used = set(variables([*expressions(nest), *nest.outputs]))
    kinds: dict[str, list[Buffer]] = {"m": [], "n": [], "": [], "mn": []}
    for buffer in nest.operands:
        if buffer.name in used:
            kinds["".join(role for role in "mn" if role in buffer.roles)].append(buffer)
    return {kind: tuple(buffers) for kind, buffers in kinds.items()}


def _blocks(
    nest: Nest, by_role: Mapping[str, tuple[Buffer, ...]], rows: int, columns: int, looped: bool
) -> tuple[int, int, int]:
    """Blocks of k, m and n: a panel of columns in the first cache, packed rows in the second, the rest bounded."""
    width = _WIDTH[nest.compute]
    panel = max(1, sum("k" in buffer.roles for buffer in by_role["n"])) * columns * width
    depth = _clamp(_PANEL_BYTES // panel, 64, 512, 8)
    if any("k" in buffer.roles for buffer in by_role["mn"]):
        depth = min(depth, _clamp(_CELLS_BYTES // (rows * columns * width * len(by_role["mn"])), 8, 512, 8))
    row_bytes = max(1, len(by_role["m"])) * depth * width
    row_block = _clamp(_ROWS_BYTES // row_bytes, _ITEM_TILES * rows, 256, rows)
    state = sum(len(reduction.kinds) for reduction in nest.reductions) * row_block * width
    column_bytes = max(1, len(by_role["n"])) * depth * width
    limit = min(_COLUMNS_BYTES // column_bytes, _STATE_BYTES // state if looped else _WIDEST_BLOCK)
    return depth, row_block, _clamp(limit, columns, _WIDEST_BLOCK, columns)


def scratch(plan: CpuPlan, sizes: Mapping[str, int]) -> int:
    """Return the bytes of scratch, laid out as the emitted kernel does: rows, columns, lines, cells, state, strips."""
    m, n = sizes[plan.actual("m")], sizes[plan.actual("n")]
    rows = min(plan.row_block, _round_up(m, plan.rows))
    columns = min(plan.column_block, _round_up(n, plan.columns))
    depth = min(plan.depth, max(1, sizes["k"]))
    total = 0
    for buffers, extent in (
        (plan.row_buffers, rows), (plan.column_buffers, columns),
        (plan.k_buffers, 1), (plan.cell_buffers, plan.rows * plan.columns),
    ):  # fmt: skip
        for buffer in buffers:
            layers = (depth if "k" in buffer.roles else 1) * plan.copies(buffer)
            total += _round_up(layers * extent * plan.width, _ALIGNMENT)
    if plan.looped:
        tiles = rows // plan.rows * (columns // plan.columns) * (plan.item_rows if plan.vjp else 1)
        total += tiles * plan.state_bytes
    if plan.symmetric:
        total += _ALIGNMENT + sum(map(plan.strip_bytes, plan.nest.outs))
    return total + _ALIGNMENT


def work(plan: CpuPlan, sizes: Mapping[str, int]) -> Work:
    """Return items, scratch and grain of a call with these extents (those of ``nest.SIZES``)."""
    m, n = sizes[plan.actual("m")], sizes[plan.actual("n")]
    outer = batch_of(sizes) * sizes["splits"]
    if plan.vjp:
        points, blocks = sizes[plan.actual("l")], -(-n // plan.column_block)
        one = min(points, plan.item_rows) * min(n, plan.column_block) * sizes["k"] * (m + plan.cost)
        items = outer * blocks * -(-points // plan.item_rows)
        return Work(items, scratch(plan, sizes), one)
    items = outer * -(-m // plan.item_rows) if n else 0
    steps = max(1, sizes["k"] * sizes["l"] // sizes["splits"])
    return Work(items, scratch(plan, sizes), min(m, plan.item_rows) * n * steps * plan.cost)
