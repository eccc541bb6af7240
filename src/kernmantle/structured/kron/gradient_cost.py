"""What the steps of gradients of a Kronecker product should take on a GPU: partial products, and sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from .cost import LAUNCH, SIZES, SMALL, memory_of
from .cuda_plan import plan
from .factor_gradient_plan import GramPlan, gram
from .mma_plan import Tensor
from .modes import Mode, columns, parse, rows

# Types of arrays whose steps have a price.
PRICED = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class GpuPrice:
    """Seconds of steps for ``items`` arrays with ``columns`` behind their last axis.

    ``shapes`` are those of the factors; ``tensor``: how tensor cores multiply.
    """

    shapes: tuple[tuple[int, int], ...]
    items: int
    columns: int
    stored: str
    limits: DeviceLimits
    tensor: Tensor | None
    fuse: bool

    def product(self, text: str, is_adjoint: bool) -> float:
        """Return the seconds of the product of a text."""
        shapes = tuple((p, q) for q, p in self.shapes) if is_adjoint else self.shapes
        modes = parse(text, shapes)
        found = plan(modes, self.columns, self.stored, self.limits, self.fuse, self.tensor, self.items)
        return found.seconds

    def sum(self, group: Sequence[Mode], left: int, right: int) -> float:
        """Return the seconds of the gradients of neighbouring factors."""
        size = rows(group), columns(group)
        methods = sum_seconds(
            size, left * self.items, right * self.columns, self.stored, self.limits, self.tensor is not None
        )
        return min(methods.values()) + separating_seconds(
            [(mode.rows, mode.columns) for mode in group], self.stored, self.limits
        )


def separating_seconds(sizes: Sequence[tuple[int, int]], stored: str, limits: DeviceLimits) -> float:
    """Return the seconds of the gradients of matrices from that of their Kronecker product."""
    if len(sizes) == 1:
        return 0.0
    entries = math.prod(q * p for q, p in sizes)
    return (1 + 3 * (len(sizes) - 1)) * (SMALL + 2 * SIZES[stored] * entries / (0.3 * memory_of(limits)))


@lru_cache(maxsize=16384)
def sum_seconds(
    size: tuple[int, int], count: int, right: int, stored: str, limits: DeviceLimits, has_kernel: bool
) -> Mapping[str, float]:
    """Return the seconds of v[l, q, r] u[l, p, r] summed over ``count`` l and ``right`` r, by each method.

    By our "kernel", one product of rows as they lie ("mm"), "batched" products that are added up, or one product of
    "copied" arrays.
    """
    q, p = size
    moved = float(SIZES[stored]) * count * right * (q + p)
    found: dict[str, float] = {}
    chosen = gram(q, p, right, stored, True, limits.arch) if has_kernel else None
    if chosen is not None:
        found["kernel"] = _kernel_seconds(chosen, count, right, limits)
    multiplied = float(count) * right * q * p
    if right == 1 or count == 1:
        found["mm"] = 2 * LAUNCH + moved / (0.5 * memory_of(limits)) + multiplied / _RATES[stored]
    else:
        parts = 2.0 * SIZES[stored] * count * q * p / (0.5 * memory_of(limits))
        odd = 20.0 if SIZES[stored] == 2 and right % 8 else 2.0
        found["batched"] = 2 * LAUNCH + odd * moved / memory_of(limits) + parts + multiplied / _RATES[stored]
        found["copied"] = 3 * LAUNCH + 6 * moved / memory_of(limits) + multiplied / _RATES[stored]
    return found


_RATES = {"f16": 2e14, "bf16": 2e14, "f32": 2e13, "f64": 1.5e13}


def _kernel_seconds(chosen: GramPlan, count: int, right: int, limits: DeviceLimits) -> float:
    chunks = chosen.chunks(count, right)
    shares = chosen.shares(count, right, chosen.blocks * limits.sm_count)
    moved = float(SIZES[chosen.stored]) * count * right * (chosen.rows + chosen.columns)
    work = -(-chunks // shares) * 1.5e-6 * -(-shares * chosen.tiles // limits.sm_count) / chosen.blocks
    return LAUNCH + SMALL * (shares > 1) + max(moved / (0.6 * memory_of(limits)), work)
