"""When a product whose batch is in front goes over rows that are turned, so that the entries of a block lie together.

``y[n, i, j, l]`` of ``x[n, i, k, l]``: for each i the matrix of k and l is turned, the d blocks of i are multiplied as
blocks on a diagonal, and the result is turned back. Two more passes, for a product that reads whole lines of memory.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from ...backends.cuda.tiles import DeviceLimits
from ...compiler.nest import BYTES
from .cost import quickest
from .plan import Problem
from .tiles import expected_seconds

ACCESS = 16
_BYTES_A_SECOND = 3.3e12
_START_SECONDS = 5e-6
_LEAST_INTERLEAVED = 4
_WARP, _LANES = 32, 4


def inner(problem: Problem) -> Problem | None:
    """The product over turned rows, a group for each i; None for what is not turned."""
    a, b, c, d = problem.pattern
    size = BYTES[problem.dtype]
    each = ACCESS // size
    whole = problem.x_bytes == ACCESS == problem.y_run * size and not any(length % each for length in (b, c, d))
    if not (whole and problem.x_first and problem.y_first and problem.groups == 1 and d >= _LEAST_INTERLEAVED):
        return None
    return replace(problem, pattern=(d, b, c, 1), groups=a)


def transpose_lanes(high: int, wide: int, size: int) -> tuple[int, int]:
    """How many lanes of a warp lie along the columns of a matrix that is turned, and how many warps turn it."""
    down, across = (-(-length * size // ACCESS) for length in (high, wide))
    lanes = _LANES
    while lanes > 1 and lanes >= 2 * down:
        lanes //= 2
    while lanes < _WARP and _WARP // lanes >= 2 * across:
        lanes *= 2
    return lanes, -(-down // lanes) * -(-across // (_WARP // lanes))


@lru_cache(maxsize=4096)
def transposed_seconds(problem: Problem, limits: DeviceLimits, packed: bool = False) -> float:
    """What it should take, infinite for what is not turned."""
    own = inner(problem)
    if own is None or problem.dtype == "f64":
        return math.inf
    a, b, c, d = problem.pattern
    moved = 2 * BYTES[problem.dtype] * problem.batch * a * d * (b + c)
    kernel = expected_seconds(own, limits, packed)
    blocks = (a * d, b, c, 1)
    after = problem.bias, problem.activation != ""
    _, multiplied = quickest(blocks, problem.batch, problem.dtype, "cuda", False, kernel, packed, *after)
    return _START_SECONDS + moved / _BYTES_A_SECOND + multiplied
