"""Plans of the gradients of two short axes of a Kronecker product, in one pass whose warps keep all in registers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .back_wgmma_plan import separating
from .cost import LAUNCH, memory_of
from .factor_gradient_plan import SIZES
from .gradient_groups import Size, SlottedPlan, slots, whole

# Rows and columns of a matrix, and numbers of an access.
SIDE, VECTOR = 16, 4
# Threads of a block and how many blocks a multiprocessor holds, and the same where columns stand behind the axes;
# bytes of a copy and of a run of columns, stages of tiles, and by the threads that share a tile those of a block and
# bytes of a stage.
THREADS, BLOCKS = 256, 2
COPY, RUN, STAGES, WARP, TEAMS = 16, 128, 3, 32, {32: (128, 18 << 10), 256: (256, 66 << 10)}
# Seconds to begin; of a multiprocessor for a matrix, by the bytes of a number and how many of them are accessed at
# once; with columns behind the axes for four matrices of each warp, by the threads that share a tile; times what bytes
# take (H200, decision 0097).
_BEGIN = 1e-6
_MATRIX = {4: {4: 8.8e-8, 2: 9.3e-8, 1: 1.17e-7}, 2: {4: 6.5e-8, 2: 8.5e-8, 1: 1.1e-7}}
_ROUND, _MOVED = {4: {32: 3e-6, 256: 4.6e-6}, 2: {32: 1.3e-6, 256: 1.9e-6}}, {4: 0.87, 2: 0.97}


@dataclass(frozen=True)
class BackRegistersPlan(SlottedPlan):
    """A pass over two axes; ``before``: how many items a row of x has where they are no whole matrices.

    With others behind them a tile of ``team`` threads has ``across`` columns, of which a matrix has ``items``.
    """

    across: int = 0
    before: int = 0
    team: int = WARP

    side = SIDE

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return TEAMS[self.team][0] if self.across else THREADS

    multiplying = threads

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor holds."""
        return 1 if self.across else BLOCKS

    @property
    def stages(self) -> int:
        """Stages of tiles."""
        return STAGES if self.across else 0

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the sums of each warp and those of the block, or tiles of all warps."""
        warps = self.threads // 32
        staged = (
            self.threads // self.team * self.stages * _fours(self.axes) * (4 * self.across * SIZES[self.stored] + COPY)
        )
        return max(4 * (warps + 1) * 2 * SIDE * SIDE, staged)

    def tiles(self, items: int, width: int) -> int:
        """Return how many blocks have work, of so many entries before the axes and columns behind them."""
        of_row = items if self.across else self.before or self.items
        tiles = items * -(-width // self.across) if self.across else items // of_row * -(-of_row // self.items)
        return -(-tiles * self.team // self.threads)

    def __str__(self) -> str:
        columns = f", {self.across} columns by {self.team} threads" * bool(self.across)
        return f"gradients of {self.names} {self.stored} in registers, {self.items} items by {self.vector}{columns}"


def _fours(axes: tuple[Size, ...]) -> int:
    """Return the runs of x and v in a tile, in fours."""
    return sum(-(-math.prod(axis[side] for axis in axes) // 4) for side in (0, 1))


def back_registers_candidates(
    sizes: tuple[Size, ...], before: int, width: int, stored: str, arch: str
) -> Iterator[BackRegistersPlan]:
    """Yield the passes, by where the factors are parted.

    In a row of x ``before`` entries lie in front of the factors, and ``width`` columns behind them.
    """
    size = SIZES[stored]
    copied = COPY // size
    if width > 1 and width % copied:
        return
    for at in range(1, len(sizes)):
        groups = sizes[:at], sizes[at:]
        axes = tuple(map(whole, groups))
        if max(map(max, axes)) > SIDE:
            continue
        vector = math.gcd(VECTOR, *axes[1]) if width == 1 else 1
        down, across = slots(axes, vector)
        count = SIDE // down * (SIDE // across)
        if width == 1:
            items = -(-before // -(-before // count))
            yield BackRegistersPlan(groups, stored, arch, items, vector, 0, before if before % items else 0)
            continue
        for team, (_, stage) in TEAMS.items():
            most = (stage // _fours(axes) - COPY) // (4 * size)
            items = max(1, min(count, most // math.lcm(VECTOR, copied), -(-width // VECTOR)))
            step = math.lcm(VECTOR * items, copied)
            most = min(most, RUN // size * items) if team > WARP else most
            across = step * max(1, min(most // step, -(-width // step)))
            yield BackRegistersPlan(groups, stored, arch, items, vector, across, 0, team)


@lru_cache(maxsize=4096)
def back_registers(
    sizes: tuple[Size, ...], call: tuple[int, int, int], stored: str, limits: DeviceLimits
) -> BackRegistersPlan | None:
    """Return the pass over some factors, None where there is none.

    ``call``: rows of x, entries of each in front of the factors, and columns behind them.
    """
    if stored not in SIZES:
        return None
    rows, before, width = call
    every = back_registers_candidates(sizes, before, width, stored, limits.arch)
    found = [plan for plan in every if plan.shared <= limits.shared_per_block]
    return min(found, key=lambda plan: back_registers_seconds(plan, rows * before, width, limits), default=None)


def back_registers_seconds(plan: BackRegistersPlan, items: int, width: int, limits: DeviceLimits) -> float:
    """Return what the pass and the sum of its shares should take."""
    (q0, p0), (q1, p1) = plan.axes
    size = SIZES[plan.stored]
    moved = float(size) * items * width * (2 * p0 * p1 + q0 * q1) / memory_of(limits)
    blocks = plan.blocks * limits.sm_count
    shares = 8.0 * min(plan.tiles(items, width), blocks) * plan.parts / memory_of(limits)
    if plan.across:
        of_round, (whole_tiles, rest) = VECTOR * plan.items * plan.team // WARP, divmod(width, plan.across)
        rounds = items * (whole_tiles * -(-plan.across // of_round) + -(-rest // of_round))
        work = -(-rounds // (plan.threads // plan.team * limits.sm_count)) * _ROUND[size][plan.team]
    else:
        rounds = -(-plan.tiles(items, width) // blocks)
        work = rounds * plan.blocks * plan.threads // WARP * _MATRIX[size][plan.vector]
    work = max(work, _MOVED[size] * moved)
    return 2 * LAUNCH + _BEGIN + work + shares + sum(separating(group, plan.threads) for group in plan.groups)
