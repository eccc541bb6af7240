"""Elementary functions on vectors: range reduction and polynomials, right at zero, infinities, NaN and subnormals.

Each row of ``FUNCTIONS`` writes the body of one internal function ``km_<name>_<type>``; kernels get those they call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from . import polynomials as tables
from .builder import Function, floating_literal, integer_of, splat, suffix, vector

BIAS = {"float": 127, "double": 1023}
MANTISSA = {"float": 23, "double": 52}
_MAGIC = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
_LN2 = {"float": (0.6931471824645996, -1.9046542121259336e-09), "double": (0.6931471805599453, 2.3190468138462996e-17)}
INF = math.inf


class Maths:
    """Arithmetic on one vector type inside a function."""

    def __init__(self, function: Function, element: str, lanes: int, needed: set[tuple[str, str, int]]):
        self.f, self.element, self.lanes, self.needed = function, element, lanes, needed
        self.kind, self.integer = vector(element, lanes), integer_of(element)
        self.whole = vector(self.integer, lanes)
        self.mask = vector("i1", lanes)

    def c(self, value: float) -> str:
        """Float in every lane."""
        return splat(floating_literal(value, self.element), self.element, self.lanes)

    def n(self, value: int) -> str:
        """Integer in every lane."""
        return splat(str(value), self.integer, self.lanes)

    def _two(self, word: str, kind: str, a: str, b: str) -> str:
        return self.f.emit(f"{word} {kind} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        """Return the sum."""
        return self._two("fadd", self.kind, a, b)

    def sub(self, a: str, b: str) -> str:
        """Return the difference."""
        return self._two("fsub", self.kind, a, b)

    def mul(self, a: str, b: str) -> str:
        """Return the product."""
        return self._two("fmul", self.kind, a, b)

    def div(self, a: str, b: str) -> str:
        """Return the quotient."""
        return self._two("fdiv", self.kind, a, b)

    def neg(self, a: str) -> str:
        """-a."""
        return self.f.emit(f"fneg {self.kind} {a}")

    def fma(self, a: str, b: str, c: str) -> str:
        """Return the product and sum, rounded once."""
        return self._intrinsic("fma", a, b, c)

    def abs(self, a: str) -> str:
        """Absolute value."""
        return self._intrinsic("fabs", a)

    def sqrt(self, a: str) -> str:
        """Return the square root."""
        return self._intrinsic("sqrt", a)

    def floor(self, a: str) -> str:
        """Return the largest integer not above."""
        return self._intrinsic("floor", a)

    def signed(self, a: str, sign: str) -> str:
        """Magnitude of one, sign of the other."""
        return self._intrinsic("copysign", a, sign)

    def _intrinsic(self, name: str, *args: str) -> str:
        operands = ", ".join(f"{self.kind} {arg}" for arg in args)
        return self.f.emit(f"call {self.kind} @llvm.{name}.{suffix(self.kind)}({operands})")

    def test(self, order: str, a: str, b: str) -> str:
        """Comparison of floats."""
        return self._two(f"fcmp {order}", self.kind, a, b)

    def where(self, condition: str, yes: str, no: str) -> str:
        """Return one of two floats."""
        return self.f.emit(f"select {self.mask} {condition}, {self.kind} {yes}, {self.kind} {no}")

    def whole_where(self, condition: str, yes: str, no: str) -> str:
        """Return one of two integers."""
        return self.f.emit(f"select {self.mask} {condition}, {self.whole} {yes}, {self.whole} {no}")

    def logical(self, word: str, a: str, b: str) -> str:
        """Return the operation on conditions."""
        return self._two(word, self.mask, a, b)

    def bits(self, a: str) -> str:
        """Return the bits of floats."""
        return self.f.emit(f"bitcast {self.kind} {a} to {self.whole}")

    def real(self, a: str) -> str:
        """Floats of bits."""
        return self.f.emit(f"bitcast {self.whole} {a} to {self.kind}")

    def i(self, word: str, a: str, b: str) -> str:
        """Integer operation."""
        return self._two(word, self.whole, a, b)

    def float_of(self, a: str) -> str:
        """Integers as floats."""
        return self.f.emit(f"sitofp {self.whole} {a} to {self.kind}")

    def poly(self, x: str, coefficients: Sequence[float]) -> str:
        """Return the polynomial by Horner's rule, highest power first."""
        total = self.c(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self.c(coefficient))
        return total

    def paired(self, x: str, coefficients: Sequence[float]) -> str:
        """Return the polynomial by Estrin's rule, highest power first: a shorter chain for a few products more."""
        terms = [self.c(coefficient) for coefficient in reversed(coefficients)]
        while len(terms) > 1:
            joined = [self.fma(terms[i + 1], x, terms[i]) for i in range(0, len(terms) - 1, 2)]
            terms = joined + terms[len(joined) * 2 :]
            if len(terms) > 1:
                x = self.mul(x, x)
        return terms[0]

    def rounded(self, a: str) -> tuple[str, str]:
        """Return the nearest integer as a float and as an integer; a NaN gives some integer."""
        n, shifted = self.shifted(a)
        bits = floating_literal(_MAGIC[self.element], self.element)
        magic = self.f.emit(f"bitcast {self.kind} {splat(bits, self.element, self.lanes)} to {self.whole}")
        return n, self.i("sub", self.bits(shifted), magic)

    def shifted(self, a: str) -> tuple[str, str]:
        """Return the nearest integer, and the float whose lowest bits are those of the integer."""
        shifted = self.add(a, self.c(_MAGIC[self.element]))
        return self.sub(shifted, self.c(_MAGIC[self.element])), shifted

    def clamped(self, a: str, low: float, high: float) -> str:
        """Return a value within bounds; NaN stays."""
        a = self.where(self.test("ogt", a, self.c(high)), self.c(high), a)
        return self.where(self.test("olt", a, self.c(low)), self.c(low), a)

    def two_to(self, n: str) -> str:
        """Power of two of a moderate integer."""
        return self.real(self.i("shl", self.i("add", n, self.n(BIAS[self.element])), self.n(MANTISSA[self.element])))

    def scaled(self, a: str, n: str) -> str:
        """Return the product with 2^n, with overflow and gradual underflow."""
        half = self.i("ashr", n, self.n(1))
        return self.mul(self.mul(a, self.two_to(half)), self.two_to(self.i("sub", n, half)))

    def split(self, x: str) -> tuple[str, str]:
        """Return the exponent and mantissa in √½..√2 of a positive normal number."""
        bits, mantissa = self.bits(x), self.n(MANTISSA[self.element])
        root = self.f.emit(f"bitcast {self.kind} {self.c(math.sqrt(0.5))} to {self.whole}")
        exponent = self.i("ashr", self.i("sub", bits, root), mantissa)
        return exponent, self.real(self.i("sub", bits, self.i("shl", exponent, mantissa)))

    def split_any(self, x: str) -> tuple[str, str]:
        """Return what ``split`` does, of subnormals too."""
        small = self.test("olt", x, self.c(2.0 ** (1 - BIAS[self.element])))
        shift = MANTISSA[self.element] + 2
        exponent, mantissa = self.split(self.where(small, self.mul(x, self.c(2.0**shift)), x))
        return self.i("sub", exponent, self.whole_where(small, self.n(shift), self.n(0))), mantissa

    def log_mantissa(self, f: str) -> str:
        """log(1 + f) for 1 + f in √½..√2."""
        s = self.div(f, self.add(f, self.c(2)))
        z = self.mul(s, s)
        rest = self.mul(self.mul(z, self.c(2)), self.poly(z, tables.LOG[self.element]))
        half = self.mul(self.mul(f, f), self.c(0.5))
        return self.sub(f, self.sub(half, self.mul(s, self.add(half, rest))))

    def log_edges(self, x: str, result: str) -> str:
        """Return the logarithm at zero, infinity, below zero and at NaN."""
        result = self.where(self.test("oeq", x, self.c(INF)), x, result)
        result = self.where(self.test("oeq", x, self.c(0)), self.c(-INF), result)
        return self.where(self.test("ult", x, self.c(0)), self.c(math.nan), result)

    def call(self, name: str, *args: str) -> str:
        """Return another function of the table."""
        self.needed.add((name, self.element, self.lanes))
        operands = ", ".join(f"{self.kind} {arg}" for arg in args)
        return self.f.emit(f"call {self.kind} @{symbol(name, self.element, self.lanes)}({operands})")


