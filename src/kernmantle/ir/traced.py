"""The value a lambda sees while it is traced: it records operations and refuses everything else."""

from __future__ import annotations

import difflib
import linecache
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import TraceError
from .composites import COMPOSITES, SPELLINGS
from .node import Node, Number, const
from .show import pretty

_FOREIGN = ("torch", "numpy", __name__.partition(".")[0], "functools", "operator")
_CHOICES = (
    ("min(", "use km.minimum(a, b) or torch.minimum(a, b) instead of min()"),
    ("max(", "use km.maximum(a, b) or torch.maximum(a, b) instead of max()"),
    (" if ", "use km.where(condition, a, b) instead of `if`"),
    (" and ", "use & instead of `and` (with brackets around comparisons)"),
    (" or ", "use | instead of `or` (with brackets around comparisons)"),
    ("not ", "use ~ instead of `not`"),
    (" in ", "use (x == a) | (x == b) instead of `in`"),
)
_REDUCING = {"sum", "prod", "mean", "norm", "amin", "amax", "any", "all", "argmin", "argmax", "logsumexp", "dot"}
"""Functions of arrays for which a contraction has ``reduce=``."""


class UnknownAttributeError(TraceError, AttributeError):
    """An attribute that a traced value lacks; an AttributeError too, so that ``hasattr`` works."""


def _user_line() -> tuple[str, str]:
    """Return the place in its file, and the text, of the innermost source line that is the user's."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _FOREIGN:
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return f"{file}:{line}", linecache.getline(file, line, frame.f_globals).strip()


def refusal(problem: str, advice: str, kind: type[TraceError] = TraceError) -> TraceError:
    """Return the error that names the user's line, what cannot be traced and what to use instead."""
    where, source = _user_line()
    quoted = f"\n    {source}" if source else ""
    return kind(f"{where}: {problem}{quoted}\n{advice}")


def refuse(problem: str, advice: str) -> NoReturn:
    """Raise ``refusal``."""
    raise refusal(problem, advice)


def is_number(value: object) -> bool:
    """Return whether a value counts as a literal: a Python number or a 0-d numpy one."""
    if isinstance(value, bool | int | float):
        return True
    return type(value).__module__.startswith("numpy") and getattr(value, "shape", None) == ()


def to_number(value: Any) -> Number:
    """Python number of a literal."""
    number = value if type(value) in (bool, int, float) else value.item() if hasattr(value, "item") else value
    if isinstance(number, bool):
        return bool(number)
    if isinstance(number, int):
        return int(number)
    if isinstance(number, float):
        return float(number)
    refuse(f"{value!r} is not a real number", "use real numbers")


def to_node(value: Any) -> Node:
    """Return the node of a traced value or a literal."""
    if isinstance(value, Traced):
        return value.node
    if is_number(value):
        return const(to_number(value))
    if hasattr(value, "shape"):
        refuse(
            f"a captured array ({type(value).__name__} of shape {tuple(value.shape)}) is used as a value",
            "pass it as an operand of the equation or in params=",
        )
    refuse(f"{type(value).__name__} is not a number", "use traced values and Python numbers only")


def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Traced:
    """Apply a function of the table to traced values and literals."""
    if name not in SPELLINGS:
        suggested = difflib.get_close_matches(name, SPELLINGS, 1, 0.7)
        hint = f"did you mean {suggested[0]}? " if suggested else ""
        reduced = "reduce= sums or compares, over the axes that the output lacks; " if name in _REDUCING else ""
        refuse(
            f"{name}() is unknown to tracing",
            f"{hint}{reduced}a lambda may call functions of numbers from km, torch and numpy, such as km.exp",
        )
    optional = name in COMPOSITES
    nodes = [None if optional and arg is None else to_node(arg) for arg in args]
    named = {key: to_node(arg) for key, arg in (kwargs or {}).items() if arg is not None and arg is not False}
    try:
        return Traced(SPELLINGS[name](*nodes, **named))
    except TypeError as error:
        problem = str(error).lstrip("_")
    refuse(f"{name}() cannot be called like this: {problem}", "pass the function's scalar arguments only")


def _binary(name: str, swapped: bool = False) -> Any:
    def operator(self: Traced, other: Any) -> Traced:
        return call(name, (other, self) if swapped else (self, other))

    return operator


def _unary(name: str) -> Any:
    def operator(self: Traced) -> Traced:
        return call(name, (self,))

    return operator


