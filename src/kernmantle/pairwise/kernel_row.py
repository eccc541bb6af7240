"""A row of the table of kernels, and the expressions that are made from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any

from ..ir.functions import FUNCTIONS
from ..ir.node import Node, Number, var, variables
from ..ir.reductions import REDUCTIONS
from ..ir.simplify import POWER_CLASSES, simplify
from ..ir.traced import Traced, to_node
from .kernel_form import ROWS, WEIGHT, Form, Squares

Lambda = Callable[..., Any]
where = FUNCTIONS["where"]
COLUMNS = "columns"
RANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "positive": ("above 0", lambda value: value > 0),
    "not negative": ("at least 0", lambda value: value >= 0),
    "real": ("a number", lambda value: value == value),
}


@dataclass(frozen=True)
class Hyper:
    """A hyperparameter: its default, the range it must lie in and its meaning.

    The default ``COLUMNS`` is the number of columns of the rows that the kernel is called with. With
    ``exponent`` the numbers of the power classes are part of the compiled expression. With ``rounded`` the kernel
    does not vary with it but in steps, so that there is no derivative.
    """

    name: str
    default: float | str
    range: str
    meaning: str
    exponent: bool = False
    rounded: bool = False


@dataclass(frozen=True)
class Option:
    """A choice that makes another expression: a number, of which ``allowed`` says what it may be."""

    name: str
    default: float
    allowed: str
    is_allowed: Callable[[Any], bool]
    meaning: str


@dataclass(frozen=True)
class Row:
    """One kernel: its arithmetic, what may be asked of it and what it promises.

    Parameters
    ----------
    name : str
        What callers write.
    formula : str
        For the documentation.
    epilogue : callable
        Takes the accumulators, then by name hyperparameters, options, and ``a`` and ``b``, the squared lengths
        of the two rows.
    map : callable, optional
        Takes the difference of two entries (the entries themselves unless ``stationary``), then hyperparameters.
        None is the norm of power ``p``, a hyperparameter; the epilogue then takes the norm.
    hyper, options : tuple
        Hyperparameters and choices, in the order of the call.
    stationary, symmetric, differentiable : bool
        Whether k(x, y) depends on x - y alone; k(x, y) = k(y, x); gradients exist.
    diagonal : str
        k(x, x) as an expression of hyperparameters, options, the squared length a and the number of columns, for the
        documentation and tests; "" where it is no function of these.
    summary : str
        One line for the documentation.
    source : str
        Where it was published, for the docstring.
    """

    name: str
    formula: str
    epilogue: Lambda
    map: Lambda | None = None
    hyper: tuple[Hyper, ...] = ()
    options: tuple[Option, ...] = ()
    stationary: bool = True
    symmetric: bool = True
    differentiable: bool = True
    diagonal: str = "1"
    summary: str = ""
    source: str = ""

    @property
    def reads_squares(self) -> bool:
        """Return whether the epilogue takes the squared lengths of the rows."""
        return bool({"a", "b"} & set(signature(self.epilogue).parameters))


def literal(value: Any) -> bool:
    """Return whether an exponent is part of the compiled expression."""
    return type(value) in (int, float) and (value in POWER_CLASSES or value == math.inf)


def _norm(d: Traced, p: Any, is_tensor: bool) -> tuple[Any, str, Lambda]:
    """Return the mapped difference, reduction and root of the norm of power p."""
    if isinstance(p, (int, float)) and p == math.inf:
        return abs(d), "max", lambda s: Traced(Node("max", (s.node, to_node(0))))
    if isinstance(p, (int, float)) and p == 1:
        return abs(d), "sum", lambda s: s
    if isinstance(p, (int, float)) and p == 2:
        return d * d, "sum", lambda s: s.sqrt()
    gap = abs(d)
    power = gap**p
    if is_tensor:
        # The slope by p of 0 ** p is 0 however p is computed.
        power = Traced(Node("where", ((gap == 0).node, to_node(0), power.node)))
        # Values on a device are not looked at; the sum of infinite powers is no norm.
        return power, "sum", lambda s: where(p == math.inf, math.nan, s ** (1 / p))
    return power, "sum", lambda s: s ** (1 / p)


def _entries(row: Row, weighted: bool) -> list[Traced]:
    x, y = (Traced(var(name)) for name in ROWS)
    weight = Traced(var(WEIGHT)) if weighted else None
    if row.stationary:
        return [x - y if weight is None else (x - y) * weight]
    return [x, y] if weight is None else [x * weight, y * weight]


@lru_cache(maxsize=512)
def form_of(
    row: Row, literals: tuple[tuple[str, Number], ...], options: tuple[tuple[str, Number], ...], tensor_p: bool,
    weighted: bool,
) -> Form:  # fmt: skip
    """Return the expressions of a row whose exponents in ``literals`` and whose options are given."""
    named: dict[str, Any] = (
        {hyper.name: Traced(var(hyper.name)) for hyper in row.hyper} | dict(literals) | dict(options)
    )
    operands: list[str | Squares] = [WEIGHT] if weighted else []
    if row.reads_squares:
        for name, role in (("a", "m"), ("b", "n")):
            index = len(operands) + len(ROWS)
            operands.append(Squares(role, WEIGHT if weighted else ""))
            named[name] = Traced(var(f"x{index}"))

    def wanted(function: Lambda) -> dict[str, Any]:
        return {name: named[name] for name in signature(function).parameters if name in named}

    entries = _entries(row, weighted)
    if row.map is None:
        mapped, reduction, root = _norm(entries[0], named["p"], tensor_p)
        results: Sequence[Any] = [mapped]
        accumulators = [root(Traced(var("s0")))]
    else:
        result = row.map(*entries, **wanted(row.map))
        results, reduction = result if isinstance(result, tuple) else (result,), "sum"
        accumulators = [Traced(var(f"s{i}")) for i in range(len(results))]
    maps = simplify([to_node(value) for value in results])
    (output,) = simplify([to_node(row.epilogue(*accumulators, **wanted(row.epilogue)))])
    used = set(variables([*maps, output]))
    parameters = tuple(hyper.name for hyper in row.hyper if hyper.name in used)
    return Form(maps, (REDUCTIONS[reduction],) * len(maps), output, parameters, tuple(operands))
