"""Laws of a user's semiring, tested on samples when a contraction is made with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from ..expr.node import Node, Number
from ..expr.ops import evaluate
from ..expr.show import pretty

_SAMPLES = (-1e6, -7.0, -2.5, -1.0, -0.25, 0.0, 0.5, 1.0, 2.0, 3.75, 1e6)
_TRUTHS = (False, True)
_CANDIDATES: tuple[Number, ...] = (0, 1, math.inf, -math.inf)
_ROUNDING = 1e-6


def _joined(plus: Node, a: Number, b: Number) -> Number:
    return evaluate([plus], {"s0": a, "t": b})[0]


def _alike(a: Number, b: Number) -> bool:
    near = abs(a - b) <= _ROUNDING * max(abs(a), abs(b))
    return a == b or (near and math.isfinite(a) and math.isfinite(b))


def _results(plus: Node) -> Iterator[tuple[Number, Number, Number]]:
    """Samples a, b and plus(a, b), where that is finite: only what plus returns has to obey its laws."""
    for samples in (_SAMPLES, _TRUTHS):
        for a in samples:
            for b in samples:
                value = _joined(plus, a, b)
                if math.isfinite(value):
                    yield a, b, value


def _moved(plus: Node, zero: Number) -> tuple[Number, Number] | None:
    """A value that plus(zero, value) or plus(value, zero) changes, and what it becomes."""
    for _, _, value in _results(plus):
        for found in (_joined(plus, zero, value), _joined(plus, value, zero)):
            if not _alike(value, found):
                return value, found
    return None


@lru_cache(maxsize=256)
def _problem(plus: Node, zero: Number, _: str) -> str:
    moved = _moved(plus, zero)
    if moved is not None:
        right = next((str(candidate) for candidate in _CANDIDATES if _moved(plus, candidate) is None), None)
        advice = "none of 0, 1, inf, -inf is one" if right is None else f"pass {right}, which is one"
        return (
            f"zero={zero!r} is no identity of the semiring's plus {pretty(plus)}: plus({zero!r}, {moved[0]!r}) is "
            f"{moved[1]!r}; {advice}"
        )
    for a, b, value in _results(plus):
        turned = _joined(plus, b, a)
        if not _alike(turned, value):
            return (
                f"the semiring's plus {pretty(plus)} depends on the order: plus({a!r}, {b!r}) is {value!r} but "
                f"plus({b!r}, {a!r}) is {turned!r}; use a Fold, which keeps the order"
            )
    return ""


def broken_law(plus: Node, zero: Number) -> str:
    """What is wrong with an identity or a plus over s0 and t, "" for nothing that samples show."""
    return _problem(plus, zero, repr(zero))
