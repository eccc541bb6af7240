"""Scalar functions on Python numbers that return what IEEE arithmetic returns and never raise."""

from __future__ import annotations

import math
from collections.abc import Callable

_LARGEST_INTEGER_BITS = 1024  # of an exact power of integers


def total(function: Callable[[float], float], overflow: float = math.inf) -> Callable[[float], float]:
    """Return the function with ``overflow`` for results too large and NaN outside its domain."""

    def value(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return overflow
        except ValueError:
            return math.nan

    return value


def pole(function: Callable[[float], float], at: float, there: float) -> Callable[[float], float]:
    """Return the function with the value ``there`` at ``at`` and NaN outside its domain."""
    inside = total(function)
    return lambda x: there if x == at else inside(x)


def divide(a: float, b: float) -> float:
    """Return the quotient; infinite or NaN over zero."""
    if b != 0:
        try:
            return a / b
        except OverflowError:
            return math.copysign(math.inf, a) * math.copysign(1.0, b)
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def fmod(a: float, b: float) -> float:
    """Return the rest of a division whose quotient is rounded towards zero; exact."""
    try:
        return math.fmod(a, b)
    except ValueError:
        return math.nan


def power(base: float, exponent: float) -> float:
    """Power as C's ``pow``; exact for integers of moderate size."""
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent >= 0
    if whole and int(base).bit_length() * exponent <= _LARGEST_INTEGER_BITS:
        return int(base) ** int(exponent)
    odd = exponent % 2 == 1
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and odd else math.inf
    except ValueError:
        if base == 0:
            return math.copysign(math.inf, base) if odd else math.inf
        return math.nan


def extremum(pick: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """``min`` or ``max`` that is NaN where an argument is."""
    return lambda a, b: math.nan if a != a or b != b else pick(a, b)


def sign(x: float) -> float:
    """-1, 0 or 1; NaN of NaN."""
    return x if x != x else (x > 0) - (x < 0)


def floor(x: float) -> float:
    """Return the largest integer not above; infinities and NaN are their own."""
    return math.floor(x) if math.isfinite(x) else x


def sigmoid(x: float) -> float:
    """Return the logistic function without overflow."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def rsqrt(x: float) -> float:
    """Return the inverse square root."""
    if x == 0:
        return math.copysign(math.inf, x)
    return 1 / math.sqrt(x) if x >= 0 else (math.nan if x < 0 else x)
