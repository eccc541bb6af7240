"""The short form of the micro-kernel: cheap minima and powers that note when a rare case made them wrong.

Minima and maxima ignore NaN and remember that one came by. Powers of a non-negative base by an exponent that is
the same everywhere are right for zero and for normal numbers with a normal result, and remember when the base
left that window. The tile is then computed again by the exact form.
"""

from __future__ import annotations

from collections.abc import Sequence

from .builder import SIZE, floating_literal, suffix, vector
from .libm import BIAS, MANTISSA
from .spelling import ExpressionEmitter, Value

_LARGEST_EXPONENT = 16.0  # of powers in the short form


class SpeculativeFastPath:
    """The short form of an operation, and the flags that it carries through the loop."""

    def __init__(self, spell: ExpressionEmitter, extrema: bool):
        self.spell, self.extrema = spell, extrema
        self.lanes = spell.lanes
        self.integer = spell.index_element
        self.masked = self.lanes * SIZE[spell.element] < 64
        self.exponents: dict[str, tuple[str, str, str]] = {}
        self.forced: list[str] = []
        self.current: dict[str, str] = {}
        self.ordered = ""
        self.inside = False
        self.pending: list[str] = []

    def prepare(self, exponent: Value) -> None:
        """Compute, before the loop, the window of bases that an exponent allows, and the power of zero."""
        if exponent.text in self.exponents:
            return
        f, element, integer = self.spell.function, self.spell.element, self.integer
        kind, mantissa, bias = suffix(element), MANTISSA[element], BIAS[element]

        def literal(value: float) -> str:
            return floating_literal(value, element)

        text = self.spell.cast(exponent, "value").text
        size = f.emit(f"call {element} @llvm.fabs.{kind}({element} {text})")
        self.forced.append(f.emit(f"fcmp ugt {element} {size}, {literal(_LARGEST_EXPONENT)}"))
        reach = f.emit(f"fdiv {element} {literal(bias - 2.0)}, {size}")
        reach = f.emit(f"call {integer} @llvm.fptosi.sat.{integer}.{kind}({element} {reach})")
        reach = f.emit(f"call {integer} @llvm.smin.{integer}({integer} {reach}, {integer} {bias - 2})")
        low = f.emit(f"shl {integer} {f.emit(f'sub {integer} {bias}, {reach}')}, {mantissa}")
        span = f.emit(f"shl {integer} {reach}, {mantissa + 1}")
        positive = f.emit(f"fcmp ogt {element} {text}, zeroinitializer")
        unsigned = f.emit(f"fcmp oeq {element} {text}, zeroinitializer")
        other = f.emit(f"select i1 {unsigned}, {element} {literal(1.0)}, {element} {literal(float('inf'))}")
        at_zero = f.emit(f"select i1 {positive}, {element} zeroinitializer, {element} {other}")
        self.exponents[exponent.text] = low, span, at_zero

    def flags(self) -> list[tuple[str, str]]:
        """Return the types and initial values of what the loop carries."""
        wide = vector(self.integer, self.lanes)
        seen = [(wide, "zeroinitializer") for _ in self.exponents]
        mask = self.integer if self.masked else "i1"
        return seen + ([(vector(mask, self.lanes), f"splat ({mask} -1)")] if self.extrema else [])

    def begin_body(self, phis: Sequence[str]) -> None:
        """Take the values of the flags at the start of the loop's body."""
        self.inside = True
        self.current = dict(zip(self.exponents, phis, strict=False))
        self.ordered = phis[-1] if self.extrema else ""

    def end_body(self) -> list[str]:
        """Return the new values of the flags at the end of the loop's body."""
        self.inside = False
        texts = list(self.current.values())
        if self.extrema:
            texts.append(self._all_ordered())
        return texts

    def _all_ordered(self) -> str:
        """New flag of lanes that saw no NaN: comparisons of two values each, one narrowing the other."""
        f, lanes = self.spell.function, self.lanes
        kind, into = vector(self.spell.element, lanes), vector("i1", lanes)
        found = ""
        for one, other in zip(self.pending[::2], [*self.pending[1::2], self.pending[-1]], strict=False):
            more = f.emit(f"fcmp ord {kind} {one}, {other}")
            found = f.emit(f"and {into} {found}, {more}") if found else more
        self.pending = []
        if self.masked:
            into = vector(self.integer, lanes)
            found = f.emit(f"sext {vector('i1', lanes)} {found} to {into}")
        return f.emit(f"and {into} {self.ordered}, {found}")

    def extremum(self, name: str, state: Value, value: Value) -> Value:
        """Minimum or maximum of a register and a value, wrong if either is NaN."""
        f, kind = self.spell.function, vector(self.spell.element, self.lanes)
        self.pending.append(value.text)
        better = f.emit(f"fcmp {'olt' if name == 'min' else 'ogt'} {kind} {value.text}, {state.text}")
        return Value(self.spell.select(better, value.text, state.text, kind, self.lanes), "value", self.lanes)

    def power(self, base: Value, exponent: Value, key: str) -> Value:
        """Power of a base that is zero or within the window; ``key`` is what ``prepare`` was given."""
        s, f, lanes = self.spell, self.spell.function, self.lanes
        kind, wide = vector(s.element, lanes), vector(self.integer, lanes)
        low, _, at_zero = self.exponents[key]
        zero = f.emit(f"fcmp oeq {kind} {base.text}, zeroinitializer")
        inside = s.select(zero, s.literals(1.0, lanes), base.text, kind, lanes)
        bits = f.emit(f"bitcast {kind} {inside} to {wide}")
        away = f.emit(f"sub {wide} {bits}, {s.wide(Value(low, 'index', 1), lanes).text}")
        name = f"@llvm.umax.{suffix(wide)}"
        self.current[key] = f.emit(f"call {wide} {name}({wide} {self.current[key]}, {wide} {away})")
        result = s.call("pow_normal", kind, [inside, exponent.text], lanes)
        result = s.select(zero, s.wide(Value(at_zero, "value", 1), lanes).text, result, kind, lanes)
        return Value(result, "value", lanes)

    def needs_retry(self, flags: Sequence[str]) -> str:
        """Return, after the loop, whether anything was wrong."""
        f, wide, mask = self.spell.function, vector(self.integer, self.lanes), vector("i1", self.lanes)
        found = list(self.forced)
        tests: list[str] = []
        for flag, (_, span, _) in zip(flags, self.exponents.values(), strict=False):
            limit = self.spell.wide(Value(span, "index", 1), self.lanes).text
            tests.append(f.emit(f"icmp ugt {wide} {flag}, {limit}"))
        if self.extrema:
            tests.append(f.emit(f"icmp eq {wide if self.masked else mask} {flags[-1]}, zeroinitializer"))
        found += [f.emit(f"call i1 @llvm.vector.reduce.or.{suffix(mask)}({mask} {test})") for test in tests]
        total = found[0] if found else "false"
        for other in found[1:]:
            total = f.emit(f"or i1 {total}, {other}")
        return total
