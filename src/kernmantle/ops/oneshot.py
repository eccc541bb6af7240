"""What a lambda computes depends on, as far as that can be told: the key of contractions written on the spot."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import CodeType, FunctionType, ModuleType
from typing import Any

_KNOWN = ("kernmantle", "torch", "numpy", "math", "builtins")
_NUMBERS = (bool, int, float)


def _steady(value: Any) -> Hashable | None:
    """A key for a value that a lambda captured; None if it may change unseen."""
    if type(value) in _NUMBERS:
        return type(value), repr(value)
    if isinstance(value, ModuleType):
        return id(value) if value.__name__.partition(".")[0] in _KNOWN else None
    owner = (getattr(value, "__module__", None) or "").partition(".")[0]
    return id(value) if callable(value) and owner in _KNOWN else None


def fingerprint(function: Callable[..., Any] | None) -> Hashable | None:
    """Key under which two functions compute the same: code, captured numbers, defaults; None if that is unknown."""
    if function is None:
        return ()
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    if any(isinstance(constant, CodeType) for constant in code.co_consts):
        return None
    try:
        captured = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:
        return None
    scope = function.__globals__
    read = [scope[name] for name in code.co_names if name in scope]
    given = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    keys = tuple(_steady(value) for value in (*captured, *read, *given))
    return None if None in keys else (code, keys)


def read_number(function: Callable[..., Any] | None) -> str:
    """Name of a global number that a function reads; "" if there is none."""
    if not isinstance(function, FunctionType):
        return ""
    scope = function.__globals__
    return next((name for name in function.__code__.co_names if type(scope.get(name)) in _NUMBERS), "")
