"""The tables of tiles of GPU kernels, and the device limits by which a tile is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .arch import ARCHS, Arch, Feature, arch

RESERVED_SHARED = 1 << 10
"""Bytes of shared memory that CUDA takes for itself with every block."""
CLOCK = 1.7e9
"""Cycles a second of a multiprocessor at work, by which models of structured products count (H200)."""


@dataclass(frozen=True)
class DeviceLimits:
    """Limits of a device, for which plans are made; ``arch`` is its compute capability as "sm_90"."""

    arch: str
    sm_count: int
    shared_per_block: int = 99 << 10
    shared_per_sm: int = 100 << 10
    registers_per_sm: int = 1 << 16
    threads_per_sm: int = 1536

    @cached_property
    def generation(self) -> Arch:
        """Row of the device's generation in the table of all."""
        return arch(self.arch)

    def has(self, features: tuple[Feature, ...]) -> bool:
        """Return whether the generation has all of these features."""
        return self.generation.features.issuperset(features)


CARDS = {
    row.name: DeviceLimits(
        row.name, row.sm_count, row.shared_per_block, row.shared_per_sm, row.registers_per_sm, row.threads_per_sm
    )
    for row in ARCHS.values()
    if row.sm_count
}
"""Cards for which plans can be made on machines without them."""


@dataclass(frozen=True)
class Tile:
    """A tile of the output and the block of threads that computes it.

    Parameters
    ----------
    name : str
        Key of the row, which ``kernmantle inspect`` shows.
    threads_m, threads_n : int
        Threads along the rows and the columns of the tile.
    rows, columns : int
        Accumulators of one thread along both.
    depth : int
        Values of k in one stage of shared memory.
    groups : int
        Groups of threads that divide the range of k among them (split-K inside a block).
    unroll : int
        Steps of k that the inner loop writes out.
    resident : int
        Blocks that a multiprocessor shall hold at least; bounds the registers of a thread.
    efficiency : float
        Share of the issue slots that the inner loop reaches, fitted with the constants of ``gram_plan.cost`` to times
        of all tiles over a grid of shapes (decision 0005). ``TILES`` and ``PRODUCT_TILES`` are chosen by it; rows of
        other tables have 1. The row "positions" is for positions of extremes, which take other tiles more than twice
        the instructions that their efficiency was fitted to. 0 where it has not been measured: only a plan by name and
        ``km.tune`` take the tile.
    schema : str
        Template that it instantiates: a header of ``backends/cuda/kernels``.
    stages : int
        Stages of shared memory in flight.
    heavy : float
        ``efficiency`` of an inner loop that calls functions.
    requires : tuple of str
        Features that a generation must have.
    matrix_operand : bool
        The nest must read one operand over the tile, which stays in registers.
    table_power : bool
        The nest must take a power from a table.
    half2 : bool
        The nest must sum distances of float16, two terms at a time.
    fragments : bool
        Warps keep the points of their rows in registers, in the layout that tensor cores read.
    """

    name: str
    threads_m: int
    threads_n: int
    rows: int
    columns: int
    depth: int
    groups: int
    unroll: int
    resident: int
    efficiency: float
    schema: str = "gram"
    stages: int = 2
    heavy: float = 0.6
    requires: tuple[Feature, ...] = ()
    matrix_operand: bool = False
    table_power: bool = False
    half2: bool = False
    fragments: bool = False

    @property
    def m(self) -> int:
        """Rows of the output tile."""
        return self.threads_m * self.rows

    @property
    def n(self) -> int:
        """Columns of the output tile."""
        return self.threads_n * self.columns

    @property
    def threads(self) -> int:
        """Threads of a block that have output cells."""
        return self.threads_m * self.threads_n * self.groups


