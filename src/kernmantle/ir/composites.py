"""Every function a lambda may call, by each name it is known under, as builders of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable

from .node import Node, const
from .ops import OPS
from .rules import is_boolean

Builder = Callable[..., Node]

_LN2, _LN10 = math.log(2.0), math.log(10.0)


def _op(name: str, *args: Node) -> Node:
    return Node(name, args)


def _square(x: Node) -> Node:
    return _op("mul", x, x)


def _cube(x: Node) -> Node:
    return _op("mul", _square(x), x)


def _relu(x: Node) -> Node:
    return _op("max", x, const(0))


def _clamp(
    x: Node, min: Node | None = None, max: Node | None = None, *, a_min: Node | None = None, a_max: Node | None = None
) -> Node:
    low, high = min or a_min, max or a_max
    if low is None and high is None:
        raise TypeError("clamp needs min or max")
    above = x if low is None else _op("max", x, low)
    return above if high is None else _op("min", above, high)


def _fma(a: Node, b: Node, c: Node) -> Node:
    return _op("add", _op("mul", a, b), c)


def _addcmul(c: Node, a: Node, b: Node) -> Node:
    return _fma(a, b, c)


def _lerp(start: Node, end: Node, weight: Node) -> Node:
    return _fma(weight, _op("sub", end, start), start)


def _shifted_exp(a: Node, b: Node) -> Node:
    """exp(-|a - b|), which is 1 for equal infinities."""
    gap = _op("where", _op("eq", a, b), const(0), _op("sub", a, b))
    return _op("exp", _op("neg", _op("abs", gap)))


def _logaddexp(a: Node, b: Node) -> Node:
    return _op("add", _op("max", a, b), _op("log1p", _shifted_exp(a, b)))


def _logaddexp2(a: Node, b: Node) -> Node:
    ln2 = const(_LN2)
    return _op("div", _logaddexp(_op("mul", a, ln2), _op("mul", b, ln2)), ln2)


def _softplus(x: Node) -> Node:
    return _op("add", _relu(x), _op("log1p", _op("exp", _op("neg", _op("abs", x)))))


def _hypot(a: Node, b: Node) -> Node:
    """Scaled by the larger side, so that nothing overflows on the way; infinite beside NaN too, as C's."""
    sides = _op("abs", a), _op("abs", b)
    wide, narrow = _op("max", *sides), _op("min", *sides)
    ratio = _op("where", _op("eq", wide, narrow), const(1), _op("div", narrow, wide))
    length = _op("mul", wide, _op("sqrt", _op("add", const(1), _square(ratio))))
    return _op("where", _op("or", _isinf(a), _isinf(b)), const(math.inf), length)


def _xlogy(x: Node, y: Node) -> Node:
    silent = _op("and", _op("eq", x, const(0)), _op("eq", y, y))
    return _op("where", silent, const(0), _op("mul", x, _op("log", y)))


def _isnan(x: Node) -> Node:
    return _op("ne", x, x)


def _isinf(x: Node) -> Node:
    return _op("eq", _op("abs", x), const(math.inf))


def _isfinite(x: Node) -> Node:
    return _op("lt", _op("abs", x), const(math.inf))


def _skipping(extremum: str) -> Builder:
    def build(a: Node, b: Node) -> Node:
        return _op("where", _isnan(a), b, _op("where", _isnan(b), a, _op(extremum, a, b)))

    return build


def _positive(x: Node) -> Node:
    return x


def _log10(x: Node) -> Node:
    return _op("div", _op("log", x), const(_LN10))


def _asin(x: Node) -> Node:
    """Near zero a step of Newton's gives back the digits that a difference from π/2 loses."""
    angle = _op("sub", const(math.pi / 2), _op("acos", x))
    slope = _op("rsqrt", _op("sub", const(1), _square(x)))
    mended = _op("add", angle, _op("mul", _op("sub", x, _op("sin", angle)), slope))
    small = _op("where", _op("eq", x, const(0)), x, mended)
    return _op("where", _op("lt", _op("abs", x), const(0.5)), small, angle)


def _half_exponentials(x: Node) -> tuple[Node, Node]:
    """exp(|x|) / 2, which is finite wherever that is, and exp(-|x|) / 2."""
    root = _op("exp", _op("mul", const(0.5), _op("abs", x)))
    inverse = _op("rcp", root)
    return tuple(_op("mul", _op("mul", const(0.5), factor), factor) for factor in (root, inverse))  # pyright: ignore[reportReturnType]


