"""The table of reductions, each a small state machine of scalar expressions.

A reduction keeps a few registers ``s0, s1, ...``. ``step`` folds one mapped value ``t`` (the position along
the reduced axis is ``index``) into them, ``merge`` joins them with the registers ``r0, r1, ...`` of a later
range, ``finish`` reads the result. Backends only ever emit these expressions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..expr.node import Node, Number, const, substitute, var

S0, S1, R0, R1, T, INDEX = map(var, ("s0", "s1", "r0", "r1", "t", "index"))


@dataclass(frozen=True)
class Reduction:
    """One way to reduce; ``kinds`` are the types of its registers ("value", "bool" or "index").

    ``reproducible`` asks that mapped values round alike in every kernel: the gradient looks for those that are equal
    to the result.
    """

    name: str
    init: tuple[Number, ...]
    step: tuple[Node, ...]
    merge: tuple[Node, ...] | None
    finish: Node = S0
    kinds: tuple[str, ...] = ("value",)
    result: str = "value"
    differentiable: bool = False
    floating: bool = False
    meaning: str = ""
    reproducible: bool = False

    @property
    def is_fold(self) -> bool:
        """Whether ``step`` reads the operands itself, in order, instead of a mapped value."""
        return self.merge is None


def _op(name: str, *args: Node) -> Node:
    return Node(name, args)


def _monoid(name: str, plus: str, zero: Number, meaning: str, reproducible: bool = False) -> Reduction:
    return Reduction(
        name, (zero,), (_op(plus, S0, T),), (_op(plus, S0, R0),), meaning=meaning, differentiable=True,
        reproducible=reproducible,
    )  # fmt: skip


def _logical(name: str, plus: str, zero: bool, meaning: str) -> Reduction:
    step, merge = (_op(plus, S0, T),), (_op(plus, S0, R0),)
    return Reduction(name, (zero,), step, merge, kinds=("bool",), result="bool", meaning=meaning)


def _arg(name: str, wins: str, worst: float, meaning: str) -> Reduction:
    def better(value: Node) -> Node:
        first_nan = _op("and", _op("ne", value, value), _op("eq", S0, S0))
        return _op("or", _op(wins, value, S0), first_nan)

    def take(value: Node, position: Node) -> tuple[Node, Node]:
        return _op("where", better(value), value, S0), _op("where", better(value), position, S1)

    kinds = ("value", "index")
    return Reduction(name, (worst, 0), take(T, INDEX), take(R0, R1), S1, kinds, "index", meaning=meaning)


def _logsumexp() -> Reduction:
    """Running maximum s0 and s1 = sum of exp(t - s0); equal infinities are counted, never subtracted."""

    def join(value: Node, weight: Node) -> tuple[Node, Node]:
        gap = _op("sub", value, S0)
        fade = _op("exp", _op("neg", _op("abs", gap)))
        rises = _op("add", _op("mul", S1, fade), weight)
        falls = _op("add", S1, _op("mul", weight, fade))
        moved = _op("where", _op("gt", gap, const(0)), rises, falls)
        return _op("max", S0, value), _op("where", _op("eq", value, S0), _op("add", S1, weight), moved)

    return Reduction(
        "logsumexp", (-math.inf, 0), join(T, const(1)), join(R0, R1), _op("add", S0, _op("log", S1)),
        ("value", "value"), differentiable=True, floating=True, meaning="log of the sum of exponentials",
    )  # fmt: skip


_ROWS = (
    _monoid("sum", "add", 0, "sum"),
    _monoid("prod", "mul", 1, "product"),
    _monoid("min", "min", math.inf, "smallest", reproducible=True),
    _monoid("max", "max", -math.inf, "largest", reproducible=True),
    _logsumexp(),
    _logical("any", "or", False, "whether any is true"),
    _logical("all", "and", True, "whether all are true"),
    _arg("argmin", "lt", math.inf, "position of the smallest, the first of equals"),
    _arg("argmax", "gt", -math.inf, "position of the largest, the first of equals"),
)

REDUCTIONS: dict[str, Reduction] = {row.name: row for row in _ROWS}


def semiring(plus: Node, zero: Number) -> Reduction:
    """Reduction by an associative, commutative ``plus`` over s0 and t, with identity ``zero``."""
    merge = tuple(substitute([plus], {"t": R0}))
    return Reduction("semiring", (zero,), (plus,), merge, meaning="user's semiring")


def fold(step: Node, init: Number) -> Reduction:
    """In-order reduction whose ``step`` sees the register s0 and the operands."""
    return Reduction("fold", (init,), (step,), None, meaning="user's fold")
