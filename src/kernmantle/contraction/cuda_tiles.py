"""The tiles a GPU kernel may work in, a row each, and the limits of a device that choose among them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceLimits:
    """What a plan needs to know of a device; ``arch`` is its compute capability as "sm_90"."""

    arch: str
    sm_count: int
    shared_per_block: int = 99 << 10
    shared_per_sm: int = 100 << 10
    registers_per_sm: int = 1 << 16
    threads_per_sm: int = 1536

    @property
    def capability(self) -> int:
        """Compute capability as a number, 90 for "sm_90"."""
        return int("".join(filter(str.isdigit, self.arch)))


@dataclass(frozen=True)
class Tile:
    """``threads_m x threads_n`` threads of ``rows x columns`` cells each; ``groups`` of them share the range of k."""

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
        """Threads of a block that hold cells."""
        return self.threads_m * self.threads_n * self.groups


TILES = (
    Tile("large", 16, 16, 8, 8, 16, 1, 4, 2, 0.85),
    Tile("held", 16, 16, 8, 8, 16, 1, 4, 1, 0.85),
    Tile("wide", 16, 16, 8, 4, 16, 1, 4, 2, 0.75),
    Tile("powers", 16, 16, 4, 4, 16, 1, 8, 3, 0.72),
    Tile("middle", 16, 16, 4, 4, 16, 1, 8, 3, 0.7),
    Tile("thin", 1, 256, 8, 32, 0, 1, 1, 2, 0.9, "thin"),
    Tile("pair", 8, 16, 4, 2, 32, 2, 8, 2, 0.6),
    Tile("small", 8, 8, 4, 4, 16, 4, 8, 2, 0.57),
    Tile("slim", 8, 8, 4, 2, 16, 4, 8, 2, 0.5),
    Tile("tiny", 8, 8, 2, 2, 16, 4, 8, 2, 0.35),
    Tile("dot", 8, 8, 1, 1, 16, 4, 8, 2, 0.2),
    Tile("deep", 4, 8, 2, 2, 16, 8, 8, 2, 0.3),
    Tile("rows", 8, 1, 1, 1, 16, 32, 8, 2, 0.1),
    Tile("columns", 1, 8, 1, 1, 16, 32, 8, 2, 0.1),
    Tile("ring", 16, 8, 8, 16, 32, 1, 1, 2, 0.95, "ring", 3),
    Tile("pairs", 16, 8, 8, 8, 32, 1, 1, 2, 1.6, "ring", 3),
    Tile("one", 1, 1, 1, 1, 16, 128, 8, 2, 0.05),
    Tile("least", 4, 8, 1, 1, 4, 1, 1, 2, 0.002),
)

PRODUCT_TILES = (
    Tile("products", 64, 4, 2, 48, 64, 1, 1, 1, 0.65, "wgmma", 5),
    Tile("narrow products", 64, 4, 2, 32, 64, 1, 1, 1, 0.6, "wgmma", 6),
    Tile("synchronous products", 32, 8, 4, 8, 64, 1, 1, 1, 0.85, "mma", 2),
)
SPLITTER = Tile("split", 8, 32, 1, 1, 64, 1, 1, 2, 1.0, "split")
