"""The functions a lambda may call: ``km.exp``, ``km.where``, ``km.clamp``, ... one per spelling of the table.

They take traced values and Python numbers; functions of numbers alone give a number. Tensors and arrays have
torch's and numpy's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from .composites import SPELLINGS
from .ops import evaluate
from .traced import Traced, call, is_number


def _function(name: str) -> Callable[..., Any]:
    @wraps(SPELLINGS[name])
    def function(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        foreign = [value for value in values if not (value is None or isinstance(value, Traced) or is_number(value))]
        if foreign and not any(isinstance(value, Traced) for value in values):
            raise TypeError(
                f"km.{name} works on traced values and Python numbers, not on {type(foreign[0]).__name__}; "
                "use torch's or numpy's function for arrays"
            )
        traced = call(name, args, kwargs)
        if any(isinstance(value, Traced) for value in values):
            return traced
        return evaluate([traced.node], {})[0]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name} of traced values and Python numbers, for use in maps and epilogues."
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {name: _function(name) for name in SPELLINGS}


def __getattr__(name: str) -> Callable[..., Any]:
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(FUNCTIONS)
