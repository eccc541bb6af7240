"""Arithmetic of kernels beyond one line: Matérn, Wendland, networks of infinite width."""

from __future__ import annotations

import math
from typing import Any

from ..ir.functions import FUNCTIONS

acos, exp, maximum, sqrt, where = (FUNCTIONS[name] for name in ("acos", "exp", "maximum", "sqrt", "where"))

PI = math.pi
_SERIES_ENDS = 0.0625
_ARCSINE = tuple(math.comb(2 * n, n) / (4**n * (2 * n + 1)) for n in range(13))
"""Coefficients of asin(√h) / √h, enough for float64 below ``_SERIES_ENDS``."""


def matern(s: Any, bandwidth: Any, nu: float) -> Any:
    """Matérn's kernel from the sum of squares."""
    r = sqrt(s) * (math.sqrt(2 * nu) / bandwidth)
    if nu == 0.5:
        return exp(-r)
    if nu == 1.5:
        return (1 + r) * exp(-r)
    return (1 + r + r * r / 3) * exp(-r)


def wendland(s: Any, bandwidth: Any, dimension: Any, smoothness: int) -> Any:
    """Wendland's function of the distance, 0 beyond the bandwidth."""
    r = sqrt(s) / bandwidth
    inside = maximum(1 - r, 0)
    j = (dimension / 2).floor() + smoothness + 1
    if smoothness == 0:
        polynomial: Any = 1
    elif smoothness == 1:
        polynomial = (j + 1) * r + 1
    elif smoothness == 2:
        polynomial = 1 + (j + 2) * r + (j * j + 4 * j + 3) / 3 * r * r
    else:
        cubic = (j * j * j + 9 * j * j + 23 * j + 15) / 15
        polynomial = 1 + (j + 3) * r + (2 * j * j + 12 * j + 15) / 5 * r * r + cubic * r * r * r
    return inside ** (j + smoothness) * polynomial


def _half_chord(s: Any, length: Any, gap: Any) -> Any:
    """sin²(θ/2) of the angle between two rows, exact where it is small.

    ``length`` is the product of their lengths, ``gap`` the difference; zero rows are at right angles to all.
    """
    chord = (s - gap * gap) / (4 * length)
    chord = where(chord > 1, 1, where(chord < 0, 0, chord))
    return where(length == 0, 0.5, chord)


def _angle(h: Any) -> Any:
    """Return the angle θ of h = sin²(θ/2), with its digits near 0 and near π."""
    small = where(h < 0.5, h, 1 - h)
    series: Any = _ARCSINE[-1]
    for coefficient in reversed(_ARCSINE[:-1]):
        series = series * small + coefficient
    angle = where(small < _SERIES_ENDS, 2 * sqrt(small) * series, acos(1 - 2 * small))
    return where(h < 0.5, angle, PI - angle)


def _network(h: Any, length: Any, depth: int, bias: Any) -> Any:
    """Neural tangent kernel of a ReLU network of ``depth`` layers whose biases start at zero.

    Angles are kept as h = sin²(θ/2), so that equal and nearly equal rows keep their digits.
    """
    tangent = length * (1 - 2 * h) + bias * bias
    for _ in range(depth - 1):
        angle = _angle(h)
        sine = 2 * sqrt(h * (1 - h))
        h = h + (angle * (1 - 2 * h) - sine) / (2 * PI)
        h = where(h < 0, 0, h)
        tangent = tangent * (1 - angle / PI) + length * (1 - 2 * h) + bias * bias
    return tangent


def network(s: Any, a: Any, b: Any, bias: Any, depth: int) -> Any:
    """Neural tangent kernel from squared distance and squared lengths."""
    left, right = sqrt(a), sqrt(b)
    return _network(_half_chord(s, left * right, left - right), left * right, depth, bias)


def network_on_sphere(s: Any, a: Any, b: Any, bias: Any, depth: int) -> Any:
    """Return the same of the rows divided by their lengths."""
    left, right = sqrt(a), sqrt(b)
    return _network(_half_chord(s, left * right, left - right), 1, depth, bias)


def cosine(s: Any, a: Any, b: Any) -> Any:
    """Cosine of the angle between two rows, 0 for rows of zeros."""
    length = sqrt(a) * sqrt(b)
    return where(length == 0, 0, s / length)