def _method(value: Traced, name: str) -> Callable[..., Traced]:
    def method(*args: Any, **kwargs: Any) -> Traced:
        return call(name, (value, *args), kwargs)

    return method


def _no(problem: str, advice: str) -> Any:
    def method(*_: Any) -> NoReturn:
        refuse(problem, advice)

    return method


def _convert(kind: str) -> Any:
    advice = "use km.*, torch.* or numpy.* functions (not math.*) and keep the value symbolic"
    return _no(f"{kind} was asked of a traced value, which has no number yet", advice)


_MUTATION = _no("a traced value cannot be assigned to", "return the new value instead of changing an old one")
_NO_ITEMS = "index axes in the equation; a lambda sees one element of each operand"


class Traced:
    """Symbolic scalar; operators and functions of the table give new ones."""

    __slots__ = ("node",)

    node: Node

    def __init__(self, node: Node) -> None:
        object.__setattr__(self, "node", node)

    def __repr__(self) -> str:
        return f"Traced({pretty(self.node)})"

    __add__, __radd__ = _binary("add"), _binary("add", True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", True)
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _binary("floor_divide", True)
    __mod__, __rmod__ = _binary("remainder"), _binary("remainder", True)
    __rpow__ = _binary("pow", True)
    __and__, __rand__ = _binary("and"), _binary("and", True)
    __or__, __ror__ = _binary("or"), _binary("or", True)
    __xor__, __rxor__ = _binary("bitwise_xor"), _binary("bitwise_xor", True)
    __lt__, __le__, __gt__, __ge__ = _binary("lt"), _binary("le"), _binary("gt"), _binary("ge")
    __eq__, __ne__ = _binary("eq"), _binary("ne")
    __neg__, __pos__, __abs__, __invert__ = _unary("neg"), _unary("positive"), _unary("abs"), _unary("not")
    __floor__, __ceil__, __trunc__ = _unary("floor"), _unary("ceil"), _unary("trunc")

    __float__, __int__, __index__, __complex__ = map(_convert, ("float()", "int()", "an index", "complex()"))
    __round__ = _no("round() of a traced value", "use km.floor(x + 0.5)")
    __len__ = _no("len() of a traced value, which is a scalar", _NO_ITEMS)
    __iter__ = _no("a traced value was iterated or unpacked, but is a scalar", _NO_ITEMS)
    __getitem__ = _no("a traced value was indexed, but is a scalar", _NO_ITEMS)
    __contains__ = _no("`in` was asked of a traced value, which is a scalar", _NO_ITEMS)
    __hash__ = _no("a traced value was hashed (a set or a dictionary key)", "use lists, or names as keys")  # pyright: ignore[reportAssignmentType]
    __matmul__ = __rmatmul__ = _no("@ needs matrices, a traced value is a scalar", "use * and let the equation sum")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no("shifts are unknown to tracing", "use x * 2**n")
    __divmod__ = __rdivmod__ = _no("divmod() of a traced value", "use x // y and x % y")
    __setitem__ = __delitem__ = __setattr__ = __delattr__ = _MUTATION  # pyright: ignore[reportAssignmentType]

    def __pow__(self, other: Any, modulus: None = None) -> Traced:
        if modulus is not None:
            refuse("pow() with a modulus is unknown to tracing", "use (x ** y) % m")
        return call("pow", (self, other))

    def __bool__(self) -> bool:  # noqa: PLE0304, it never returns
        _, source = _user_line()
        advice = [text for pattern, text in _CHOICES if pattern in source]
        generic = "use km.where(condition, a, b), & | ~, km.minimum and km.maximum"
        refuse(
            "the truth of a traced value was asked (by `if`, `and`, `or`, `not`, `in`, a < b < c, min() or max()), "
            "but it has no value yet",
            "; ".join(advice) or generic,
        )

    def __getattr__(self, name: str) -> Any:
        if name in SPELLINGS:
            return _method(self, name)
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_") and name[:-1] in SPELLINGS:
            advice = f"{name} works in place; use the new value of {name[:-1]}()"
        else:
            advice = "a traced value is a scalar: it has operators, and functions such as .abs() and .exp()"
        raise refusal(f"a traced value has no attribute {name!r}", advice, UnknownAttributeError)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Traced:
        name = func.__name__.removeprefix("special_")
        return call(name.strip("_") if name.startswith("__") else name, args, kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Traced:
        if method != "__call__":
            refuse(f"numpy.{ufunc.__name__}.{method} reduces arrays", "let the equation reduce")
        return call(ufunc.__name__, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Traced:
        return call(func.__name__, args, kwargs)
