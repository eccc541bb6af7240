"""The table of scalar operations: one row says everything about an operation but how a backend spells it.

Slopes are patterns over the arguments ``a b c`` and the result ``n``, one per argument. They are masked at the
operation's singular points, so that a zero cotangent can never meet an infinite slope.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from . import ieee
from .node import Node, Number, postorder
from .pattern import fill, read

Partials = tuple[Node | None, ...]
REAL = (-3.0, 3.0)
COSTS = ("instruction", "short", "function", "long")
"""Classes of cost of one evaluation in a backend.

One or a few machine instructions, a polynomial that is always put in place, a function of some 30 instructions, or a
function of so many that it is called rather than put in place outside the inner loops. All but the first count as
transcendental where a tile is chosen.
"""
POSITIVE = (0.1, 4.0)
_N = TypeVar("_N", bound=Number)


@dataclass(frozen=True)
class Op:
    """One operation: its names, its value on Python numbers, its slopes, its algebra, its cost, where it may be tested.

    ``slopes`` has one pattern per argument, "" where the slope is zero everywhere; no slopes at all mark an
    operation whose result has no derivative, such as a comparison. ``conditions`` are the arguments that are truth
    values. ``parity`` is "even" or "odd" where the sign of one argument alone vanishes or passes to the result;
    ``associative`` holds for every float, NaN included. With ``never_negative`` the result is at least zero, or NaN.
    ``cost`` is one of ``COSTS``.
    """

    name: str
    arity: int
    value: Callable[..., Number]
    slopes: tuple[str, ...] = ()
    infix: str | None = None
    numpy: str = ""
    torch: tuple[str, ...] = ()
    domain: tuple[tuple[float, float], ...] = ()
    boolean: bool = False
    commutative: bool = False
    integer: bool = False
    singular: str = "none"
    conditions: tuple[int, ...] = ()
    comparison: bool = False
    associative: bool = False
    parity: str = ""
    never_negative: bool = False
    cost: str = "instruction"

    @property
    def transcendental(self) -> bool:
        """Return whether an evaluation takes far longer than a multiplication."""
        return self.cost != "instruction"

    @property
    def domains(self) -> tuple[tuple[float, float], ...]:
        """Interval to draw each argument from in tests."""
        return self.domain or (REAL,) * self.arity

    def partials(self, node: Node) -> Partials:
        """Return the slope by each argument of a node of this operation, None where it is zero everywhere."""
        names = {**dict(zip("abc", node.args, strict=False)), "n": node}
        return tuple(fill(read(slope), names) if slope else None for slope in self.slopes)


def _whole(
    name: str, value: Callable[..., Number], slopes: tuple[str, ...], numpy: str, *torch: str, infix: str | None = None,
    commutative: bool = False, singular: str = "none", associative: bool = False, parity: str = "",
    never_negative: bool = False,
) -> Op:  # fmt: skip
    """Return the row of arithmetic that integers have too."""
    return Op(
        name, len(slopes), value, slopes, infix, numpy, torch, commutative=commutative, integer=True,
        singular=singular, associative=associative, parity=parity, never_negative=never_negative,
    )  # fmt: skip


def _arithmetic() -> tuple[Op, ...]:
    def rcp(a: float) -> float:
        return ieee.divide(1, a)

    def negative(a: float) -> float:
        return -a

    def absolute(a: float) -> float:
        return abs(a)

    less, more = (f"where(eq(a,b),0.5,where(lt({order}),1,0))" for order in ("a,b", "b,a"))
    whole = "where(eq(b,0),0,neg(copysign(floor(add(abs(div(sub(a,n),b)),0.5)),div(a,b))))"
    ratio = "where(eq(b,0),0,rcp(b))", "where(eq(b,0),0,neg(div(n,b)))"
    power = "where(and(eq(a,0),lt(b,1)),0,mul(b,pow(a,sub(b,1))))", "where(eq(a,0),0,mul(n,log(a)))"
    copied = "mul(sign(a),copysign(1,b))", ""
    inverse = "where(eq(a,0),0,neg(mul(n,n)))"
    at_b, at_a, tie, zero = "b = 0: slope 0", "a = 0, b < 1: slope 0", "a = b: shared", "0: slope 0"
    lowest, largest = ieee.extremum(min), ieee.extremum(max)
    return (
        _whole("add", operator.add, ("1", "1"), "add", "add", infix="+", commutative=True),
        _whole("sub", operator.sub, ("1", "-1"), "subtract", "sub", "subtract", infix="-"),
        _whole(
            "mul", operator.mul, ("b", "a"), "multiply", "mul", "multiply", infix="*", commutative=True, parity="odd"
        ),
        _whole("neg", negative, ("-1",), "negative", "neg", "negative"),
        _whole(
            "abs", absolute, ("sign(a)",), "absolute", "abs", "absolute", singular=zero, parity="even",
            never_negative=True,
        ),
        _whole("sign", ieee.sign, ("",), "sign", "sign", "sgn", parity="odd"),
        _whole(
            "min", lowest, (less, more), "minimum", "minimum", "min", commutative=True, singular=tie, associative=True
        ),
        _whole(
            "max", largest, (more, less), "maximum", "maximum", "max", commutative=True, singular=tie, associative=True
        ),
        Op(
            "div", 2, ieee.divide, ratio, "/", "divide", ("div", "divide", "true_divide"), (REAL, POSITIVE),
            singular=at_b, parity="odd",
        ),
        Op("fmod", 2, ieee.fmod, ("1", whole), None, "fmod", ("fmod",), (REAL, POSITIVE), singular=at_b),
        Op("pow", 2, ieee.power, power, "**", "power", ("pow",), (POSITIVE, REAL), singular=at_a, cost="long"),
        Op("copysign", 2, math.copysign, copied, None, "copysign", ("copysign",), singular="a = 0: slope 0"),
        Op("rcp", 1, rcp, (inverse,), None, "reciprocal", ("reciprocal",), (POSITIVE,), singular=zero, parity="odd"),
        Op("floor", 1, ieee.floor, ("",), None, "floor", ("floor",)),
    )  # fmt: skip


def _function(
    name: str, value: Callable[[float], float], slope: str, numpy: str = "", domain: tuple[float, float] = REAL,
    torch: tuple[str, ...] | None = None, pole: str = "", cost: str = "function", parity: str = "",
    never_negative: bool = False,
) -> Op:  # fmt: skip
    """Return the row of a function of one real number.

    ``torch`` are its names there, by default that of the row; ``pole`` is where its slope is infinite.
    """
    singular = f"{pole}: slope 0" if pole else "none"
    return Op(
        name, 1, value, (slope,), None, numpy, (name,) if torch is None else torch, (domain,), singular=singular,
        cost=cost, parity=parity, never_negative=never_negative,
    )  # fmt: skip


def _functions() -> tuple[Op, ...]:
    def exp2(a: float) -> float:
        return ieee.power(2.0, a)

    ln2 = math.log(2.0)
    erf = f"mul({2 / math.sqrt(math.pi)!r},exp(neg(mul(a,a))))"
    acos = "where(ge(abs(a),1),0,neg(rsqrt(sub(1,mul(a,a)))))"
    root = "where(eq(a,0),0,mul(0.5,rsqrt(a)))"
    inverse_root = "where(eq(a,0),0,mul(-0.5,mul(n,mul(n,n))))"
    positive = POSITIVE
    return (
        _function(
            "sqrt", ieee.total(math.sqrt), root, "sqrt", positive, pole="0", cost="instruction", never_negative=True
        ),
        _function("rsqrt", ieee.rsqrt, inverse_root, "", positive, pole="0", cost="instruction"),
        _function("exp", ieee.total(math.exp), "n", "exp", cost="short", never_negative=True),
        _function("exp2", exp2, f"mul({ln2!r},n)", "exp2", cost="short", never_negative=True),
        _function("expm1", ieee.total(math.expm1), "exp(a)", "expm1"),
        _function(
            "log", ieee.pole(math.log, 0, -math.inf), "where(eq(a,0),0,rcp(a))", "log", positive, pole="0",
            cost="short",
        ),
        _function(
            "log2", ieee.pole(math.log2, 0, -math.inf), f"where(eq(a,0),0,mul({1 / ln2!r},rcp(a)))", "log2", positive,
            pole="0", cost="short",
        ),
        _function(
            "log1p", ieee.pole(math.log1p, -1, -math.inf), "where(eq(a,-1),0,rcp(add(1,a)))", "log1p", (-0.9, 3.0),
            pole="-1",
        ),
        _function("sin", ieee.total(math.sin), "cos(a)", "sin", cost="long", parity="odd"),
        _function("cos", ieee.total(math.cos), "neg(sin(a))", "cos", cost="long", parity="even"),
        _function("tan", ieee.total(math.tan), "add(1,mul(n,n))", "tan", (-1.2, 1.2), cost="long", parity="odd"),
        _function(
            "acos", ieee.total(math.acos), acos, "arccos", (-0.95, 0.95), ("acos", "arccos"), pole="-1, 1", cost="long",
            never_negative=True,
        ),
        _function("tanh", math.tanh, "sub(1,mul(n,n))", "tanh", parity="odd"),
        _function("erf", math.erf, erf, cost="long", parity="odd"),
        _function("sigmoid", ieee.sigmoid, "mul(n,sub(1,n))", torch=("sigmoid", "expit"), never_negative=True),
    )  # fmt: skip


def _comparison(
    name: str, value: Callable[..., bool], infix: str, numpy: str, *torch: str, commutative: bool = False
) -> Op:
    """Return the row of two numbers whose result is true or false."""
    return Op(
        name, 2, value, (), infix, numpy, torch, boolean=True, commutative=commutative, integer=True, comparison=True
    )  # fmt: skip


def _connective(name: str, value: Callable[..., bool], infix: str, numpy: str) -> Op:
    """Return the row of two truth values whose result is one."""
    return Op(
        name, 2, value, (), infix, numpy, (numpy,), boolean=True, commutative=True, integer=True, conditions=(0, 1),
        associative=True,
    )  # fmt: skip


def _logicals() -> tuple[Op, ...]:
    def land(a: Number, b: Number) -> bool:
        return bool(a) and bool(b)

    def lor(a: Number, b: Number) -> bool:
        return bool(a) or bool(b)

    def lnot(a: Number) -> bool:
        return not a

    def where(c: Number, a: _N, b: _N) -> _N:
        return a if c else b

    chosen = ("", "where(a,1,0)", "where(a,0,1)")
    return (
        _comparison("lt", operator.lt, "<", "less", "less", "lt"),
        _comparison("le", operator.le, "<=", "less_equal", "less_equal", "le"),
        _comparison("gt", operator.gt, ">", "greater", "greater", "gt"),
        _comparison("ge", operator.ge, ">=", "greater_equal", "greater_equal", "ge"),
        _comparison("ne", operator.ne, "!=", "not_equal", "not_equal", "ne", commutative=True),
        _comparison("eq", operator.eq, "==", "equal", "eq", commutative=True),  # torch.equal compares whole arrays
        _connective("and", land, "&", "bitwise_and"),
        _connective("or", lor, "|", "bitwise_or"),
        Op("not", 1, lnot, (), None, "bitwise_not", ("bitwise_not",), boolean=True, integer=True, conditions=(0,)),
        Op("where", 3, where, chosen, None, "where", ("where",), integer=True, conditions=(0,)),
    )


OPS: dict[str, Op] = {row.name: row for row in _arithmetic() + _functions() + _logicals()}


def is_transcendental(node: Node) -> bool:
    """Return whether a node is an operation that takes far longer than a multiplication."""
    return bool(node.args) and OPS[node.op].transcendental


def evaluate(roots: Sequence[Node], values: Mapping[str, Number]) -> tuple[Number, ...]:
    """Return the values of expressions on Python numbers."""
    values_of: dict[int, Number] = {}
    for node in postorder(roots):
        if node.op == "var":
            values_of[id(node)] = values[node.name]
        elif node.number is not None:
            values_of[id(node)] = node.number
        else:
            values_of[id(node)] = OPS[node.op].value(*(values_of[id(arg)] for arg in node.args))
    return tuple(values_of[id(root)] for root in roots)
