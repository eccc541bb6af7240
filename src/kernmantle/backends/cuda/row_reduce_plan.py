"""How the GPU runs a row nest: which loops make the entries of the matrix, how many at once, what they take.

Rows of few entries stay in registers ("thin"); longer ones pass through the tiles of gram ("tile") or through its
warp-specialised form ("pipelined"), whose threads then reduce what they hold. On Hopper, squared distances and inner
products come from tensor cores ("score"), bounds on them give the nearest columns ("select"), and entries of points of
few numbers are multiplied with many columns there ("wide"), as those of score tiles are ("columns", of more numbers
"deep"), with one of the others for points that do not suit these.
Blocks take even runs of tiles, see ``apply.cuh``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...compiler.hoist import by_reciprocals
from ...compiler.nest import BYTES, ROLES, Layout, Nest, batch_of, integer_slots
from ...compiler.patterns import is_proportional, scale, squared_differences
from ...compiler.row_reduce import PRODUCT, RowNest
from . import columns_plan, score_plan, select_plan, softmax_plan, wide_plan
from .gram_plan import Access, CudaPlan, DeviceLimits, cell_words, is_heavy, planned, staged, supports_warp_specialized
from .pow_tables import table_power
from .row_entries import ends, folded_entry, has_linear_entries, has_powers, is_approximate, sums_exponentials
from .squares_plan import squares_plan
from .tiles import RESERVED_SHARED, ROW_PIPELINED, ROW_SCAN, ROW_TILES, Tile

MOST, LEAST_COLUMNS, LEAST_ENTRIES = 32, 2048, 1 << 19
"""Most entries that are selected by the minima of groups, fewest columns and pairs."""
SCAN_ROWS, SCAN_COLUMNS = 16, 1 << 16
"""Rows from which on tiles are used, and fewest columns of fewer rows."""
MANY_COLUMNS = ("columns", "deep")
"""Forms whose entries are made and multiplied with v on tensor cores."""
_ACROSS = 8  # minima that each tile of columns leaves of a row
WORK_BYTES = 64 << 20
"""Most bytes of work space."""
SLOTS = 3  # of a block in the work space: for its first row block, its last, and whole ones (``apply.cuh``)
JOINERS = 256  # threads of a block that joins parts
_DEEPEST = 16  # columns of points that a thread keeps in registers
_POSITION_BYTES = 8
_THIN_THREADS, _STAGE, _MANY = 128, 256, 1 << 13
_MOST_ROWS, _LONG_STAGE, _PLENTY = 8, 1024, 1 << 11
_LONG_UNROLL, _LONG_CELLS = 8, 24
"""Rows of y at a time in long passes, and the numbers of rows x that a thread may hold for it: a Gaussian product of
1e5 points in 3-D takes 3.63 ms on an H200, by 4 rows at a time 3.72."""
_RUN_BYTES = 8  # of a row whose exponentials are added up: their sum in the runs before, and what it lost
_SHALLOW = 128  # columns of points up to which two stages are enough
_STAGE_DEPTH = 32  # columns of points of a stage
_CHUNK = 16  # columns of v that a pass takes
_DEEP, _DEEP_SELECTION, _SIDE = 192, 320, 2048  # columns of points, and rows of x and y, from which on products pay
_REGISTERS = 1 << 16  # of a multiprocessor
_CACHE_BYTES = 36 << 20  # of the second-level cache that rows of one launch may take
_MOST_COLUMNS, _MOST_RESULTS = 64, 32  # columns of v, or results of a row, up to which a kernel replaces blocks


@dataclass(frozen=True)
class CudaRowPlan:
    """Everything the emitter needs, and nothing of the sizes.

    ``matrix`` makes the entries; ``group`` columns of v are held at a time. ``fallback`` runs, ``gated``, where the
    points do not suit products on tensor cores. ``grouped`` selections write the minima of groups and look into these.
    """

    matrix: CudaPlan
    rows: RowNest
    form: str
    group: int
    integers: tuple[int, ...]
    shared: int
    resident: int
    gated: bool = False
    fallback: CudaRowPlan | None = None
    grouped: bool = False

    @property
    def tile(self) -> Tile:
        """Shape of the pieces of the matrix."""
        return self.matrix.tile

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.matrix.threads

    @property
    def approximate(self) -> bool:
        """Return whether functions of entries may have the special function unit's own accuracy."""
        return is_approximate(self.rows)

    @property
    def sums_exponentials(self) -> bool:
        """Return whether log-sum-exps take one exponential an entry, of the special function unit."""
        return self.form in ("thin", "tile", "pipelined") and sums_exponentials(self.rows)

    @property
    def differences(self) -> bool:
        """Return whether entries are made of squared distances."""
        return squared_differences(self.rows.matrix) is not None

    @property
    def linear(self) -> bool:
        """Return whether entries under logsumexp are linear in their sums, and read no operand of their row."""
        return self.form == "score" and has_linear_entries(self.rows, self.tile)

    @property
    def powers(self) -> bool:
        """Return whether sums are of powers of 2 to squared distances times a factor, and of nothing else."""
        return self.form in ("score", "columns", "wide") and has_powers(self.rows)

    @property
    def expands(self) -> bool:
        """Return whether exponentials of squared distances come from norms and products, if points are small."""
        return self.form == "thin" and _expands(self.rows, self.tile.depth)

    def memory(self, sizes: Mapping[str, int]) -> score_plan.ScoreMemory:
        """Return the workspace of the kernels of a score tile."""
        of_rows, of_columns = (len(ends(self.rows, role)) for role in "mn")
        if self.form == "softmax":
            return softmax_plan.memory(self.rows, self.tile, sizes, of_rows, of_columns)
        if self.form == "select":
            return select_plan.memory(self.tile, sizes)
        if self.form in MANY_COLUMNS:
            return columns_plan.memory(self.tile, self.group, sizes, of_columns)
        if self.form == "wide":
            return wide_plan.memory(self.tile, sizes, of_columns, self.powers)
        columns = self.group if self.rows.v is not None else 0
        return score_plan.memory(self.tile, sizes, _with_tile(self.rows, self.tile), columns)

    @property
    def state_bytes(self) -> int:
        """Bytes of the registers of one entry of the result."""
        size = BYTES[self.rows.matrix.compute]
        if self.rows.selects:
            return 2 * _POSITION_BYTES
        return size * len(self.rows.reduction.kinds)

    def tiles(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the tiles of the whole matrix and of one row block."""
        columns = -(-sizes["n"] // self.tile.n)
        return batch_of(sizes) * -(-sizes["m"] // self.tile.m) * columns, columns

    def blocks(self, sizes: Mapping[str, int], limits: DeviceLimits, width: int) -> int:
        """Return the blocks to launch for these sizes and that many columns of the result."""
        most = WORK_BYTES // (SLOTS * width * self.tile.m * self.state_bytes)
        return max(1, min(self.tiles(sizes)[0], limits.sm_count * self.resident, most))

    def band(self, sizes: Mapping[str, int], limits: DeviceLimits, width: int) -> int:
        """Rows of one launch: as many as stay near while all columns pass them, or all where that does not matter."""
        blocks, row_blocks = self.blocks(sizes, limits, width), -(-sizes["m"] // self.tile.m)
        cached = _CACHE_BYTES // (self.tile.m * max(1, sizes["k"]) * BYTES[self.rows.matrix.operands[0].dtype])
        parts = -(-blocks // max(1, cached))
        is_small = batch_of(sizes) > 1 or -(-sizes["n"] // self.tile.n) < 4 * parts
        if self.form == "thin" or is_small or parts == 1 or cached >= row_blocks:
            return sizes["m"]
        return max(1, blocks // parts) * self.tile.m

    def work_bytes(self, blocks: int, width: int) -> int:
        """Return the bytes of work space."""
        return blocks * SLOTS * width * self.tile.m * self.state_bytes

    def __str__(self) -> str:
        how = f"{self.rows.count or ''} {self.rows.how}".strip()
        note = ", entries to 1e-6" * self.approximate
        if self.form == "select" and self.fallback is not None:
            note += ", nearest by one product of f16 halves, exact by differences"
            note += f", {self.fallback.form} where these do not suit the points"
        elif self.form == "wide":
            note += ", times v by 3 products of f16 halves, thin where these cannot hold an infinity"
        elif self.expands:
            note += ", from norms and products of small points"
        elif self.grouped:
            note += ", from the minima of groups"
        elif self.form == "softmax":
            stored = self.rows.matrix.operands[0].dtype
            own = "3 products of f16 halves" if softmax_plan.is_split(self.rows) else f"products of {stored}"
            note = f", one pass, {own}" + ", causal" * self.rows.causal
        elif self.fallback is not None:
            note += ", 3 products of f16 halves" + ", close pairs by differences" * self.differences
            note += ", times v by 3 more" * (self.form in MANY_COLUMNS)
            note += f", {self.fallback.form} where these do not suit the points"
        return f"apply {how} by {self.group} {self.form}, of {self.matrix}{note}"


def _group(rows: RowNest, width: int, most: int) -> int:
    """Return the columns of v that are taken at a time: a power of two."""
    group = 1
    while rows.how == PRODUCT and group < min(width, most):
        group *= 2
    return group


def _is_thin(nest: Nest, sizes: Mapping[str, int]) -> bool:
    operands = staged(nest)
    return (
        not _is_tabled(nest) and len(operands["rows"]) == len(operands["columns"]) == 1 and 1 <= sizes["k"] <= _DEEPEST
    )


def _expands(rows: RowNest, depth: int) -> bool:
    """Return whether entries are proportional to exponentials of squared distances, and are only added up."""
    nest = rows.matrix
    if depth < 2:  # one difference takes no more operations than a product and two norms: 2.64 ms, not 2.72
        return False
    squares = squared_differences(nest)
    if rows.selects or rows.reduction.name != "sum" or squares is None or squares.weight is not None:
        return False
    found = None if nest.precision == "ieee" else scale(nest, *folded_entry(nest))
    return found is not None and is_proportional(found.output)


def _is_tabled(nest: Nest) -> bool:
    """Return whether entries read operands of their own, which neighbouring threads should find side by side."""
    return any(buffer.roles == "mn" for buffer in nest.operands)


def _thin(rows: RowNest, sizes: Mapping[str, int]) -> tuple[Tile, int]:
    """Return the rows a thread and columns of v at a time, so that all stays in registers."""
    nest = rows.matrix
    words, kinds = BYTES[nest.compute] // 4, 0 if rows.selects else len(rows.reduction.kinds)
    group = _group(rows, sizes["l"], 16)
    threads = _THIN_THREADS if sizes["m"] < _MANY else 2 * _THIN_THREADS
    most = 2 if rows.selects else _MOST_ROWS
    each = (sizes["k"] + group * kinds + 2 * cell_words(nest) // words) * words
    while most > 1 and (most * each > 60 or threads * most > max(threads, sizes["m"])):
        most //= 2
    cells = most * max(1, sizes["k"])
    unroll = 4 if cells <= 32 else 2 if cells <= 64 else 1
    registers = most * each + (sizes["k"] + group) * words + 20
    resident = max(1, min(2 * _THIN_THREADS * 16 // (threads * most), _REGISTERS // (registers * threads)))
    tile = Tile("apply thin", threads, 1, most, _STAGE, sizes["k"], 1, unroll, resident, 1.0, "thin")
    deeper = _LONG_UNROLL if cells <= _LONG_CELLS else unroll
    wide = replace(tile, threads_m=2 * threads, columns=_LONG_STAGE, unroll=deeper, resident=1)
    plenty = -(-sizes["m"] // wide.m) * -(-sizes["n"] // wide.n) >= _PLENTY
    return (wide if plenty and most == _MOST_ROWS and resident == 2 else tile), group


def _tiled(nest: Nest) -> Tile:
    """Return the largest tile whose cells stay in registers; small ones where a step calls functions."""
    if is_heavy(nest) or table_power(nest) is not None:
        return ROW_TILES[-1]
    words = cell_words(nest)
    return next((tile for tile in ROW_TILES if tile.rows * tile.columns * words <= 72), ROW_TILES[-1])


def _integers(rows: RowNest, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return slots of the extents and strides that the kernel takes; entries of the matrix lie nowhere."""
    return integer_slots([None if buffer is rows.matrix.outs[0] else buffer for buffer in rows.buffers], sizes)


def by_products(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> bool:
    """Return whether blocks of the matrix by tensor cores are much quicker than differences."""
    nest = replace(rows.matrix, precision="default")
    square = dict(sizes) | {"m": _SIDE, "n": _SIDE}
    straight = Layout(tuple(tuple(int(role == "k") for role in ROLES) for _ in nest.buffers), (16,) * len(nest.buffers))
    deep = sizes["k"] >= (_DEEP_SELECTION if rows.selects else _DEEP)
    large = deep and min(sizes["m"], sizes["n"]) >= _SIDE
    return large and rows.matrix.precision != "ieee" and squares_plan(nest, square, limits, straight) is not None


def is_worth_it(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> bool:
    """Return whether a kernel is quicker than blocks: not of few rows, nor where vendor products are quicker."""
    if (
        scans(rows, sizes)
        or columns_plan.columns_tiles(rows, sizes, limits)
        or select_plan.part_count(rows, sizes, limits)
    ):
        return True
    if rows.selects and select_plan.select_tile(rows, {**sizes, "a": 1, "b": 1, "c": 1}, limits) is not None:
        return True
    most = _MOST_COLUMNS if rows.how == PRODUCT else _MOST_RESULTS
    suits = sizes["m"] >= SCAN_ROWS and sizes["l"] <= most
    return suits and not by_products(rows, sizes, limits)


def plan_rows(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout) -> CudaRowPlan:
    """Choose how to run a row nest; ``layout`` is that of its buffers."""
    if scans(rows, sizes):
        return _scanned(rows, sizes, limits, layout)
    direct = _plan_directly(rows, sizes, limits, layout)
    found = _on_tensor_cores(rows, sizes, limits)
    if found is None:
        return (_grouped(rows, direct, sizes, limits, layout) if rows.selects else None) or direct
    tile, group, shared = found
    if shared > limits.shared_per_block:
        return direct
    matrix, fallback = planned(rows.matrix, sizes, limits, layout.of(rows.matrix), tile), replace(direct, gated=True)
    return CudaRowPlan(matrix, rows, tile.schema, group, direct.integers, shared, 1, fallback=fallback)


def _on_tensor_cores(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits) -> tuple[Tile, int, int] | None:
    """Return the tile, columns of v at a time and shared bytes of a block; None where tensor cores are not faster."""
    count, group = len(ends(rows, "n")), _group(rows, sizes["l"], score_plan.GROUP)
    if rows.selects:
        tile = select_plan.select_tile(rows, sizes, limits)
        return None if tile is None else (tile, group, select_plan.shared_bytes(tile))
    wide = wide_plan.wide_tile(rows, sizes, limits, count)
    if wide is not None:
        return wide, wide.unroll, wide_plan.shared_bytes(wide, count, has_powers(rows))
    many = columns_plan.columns_tile(rows, sizes, limits)
    if many is not None:
        return *many, columns_plan.shared_bytes(*many, count)
    tile = score_plan.score_tile(rows, sizes, limits)
    if tile is None:
        return None
    columns = group if rows.v is not None else 0
    return tile, group, score_plan.shared_bytes(tile, _with_tile(rows, tile), columns)


def plan_softmax(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout) -> CudaRowPlan | None:
    """Choose how to run softmax-weighted sums in one pass, or their gradients; None where two passes are right."""
    counts = len(ends(rows, "m")), len(ends(rows, "n"))
    tile = softmax_plan.softmax_tile(rows, sizes, limits, *counts)
    if tile is None:
        return None
    matrix = planned(rows.matrix, sizes, limits, layout.of(rows.matrix), tile)
    shared = softmax_plan.shared_bytes(rows, tile, *counts)
    return CudaRowPlan(matrix, rows, "softmax", tile.unroll, _integers(rows, sizes), shared, 1)


def _plan_directly(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout) -> CudaRowPlan:
    """Return the plan that takes entries as they are written."""
    rows = _with_reciprocals(rows)
    nest = rows.matrix
    own = layout.of(nest)
    if _is_thin(nest, sizes):
        return _thin_plan(rows, sizes, limits, own)
    logarithms = sums_exponentials(rows) and _busies(ROW_PIPELINED, sizes, limits)
    least = (
        {**sizes, "k": max(sizes["k"], _STAGE_DEPTH)} if logarithms else sizes
    )  # part of a stage is enough for these
    suits = supports_warp_specialized(nest, least, limits) and not (rows.selects or _is_tabled(nest))
    pipelined = suits and (len(rows.reduction.kinds) == 1 or logarithms)
    group = _group(rows, sizes["l"], _CHUNK)
    shallow = sizes["k"] <= _SHALLOW and not logarithms
    tile = _tiled(nest) if not pipelined else replace(ROW_PIPELINED, stages=2) if shallow else ROW_PIPELINED
    matrix = planned(nest, sizes, limits, own, tile)
    size = BYTES[nest.compute]
    keys = tile.threads * tile.columns * size if rows.selects else 0
    pitch = group + 4 * (8 <= group < _CHUNK)
    weights = tile.n * pitch * size if rows.v is not None else 0
    states = 0 if rows.selects else tile.m * group * len(rows.reduction.kinds) * size
    form, shared = "pipelined" if pipelined else "tile", -(-max(matrix.shared, keys) // 16) * 16
    shared += (1 + (pipelined and group < _CHUNK)) * weights + states + pipelined * _ends_bytes(rows, tile)
    resident = min(tile.resident, max(1, limits.shared_per_sm // (shared + RESERVED_SHARED)))
    return CudaRowPlan(matrix, rows, form, group, _integers(rows, sizes), shared, resident)


def _busies(tile: Tile, sizes: Mapping[str, int], limits: DeviceLimits) -> bool:
    """Return whether there is a tile for every multiprocessor."""
    tiles = batch_of(sizes) * -(-sizes["m"] // tile.m) * -(-sizes["n"] // tile.n)
    return tiles >= limits.sm_count


def _ends_bytes(rows: RowNest, tile: Tile) -> int:
    """Return the bytes of what entries read of the columns of a tile and of the next."""
    return 2 * len(ends(rows, "n")) * tile.n * BYTES[rows.matrix.compute]


def _with_reciprocals(rows: RowNest) -> RowNest:
    """Return the nest with one reciprocal for each k of what varies along k alone, not a division for each entry."""
    nest = rows.matrix
    along = [buffer.name for buffer in staged(nest)["vectors"]]
    if not along or nest.compute != "f32" or nest.precision != "default":
        return rows
    return replace(rows, matrix=replace(nest, map=by_reciprocals(nest.map, along)))


def _grouped(
    rows: RowNest, direct: CudaRowPlan, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout
) -> CudaRowPlan | None:
    """Return the plan that finds the smallest entries by the minima of groups, where it is faster."""
    nest, single = rows.matrix, batch_of(sizes) == 1
    operands = staged(nest)
    plain = len(operands["rows"]) == len(operands["columns"]) == 1 and nest.compute == "f32" and direct.form == "tile"
    large = sizes["n"] >= LEAST_COLUMNS and sizes["m"] * sizes["n"] >= LEAST_ENTRIES and sizes["n"] < 1 << 31
    if not (single and plain and large and sizes["l"] <= MOST):
        return None
    if not supports_warp_specialized(nest, sizes, limits) or _is_tabled(nest):
        return replace(direct, grouped=True)
    tile = replace(ROW_PIPELINED, stages=2) if sizes["k"] <= _SHALLOW else ROW_PIPELINED
    matrix = planned(nest, sizes, limits, layout.of(nest), tile)
    shared = matrix.shared + _ends_bytes(rows, tile)
    resident = min(tile.resident, max(1, limits.shared_per_sm // (shared + RESERVED_SHARED)))
    return replace(direct, matrix=matrix, form="pipelined", shared=shared, resident=resident, grouped=True)


def minima_bytes(plan: CudaRowPlan, sizes: Mapping[str, int]) -> int:
    """Return the bytes of the minima of one row."""
    return 4 * _ACROSS * -(-sizes["n"] // plan.tile.n)


def scan_bytes(plan: CudaRowPlan, blocks: int, width: int) -> int:
    """Return the bytes of what the warps of so many blocks find for a few rows."""
    return _POSITION_BYTES * (4 + plan.tile.rows * blocks * (plan.tile.threads // 32) * width)


def scans(rows: RowNest, sizes: Mapping[str, int]) -> bool:
    """Return whether a few rows select among so many columns that reading these is all the work."""
    nest, single = rows.matrix, batch_of(sizes) == 1
    operands = staged(nest)
    plain = len(operands["rows"]) == len(operands["columns"]) == 1 and nest.compute == "f32" and cell_words(nest) == 1
    many = SCAN_COLUMNS <= sizes["n"] < 1 << 31 and sizes["m"] < SCAN_ROWS
    return rows.selects and single and plain and many and sizes["l"] <= MOST


def _scanned(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout) -> CudaRowPlan:
    matrix = planned(rows.matrix, sizes, limits, layout.of(rows.matrix), replace(ROW_SCAN, rows=min(2, sizes["m"])))
    return CudaRowPlan(matrix, rows, "scan", 1, _integers(rows, sizes), 0, ROW_SCAN.resident)


def _thin_plan(rows: RowNest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout) -> CudaRowPlan:
    tile, group = _thin(rows, sizes)
    matrix = planned(rows.matrix, sizes, limits, layout, tile)
    matrix = replace(matrix, access=tuple(Access("k", 1) for _ in matrix.access), integers=())
    staged_row = tile.depth + _expands(rows, tile.depth) + len(ends(rows, "n")) + (group if rows.v is not None else 0)
    shared = tile.columns * -(-staged_row * BYTES[rows.matrix.compute] // 16) * 16
    shared += _RUN_BYTES * tile.m * sums_exponentials(rows)
    return CudaRowPlan(matrix, rows, "thin", group, _integers(rows, sizes), shared, tile.resident)


def _with_tile(rows: RowNest, tile: Tile) -> int:
    """Return how many numbers of a column travel with a score tile besides its norm and columns of v."""
    return len(ends(rows, "n")) + (has_linear_entries(rows, tile) or has_powers(rows))
