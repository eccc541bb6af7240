"""Arithmetic that metrics share: powers of differences, counts, sums over true and false."""

from __future__ import annotations

import math
from typing import Any

from ..ir.functions import FUNCTIONS
from .metric import Form

exp, log, log1p, maximum, sqrt, where = (
    FUNCTIONS[name] for name in ("exp", "log", "log1p", "maximum", "sqrt", "where")
)


def _masked(x: Any, y: Any, w: Any) -> Any:
    return where(w > 0, abs(x - y), 0)


def _power(x: Any, y: Any, w: Any, p: Any) -> Any:
    gap = abs(x - y)
    return where(gap == 0, 0, w * gap**p)


def _power_and_gap(x: Any, y: Any, w: Any, p: Any) -> tuple[Any, Any]:
    """Return both sums; an infinite power, whose sum is not used, must have no infinite slope either."""
    return _power(x, y, w, where(p == math.inf, 1, p)), _masked(x, y, w)


def _logarithm(x: Any, y: Any, w: Any, p: Any) -> Any:
    gap = abs(x - y)
    return where(gap == 0, -math.inf, p * log(gap) + log(w))


def _valid(s: Any, p: Any) -> Any:
    return where(p >= 0, s, math.nan)


def _either(s: Any, t: Any, p: Any) -> Any:
    return where(p == math.inf, maximum(t, 0), _valid(s, p))


def _root(s: Any, p: Any) -> Any:
    return where((p == 0) | (p == math.inf), s, s ** (1 / p))


def _root_of_power(s: Any, p: Any) -> Any:
    return s ** (1 / p)


def _root_of_logarithm(s: Any, p: Any) -> Any:
    return exp(s / p)


COUNT = Form(lambda x, y, w: where(x != y, w, 0))
LARGEST = Form(_masked, "max", finish=lambda s: maximum(s, 0))
POWER = Form(lambda x, y, w, p: w * abs(x - y) ** p, root=_root_of_power)
STEEP_POWER = Form(_logarithm, "logsumexp", root=_root_of_logarithm)
TENSOR_POWER = Form(_power, finish=_valid, root=_root)
TENSOR_POWER_OR_LARGEST = Form(_power_and_gap, ("sum", "max"), finish=_either, root=_root)

POWERS = {
    "power": POWER,
    "steep": STEEP_POWER,
    "count": COUNT,
    "largest": LARGEST,
    "tensor": TENSOR_POWER,
    "tensor or largest": TENSOR_POWER_OR_LARGEST,
}
"""Minkowski by the kind of p: a number in (0, inf), one whose powers may leave the type, 0, inf; a tensor without and
with infinity in it."""

ABSOLUTE = Form(lambda x, y, w: w * abs(x - y))
PRODUCT = Form(lambda x, y, w: w * (x * y))
SQUARES = Form(lambda x, y, w: w * (x - y) ** 2)
ROOT_OF_SQUARES = Form(SQUARES.map, root=sqrt)
HALF_OF_SQUARES = Form(SQUARES.map, finish=lambda s: s / 2)
ROOT_OF_HALF = Form(SQUARES.map, finish=lambda s: s / 2, root=sqrt)
QUADRATIC = Form(
    lambda x, y, u, v: (x - y) * (u - v), finish=lambda s: maximum(s, 0), root=sqrt,
    operands="mk,nk,mk,nk", weighted=False,
)  # fmt: skip


def _relative_gap(x: Any, y: Any, w: Any) -> Any:
    size = abs(x) + abs(y)
    return where(size == 0, 0, w * abs(x - y) / size)


def _relative_entropy(x: Any, log_y: Any, log_x: Any, w: Any) -> Any:
    return where(x == 0, where(log_y == log_y, 0, log_y), w * x * (log_x - log_y))


def _shannon(x: Any, y: Any) -> Any:
    """X log(x / m) + y log(y / m) for the mean m, as a function of t = |x - y| / (x + y) that keeps its digits."""
    both = x + y
    t = abs(x - y) / both
    rest = where(t == 1, 0, (1 - t) * log1p(-t))
    return where(both == 0, 0, both / 2 * ((1 + t) * log1p(t) + rest))


CANBERRA = Form(_relative_gap)
BRAY_CURTIS = Form(lambda x, y, w: (w * abs(x - y), w * abs(x + y)), finish=lambda s, t: s / t)
RELATIVE_ENTROPY = Form(_relative_entropy, operands="mk,nk,mk")
SHANNON = Form(_shannon, finish=lambda s, scale: maximum(s * scale, 0), root=sqrt, weighted=False)


def _agreement(x: Any, y: Any, w: Any) -> tuple[Any, Any]:
    """Return how much differs, and how much is true in both; x and y are 0 or 1."""
    return w * abs(x - y), w * (x * y)


def _yule(s: Any, t: Any, u: Any, total: Any) -> Any:
    cross = t * u
    return where(cross == 0, 0, 2 * cross / (s * (total - s - (t + u)) + cross))


def _jaccard(s: Any, t: Any) -> Any:
    return where(s + t == 0, 0, s / (s + t))


DICE = Form(lambda x, y, w: (w * (x * (1 - y) + y * (1 - x)), w * (x * y)), finish=lambda s, t: s / (2 * t + s))
HAMMING = Form(COUNT.map, finish=lambda s, total: s / total)
JACCARD = Form(_agreement, finish=_jaccard)
ROGERS_TANIMOTO = Form(ABSOLUTE.map, finish=lambda s, total: 2 * s / (total + s))
RUSSELL_RAO = Form(PRODUCT.map, finish=lambda s, total: (total - s) / total)
SOKAL_SNEATH = Form(_agreement, finish=lambda s, t: 2 * s / (t + 2 * s))
YULE = Form(lambda x, y, w: (w * (x * y), w * (x * (1 - y)), w * (y * (1 - x))), finish=_yule)