Body = Callable[[Maths, str], str]


def symbol(name: str, element: str, lanes: int) -> str:
    """Return the name of a function for a type."""
    return f"km_{name}_{suffix(vector(element, lanes))}"


def _exp_reduced(m: Maths, x: str) -> tuple[str, str, str]:
    """exp(r) - 1 with x = n ln 2 + r, and n as float and integer."""
    n, whole = m.rounded(m.mul(x, m.c(1 / math.log(2))))
    high, low = _LN2[m.element]
    r = m.fma(n, m.c(-low), m.fma(n, m.c(-high), x))
    return m.fma(m.mul(r, r), m.poly(r, tables.EXP[m.element]), r), n, whole


def _exp(m: Maths, x: str) -> str:
    low, high = (-105.0, 89.0) if m.element == "float" else (-746.0, 710.0)
    e, _, whole = _exp_reduced(m, m.clamped(x, low, high))
    return m.scaled(m.add(e, m.c(1)), whole)


def _exp2(m: Maths, x: str) -> str:
    low, high = (-152.0, 129.0) if m.element == "float" else (-1080.0, 1025.0)
    x = m.clamped(x, low, high)
    n, whole = m.rounded(x)
    r = m.sub(x, n)
    return m.scaled(m.fma(r, m.poly(r, tables.EXP2[m.element]), m.c(1)), whole)


