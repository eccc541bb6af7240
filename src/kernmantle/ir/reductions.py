"""The table of reductions, each a small state machine of scalar expressions.

A reduction keeps a few registers ``s0, s1, ...``. ``step`` folds one mapped value ``t`` (the position along
the reduced axis is ``index``) into them, ``merge`` joins them with the registers ``r0, r1, ...`` of a later
range, ``finish`` reads the result. Backends only ever emit these expressions. What else is said of a reduction, its
derivative and how torch reduces the rows of a matrix by it, stands in its row too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .node import Node, Number, const, substitute, var, variables
from .ops import evaluate
from .pattern import fill, read

S0, S1, R0, R1, T, INDEX = map(var, ("s0", "s1", "r0", "r1", "t", "index"))
STATISTICS = "bzyq"
PRODUCT = "product"
SOFTMAX = "softmax"
SELECTIONS = ("smallest", "largest")


@dataclass(frozen=True)
class Reduction:
    """One way to reduce; ``kinds`` are the types of its registers ("value", "bool" or "index").

    ``weight`` is the slope of the result by one mapped value, a pattern over that value ``t``, the result ``a`` and
    ``statistics`` of all values, which it calls b, z, y, q; a reduction without one has no gradient. A statistic is
    the name of a reduction and what it reduces, a pattern over t and a. ``reproducible`` asks that mapped values round
    alike in every kernel: the weight looks for those that are equal to the result. ``torch`` names the functions of
    torch that reduce the last axis of a tensor, ``torch.amax(scores, -1)``, and that join two results,
    ``torch.maximum(a, b)``; without them rows of a matrix that is not stored are not reduced so.
    """

    name: str
    init: tuple[Number, ...]
    step: tuple[Node, ...]
    merge: tuple[Node, ...] | None
    finish: Node = S0
    kinds: tuple[str, ...] = ("value",)
    result: str = "value"
    floating: bool = False
    meaning: str = ""
    reproducible: bool = False
    weight: str = ""
    statistics: tuple[tuple[str, str], ...] = ()
    torch: tuple[str, ...] = ()

    @property
    def is_of_rows(self) -> bool:
        """Return whether it reduces the rows of scores alone, by passes of its own: softmax and selections."""
        return not self.step

    @property
    def is_fold(self) -> bool:
        """Return whether ``step`` reads the operands itself, in order, instead of a mapped value."""
        return self.merge is None

    @property
    def differentiable(self) -> bool:
        """Return whether there is a gradient."""
        return bool(self.weight)

    @property
    def reads_accumulator(self) -> bool:
        """Return whether the slope depends on the result."""
        patterns = (self.weight, *(mapped for _, mapped in self.statistics))
        return self.differentiable and "a" in variables([read(pattern) for pattern in patterns])

    @property
    def extremum(self) -> str:
        """Operation "min" or "max" where the reduction is that of the mapped values, else ""."""
        found = self.step[0].op
        return found if found in ("min", "max") and self.step == (_op(found, S0, T),) else ""

    @property
    def identity(self) -> Number:
        """Result of nothing."""
        return evaluate([self.finish], {f"s{i}": value for i, value in enumerate(self.init)})[0]

    def slope(self, names: Mapping[str, Node]) -> Node:
        """Return ``weight`` with these nodes for t, a and the statistics."""
        return fill(read(self.weight), names)

    def statistic_maps(self, value: Node, result: Node) -> tuple[Node, ...]:
        """Return what each statistic reduces, for a mapped value and the result."""
        return tuple(fill(read(mapped), {"t": value, "a": result}) for _, mapped in self.statistics)


def _op(name: str, *args: Node) -> Node:
    return Node(name, args)


def _monoid(
    name: str, plus: str, zero: Number, meaning: str, weight: str, statistics: tuple[tuple[str, str], ...] = (),
    torch: tuple[str, ...] = (), reproducible: bool = False,
) -> Reduction:  # fmt: skip
    return Reduction(
        name, (zero,), (_op(plus, S0, T),), (_op(plus, S0, R0),), meaning=meaning, reproducible=reproducible,
        weight=weight, statistics=statistics, torch=torch,
    )  # fmt: skip


def _extremum(name: str, worst: float, meaning: str) -> Reduction:
    """Return the row whose result is one of the values: those equal to it share its slope.

    A value is computed again, in another loop than the result was, and functions such as pow may round differently
    there: it is equal up to some units in the last place, infinities are only equal exactly.
    """
    tied = "or(eq(t,a),eq(add(a,mul(sub(t,a),0.0625)),a))"
    return _monoid(
        name, name, worst, meaning, f"where({tied},rcp(b),0)", (("sum", f"where({tied},1,0)"),),
        (f"a{name}", f"{name}imum"), reproducible=True,
    )  # fmt: skip


def _product() -> Reduction:
    """Return the row whose slope is the product of all other values.

    It is made from the product b of the values that are not zero and the number z of zeros. y and q are sums over the
    values that are zero of themselves and of their squares: they add no value, but the slopes by which zeros move the
    cofactors of the others, so that second and third derivatives are right at zeros too. The next order would need
    their sum of cubes: ``autodiff.HIGHEST_PRODUCT_ORDER``.
    """

    def pairs(total: str, squares: str) -> str:
        """Return the sum of the products of two different numbers, from their sum and that of their squares."""
        return f"mul(0.5,sub(mul({total},{total}),{squares}))"

    def by_count(*cases: str) -> str:
        """Return the case of as many zeros, 0 where there are more than cases."""
        chosen = "0"
        for count, case in reversed(list(enumerate(cases))):
            chosen = f"where(eq(z,{count}),{case},{chosen})"
        return chosen

    rest = "sub(y,t)", "sub(q,mul(t,t))"
    at_zero = by_count("0", "b", f"mul(b,{rest[0]})", f"mul(b,{pairs(*rest)})")
    quotient = "div(b,t)"
    elsewhere = by_count(quotient, f"mul({quotient},y)", f"mul({quotient},{pairs('y', 'q')})")
    statistics = (
        ("prod", "where(eq(t,0),1,t)"), ("sum", "where(eq(t,0),1,0)"), ("sum", "where(eq(t,0),t,0)"),
        ("sum", "where(eq(t,0),mul(t,t),0)"),
    )  # fmt: skip
    return _monoid("prod", "mul", 1, "product", f"where(eq(t,0),{at_zero},{elsewhere})", statistics)


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
    """Return the running maximum s0 and s1 = sum of exp(t - s0); equal infinities are counted, never subtracted."""

    def join(value: Node, weight: Node) -> tuple[Node, Node]:
        gap = _op("sub", value, S0)
        fade = _op("exp", _op("neg", _op("abs", gap)))
        rises = _op("add", _op("mul", S1, fade), weight)
        falls = _op("add", S1, _op("mul", weight, fade))
        moved = _op("where", _op("gt", gap, const(0)), rises, falls)
        return _op("max", S0, value), _op("where", _op("eq", value, S0), _op("add", S1, weight), moved)

    return Reduction(
        "logsumexp", (-math.inf, 0), join(T, const(1)), join(R0, R1), _op("add", S0, _op("log", S1)),
        ("value", "value"), floating=True, meaning="log of the sum of exponentials",
        weight="exp(sub(t,where(eq(a,-inf),0,a)))", torch=("logsumexp", "logaddexp"),
    )  # fmt: skip


_ROWS = (
    _monoid("sum", "add", 0, "sum", "1", torch=("sum", "add")),
    _product(),
    _extremum("min", math.inf, "smallest"),
    _extremum("max", -math.inf, "largest"),
    _logsumexp(),
    _logical("any", "or", False, "whether any is true"),
    _logical("all", "and", True, "whether all are true"),
    _arg("argmin", "lt", math.inf, "position of the smallest, the first of equals"),
    _arg("argmax", "gt", -math.inf, "position of the largest, the first of equals"),
)

REDUCTIONS: dict[str, Reduction] = {row.name: row for row in _ROWS}


def of_rows(name: str, count: int = 0) -> Reduction:
    """Return the reduction of the rows of scores: softmax, or the ``count`` smallest or largest."""
    return Reduction(name, (count,), (), (), meaning="of the rows of scores")


def semiring(plus: Node, zero: Number) -> Reduction:
    """Return the reduction by an associative, commutative ``plus`` over s0 and t, with identity ``zero``."""
    merge = tuple(substitute([plus], {"t": R0}))
    return Reduction("semiring", (zero,), (plus,), merge, meaning="user's semiring")


def fold(step: Node, init: Number) -> Reduction:
    """Return the in-order reduction whose ``step`` sees the register s0 and the operands."""
    return Reduction("fold", (init,), (step,), None, meaning="user's fold")
