"""Laws of a user's semiring, tested on samples when a contraction is made with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from .node import Node, Number
from .ops import evaluate
from .show import pretty

_SAMPLES = (-1e6, -7.0, -2.5, -1.0, -0.25, 0.0, 0.5, 1.0, 2.0, 3.75, 1e6)
_TRUTHS = (False, True)
_CANDIDATES: tuple[Number, ...] = (0, 1, math.inf, -math.inf)
_ROUNDING = 1e-6  # relative difference within which two sides of a law agree
# Numbers, also those of a sign and of the unit interval: a plus such as min(a + b, 1) is for numbers that are not
# negative, and abs(a - b) for 0 and 1. Three at a time, so fewer of them.
_DOMAINS = (
    (-7.0, -0.25, 0.5, 1.0, 3.75),
    (0.0, 0.25, 0.5, 1.0, 3.75),
    (-3.75, -1.0, -0.5, -0.25, 0.0),
    (0.0, 0.25, 0.5, 0.75, 1.0),
)


def _joined(plus: Node, a: Number, b: Number) -> Number:
    return evaluate([plus], {"s0": a, "t": b})[0]


def _alike(a: Number, b: Number) -> bool:
    close = abs(a - b) <= _ROUNDING * max(abs(a), abs(b))
    return a == b or (close and math.isfinite(a) and math.isfinite(b))


def _results(plus: Node) -> Iterator[tuple[Number, Number, Number]]:
    """Yield the samples a, b and plus(a, b), where that is finite: only what plus returns has to obey its laws."""
    for samples in (_SAMPLES, _TRUTHS):
        for a in samples:
            for b in samples:
                value = _joined(plus, a, b)
                if math.isfinite(value):
                    yield a, b, value


def _moved(plus: Node, zero: Number) -> tuple[Number, Number] | None:
    """Return a value that plus(zero, value) or plus(value, zero) changes, and what it becomes."""
    for _, _, value in _results(plus):
        for found in (_joined(plus, zero, value), _joined(plus, value, zero)):
            if not _alike(value, found):
                return value, found
    return None


def _grouped(plus: Node, samples: tuple[Number, ...]) -> tuple[tuple[Number, ...], Number, Number] | None:
    """Three samples that plus joins to different values by their grouping, and these; None where there are none.

    Rounding is measured against everything on the way: what cancels may lose the digits of the largest.
    """
    joined = {(a, b): _joined(plus, a, b) for a in samples for b in samples}
    for (a, b), first in joined.items():
        for c in samples:
            last = joined[b, c]
            if not (math.isfinite(first) and math.isfinite(last)):
                continue
            left, right = _joined(plus, first, c), _joined(plus, a, last)
            largest = max(map(abs, (a, b, c, first, last, left, right)))
            if math.isfinite(largest) and abs(left - right) > _ROUNDING * largest:
                return (a, b, c), left, right
    return None


def _ungrouped(plus: Node) -> tuple[tuple[Number, ...], Number, Number] | None:
    """Return what ``_grouped`` finds among all numbers, where it finds something in every domain; None otherwise."""
    closed = all(_joined(plus, a, b) in _TRUTHS for a in _TRUTHS for b in _TRUTHS)
    domains = (*_DOMAINS, _TRUTHS) if closed else _DOMAINS
    first: tuple[tuple[Number, ...], Number, Number] | None = None
    for domain in domains:
        found = _grouped(plus, domain)
        if found is None:
            return None
        first = first or found
    return first


@lru_cache(maxsize=256)
def _problem(plus: Node, zero: Number, _: str) -> str:
    moved = _moved(plus, zero)
    if moved is not None:
        right = next((str(candidate) for candidate in _CANDIDATES if _moved(plus, candidate) is None), None)
        advice = "none of 0, 1, inf, -inf is one" if right is None else f"pass {right}, which is one"
        return (
            f"zero={zero!r} is not an identity of the semiring's plus {pretty(plus)}: plus({zero!r}, {moved[0]!r}) is "
            f"{moved[1]!r}; {advice}"
        )
    for a, b, value in _results(plus):
        swapped = _joined(plus, b, a)
        if not _alike(swapped, value):
            return (
                f"the semiring's plus {pretty(plus)} depends on the order: plus({a!r}, {b!r}) is {value!r} but "
                f"plus({b!r}, {a!r}) is {swapped!r}; use a Fold, which keeps the order"
            )
    ungrouped = _ungrouped(plus)
    if ungrouped is not None:
        (a, b, c), left, right = ungrouped
        return (
            f"the semiring's plus {pretty(plus)} is not associative: plus(plus({a!r}, {b!r}), {c!r}) is {left!r} but "
            f"plus({a!r}, plus({b!r}, {c!r})) is {right!r}; use a Fold, which keeps the order"
        )
    return ""


def broken_law(plus: Node, zero: Number) -> str:
    """Return what is wrong with an identity or a plus over s0 and t, "" for nothing that samples show."""
    return _problem(plus, zero, repr(zero))
