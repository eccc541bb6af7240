"""Plans of VJPs on the GPU: one kernel that reduces over the rows, and kernels before and after it.

Signs are exact; powers of a difference come half from a table, half from the special function unit; any other slope is
taken as it is written. On tensor cores numbers are split in two: halves scaled by powers of two where their sizes are
known, tf32 otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...compiler.gradient_patterns import Slope, Vjp, decomposed, slope_of
from ...compiler.nest import BYTES, ROLES, Buffer, Layout, Nest, integer_slots
from ...compiler.patterns import product
from ...ir.node import variables
from ...ir.ops import evaluate
from ...ir.program import Program
from .pow_tables import is_accurate, mantissa_polynomial
from .tiles import DeviceLimits
from .vjp_tiles import VJP_TILES, VjpTile

PARTS_BYTES = 48 << 20  # of partial results of ranges of k
_ALIGNED = 256  # bytes
_LEAST_TENSOR, _LEAST_SCALAR = 1 << 30, 1 << 31  # entries times outputs from which on a VJP pays
_LEAST_COLUMNS = 16  # columns of the points from which on it pays
_SHORTEST_RANGE = 4  # stages
_MOST_RANGES = 16  # ranges that k is split into
_SPLIT = 0.002  # of a tile, what one more range is counted as
_LARGEST_EXPONENT = 1.0  # of slopes that are powers, where operands are split in halves


@dataclass(frozen=True)
class VjpPlan:
    """Everything the emitter needs, and nothing of the sizes.

    The slope's operands by what they vary with besides the rows: ``mn_operands`` (points and columns), ``m_operands``
    (points), ``n_operands`` (columns), ``scalars``. ``run`` is the axis along which weights are read, "k" or "tile"
    (points), ``wide`` those of them that are read four at a time.
    """

    nest: Nest
    arch: str
    tile: VjpTile
    found: Vjp
    slope: Slope
    rows: str
    mn_operands: tuple[str, ...]
    m_operands: tuple[str, ...]
    n_operands: tuple[str, ...]
    scalars: tuple[str, ...]
    weights: tuple[str, ...]
    factors: tuple[str, ...]
    outers: tuple[str, ...]
    run: str
    wide: frozenset[str]
    integers: tuple[int, ...]

    @property
    def split(self) -> bool:
        """Return whether operands are split in halves."""
        return self.tile.engine != "scalar" and self.slope.kind != "plain"

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of all kernels, the main one first."""
        return ("main", *self.passes, "reduce_splits", "fix_non_finite")

    @property
    def passes(self) -> tuple[str, ...]:
        """The kernels before and after the main one."""
        before = [*(["range_scan"] * (self.slope.kind != "plain")), "pack", *(["scale_weights"] * self.split)]
        return tuple(before)

    @property
    def mends(self) -> bool:
        """Return whether the fast arithmetic may hide or create non-finite values."""
        return self.tile.engine != "scalar" or self.slope.kind != "plain"

    def power_arguments(self, numbers: Sequence[float]) -> tuple[float, ...]:
        """Return the coefficients of the table's polynomial; none where there is no power."""
        if self.slope.kind != "powers":
            return ()
        return mantissa_polynomial(exponent_of(self.nest, self.slope, numbers))

    def fits(self, numbers: Sequence[float]) -> bool:
        """Return whether these numbers may be taken this way."""
        if self.slope.kind != "powers":
            return True
        exponent = exponent_of(self.nest, self.slope, numbers)
        most = _LARGEST_EXPONENT if self.split else math.inf
        return 0 < exponent <= most and is_accurate(exponent)

    def __str__(self) -> str:
        tile = self.tile
        how = {"signs": "exact signs", "powers": "powers to 2e-6", "plain": "slopes as written"}[self.slope.kind]
        parts = {"scalar": "f32", "mma": "two tf32", "wgmma": "two f16"}[tile.engine]
        parts = "two f16" if self.split else parts
        return (
            f"vjp {self.arch} by {tile.engine} tile {tile.points}x{tile.columns}x{tile.outputs} "
            f"depth {tile.depth} ({tile.threads} threads) {how} in {parts}"
        )


def exponent_of(nest: Nest, slope: Slope, numbers: Sequence[float]) -> float:
    """Return the value of the exponent of a power."""
    assert slope.exponent is not None
    (value,) = evaluate([slope.exponent], dict(zip(nest.numbers, numbers, strict=True)))
    return float(value)