def _sinh(x: Node) -> Node:
    """Return sinh from expm1, which keeps its digits, where |x| < 1."""
    grown = _op("expm1", x)
    small = _op("mul", const(0.5), _op("add", grown, _op("div", grown, _op("add", grown, const(1)))))
    far = _op("copysign", _op("sub", *_half_exponentials(x)), x)
    return _op("where", _op("lt", _op("abs", x), const(1)), small, far)


def _cosh(x: Node) -> Node:
    return _op("add", *_half_exponentials(x))


def _ceil(x: Node) -> Node:
    return _op("neg", _op("floor", _op("neg", x)))


def _trunc(x: Node) -> Node:
    return _op("copysign", _op("floor", _op("abs", x)), x)


def _opposite(a: Node, b: Node) -> Node:
    """Return whether one is negative and the other positive."""
    return _op("lt", _op("mul", _op("sign", a), _op("sign", b)), const(0))


def _beyond(a: Node, b: Node) -> Node:
    """Return whether b is infinite and a is not."""
    return _op("and", _isinf(b), _isfinite(a))


def _floor_divide(a: Node, b: Node) -> Node:
    """NaN for an infinity by anything but 0, as numpy's."""
    quotient = _op("floor", _op("div", a, b))
    floored = _op("where", _op("and", _beyond(a, b), _opposite(a, b)), const(-1), quotient)
    return _op("where", _op("and", _isinf(a), _op("ne", b, const(0))), const(math.nan), floored)


def _remainder(a: Node, b: Node) -> Node:
    """Exact up to the one addition that gives it the sign of b; a itself, or b, for b infinite."""
    rest = _op("fmod", a, b)
    return _op("where", _opposite(rest, b), _op("add", rest, b), rest)


def _truth(x: Node) -> Node:
    """Return whether a value is not zero."""
    return x if is_boolean(x) else _op("ne", x, const(0))


def _joined(name: str) -> Builder:
    def build(a: Node, b: Node) -> Node:
        return _op(name, _truth(a), _truth(b))

    return build


def _logical_not(x: Node) -> Node:
    return _op("not", _truth(x))


def _xor(a: Node, b: Node) -> Node:
    return _op("ne", _op("not", a), _op("not", b))


COMPOSITES: dict[str, Builder] = {
    "square": _square, "cube": _cube, "relu": _relu, "clamp": _clamp, "clip": _clamp, "fma": _fma,
    "addcmul": _addcmul, "lerp": _lerp, "logaddexp": _logaddexp, "logaddexp2": _logaddexp2,
    "softplus": _softplus, "hypot": _hypot, "xlogy": _xlogy, "isnan": _isnan, "isinf": _isinf,
    "isfinite": _isfinite, "fmin": _skipping("min"), "fmax": _skipping("max"), "positive": _positive,
    "log10": _log10, "asin": _asin, "arcsin": _asin, "sinh": _sinh, "cosh": _cosh, "ceil": _ceil,
    "trunc": _trunc, "fix": _trunc, "floor_divide": _floor_divide, "remainder": _remainder,
    "logical_and": _joined("and"), "logical_or": _joined("or"), "logical_not": _logical_not,
    "logical_xor": _joined("ne"), "bitwise_xor": _xor,
}  # fmt: skip

_ALIASES = {
    "float_power": "pow", "fabs": "abs", "invert": "not", "true_divide": "div", "not_equal": "ne", "equal": "eq",
}  # fmt: skip


def _row(name: str, arity: int) -> Builder:
    def one(a: Node, /) -> Node:
        return Node(name, (a,))

    def two(a: Node, b: Node, /) -> Node:
        return Node(name, (a, b))

    def three(a: Node, b: Node, c: Node, /) -> Node:
        return Node(name, (a, b, c))

    build = (one, two, three)[arity - 1]
    build.__name__ = build.__qualname__ = name
    return build


def _spellings() -> dict[str, Builder]:
    table = dict(COMPOSITES)
    for row in OPS.values():
        builder = _row(row.name, row.arity)
        for name in (row.name, *row.torch, row.numpy):
            if name:
                table[name] = builder
    return table | {alias: table[name] for alias, name in _ALIASES.items()}


SPELLINGS: dict[str, Builder] = _spellings()
