"""Plans of chains of Kronecker-sparse products with packed weights: which neighbouring factors run as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Pattern = tuple[int, int, int, int]
_MOST_WEIGHTS = 2**26  # weights of a product of factors


@dataclass(frozen=True)
class Step:
    """Factors ``begin`` .. ``end`` of a chain.

    ``kind`` is "factor": they run as one factor, their product; "dense": as the dense matrix of their product.
    """

    kind: str
    begin: int
    end: int

    def __str__(self) -> str:
        span = str(self.begin) if self.end - self.begin == 1 else f"{self.begin}..{self.end - 1}"
        return f"{self.kind} {span}"


def composes(first: Pattern, second: Pattern) -> bool:
    """Return whether the product of two patterns is a pattern again: blocks of one are in blocks of the other."""
    a, b, _, d = first
    fits = a * b * d == second[0] * second[2] * second[3]
    return fits and a % second[0] == 0 and second[3] % d == 0 and b % (second[3] // d) == 0


def fused(first: Pattern, second: Pattern) -> Pattern:
    """Return the pattern of the product of two that compose."""
    return second[0], second[1] * (second[3] // first[3]), first[0] // second[0] * first[2], first[3]


def steps(patterns: Sequence[Pattern], factor: Callable[[Pattern], float], dense: float) -> tuple[Step, ...]:
    """Return the steps with the least predicted time, from the times of a factor and of the matrix of all."""
    products = _products(patterns)
    factors = {pattern: factor(pattern) for pattern in products.values()}
    best: list[tuple[float, tuple[Step, ...]]] = [(0.0, ())]
    for end in range(1, len(patterns) + 1):
        paths = [
            (best[begin][0] + factors[products[begin, end]], (*best[begin][1], Step("factor", begin, end)))
            for begin in range(end)
            if (begin, end) in products
        ]
        best.append(min(paths, key=lambda path: path[0]))
    total, chosen = best[-1]
    return (Step("dense", 0, len(patterns)),) if dense <= total else chosen


def _products(patterns: Sequence[Pattern]) -> dict[tuple[int, int], Pattern]:
    """Return the patterns of the products of neighbours, by where they begin and end."""
    found: dict[tuple[int, int], Pattern] = {}
    for begin, pattern in enumerate(patterns):
        found[begin, begin + 1] = own = pattern
        for end in range(begin + 2, len(patterns) + 1):
            if not composes(patterns[end - 2], patterns[end - 1]) or not composes(own, patterns[end - 1]):
                break
            own = fused(own, patterns[end - 1])
            if math.prod(own) > _MOST_WEIGHTS:
                break
            found[begin, end] = own
    return found