def _sorted_operands(found: Vjp, over: Mapping[str, str]) -> dict[str, tuple[str, ...]] | None:
    """Return the names of the operands by their part, given their roles; None where a part reads what it cannot."""
    roles = {name: set(own) for name, own in over.items()}
    named = {
        part: [name for name in variables([getattr(found, part)]) if name in roles]
        for part in ("outer", "coefficient", "weight", "slope")
    }
    inside = [name for name in named["slope"] if "k" in roles[name]]
    if len(inside) != 1 or roles[inside[0]] != {"n", "k"}:
        return None
    kinds = {"mn_operands": {"m", "n"}, "m_operands": {"m"}, "n_operands": {"n"}, "scalars": set[str]()}
    parts = {kind: tuple(n for n in named["slope"] if roles[n] == own) for kind, own in kinds.items()}
    if not parts["mn_operands"] or sum(map(len, parts.values())) + 1 < len(named["slope"]):
        return None
    parts |= {"rows": (inside[0],), "weights": tuple(named["weight"]), "factors": tuple(named["coefficient"])}
    return parts | {"outers": tuple(named["outer"])}


def _wide(buffer: Buffer, strides: Sequence[int], sizes: Mapping[str, int], role: str, alignment: int) -> bool:
    """Return whether four neighbours along a role are one aligned access."""
    step = dict(zip(ROLES, strides, strict=True))
    others = [step[other] for other in ROLES if other != role and sizes[other] > 1]
    size = 4 * BYTES[buffer.dtype]
    return step[role] == 1 and size <= 16 and alignment % size == 0 and not any(stride % 4 for stride in others)


def takes_vjp(found: Vjp, program: Program, sizes: Mapping[str, int], compute: str) -> bool:
    """Return whether these kernels support a VJP and its extents are large enough for several kernels."""
    roles = found.roles
    over = {op.name: "".join(roles.get(axis, "") for axis in op.axes) for op in program.operands if not op.number}
    if compute != "f32" or program.rounds_alike or _sorted_operands(found, over) is None:
        return False
    columns = sizes[found.columns]
    entries = sizes[found.points] * columns * sizes[found.rows]
    outputs = sizes.get(found.outputs, 1)
    least = _LEAST_SCALAR if outputs == 1 else _LEAST_TENSOR
    return columns >= _LEAST_COLUMNS and entries * outputs >= least


def plan_vjp(
    nest: Nest, sizes: Mapping[str, int], limits: DeviceLimits, layout: Layout, kind: str = "", tile: str = ""
) -> VjpPlan | None:
    """Choose how to run a VJP of m points, n columns, k rows and l outputs; None if these kernels do not support it.

    ``kind`` "plain" is for slopes as they are written; ``tile`` names a row of ``VJP_TILES`` to take instead of the one
    that should be quickest.
    """
    if not nest.vjp or nest.compute != "f32":
        return None
    found = decomposed(nest)
    over = {buffer.name: buffer.roles for buffer in nest.operands}
    parts = None if found is None else _sorted_operands(found, over)
    if found is None or parts is None:
        return None
    slope = slope_of(nest, found.slope, parts["rows"][0]) if kind != "plain" else Slope(found.slope)
    if slope.kind != "plain" and (
        len(parts["mn_operands"]) != 1 or parts["m_operands"] or parts["n_operands"] or parts["scalars"]
    ):
        slope = Slope(found.slope)
    best = _best_tile(nest, slope, sizes, limits, tile)
    if best is None:
        return None
    buffers = {buffer.name: index for index, buffer in enumerate(nest.buffers)}
    weights = [nest.operands[buffers[name]] for name in parts["weights"]]
    of_points = [layout.strides[buffers[buffer.name]][ROLES.index("m")] for buffer in weights if "m" in buffer.roles]
    run = "tile" if of_points and of_points[0] == 1 and sizes["m"] > 1 else "k"
    role = "m" if run == "tile" else "k"
    wide = frozenset(
        buffer.name
        for buffer in weights
        if _wide(buffer, layout.strides[buffers[buffer.name]], sizes, role, layout.alignment[buffers[buffer.name]])
    )
    outer = product([found.outer, slope.factor])
    return VjpPlan(
        nest, limits.arch, best, replace(found, outer=outer), slope, parts["rows"][0], parts["mn_operands"],
        parts["m_operands"], parts["n_operands"], parts["scalars"], parts["weights"], parts["factors"],
        parts["outers"], run, wide, integer_slots(nest.buffers, sizes),
    )  # fmt: skip


