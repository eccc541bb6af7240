"""Derivatives by extrapolated differences, with an estimate of their own error."""

from __future__ import annotations

import math
from collections.abc import Callable

STEP = 0.03125  # first step of a difference
SHRINK = 1.5  # times smaller is each next step
ROUNDS = 12  # steps
SAFETY = 16.0  # times the estimated error is allowed
ROUNDOFF = 2.0**-53


def slope(function: Callable[[float], float], at: float, step: float = STEP) -> tuple[float, float]:
    """Return the derivative at a place and a bound on its error, by Ridders' extrapolation of central differences.

    The function must be smooth within ``step`` of the place.
    """
    best, error = math.nan, math.inf
    previous: list[float] = []
    for _ in range(ROUNDS):
        right, left = function(at + step), function(at - step)
        row = [(right - left) / (2 * step)]
        noise = ROUNDOFF * (abs(right) + abs(left)) / step
        factor = SHRINK**2
        for column, above in enumerate(previous):
            row.append((row[column] * factor - above) / (factor - 1))
            factor *= SHRINK**2
            gap = max(abs(row[-1] - row[-2]), abs(row[-1] - above)) + noise
            if gap < error:
                best, error = row[-1], gap
        previous, step = row, step / SHRINK
    return best, error


def assert_slope(exact: float, function: Callable[[float], float], at: float, step: float = STEP) -> None:
    """Assert that a derivative agrees with differences of the function, as far as these are known."""
    estimate, error = slope(function, at, step)
    allowed = SAFETY * (error + ROUNDOFF * abs(exact))
    if not abs(exact - estimate) <= allowed:
        raise AssertionError(f"slope {exact} at {at}, but differences give {estimate} within {error}")
