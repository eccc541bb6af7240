"""How a GPU makes the matrix of two factors of halves that meet.

The first factor is (blocks, rank l, depth, 1), the second one (1, b, blocks rank, l).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .chain_plan import Pattern

DTYPES = ("f16", "bf16")
THREADS, TILE, EDGE = 256, 128, 64
_WIDES = (64, 128)  # columns of a block of the first factor


@dataclass(frozen=True)
class Meeting:
    """Two factors that meet, by the numbers of ``kronsparse_meeting.cuh``."""

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
        """What the matrix is."""
        return f"{self.features} x {self.blocks * self.depth} of rank {self.rank} x {self.l}"


@lru_cache(maxsize=1024)
def meeting_of(first: Pattern, second: Pattern) -> Meeting | None:
    """Return the two as the kernels see them; None for what does not meet in a full matrix, or not in whole tiles."""
    (blocks, wide, depth, steps), (a, b, c, d) = first, second
    if a != 1 or steps != 1 or d not in (1, 2, 4) or wide % d or blocks * wide != c * d:
        return None
    whole = wide in _WIDES and wide // d % 16 == 0 and depth % EDGE == 0 and b * d % 8 == 0
    return Meeting(b, blocks, wide // d, d, depth) if whole else None


@dataclass(frozen=True)
class JoinPlan:
    """The matrix alone."""

    arch: str
    dtype: str
    meeting: Meeting

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 128 * TILE + self.meeting.first_bytes + self.meeting.second_bytes

    @property
    def blocks(self) -> int:
        """Blocks of the launch."""
        own = self.meeting
        return -(-own.features // TILE) * own.blocks * (own.depth // EDGE)

    def __str__(self) -> str:
        return f"kron sparse matrix {self.arch} mma {TILE} x {EDGE}, {self.meeting.name}, {self.dtype}"


@lru_cache(maxsize=1024)
def join_plan(first: Pattern, second: Pattern, dtype: str, limits: DeviceLimits) -> JoinPlan | None:
    """Return the plan; None for other factors and types."""
    own = meeting_of(first, second)
    return None if own is None or dtype not in DTYPES else JoinPlan(limits.arch, dtype, own)
