"""The table of scalar operations: one row says everything about an operation but how a backend spells it.

``derivative`` takes the node and returns one partial per argument (None: identically zero). Partials are
masked at the operation's singular points, so that a zero cotangent can never meet an infinite slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import ieee
from .node import Node, Number, const, postorder

Partials = tuple[Node | None, ...]
REAL = (-3.0, 3.0)
POSITIVE = (0.1, 4.0)


@dataclass(frozen=True)
class Op:
    """One operation: its names, its value on Python numbers, its derivative and where it may be tested."""

    name: str
    arity: int
    value: Callable[..., Number]
    derivative: Callable[[Node], Partials] | None = None
    infix: str | None = None
    numpy: str = ""
    torch: tuple[str, ...] = ()
    domain: tuple[tuple[float, float], ...] = ()
    boolean: bool = False
    commutative: bool = False
    integer: bool = False
    singular: str = "none"

    @property
    def domains(self) -> tuple[tuple[float, float], ...]:
        """Interval to draw each argument from in tests."""
        return self.domain or (REAL,) * self.arity


def _node(op: str, *args: Node | Number) -> Node:
    return Node(op, tuple(arg if isinstance(arg, Node) else const(arg) for arg in args))


def _mul(*factors: Node | Number) -> Node:
    product = factors[0] if isinstance(factors[0], Node) else const(factors[0])
    for factor in factors[1:]:
        product = _node("mul", product, factor)
    return product


def _masked(singular: Node, slope: Node, otherwise: Node | Number = 0) -> Node:
    return _node("where", singular, otherwise, slope)


def _tie(winner: str) -> Callable[[Node], Partials]:
    """min and max: the extremum takes the slope, ties share it equally."""

    def partials(node: Node) -> Partials:
        a, b = node.args
        half = const(0.5)
        return (
            _node("where", _node("eq", a, b), half, _node("where", _node(winner, a, b), 1, 0)),
            _node("where", _node("eq", a, b), half, _node("where", _node(winner, b, a), 1, 0)),
        )

    return partials


def _pow_partials(node: Node) -> Partials:
    base, exponent = node.args
    at_zero = _node("eq", base, 0)
    steep = _node("and", at_zero, _node("lt", exponent, 1))
    slope = _mul(exponent, _node("pow", base, _node("sub", exponent, 1)))
    return _masked(steep, slope), _masked(at_zero, _mul(node, _node("log", base)))


def _div_partials(node: Node) -> Partials:
    bottom = node.args[1]
    pole = _node("eq", bottom, 0)
    return (
        _masked(pole, _node("rcp", bottom)),
        _masked(pole, _node("neg", _node("div", node, bottom))),
    )


def _copysign_partials(node: Node) -> Partials:
    magnitude, sign = node.args
    return _mul(_node("sign", magnitude), _node("copysign", 1, sign)), None


def _where_partials(node: Node) -> Partials:
    return None, _node("where", node.args[0], 1, 0), _node("where", node.args[0], 0, 1)


def _one(slope: Callable[[Node, Node], Node]) -> Callable[[Node], Partials]:
    return lambda node: (slope(node, node.args[0]),)


_SQRT_PI = math.sqrt(math.pi)
_LN2 = math.log(2.0)

_ROWS = (
    Op("add", 2, lambda a, b: a + b, lambda n: (const(1), const(1)), "+", "add", ("add",), commutative=True, integer=True),
    Op("sub", 2, lambda a, b: a - b, lambda n: (const(1), const(-1)), "-", "subtract", ("sub", "subtract"), integer=True),
    Op("mul", 2, lambda a, b: a * b, lambda n: (n.args[1], n.args[0]), "*", "multiply", ("mul", "multiply"), commutative=True, integer=True),
    Op("div", 2, ieee.divide, _div_partials, "/", "divide", ("div", "divide", "true_divide"), (REAL, POSITIVE), singular="b = 0: slope 0"),
    Op("pow", 2, ieee.power, _pow_partials, "**", "power", ("pow",), (POSITIVE, REAL), singular="a = 0, b < 1: slope 0"),
    Op("neg", 1, lambda a: -a, lambda n: (const(-1),), None, "negative", ("neg", "negative"), integer=True),
    Op("abs", 1, abs, _one(lambda n, x: _node("sign", x)), None, "absolute", ("abs", "absolute"), integer=True, singular="0: slope 0"),
    Op("sign", 1, ieee.sign, lambda n: (None,), None, "sign", ("sign", "sgn"), integer=True),
    Op("copysign", 2, math.copysign, _copysign_partials, None, "copysign", ("copysign",), singular="a = 0: slope 0"),
    Op("min", 2, ieee.extremum(min), _tie("lt"), None, "minimum", ("minimum", "min"), commutative=True, integer=True, singular="a = b: shared"),
    Op("max", 2, ieee.extremum(max), _tie("gt"), None, "maximum", ("maximum", "max"), commutative=True, integer=True, singular="a = b: shared"),
    Op("sqrt", 1, ieee.total(math.sqrt), _one(lambda n, x: _masked(_node("eq", x, 0), _mul(0.5, _node("rsqrt", x)))), None, "sqrt", ("sqrt",), (POSITIVE,), singular="0: slope 0"),
    Op("rsqrt", 1, ieee.rsqrt, _one(lambda n, x: _masked(_node("eq", x, 0), _mul(-0.5, _mul(n, _mul(n, n))))), None, "", ("rsqrt",), (POSITIVE,), singular="0: slope 0"),
    Op("rcp", 1, lambda a: ieee.divide(1, a), _one(lambda n, x: _masked(_node("eq", x, 0), _node("neg", _mul(n, n)))), None, "reciprocal", ("reciprocal",), (POSITIVE,), singular="0: slope 0"),
    Op("exp", 1, ieee.total(math.exp), _one(lambda n, x: n), None, "exp", ("exp",)),
    Op("exp2", 1, lambda a: ieee.power(2.0, a), _one(lambda n, x: _mul(_LN2, n)), None, "exp2", ("exp2",)),
    Op("expm1", 1, ieee.total(math.expm1), _one(lambda n, x: _node("exp", x)), None, "expm1", ("expm1",)),
    Op("log", 1, ieee.pole(math.log, 0, -math.inf), _one(lambda n, x: _masked(_node("eq", x, 0), _node("rcp", x))), None, "log", ("log",), (POSITIVE,), singular="0: slope 0"),
    Op("log2", 1, ieee.pole(math.log2, 0, -math.inf), _one(lambda n, x: _masked(_node("eq", x, 0), _mul(1 / _LN2, _node("rcp", x)))), None, "log2", ("log2",), (POSITIVE,), singular="0: slope 0"),
    Op("log1p", 1, ieee.pole(math.log1p, -1, -math.inf), _one(lambda n, x: _masked(_node("eq", x, -1), _node("rcp", _node("add", 1, x)))), None, "log1p", ("log1p",), ((-0.9, 3.0),), singular="-1: slope 0"),
    Op("sin", 1, ieee.total(math.sin), _one(lambda n, x: _node("cos", x)), None, "sin", ("sin",)),
    Op("cos", 1, ieee.total(math.cos), _one(lambda n, x: _node("neg", _node("sin", x))), None, "cos", ("cos",)),
    Op("tan", 1, ieee.total(math.tan), _one(lambda n, x: _node("add", 1, _mul(n, n))), None, "tan", ("tan",), ((-1.2, 1.2),)),
    Op("acos", 1, ieee.total(math.acos), _one(lambda n, x: _masked(_node("ge", _node("abs", x), 1), _node("neg", _node("rsqrt", _node("sub", 1, _mul(x, x)))))), None, "arccos", ("acos", "arccos"), ((-0.95, 0.95),), singular="-1, 1: slope 0"),
    Op("tanh", 1, math.tanh, _one(lambda n, x: _node("sub", 1, _mul(n, n))), None, "tanh", ("tanh",)),
    Op("erf", 1, math.erf, _one(lambda n, x: _mul(2 / _SQRT_PI, _node("exp", _node("neg", _mul(x, x))))), None, "", ("erf",)),
    Op("sigmoid", 1, ieee.sigmoid, _one(lambda n, x: _mul(n, _node("sub", 1, n))), None, "", ("sigmoid", "expit")),
    Op("floor", 1, ieee.floor, lambda n: (None,), None, "floor", ("floor",)),
    Op("lt", 2, lambda a, b: a < b, None, "<", "less", ("lt", "less"), boolean=True, integer=True),
    Op("le", 2, lambda a, b: a <= b, None, "<=", "less_equal", ("le", "less_equal"), boolean=True, integer=True),
    Op("gt", 2, lambda a, b: a > b, None, ">", "greater", ("gt", "greater"), boolean=True, integer=True),
    Op("ge", 2, lambda a, b: a >= b, None, ">=", "greater_equal", ("ge", "greater_equal"), boolean=True, integer=True),
    Op("eq", 2, lambda a, b: a == b, None, "==", "equal", ("eq",), boolean=True, commutative=True, integer=True),
    Op("ne", 2, lambda a, b: a != b, None, "!=", "not_equal", ("ne", "not_equal"), boolean=True, commutative=True, integer=True),
    Op("and", 2, lambda a, b: bool(a) and bool(b), None, "&", "logical_and", ("logical_and", "bitwise_and"), boolean=True, commutative=True, integer=True),
    Op("or", 2, lambda a, b: bool(a) or bool(b), None, "|", "logical_or", ("logical_or", "bitwise_or"), boolean=True, commutative=True, integer=True),
    Op("not", 1, lambda a: not a, None, None, "logical_not", ("logical_not", "bitwise_not"), boolean=True, integer=True),
    Op("where", 3, lambda c, a, b: a if c else b, _where_partials, None, "where", ("where",), integer=True),
)  # fmt: skip

OPS: dict[str, Op] = {row.name: row for row in _ROWS}


def evaluate(roots: Sequence[Node], values: Mapping[str, Number]) -> tuple[Number, ...]:
    """Values of expressions on Python numbers."""
    known: dict[int, Number] = {}
    for node in postorder(roots):
        if node.op == "var":
            known[id(node)] = values[node.name]
        elif node.number is not None:
            known[id(node)] = node.number
        else:
            known[id(node)] = OPS[node.op].value(*(known[id(arg)] for arg in node.args))
    return tuple(known[id(root)] for root in roots)
