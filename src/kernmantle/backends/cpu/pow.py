"""Powers on vectors: the general one of IEEE, one for bases that are never negative, and the quick core of both."""

from __future__ import annotations

import math

from . import polynomials as tables
from .libm import INF, MANTISSA, Maths

_TWO_LOG2E_HI_LO = 2.8853900817779268, 4.0710547481862066e-17


def quick(m: Maths, x: str, p: str) -> str:
    """x^p for a normal positive x with a normal result and a moderate p."""
    exponent, mantissa = m.split(x)
    e, f = m.float_of(exponent), m.sub(mantissa, m.c(1))
    if m.element == "float":
        part = m.mul(f, m.paired(f, tables.QUICK_LOG2))
        polynomial = tables.QUICK_EXP2
    else:
        part = m.mul(m.log_mantissa(f), m.c(1 / math.log(2)))
        polynomial = tables.EXP2["double"]
    product = m.mul(p, part)
    n, shifted = m.shifted(m.fma(p, e, product))
    r = m.add(m.fma(p, e, m.neg(n)), product)
    value = m.fma(r, m.paired(r, polynomial), m.c(1))
    return m.real(m.i("add", m.bits(value), m.i("shl", m.bits(shifted), m.n(MANTISSA[m.element]))))


def _core_float(m: Maths, x: str, y: str) -> str:
    """x^y of floats by doubles, for a finite positive x and a finite y."""
    wide = Maths(m.f, "double", m.lanes, m.needed)
    a, b = (m.f.emit(f"fpext {m.kind} {text} to {wide.kind}") for text in (x, y))
    exponent, mantissa = wide.split(a)
    f = wide.sub(mantissa, wide.c(1))
    s = wide.div(f, wide.add(f, wide.c(2)))
    z = wide.mul(s, s)
    log = wide.fma(wide.mul(s, z), wide.poly(z, tables.MIDDLE_LOG), s)
    t = wide.clamped(wide.mul(b, wide.fma(log, wide.c(_TWO_LOG2E_HI_LO[0]), wide.float_of(exponent))), -1000.0, 1000.0)
    n, whole = wide.rounded(t)
    r = wide.sub(t, n)
    value = wide.mul(wide.fma(r, wide.poly(r, tables.MIDDLE_EXP2), wide.c(1)), wide.two_to(whole))
    return m.f.emit(f"fptrunc {wide.kind} {value} to {m.kind}")


def _core_double(m: Maths, x: str, y: str) -> str:
    """x^y of doubles with the logarithm to twice the digits, for a finite positive x and a finite y."""
    exponent, mantissa = m.split_any(x)
    e, f = m.float_of(exponent), m.sub(mantissa, m.c(1))
    d = m.add(mantissa, m.c(1))
    d_rest = m.sub(mantissa, m.sub(d, m.c(1)))
    s = m.div(f, d)
    s_rest = m.div(m.fma(m.neg(s), d_rest, m.fma(m.neg(s), d, f)), d)
    z = m.mul(s, s)
    low = m.fma(m.mul(s, z), m.poly(z, tables.LOG["double"]), s_rest)
    high, tail = _TWO_LOG2E_HI_LO
    atanh = m.add(s, low)
    low = m.sub(low, m.sub(atanh, s))
    log = m.mul(atanh, m.c(high))
    log_rest = m.fma(m.c(tail), atanh, m.fma(m.c(high), low, m.fma(m.c(high), atanh, m.neg(log))))
    a, b = m.mul(y, e), m.mul(y, log)
    a_rest, b_rest = m.fma(y, e, m.neg(a)), m.fma(y, log_rest, m.fma(y, log, m.neg(b)))
    t = m.add(a, b)
    back = m.sub(t, a)
    t_rest = m.add(m.sub(a, m.sub(t, back)), m.sub(b, back))
    bounded = m.clamped(t, -1100.0, 1100.0)
    n, whole = m.rounded(bounded)
    inside = m.test("oeq", t, bounded)
    r = m.add(m.sub(bounded, n), m.where(inside, m.add(t_rest, m.add(a_rest, b_rest)), m.c(0)))
    return m.scaled(m.fma(r, m.poly(r, tables.EXP2["double"]), m.c(1)), whole)


def not_negative(m: Maths, x: str, y: str) -> str:
    """x^y for x >= 0, or NaN."""
    result = (_core_float if m.element == "float" else _core_double)(m, x, y)
    rising = m.test("ogt", y, m.c(0))
    infinite = m.test("oeq", x, m.c(INF))
    grows = m.logical("and", infinite, rising)
    zero = m.test("oeq", x, m.c(0))
    result = m.where(m.logical("or", zero, infinite), m.c(0), result)
    result = m.where(m.logical("or", grows, m.logical("and", zero, m.test("olt", y, m.c(0)))), m.c(INF), result)
    far = m.test("oeq", m.abs(y), m.c(INF))
    above = m.logical("xor", m.test("olt", x, m.c(1)), rising)
    result = m.where(far, m.where(above, m.c(INF), m.c(0)), result)
    unordered = m.f.emit(f"fcmp uno {m.kind} {x}, {y}")
    result = m.where(unordered, m.add(x, y), result)
    one = m.logical("or", m.test("oeq", x, m.c(1)), m.test("oeq", y, m.c(0)))
    return m.where(one, m.c(1), result)


def general(m: Maths, x: str, y: str) -> str:
    """x^y as IEEE's pow."""
    result = m.call("pow_abs", m.abs(x), y)
    integer = m.test("oeq", m.floor(y), y)
    half = m.mul(y, m.c(0.5))
    odd = m.logical("and", integer, m.test("une", m.floor(half), half))
    bits = m.f.emit(f"icmp slt {m.whole} {m.bits(x)}, zeroinitializer")
    result = m.where(m.logical("and", bits, odd), m.neg(result), result)
    inside = m.logical("and", m.test("olt", x, m.c(0)), m.test("ogt", x, m.c(-INF)))
    fraction = m.f.emit(f"xor {m.mask} {integer}, {'true' if m.lanes == 1 else 'splat (i1 true)'}")
    return m.where(m.logical("and", inside, fraction), m.c(math.nan), result)


ROWS = {"pow": general, "pow_abs": not_negative, "pow_normal": quick}
"""Functions that kernels may call: the operation, and its forms for bases that are never negative."""
ARITY = 2
INLINED = ("pow_normal",)
"""Forms that are always put in place: the inner loops' own."""
