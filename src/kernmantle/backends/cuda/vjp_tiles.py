"""The table of tiles of VJPs on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .arch import Feature


@dataclass(frozen=True)
class VjpTile:
    """``points`` x ``columns`` x ``outputs`` results of a block, ``depth`` rows at a time.

    ``shape`` are the parameters of the template of ``engine``. ``cycles`` are those of a quarter of a multiprocessor
    for 256 pairs of a point and a row, by how the slope is taken; ways that are missing are not allowed.
    """

    name: str
    engine: str
    shape: tuple[int, ...]
    resident: int
    cycles: Mapping[str, float] = field(hash=False)

    @property
    def requires(self) -> tuple[Feature, ...]:
        """Features that a generation must have."""
        return ("wgmma",) if self.engine == "wgmma" else ()

    @property
    def points(self) -> int:
        """Points of a block."""
        if self.engine == "scalar":
            return 16 * self.shape[0]
        return self.shape[1] * (self.shape[3] if self.engine == "mma" else self.shape[2])

    @property
    def columns(self) -> int:
        """Columns of a block."""
        if self.engine == "scalar":
            return 16 * self.shape[1]
        return 16 * self.shape[2] * self.shape[4] if self.engine == "mma" else 64 * self.shape[3]

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return self.shape[2] if self.engine == "scalar" else 8 * self.shape[0]

    @property
    def depth(self) -> int:
        """Rows of a stage."""
        if self.engine == "scalar":
            return self.shape[3]
        return 16 * (self.shape[5] if self.engine == "mma" else self.shape[4])

    @property
    def stages(self) -> int:
        """Stages of shared memory."""
        return self.shape[{"scalar": 4, "mma": 6, "wgmma": 5}[self.engine]]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        if self.engine == "scalar":
            return 256
        return 32 * self.shape[3] * self.shape[4] if self.engine == "mma" else 128 * self.shape[2] * self.shape[3]

    def shared(self, kind: str) -> int:
        """Return the bytes of dynamic shared memory of a block."""
        if self.engine == "scalar":
            return 4 * self.stages * self.depth * (self.points * self.outputs + self.columns)
        words = 4 if kind != "plain" else 8
        operand = self.depth // 16 * self.points * self.outputs // 8 * 32 * words
        stage = self.depth * (self.points + self.columns + self.outputs)
        return 4 * (self.stages * stage + 2 * operand)


# Templates: scalar <points / 16, columns / 16, outputs, depth, stages>; mma <outputs / 8, points and columns / 16 of a
# warp, warps over points and columns, depth / 16, stages, chunks between flushes, eighths of powers by table>; wgmma
# <outputs / 8, points of a warpgroup, warpgroups over points and columns, depth / 16, stages, flush, table>.
VJP_TILES = (
    VjpTile("one", "scalar", (8, 8, 1, 16, 3), 1, {"signs": 31, "plain": 60}),
    VjpTile("one_lean", "scalar", (8, 4, 1, 16, 3), 2, {"signs": 33, "powers": 95, "plain": 62}),
    VjpTile("two", "scalar", (8, 4, 2, 16, 3), 1, {"signs": 45, "powers": 105, "plain": 75}),
    VjpTile("four", "scalar", (4, 4, 4, 16, 3), 2, {"signs": 70, "powers": 125, "plain": 95}),
    VjpTile("eight", "mma", (1, 2, 2, 4, 2, 2, 4, 8, 3), 2, {"signs": 56, "powers": 150, "plain": 130}),
    VjpTile("sixteen", "mma", (2, 2, 2, 4, 2, 2, 4, 8, 3), 2, {"signs": 84, "powers": 185, "plain": 190}),
    VjpTile("wide", "mma", (4, 1, 4, 4, 2, 4, 3, 4, 3), 1, {"signs": 148, "powers": 250}),
    VjpTile("eight_async", "wgmma", (1, 4, 1, 2, 2, 4, 8, 3), 2, {"signs": 40, "powers": 115}),
    VjpTile("sixteen_async", "wgmma", (2, 4, 1, 2, 2, 4, 8, 3), 2, {"signs": 45, "powers": 125}),
    VjpTile("wide_async", "wgmma", (4, 2, 1, 4, 2, 4, 8, 3), 1, {"signs": 60, "powers": 140}),
    VjpTile("wide_few", "wgmma", (4, 4, 1, 2, 2, 4, 8, 3), 1, {"signs": 61, "powers": 141}),
    VjpTile("sixteen_broad", "wgmma", (2, 4, 1, 4, 2, 4, 8, 3), 1, {"signs": 46, "powers": 126}),
)
