"""Plans of the gradient of a Kronecker factor on a GPU: a sum of outer products on tensor cores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

SIZES = {"f16": 2, "bf16": 2, "f32": 4}
WIDEST = 128
STAGES = 3
# By the tile: columns in 8s of a warp, warps down, across and along the sum.
_SHAPES = {16: (2, 1, 1, 8), 32: (4, 2, 1, 4), 64: (4, 4, 2, 1)}


@dataclass(frozen=True)
class GramPlan:
    """The sum of v[l, q, r] u[l, p, r] over l and r for a factor of q = ``rows`` and p = ``columns``.

    ``along``: positions r follow each other in memory; ``vec_v`` and ``vec_u``: neighbours of a copy.
    """

    rows: int
    columns: int
    stored: str
    arch: str
    along: bool
    vec_v: int
    vec_u: int

    @property
    def tile(self) -> int:
        """Rows and columns of a block's tile."""
        return min((size for size in _SHAPES if size >= max(self.rows, self.columns)), default=max(_SHAPES))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Columns in 8s of a warp, warps down, across and along."""
        return _SHAPES[self.tile]

    @property
    def deep(self) -> int:
        """Positions of a stage."""
        return 2048 // self.tile

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * math.prod(self.shape[1:])

    @property
    def tiles(self) -> int:
        """Tiles of the result."""
        return -(-self.rows // self.tile) * -(-self.columns // self.tile)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        size = SIZES[self.stored]
        stage = self.tile * (self.deep + 16 // size) if self.along else self.deep * (self.tile + 32 // size)
        return max(STAGES * 2 * stage * size, 4 * self.shape[3] * self.tile**2)

    def shares(self, positions: int, resident: int) -> int:
        """Return the shares of the sum for so many blocks that run at once."""
        return max(1, min(-(-positions // self.deep), resident // self.tiles))

    def __str__(self) -> str:
        order = "along" if self.along else "across"
        return f"gradient of {self.rows}x{self.columns} {self.stored} {order}, copies of {self.vec_v} and {self.vec_u}"


@lru_cache(maxsize=1024)
def gram(rows: int, columns: int, right: int, stored: str, aligned: bool, arch: str) -> GramPlan | None:
    """Return the plan of a gradient; None where the vendor's product is taken."""
    if stored not in SIZES or max(rows, columns) > WIDEST:
        return None
    size = SIZES[stored]
    runs = (right, right) if right > 1 else (rows, columns)
    vec_v, vec_u = (_width(length, 16 // size if aligned else 1) for length in runs)
    if min(vec_v, vec_u) * size < 4:
        return None
    if right > 1:
        vec_v = vec_u = min(vec_v, vec_u)
    return GramPlan(rows, columns, stored, arch, right > 1, vec_v, vec_u)


def _width(length: int, most: int) -> int:
    width = most
    while length % width:
        width //= 2
    return width