def blocks_per_sm(tile: Tile, words: int, shared: int, limits: DeviceLimits) -> int:
    """Return the blocks that share a multiprocessor, by threads, shared memory and an estimate of the registers."""
    if tile.schema != "gram":
        return tile.resident
    registers = min(255, tile.rows * tile.columns * words + 2 * (tile.rows + tile.columns) + 48)
    by_registers = limits.registers_per_sm // (-(-registers // 8) * 8 * tile.threads)
    by_shared = limits.shared_per_sm // (shared + RESERVED_SHARED)
    return max(1, min(by_registers, by_shared, limits.threads_per_sm // tile.threads, 32))


# Numbers of a row: threads_m, threads_n, rows, columns, depth, groups, unroll, resident, efficiency.
TILES = (
    Tile("large", 16, 16, 8, 8, 16, 1, 4, 2, 0.731),
    Tile("large matrix operand", 16, 16, 8, 8, 16, 1, 4, 1, 0.731, matrix_operand=True),
    Tile("wide", 16, 16, 8, 4, 16, 1, 4, 2, 0.747),
    Tile("table power", 16, 16, 4, 4, 16, 1, 8, 4, 0.855, heavy=0.62, requires=("measured",), table_power=True),
    Tile("middle", 16, 16, 4, 4, 16, 1, 8, 3, 0.855, heavy=0.62),
    Tile("thin", 1, 256, 8, 32, 0, 1, 1, 2, 1.83, "thin", heavy=0.552),
    Tile("pair", 8, 16, 4, 2, 32, 2, 8, 2, 0.428, heavy=0.555),
    Tile("small", 8, 8, 4, 4, 16, 4, 8, 2, 0.447, heavy=0.513),
    Tile("slim", 8, 8, 4, 2, 16, 4, 8, 2, 0.388, heavy=0.51),
    Tile("tiny", 8, 8, 2, 2, 16, 4, 8, 2, 0.315, heavy=0.497),
    Tile("dot", 8, 8, 1, 1, 16, 4, 8, 2, 0.0787, heavy=1.09),
    Tile("deep", 4, 8, 2, 2, 16, 8, 8, 2, 0.182, heavy=0.467),
    Tile("rows", 8, 1, 1, 1, 16, 32, 8, 2, 0.00961, heavy=0.0587),
    Tile("columns", 1, 8, 1, 1, 16, 32, 8, 2, 0.0107, heavy=0.0511),
    Tile("ring", 16, 8, 8, 16, 32, 1, 1, 2, 0.665, "pipelined", 3, requires=("warp_specialized",)),
    Tile("half2", 16, 8, 8, 8, 32, 1, 1, 2, 1.131, "pipelined", 3, requires=("warp_specialized",), half2=True),
    Tile("positions", 16, 8, 8, 4, 32, 1, 1, 2, 1.2, "position", 3, requires=("warp_specialized",)),
    Tile("one", 1, 1, 1, 1, 16, 128, 8, 2, 0.0151, heavy=0.126),
    Tile("least", 4, 8, 1, 1, 4, 1, 1, 2, 1, heavy=1),
)

PRODUCT_TILES = (
    Tile("products", 64, 4, 2, 48, 64, 1, 1, 1, 0.65, "wgmma", 5, requires=("wgmma",)),
    Tile("narrow products", 64, 4, 2, 32, 64, 1, 1, 1, 0.6, "wgmma", 6, requires=("wgmma",)),
    Tile("synchronous products", 32, 8, 4, 8, 64, 1, 1, 1, 0.85, "mma", 2),
)
# Differences in tiles of the products' extents: the columns of a thread follow from these.
DIFFERENCES_PIPELINED = Tile(
    "ring", 16, 16, 8, 0, 32, 1, 1, 1, 1.0, "pipelined", 3, requires=("warp_specialized", "wgmma")
)
DIFFERENCES = Tile("large", 16, 16, 8, 0, 16, 1, 4, 1, 1.0)
LOGARITHMS = Tile("logarithms", 16, 32, 8, 0, 16, 1, 1, 1, 1.0)
SPLITTER = Tile("split", 8, 32, 1, 1, 64, 1, 1, 2, 1.0, "split")

# Row reductions: the tiles that make the entries of a matrix, the warp-specialised one apart. Of ROW_TILES the first
# whose accumulators stay in registers is taken, the last for maps that call functions.
ROW_PIPELINED = Tile("apply ring", 16, 8, 8, 16, 32, 1, 1, 2, 1.0, "pipelined", 3, requires=("warp_specialized",))
ROW_SCAN = Tile("apply scan", 1, 256, 1, 1, 64, 1, 1, 2, 1.0, "scan")
ROW_TILES = (
    Tile("apply large", 16, 8, 8, 8, 16, 1, 4, 3, 1.0),
    Tile("apply middle", 16, 8, 4, 8, 16, 1, 4, 3, 1.0),
    Tile("apply small", 16, 8, 4, 4, 16, 1, 2, 5, 1.0),
)
