"""From a Python function to expressions, by calling it once on symbolic values."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..errors import ParameterError, TraceError
from .node import Node
from .traced import Traced, is_number, to_node


@dataclass(frozen=True)
class Trace:
    """The expressions that a function computes, one per returned value, ``is_tuple`` where it returned several.

    ``used`` are further parameters that were given a symbolic value, ``defaults`` those that kept their default.
    """

    roots: tuple[Node, ...]
    used: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_tuple: bool = False


def _described(function: Callable[..., Any], problem: str, advice: str) -> str:
    """Return a message in the form of ``traced.refusal``: the line of a function, what is wrong, and what to do."""
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{function!r}: {problem}; {advice}"
    source = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    quoted = f"\n    {source}" if source else ""
    return f"{code.co_filename}:{code.co_firstlineno}: {problem}{quoted}\n{advice}"


def _error(function: Callable[..., Any], what: str, problem: str, advice: str) -> TraceError:
    return TraceError(_described(function, f"the {what} {problem}", advice))


def _count(number: int) -> str:
    return f"{number} positional argument{'s' * (number != 1)}"


def signature(
    function: Callable[..., Any], positional_count: int, what: str = "map"
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the names of the parameters after the first ``positional_count``, and the defaults of those that have one.

    Raises
    ------
    TraceError
        If the function cannot take that many positional arguments.
    """
    if not callable(function):
        raise TraceError(f"the {what} must be a function, not {type(function).__name__}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return (), {}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(positional) < positional_count and not starred:
        taken = f"takes {_count(len(positional))} but there are {positional_count}"
        raise _error(function, what, taken, "write one parameter per operand or accumulator, in their order")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise _error(function, what, "takes **arguments", "name each parameter")
    further = positional[positional_count:] + [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    nameless = [p.name for p in further if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    if nameless:
        taken = f"takes {_count(len(positional))} but there are {positional_count}"
        raise _error(function, what, taken, f"parameter {nameless[0]!r} cannot be given by name")
    named = [p for p in further if p.kind is not p.POSITIONAL_ONLY]
    return tuple(p.name for p in named), {p.name: p.default for p in named if p.default is not p.empty}


def _roots(function: Callable[..., Any], what: str, result: Any) -> tuple[Node, ...]:
    values: tuple[Any, ...] = tuple(cast("Iterable[Any]", result)) if isinstance(result, tuple | list) else (result,)
    if not values:
        raise _error(function, what, "returned no value", "return one value per accumulator")
    for value in values:
        if value is None:
            raise _error(function, what, "returned None", "return the value (a missing `return`?)")
        if not isinstance(value, Traced) and not is_number(value) and not hasattr(value, "shape"):
            kind = type(value).__name__
            raise _error(function, what, f"returned {kind}", "return traced values, numbers, or one tuple of them")
        if not isinstance(value, Traced) and not is_number(value):
            captured = f"returned a captured array ({type(value).__name__})"
            raise _error(function, what, captured, "pass it as an operand of the equation or in params=")
    return tuple(to_node(value) for value in values)


def trace(
    function: Callable[..., Any], positional: Sequence[Node], named: Mapping[str, Node] | None = None, what: str = "map"
) -> Trace:
    """Return the expressions that a function computes.

    Parameters
    ----------
    function
        Called once. Its first parameters receive ``positional``, each further one the entry of ``named`` of
        its name or, where there is none, its default.
    positional, named
        Expressions that stand for the arguments.
    what
        The function's role, for messages.

    Raises
    ------
    TraceError
        If the function does anything but compute on its arguments; the message quotes the line.
    ParameterError
        If a further parameter is neither in ``named`` nor has a default.
    """
    further, defaults = signature(function, len(positional), what)
    named_values = named or {}
    missing = [name for name in further if name not in named_values and name not in defaults]
    if missing:
        names = ", ".join(missing)
        problem = f"the {what} needs params that were not given: {names}"
        raise ParameterError(_described(function, problem, "pass them by name or in params="))
    used = tuple(name for name in further if name in named_values)
    result = function(*map(Traced, positional), **{name: Traced(named_values[name]) for name in used})
    remaining = {name: value for name, value in defaults.items() if name not in named_values}
    return Trace(_roots(function, what, result), used, remaining, isinstance(result, tuple | list))
