"""Checks of arguments that are numbers, options or functions, the same for all interfaces."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from .errors import ParameterError


def integer(value: Any, name: str, least: int = 1, most: int | None = None, meaning: str = "") -> int:
    """Return an integer of Python or numpy in a range; ParameterError for anything else, with the range's meaning."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        wanted = wanted if most is None else f"an integer from {least} to {most}{meaning}"
        raise ParameterError(f"{name} must be {wanted}, not {value!r}")
    return number


def positive(value: Any, name: str, *, infinite: bool = False) -> float:
    """Return a number above 0, finite unless it may be infinite; ParameterError for anything else."""
    try:
        number = math.nan if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not 0 < number < math.inf and not (infinite and number == math.inf):
        raise ParameterError(f"{name} must be a positive number, not {value!r}")
    return number


def one_of(value: Any, name: str, allowed: Sequence[object]) -> None:
    """Raise ParameterError for what is none of the values that are allowed, or a string equal to one."""
    if not any(value is option or (isinstance(value, str) and value == option) for option in allowed):
        raise ParameterError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def function(value: Any, name: str) -> None:
    """Raise ParameterError for what is neither None nor callable."""
    if value is not None and not callable(value):
        raise ParameterError(f"{name} must be a function or None, not {value!r}")
