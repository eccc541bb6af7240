"""Plans for the matrix of two factors of halves on a GPU, and for gradients of both from that of the matrix.

The first factor is (blocks, rank l, depth, 1), the second one (1, b, blocks rank, l).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .chain_plan import Pattern

DTYPES = ("f16", "bf16")
_MOST_STAGES = 4  # tiles of a block that are fetched
_MOST_SHARED = 55 << 10  # bytes of shared memory of a block of which four share a multiprocessor
THREADS, CLUSTER, TILE, EDGE = 256, 8, 128, 64  # of a block; blocks of a cluster; rows and columns of a tile
_WIDES = (64, 128)  # columns of a block of the first factor


@dataclass(frozen=True)
class FactorMatrix:
    """Two factors and their matrix, by the numbers of ``kronsparse_factor_matrix.cuh``."""

    b: int
    blocks: int
    rank: int
    l: int
    depth: int

    @property
    def features(self) -> int:
        """Rows of the matrix."""
        return self.b * self.l

    @property
    def second_bytes(self) -> int:
        """Bytes of the second factor's rows of a tile in shared memory."""
        return TILE // self.l * (2 * self.rank * self.l + 16)

    @property
    def first_bytes(self) -> int:
        """Bytes of 64 columns of a block of the first factor."""
        return self.rank * self.l * 128

    @property
    def name(self) -> str:
        """Extents and rank of the matrix, as text."""
        return f"{self.features} x {self.blocks * self.depth} of rank {self.rank} x {self.l}"


@lru_cache(maxsize=1024)
def factor_matrix(first: Pattern, second: Pattern) -> FactorMatrix | None:
    """Return the two as the kernels see them; None where their product has zeros or is not made of whole tiles."""
    (blocks, wide, depth, steps), (a, b, c, d) = first, second
    if a != 1 or steps != 1 or d not in (1, 2, 4) or wide % d or blocks * wide != c * d:
        return None
    whole = wide in _WIDES and wide // d % 16 == 0 and depth % EDGE == 0 and b * d % 8 == 0
    return FactorMatrix(b, blocks, wide // d, d, depth) if whole else None


# Seconds to begin to make the matrix and to take its gradient apart, and of a byte of it, on an H200 (decision 0049).
_MADE, _MADE_BYTE, _GRADIENT, _GRADIENT_BYTE = 1.7e-6, 4.5e-13, 4.5e-6, 7.6e-13


@lru_cache(maxsize=1024)
def made_seconds(first: Pattern, second: Pattern, dtype: str, limits: DeviceLimits) -> float | None:
    """Return what making the matrix and taking its gradient apart should take; None where other kernels do."""
    if matrix_plan(first, second, dtype, limits) is None:
        return None
    if matrix_gradient_plan(first, second, dtype, (True, True), False, limits) is None:
        return None
    (blocks, _, depth, _), (_, b, _, l) = first, second
    size = 2 * b * l * blocks * depth
    return _MADE + _GRADIENT + size * (_MADE_BYTE + _GRADIENT_BYTE)


@dataclass(frozen=True)
class MatrixPlan:
    """The matrix alone."""

    arch: str
    dtype: str
    matrix: FactorMatrix

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 128 * TILE + self.matrix.first_bytes + self.matrix.second_bytes

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        own = self.matrix
        return -(-own.features // TILE) * own.blocks * (own.depth // EDGE)

    def __str__(self) -> str:
        return f"kron sparse matrix {self.arch} mma {TILE} x {EDGE}, {self.matrix.name}, {self.dtype}"


@lru_cache(maxsize=1024)
def matrix_plan(first: Pattern, second: Pattern, dtype: str, limits: DeviceLimits) -> MatrixPlan | None:
    """Return the plan; None for other factors and types."""
    own = factor_matrix(first, second)
    return None if own is None or dtype not in DTYPES else MatrixPlan(limits.arch, dtype, own)


@dataclass(frozen=True)
class MatrixGradientPlan:
    """Gradients of the factors from that of their matrix: of which, and whether rows of another one are summed."""

    arch: str
    dtype: str
    matrix: FactorMatrix
    first: bool
    second: bool
    sums: bool

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        own = self.matrix
        return own.first_bytes + self.stages * 128 * TILE + (self.stages + 1) * own.second_bytes

    @property
    def stages(self) -> int:
        """Tiles of a block that are under way together."""
        own = self.matrix
        return min(_MOST_STAGES if own.l > 2 else 2, -(-own.features // (CLUSTER * TILE)))

    @property
    def each(self) -> int:
        """Blocks that are to share a multiprocessor."""
        if self.shared > _MOST_SHARED:
            return 2
        return 4 if self.matrix.rank == 16 else 3  # of more, 64 registers a thread are not enough

    @property
    def blocks(self) -> int:
        """Blocks of the launch, whole clusters."""
        summed = -(-self.matrix.features // EDGE) if self.sums else 0
        return CLUSTER * (self.matrix.blocks + summed)

    def __str__(self) -> str:
        return f"kron sparse matrix gradient {self.arch} mma in clusters, {self.matrix.name}, {self.dtype}"


@lru_cache(maxsize=1024)
def matrix_gradient_plan(
    first: Pattern, second: Pattern, dtype: str, needed: tuple[bool, bool], sums: bool, limits: DeviceLimits
) -> MatrixGradientPlan | None:
    """Return the plan; None for other factors, types and generations of GPUs."""
    own = factor_matrix(first, second)
    if own is None or own.depth != EDGE or dtype not in DTYPES or not limits.has(("clusters",)):
        return None
    found = MatrixGradientPlan(limits.arch, dtype, own, *needed, sums)
    return found if found.shared <= limits.shared_per_block else None
