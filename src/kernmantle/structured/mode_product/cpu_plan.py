"""Tiles of Kronecker-sparse products on a CPU: sums over r of numbers, or groups of them, times vectors.

One kernel serves a product, that by transposed weights and the gradient of the weights, in both layouts: lanes of a
vector are entries that lie together in memory, features (j, l) with the features together and the batch with that.
With the features together each number that is multiplied by is a group, one for each of some neighbours l.

Panels of halves are words of 32 bits: numbers of float32, or pairs of bfloat16 with neighbouring r where the machine
has an instruction that adds both products to float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SIZES = {"f32": 4, "f64": 8, "f16": 4, "bf16": 4}
"""Bytes in which numbers of a stored type are multiplied."""
PLAIN, LANES, ROWS = "", "lanes", "rows"  # where a bias goes
# Extents and how they are shared out; then strides of a, b, c and the bias. Of the panel of b that is next, caches are
# asked for ``b_ahead`` numbers with each r of a tile.
FIELDS = (
    "blocks", "inner", "p", "q", "r", "p_block", "q_block", "r_block", "packs_a", "packs_b",
    "a_outer", "a_inner", "a_p", "a_r", "b_outer", "b_inner", "b_r", "b_q", "b_v", "b_panel", "b_ahead",
    "c_outer", "c_inner", "c_p", "c_q", "c_panel", "bias_outer", "bias_inner", "bias_p", "bias_panel", "spread",
)  # fmt: skip
PACK_FIELDS = ("inner", "panels", "q", "r", "b_outer", "b_inner", "b_r", "b_q", "b_panel", "spread")
DOT_FIELDS = ("p", "q", "r", "q_block", "a_outer", "a_p", "b_outer", "b_q", "c_outer", "c_p", "bias_outer")
SMALL_FIELDS = ("blocks", "p", "a_p", "c_p")
# What tiles of so many vectors take, over those of three; of four by whether each line of x is a page (AMD EPYC with
# AVX-512, decision 0014).
_LOADS, _WIDE_LOADS = {3: 1.0, 2: 1.06}, {True: 0.98, False: 1.001}
_LEAST_DOT2 = 4  # lanes of the shortest vectors that instructions on pairs have
INPLACE_ROWS_LAST = 32
"""Rows up to which weights with lanes along the results are read as they lie (decision 0135)."""
_MOVE = 4  # instructions for a group of halves: a read, a change of type, a write and what counts
# Rows and columns of blocks of which several share a vector, and rows of x for which weights are shuffled once.
SMALL, SMALL_ROWS = 4, 16


def computed(dtype: str) -> str:
    """Return the type in which numbers of a stored type are multiplied and added."""
    return "f64" if dtype == "f64" else "f32"


@dataclass(frozen=True)
class Tile:
    """``rows`` times ``vectors`` accumulators of so many lanes, which ``group`` neighbours l share.

    ``apart``: each vector is of one j. ``scattered``: groups of results lie apart. ``bias`` says where one is added.
    ``dot2``: words are two numbers of bfloat16. ``wide``: results of halves are float32. ``tail``: of the last group
    of each block some neighbours may be missing. ``packed``: b is in panels, and a where there is a tail. ``shared``:
    a has one number for all neighbours.
    """

    dtype: str
    lanes: int
    rows: int
    vectors: int
    group: int
    apart: bool
    scattered: bool
    bias: str
    dot2: bool = False
    wide: bool = False
    tail: bool = False
    packed: bool = False
    shared: bool = False

    def __str__(self) -> str:
        together = f" groups of {self.group}" if self.group > 1 else ""
        return f"tile {self.rows}x{self.vectors} vectors of {self.lanes}{together} {self.dtype}"

    @property
    def compute(self) -> str:
        """Type in which is multiplied and added."""
        return computed(self.dtype)

    @property
    def result(self) -> str:
        """Type of the results."""
        return self.compute if self.wide else self.dtype

    @property
    def stays_rows(self) -> bool:
        """Whether packed rows of a whose r lie together stay rows."""
        return self.compute != self.dtype and self.multipliers == 1

    @property
    def multipliers(self) -> int:
        """Numbers of a that a group is multiplied by."""
        return 1 if self.shared else self.group

    @property
    def width(self) -> int:
        """Lanes of a panel."""
        return self.vectors * self.lanes

    @property
    def heights(self) -> tuple[int, ...]:
        """Rows of the tiles that a block is cut into, the largest first."""
        return (self.rows, *(count for count in (4, 2, 1) if count < self.rows))


@dataclass(frozen=True)
class SmallTile:
    """``lanes`` results of whole blocks (b, c), each for so many neighbours of the batch.

    ``transposed``: weights lie as those of the transposed matrix do. ``batch_last`` orders the arrays of a call.
    """

    dtype: str
    lanes: int
    b: int
    c: int
    neighbours: int
    transposed: bool
    bias: bool
    batch_last: bool

    @property
    def blocks(self) -> int:
        """Blocks of a vector."""
        return self.lanes // (self.b * self.neighbours)

    def __str__(self) -> str:
        return f"{self.blocks} blocks {self.b}x{self.c} in vectors of {self.lanes} {self.dtype}"


def small_tile(
    dtype: str, vector_bytes: int, pattern: tuple[int, int, int, int], neighbours: int, weight: tuple[int, ...],
    bias: bool, batch_last: bool,
) -> SmallTile | None:  # fmt: skip
    """Return the tile for blocks of a few rows and columns that lie together; None for others.

    ``weight`` are the strides of i, j and k.
    """
    (a, b, c, d), lanes = pattern, vector_bytes // SIZES[dtype]
    plain, transposed = weight == (b * c, c, 1), weight == (b * c, 1, b)
    shared = b * neighbours
    if d > 1 or max(b, c) > SMALL or shared & (shared - 1) or not shared <= lanes <= a * shared:
        return None
    if not (plain or transposed):
        return None
    return SmallTile(dtype, lanes, b, c, neighbours, not plain, bias, batch_last)


def tile(
    dtype: str, vector_bytes: int, registers: int, lanes: int, group: int, spread: int, bias: str, wide: bool = False,
    dot2: bool = False,
) -> Tile:  # fmt: skip
    """Tile for results of so many lanes in groups that lie ``spread`` apart; ``wide`` where each line is a page."""
    own = min(vector_bytes // SIZES[dtype], max(_LEAST_DOT2 if dot2 else 2, 1 << (lanes - 1).bit_length()))
    needed = -(-lanes // own)
    loads = _LOADS | ({4: _WIDE_LOADS[wide]} if registers >= 32 else {})
    # The fewest vectors that are computed in vain and the fewest loads.
    vectors = 1 if needed == 1 else min(loads, key=lambda count: -(-needed // count) * count * loads[count])
    rows = (6 if vectors == 4 else 8) if registers >= 32 else 4
    apart = group == own and spread != group
    scattered = not apart and spread != group
    return Tile(dtype, own, rows, vectors, group, apart, scattered, bias, dot2, tail=spread % group > 0)


def whole_rows(own: Tile, lanes: int, registers: int) -> Tile:
    """Return the tile for sums of a few products, which takes the time of its writes: row after row, as they lie."""
    needed, most = -(-lanes // own.lanes), registers * 3 // 4
    if own.scattered or needed <= own.vectors:
        return own
    vectors = -(-needed // -(-needed // most))
    return replace(own, rows=1, vectors=-(-vectors // 4) * 4)


def group_of(pattern: tuple[int, int, int, int], batch: int, half: bool, lanes: int, is_gradient: bool) -> int:
    """Return how many neighbours l go together: a power of 2 that divides their number, or a vector with a tail.

    Of a row of x these are counted: the vectors that are multiplied, groups that are packed, and groups of results.
    """
    _, b, c, d = pattern
    wide, deep = (c, b) if is_gradient else (b, c)
    results, weights = (b * c / batch, b) if is_gradient else (b, b * c / batch)

    def instructions(group: int) -> float:
        groups, is_part, packed = -(-d // group), d % group > 0, 0.0
        if half or batch > INPLACE_ROWS_LAST:
            packed = _MOVE / (1 if half else 2) * (weights + (c if half or is_gradient or is_part else 0))
        pieces = (groups - is_part + is_part * (lanes.bit_length() - 1)) * results
        return groups * (-(-wide * group // lanes) * deep + packed) + _MOVE * pieces

    return min((min(d & -d, lanes), lanes), key=instructions)


def shared_group(b: int, c: int, d: int, lanes: int) -> int:
    """Return how many neighbours go together where all have the same matrix, by the instructions of a row of x."""

    def instructions(group: int) -> float:
        groups, last = -(-d // group), d % group
        pieces = groups - 1 + (group.bit_length() - 1 if last else 1)
        return groups * (group / lanes * b * c + _MOVE * c) + _MOVE * b * pieces

    return min((1 << power for power in range(1, lanes.bit_length())), key=instructions)