def _expm1(m: Maths, x: str) -> str:
    low, high = (-20.0, 89.0) if m.element == "float" else (-45.0, 710.0)
    e, n, whole = _exp_reduced(m, m.clamped(x, low, high))
    half = m.two_to(m.i("sub", whole, m.n(1)))
    result = m.fma(half, e, m.sub(half, m.c(0.5)))
    return m.where(m.test("oeq", n, m.c(0)), e, m.add(result, result))


def _log(m: Maths, x: str) -> str:
    exponent, mantissa = m.split_any(x)
    e = m.float_of(exponent)
    high, low = _LN2[m.element]
    part = m.log_mantissa(m.sub(mantissa, m.c(1)))
    return m.log_edges(x, m.fma(e, m.c(high), m.fma(e, m.c(low), part)))


def _log2(m: Maths, x: str) -> str:
    exponent, mantissa = m.split_any(x)
    part = m.log_mantissa(m.sub(mantissa, m.c(1)))
    high = 1.4426950216293335 if m.element == "float" else 1.4426950408889634
    low = 1 / math.log(2) - high if m.element == "float" else 2.0355273740931033e-17
    return m.log_edges(x, m.fma(part, m.c(high), m.fma(part, m.c(low), m.float_of(exponent))))


def _log1p(m: Maths, x: str) -> str:
    u = m.add(x, m.c(1))
    large = m.test("ogt", x, m.c(1))
    lost = m.where(large, m.sub(m.c(1), m.sub(u, x)), m.sub(x, m.sub(u, m.c(1))))
    exponent, mantissa = m.split(u)
    e = m.float_of(exponent)
    is_inner = m.test("oeq", e, m.c(0))
    f = m.where(is_inner, x, m.sub(mantissa, m.c(1)))
    high, low = _LN2[m.element]
    lost = m.where(is_inner, m.c(0), m.div(lost, u))
    result = m.fma(e, m.c(high), m.add(m.fma(e, m.c(low), lost), m.log_mantissa(f)))
    return m.log_edges(u, m.where(m.test("oeq", x, m.c(0)), x, result))


def _tanh(m: Maths, x: str) -> str:
    size = m.clamped(m.abs(x), 0.0, 22.0)
    t = m.call("expm1", m.add(size, size))
    return m.signed(m.div(t, m.add(t, m.c(2))), x)


def _sigmoid(m: Maths, x: str) -> str:
    z = m.call("exp", m.neg(m.abs(x)))
    return m.div(m.where(m.test("olt", x, m.c(0)), z, m.c(1)), m.add(z, m.c(1)))


def _erf(m: Maths, x: str) -> str:
    size = m.abs(x)
    top = 4.0 if m.element == "float" else 6.0
    small = m.mul(x, m.poly(m.mul(x, x), tables.ERF_SMALL[m.element]))
    far = m.clamped(size, 0.9, top)
    u = m.fma(far, m.c(2 / (top - 0.9)), m.c(-(top + 0.9) / (top - 0.9)))
    exponent = m.fma(m.neg(far), far, m.poly(u, tables.ERF_LARGE[m.element]))
    large = m.signed(m.sub(m.c(1), m.call("exp", exponent)), x)
    return m.where(m.test("ogt", size, m.c(0.9)), large, small)


def _acos(m: Maths, x: str) -> str:
    size = m.abs(x)
    outer = m.test("ogt", size, m.c(0.5))
    half = m.mul(m.sub(m.c(1), size), m.c(0.5))
    z = m.where(outer, half, m.mul(x, x))
    r = m.where(outer, m.sqrt(half), x)
    asin = m.fma(m.mul(r, z), m.poly(z, tables.ASIN[m.element]), r)
    pi_low = math.pi / 2 if m.element == "double" else 1.5707963705062866
    rest = 6.123233995736766e-17 if m.element == "double" else -4.371139000186243e-08
    inner = m.sub(m.c(pi_low), m.sub(asin, m.c(rest)))
    twice = m.add(asin, asin)
    far = m.sub(m.c(2 * pi_low), m.sub(twice, m.c(2 * rest)))
    is_inner = m.where(m.test("olt", x, m.c(0)), far, twice)
    return m.where(outer, is_inner, inner)


FUNCTIONS: dict[str, Body] = {
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log1p": _log1p,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "acos": _acos,
}
