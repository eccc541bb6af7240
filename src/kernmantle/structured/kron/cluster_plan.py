"""Plans of Kronecker passes over whole rows by a block or a cluster, where rows are whole vectors of 16 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ...backends.cuda.arch import Feature
from ...backends.cuda.tiles import DeviceLimits
from .mma_plan import SIZES
from .passes import Pass, square_pass
from .tensor_plan import MmaLayout, Tensor, TensorPlan

# Rows and columns of factors, and how many of them a pass applies.
FACTORS = {16: 4, 32: 3, 64: 3}
# Times as long as estimated that these count as part of a product of more axes: where 13 x 13, 4 x 4 or 2 x 2 is left,
# in float32, other passes are 7, 12 and 20 % quicker (H200).
WHOLE, IN_PARTS = {16: 1.0, 32: 1.0, 64: 1.0}, {32: 1.25, 64: 1.25}
# What a generation needs to have: others with clusters were not measured.
FEATURES: tuple[Feature, ...] = ("clusters", "wgmma", "measured")
# Rows for a multiprocessor from which a pass is quicker than others: of 16^4 8 rows of float32 take 6.9 us instead of
# 13.7, of halves 5.7 instead of 7.8; of 32^3 8 rows 13.7 instead of 18.3, 4 of halves 6.7 instead of 13.7; of 64^3 32
# rows 48.5 instead of 47.9 and 24.2 instead of 22.8, 64 73 instead of 84 and 35.5 instead of 38.2 (H200).
LEAST_ROWS = {(16, 4): 0.06, (16, 2): 0.06, (32, 4): 0.06, (32, 2): 0.03, (64, 4): 0.48, (64, 2): 0.48}
# Entries of two factors of 16; bytes of a piece of 64 x 64 halves.
SIDE, PIECE = 256, 64 * 64 * 2
# Rows of factors whose rows of x a block has alone.
CUBE = 32
BARRIERS = 16


@dataclass(frozen=True)
class ClusterPlan(TensorPlan):
    """A pass over all axes of a row, which ``cluster`` blocks of ``warps`` have.

    ``blocks`` share a multiprocessor. Four axes of 16: a warp takes ``at_once`` tiles of 16 x 16. Three of 64 by wgmma:
    ``stages`` of tiles of 64 x 64. ``is_prefetched``: what is read next comes into the second-level cache ahead.
    """

    cluster: int
    warps: int
    blocks: int
    at_once: int
    stages: int
    is_prefetched: bool

    @property
    def size(self) -> int:
        """Rows and columns of each factor."""
        return self.run.modes[0].columns

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        parts = min(2, self.tensor.products)
        if self.stages:
            noted = 64 * 4 + self.stages * 20 + self.warps * 4
            return (64 // self.cluster + 2 + self.stages) * parts * PIECE + noted + BARRIERS
        if self.size == CUBE:
            return CUBE**3 * SIZES[self.stored] + (CUBE * 8 if parts > 1 else 0) + 3 * parts * CUBE**2 * 2
        table = SIDE * 4 if parts > 1 else 0
        return SIDE**2 * SIZES[self.stored] // self.cluster + table + FACTORS[16] * parts * SIDE * 2 + BARRIERS

    def count(self, entries: int, right: int) -> int:
        """Return the rows of so many entries of the last batch axis."""
        return entries * right

    @property
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""
        own = f"{self.stages} stages" if self.stages else f"{self.at_once} tiles, {self.blocks} blocks"
        who = f"clusters of {self.cluster} x " if self.cluster > 1 else ""
        return f"{who}{self.warps} warps, {own}{' ahead' * self.is_prefetched}"


def cluster(
    run: Pass, shapes: tuple[tuple[int, int], ...], stored: str, tensor: Tensor, layout: MmaLayout, limits: DeviceLimits
) -> ClusterPlan:
    """Return the plan of a pass that :func:`suits`."""
    is_split = SIZES[stored] == 4
    if run.modes[0].columns == 64:
        own = (8, 16, 1, 1, 4, True) if is_split else (4, 16, 1, 1, 8, True)
    elif run.modes[0].columns == CUBE:
        own = (1, 8, 1 if is_split else 2, 1, 0, True)
    else:
        own = (8, 4, 5, 2, 0, True) if is_split else (4, 4, 5, 2, 0, True)
    return ClusterPlan(run, shapes, stored, tensor, limits.arch, layout, *own)


def joined_pass(plain: Pass, tensor: Tensor) -> Pass | None:
    """Return a pass whose small neighbours are multiplied out to four factors of 16, or three of 32 or 64, or None."""
    found = (square_pass(plain, size, count) for size, count in FACTORS.items())
    run = next((own for own in found if own is not None), None)
    return run if run is not None and (tensor.holds_products or max(map(len, run.parts)) == 1) else None


def suits(run: Pass, entries: int, right: int, stored: str, tensor: Tensor, limits: DeviceLimits) -> bool:
    """Return whether a pass is one by clusters, with enough rows for these."""
    modes, size = run.modes, run.modes[0].columns
    is_cluster = all(mode.columns == mode.rows == size for mode in modes) and FACTORS.get(size) == len(modes)
    if not is_cluster or right > 1 or not tensor.is_aligned or not limits.has(FEATURES):
        return False
    return entries >= LEAST_ROWS[size, SIZES[stored]] * limits.sm_count
