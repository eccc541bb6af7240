"""Sine, cosine and tangent on vectors; arguments beyond 2^30 go to the C library, lane by lane."""

from __future__ import annotations

from collections.abc import Callable

from . import polynomials as tables
from .builder import Function, vector
from .libm import INF, Maths

_FAR = 2.0**30  # argument from which on the C library is called
_HALF_PI = 1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33


def _reduced(m: Maths, x: str) -> tuple[str, str]:
    """Return the remainder of x by π/2 and the quotient; in doubles, where the first two steps are exact."""
    wide = Maths(m.f, "double", m.lanes, m.needed)
    a = x if m.element == "double" else m.f.emit(f"fpext {m.kind} {x} to {wide.kind}")
    q, whole = wide.rounded(wide.mul(a, wide.c(1 / _HALF_PI[0])))
    for part in _HALF_PI:
        a = wide.fma(q, wide.c(-part), a)
    if m.element == "double":
        return a, whole
    return m.f.emit(f"fptrunc {wide.kind} {a} to {m.kind}"), m.f.emit(f"trunc {wide.whole} {whole} to {m.whole}")


def _both(m: Maths, r: str) -> tuple[str, str]:
    z = m.mul(r, r)
    sine = m.fma(m.mul(r, z), m.poly(z, tables.SIN[m.element]), r)
    cosine = m.fma(m.mul(z, z), m.poly(z, tables.COS[m.element]), m.fma(z, m.c(-0.5), m.c(1)))
    return sine, cosine


def _bit(m: Maths, q: str, bit: int) -> str:
    return m.f.emit(f"icmp ne {m.whole} {m.i('and', q, m.n(bit))}, zeroinitializer")


def _wave(shift: int) -> Callable[[Maths, str], str]:
    def small(m: Maths, x: str) -> str:
        r, q = _reduced(m, x)
        sine, cosine = _both(m, r)
        q = m.i("add", q, m.n(shift))
        result = m.where(_bit(m, q, 1), cosine, sine)
        return m.where(_bit(m, q, 2), m.neg(result), result)

    return small


def _tangent(m: Maths, x: str) -> str:
    r, q = _reduced(m, x)
    sine, cosine = _both(m, r)
    odd = _bit(m, q, 1)
    return m.div(m.where(odd, m.neg(cosine), sine), m.where(odd, sine, cosine))


def _with_far(name: str, small: Callable[[Maths, str], str]) -> Callable[[Maths, str], str]:
    def whole(m: Maths, x: str) -> str:
        f, size = m.f, m.abs(x)
        result = small(m, x)
        far = m.logical("and", m.test("oge", size, m.c(_FAR)), m.test("olt", size, m.c(INF)))
        found = far if m.lanes == 1 else f.emit(f"call i1 @llvm.vector.reduce.or.v{m.lanes}i1({m.mask} {far})")
        reduced, arguments = _memory(f, m, result), _memory(f, m, x)
        with f.when(found), f.loop("0", str(m.lanes)) as lane:
            one = Maths(f, m.element, 1, m.needed)
            value = f.load(m.element, f.at(arguments, lane, m.element), 4)
            beyond = one.test("oge", one.abs(value), one.c(_FAR))
            with f.when(beyond):
                double = value if m.element == "double" else f.emit(f"fpext {m.element} {value} to double")
                exact = f.emit(f"call double @{name}(double {double})")
                stored = exact if m.element == "double" else f.emit(f"fptrunc double {exact} to {m.element}")
                f.store(m.element, stored, f.at(reduced, lane, m.element), 4)
        return f.load(m.kind, reduced, 4)

    return whole


def _memory(f: Function, m: Maths, value: str) -> str:
    slot = f.alloca(m.element, m.lanes)
    f.store(vector(m.element, m.lanes), value, slot, 4)
    return slot


ROWS: dict[str, Callable[[Maths, str], str]] = {
    "sin": _with_far("sin", _wave(0)),
    "cos": _with_far("cos", _wave(1)),
    "tan": _with_far("tan", _tangent),
}
