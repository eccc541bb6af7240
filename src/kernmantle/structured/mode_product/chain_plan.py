"""Plans of chains of Kronecker-sparse products with packed weights: which neighbouring factors run as one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Pattern = tuple[int, int, int, int]
_MOST_WEIGHTS = 2**26  # weights of a product of factors
_SHORT = 4  # factors; up to as many, all groupings are tried


@dataclass(frozen=True)
class Step:
    """Factors ``begin`` .. ``end`` of a chain.

    ``kind`` is "factor": they run as one factor, their product; "dense": as the dense matrix of their product;
    "back-to-back": as two such factors in one kernel, the second of which begins at ``middle``.
    """

    kind: str
    begin: int
    middle: int
    end: int

    def __str__(self) -> str:
        if self.kind == "back-to-back":
            return f"back-to-back {_range(self.begin, self.middle)} {_range(self.middle, self.end)}"
        return f"{self.kind} {_range(self.begin, self.end)}"


def _range(begin: int, end: int) -> str:
    return str(begin) if end - begin == 1 else f"{begin}..{end - 1}"


def composes(first: Pattern, second: Pattern) -> bool:
    """Return whether the product of two patterns is a pattern again: blocks of one are in blocks of the other."""
    a, b, _, d = first
    fits = a * b * d == second[0] * second[2] * second[3]
    return fits and a % second[0] == 0 and second[3] % d == 0 and b % (second[3] // d) == 0


def fused(first: Pattern, second: Pattern) -> Pattern:
    """Return the pattern of the product of two that compose."""
    return second[0], second[1] * (second[3] // first[3]), first[0] // second[0] * first[2], first[3]


def steps(
    patterns: Sequence[Pattern], factor: Callable[[Pattern], float], back_to_back: Callable[[Pattern, Pattern], float],
    dense: float,
) -> tuple[Step, ...]:  # fmt: skip
    """Return the steps with the least predicted time, from the times of a factor, of a fused pair and of the matrix."""
    products = _products(patterns)
    factors = {index: factor(pattern) for index, pattern in products.items()}
    found = [(taken, Step("factor", begin, begin, end)) for (begin, end), taken in factors.items()]
    total, chosen = _shortest(len(patterns), found)
    cuts = [step.begin for step in chosen] + [len(patterns)]
    parts = products if len(patterns) <= _SHORT else set(itertools.pairwise(cuts))
    for begin, middle in parts:
        for end in [end for start, end in parts if start == middle]:
            taken = back_to_back(products[begin, middle], products[middle, end])
            if taken < math.inf:
                found.append((taken, Step("back-to-back", begin, middle, end)))
    total, chosen = _shortest(len(patterns), found)
    return (Step("dense", 0, 0, len(patterns)),) if dense <= total else chosen


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


def _shortest(count: int, found: Sequence[tuple[float, Step]]) -> tuple[float, tuple[Step, ...]]:
    """Return the steps with the least total time, from the first factor to the last."""
    best: list[tuple[float, tuple[Step, ...]]] = [(0.0, ())]
    for end in range(1, count + 1):
        paths = [
            (best[step.begin][0] + taken, (*best[step.begin][1], step)) for taken, step in found if step.end == end
        ]
        best.append(min(paths, key=lambda path: path[0]))
    return best[count]