def _best_tile(nest: Nest, slope: Slope, sizes: Mapping[str, int], limits: DeviceLimits, name: str) -> VjpTile | None:
    engines = {"scalar"} if nest.precision == "ieee" else {"scalar", "mma", "wgmma"}
    valid = [
        tile for tile in VJP_TILES if tile.engine in engines and limits.has(tile.requires) and slope.kind in tile.cycles
    ]
    valid = [tile for tile in valid if name in ("", tile.name) and tile.shared(slope.kind) <= limits.shared_per_block]
    return min(valid, key=lambda tile: vjp_cycles(tile, slope, sizes, limits), default=None)


def _tiles(tile: VjpTile, sizes: Mapping[str, int]) -> int:
    across, down = -(-sizes["n"] // tile.columns), -(-sizes["m"] // tile.points)
    return across * down * -(-sizes["l"] // tile.outputs) * math.prod(sizes[role] for role in "abc")


def vjp_cycles(tile: VjpTile, slope: Slope, sizes: Mapping[str, int], limits: DeviceLimits) -> float:
    """Return the time by a coarse model: cycles of a multiprocessor's quarter for 256 pairs."""
    work = _tiles(tile, sizes) * tile.points * tile.columns / 256 * sizes["k"]
    least = tile.points * tile.columns / 256 * 4 * 64
    return max(work / (4 * limits.sm_count), least) * tile.cycles[slope.kind]


@dataclass(frozen=True)
class Schedule:
    """The first ``whole`` tiles take all rows, each of the others is cut into ``splits`` ranges of ``share`` rows."""

    tiles: int
    whole: int
    splits: int
    share: int

    @property
    def blocks(self) -> int:
        """Blocks of the main kernel."""
        return self.whole + (self.tiles - self.whole) * self.splits


def schedule(plan: VjpPlan, sizes: Mapping[str, int], limits: DeviceLimits) -> Schedule:
    """Cut the tiles of the last, partial wave so that they fill the device too."""
    tile = plan.tile
    tiles, slots = _tiles(tile, sizes), limits.sm_count * tile.resident
    rest = tiles % slots
    whole = tiles - rest
    one = 4 * tile.points * tile.columns * tile.outputs
    longest = min(_MOST_RANGES, sizes["k"] // (_SHORTEST_RANGE * tile.depth), PARTS_BYTES // max(1, one * rest))
    counts = range(1, max(1, longest) + 1)
    splits = min(counts, key=lambda count: -(-rest * count // slots) / count + _SPLIT * count) if rest else 1
    share = -(-sizes["k"] // splits)
    return Schedule(tiles, whole, splits, -(-share // tile.depth) * tile.depth)


@dataclass(frozen=True)
class Workspace:
    """Offsets in bytes of rows, factors, scale, top, wild, peak, dirty, parts; the first ``zeroed`` start as 0."""

    offsets: tuple[int, ...]
    zeroed: int
    size: int


def workspace(plan: VjpPlan, sizes: Mapping[str, int], layout: Layout, chosen: Schedule) -> Workspace:
    """Return the workspace of the kernels."""
    tile, nest = plan.tile, plan.nest
    names = [buffer.name for buffer in nest.buffers]
    strides = dict(zip(ROLES, layout.strides[names.index(plan.rows)], strict=True))
    entries = math.prod(sizes[role] for role in "abc")
    planes = math.prod(sizes[role] for role in "abc" if strides[role])
    high = -(-sizes["k"] // tile.depth) * tile.depth
    wide = -(-sizes["n"] // tile.columns) * tile.columns
    deep = -(-sizes["l"] // tile.outputs) * tile.outputs
    quick, tensor = plan.slope.kind != "plain", tile.engine != "scalar"
    counts = {
        "top": planes * sizes["n"] * quick,
        "wild": planes * sizes["n"] * quick,
        "peak": entries * sizes["l"] * plan.split,
        "dirty": -(-chosen.tiles // 4),
        "rows": planes * high * wide,
        "factors": entries * deep * high * tensor,
        "scale": entries * sizes["m"] * plan.split,
        "parts": (chosen.tiles - chosen.whole) * chosen.splits * tile.points * tile.columns * tile.outputs
        * (chosen.splits > 1),
    }  # fmt: skip
    offsets: dict[str, int] = {}
    end = zeroed = 0
    for name, count in counts.items():
        offsets[name] = end
        end = -(-(end + 4 * count) // _ALIGNED) * _ALIGNED
        if name == "dirty":
            zeroed = end
    order = ("rows", "factors", "scale", "top", "wild", "peak", "dirty", "parts")
    return Workspace(tuple(offsets[name] for name in order), zeroed, end)


def fixed(plan: VjpPlan, integers: Sequence[int]) -> tuple[int, ...]:
    """Return the arguments between the pointers and the numbers."""
    return tuple(integers[slot] for slot in plan.integers)
