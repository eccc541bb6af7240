"""Scalar operations as LLVM instructions on vectors: a row of the table per operation, kinds converted where they meet.

A value is a scalar (the same in every lane) or a vector; scalars are spread only where they meet a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import BackendError
from ...ir.node import Node, Number
from ...ir.ops import OPS
from .builder import FLOATING, SIZE, Function, floating_literal, integer_of, splat, suffix, vector
from .functions import FUNCTIONS, symbol

_ORDERED = {"lt": ("olt", "slt"), "le": ("ole", "sle"), "gt": ("ogt", "sgt"), "ge": ("oge", "sge"),
            "eq": ("oeq", "eq"), "ne": ("une", "ne")}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """Name of a computed value, its kind ("value", "bool" or "index") and its lanes; literals keep their number."""

    text: str
    kind: str
    lanes: int
    number: Number | None = None


class ExpressionEmitter:
    """Writes operations on one compute type into a function."""

    def __init__(
        self, function: Function, element: str, lanes: int, needed: set[tuple[str, str, int]], fuse: bool = True
    ):
        self.function = function
        self.fuse = fuse
        self.element = element
        self.lanes = lanes
        self.needed = needed
        self.floating = element in FLOATING
        self.index_element = integer_of(element)
        self.spread: dict[tuple[str, str], str] = {}

    def element_of(self, kind: str) -> str:
        """Return the LLVM type of one lane of a kind."""
        return {"value": self.element, "bool": "i1", "index": self.index_element}[kind]

    def type_of(self, value: Value) -> str:
        """Return the LLVM type of a value."""
        return vector(self.element_of(value.kind), value.lanes)

    def literal(self, number: Number, kind: str = "value") -> Value:
        """Return a number as a scalar of a kind."""
        return Value(self._literal_text(number, self.element_of(kind)), kind, 1, number)

    def constant(self, number: Number) -> Value:
        """Return a literal of an expression; true and false are conditions."""
        return self.literal(number, "bool" if isinstance(number, bool) else "value")

    def _literal_text(self, number: Number, element: str) -> str:
        if element == "i1":
            return "true" if number else "false"
        if element in FLOATING:
            return floating_literal(float(number), element)
        bits = 8 * SIZE[element]
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if math.isnan(number):
            raise BackendError("an integer kernel has no NaN")
        return str(max(low, min(high, int(number)))) if math.isfinite(number) else str(high if number > 0 else low)

    def wide(self, value: Value, lanes: int) -> Value:
        """Return the value with that many lanes."""
        if value.lanes == lanes:
            return value
        element = self.element_of(value.kind)
        if value.number is not None:
            return Value(splat(value.text, element, lanes), value.kind, lanes)
        spread_text = self.spread.get((value.text, element))
        if spread_text is None:
            kind = vector(element, lanes)
            first = self.function.emit(f"insertelement {kind} poison, {element} {value.text}, i64 0")
            zeros = f"<{lanes} x i32> zeroinitializer"
            spread_text = self.function.emit(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
            self.spread[value.text, element] = spread_text
        return Value(spread_text, value.kind, lanes)

    def cast(self, value: Value, kind: str) -> Value:
        """Return the value as another kind."""
        if value.kind == kind:
            return value
        if value.number is not None:
            return self.literal(value.number, kind)
        source, target = self.type_of(value), vector(self.element_of(kind), value.lanes)
        if kind == "bool":
            return self._not_zero(value)
        if value.kind == "bool":
            word = "uitofp" if kind == "value" and self.floating else "zext"
        elif kind == "value":
            if not self.floating:
                return Value(value.text, kind, value.lanes)
            word = "sitofp"
        elif self.floating:
            return Value(self.saturated(value.text, source, target), kind, value.lanes)
        else:
            return Value(value.text, kind, value.lanes)
        return Value(self.function.emit(f"{word} {source} {value.text} to {target}"), kind, value.lanes)

    def saturated(self, text: str, source: str, target: str) -> str:
        """Float to integer, NaN to zero."""
        name = f"@llvm.fptosi.sat.{suffix(target)}.{suffix(source)}"
        return self.function.emit(f"call {target} {name}({source} {text})")

    def _not_zero(self, value: Value) -> Value:
        kind = self.type_of(value)
        test = "fcmp une" if value.kind == "value" and self.floating else "icmp ne"
        return Value(self.function.emit(f"{test} {kind} {value.text}, zeroinitializer"), "bool", value.lanes)

    def apply(
        self, node: Node, args: Sequence[Value], optimistic: Callable[[Value, Value], Value] | None = None
    ) -> Value:
        """Return the result of one operation; ``optimistic`` spells its power if it may be the short form."""
        op = node.op
        if op == "neg" and args[0].kind == "bool":
            op, args = "sub", [self.literal(0), *args]
        conditions = OPS[op].conditions
        wanted = self._wanted(op, [arg for index, arg in enumerate(args) if index not in conditions])
        kinds = ["bool" if index in conditions else wanted for index in range(len(args))]
        args = [self.cast(arg, kind) for arg, kind in zip(args, kinds, strict=True)]
        lanes = max(arg.lanes for arg in args)
        args = [self.wide(arg, lanes) for arg in args]
        if optimistic is not None:
            return optimistic(args[0], args[1])
        kind = "bool" if OPS[op].boolean else wanted
        return Value(self._spelled(op, wanted, vector(self.element_of(wanted), lanes), args), kind, lanes)

    def _wanted(self, op: str, args: Sequence[Value]) -> str:
        """Return the kind that an operation computes in."""
        if OPS[op].conditions and all(arg.kind == "bool" for arg in args):
            return "bool"
        whole = all(arg.kind == "index" or (arg.number is not None and arg.number == int(arg.number)) for arg in args
                    if arg.number is None or math.isfinite(arg.number))  # fmt: skip
        if any(arg.kind == "index" for arg in args) and whole and OPS[op].integer:
            return "index"
        return "value"

    def _spelled(self, op: str, wanted: str, kind: str, args: Sequence[Value]) -> str:
        texts = [arg.text for arg in args]
        floating = wanted == "value" and self.floating
        emit = self.function.emit
        if op in _ORDERED:
            word = "fcmp " + _ORDERED[op][0] if floating else "icmp " + _ORDERED[op][1]
            return emit(f"{word} {kind} {texts[0]}, {texts[1]}")
        if op in _LOGICAL:
            return _LOGICAL[op](self, kind, texts, args[0].lanes)
        if not floating:
            if op not in _INTEGER:
                raise BackendError(f"{op} needs floating-point operands")
            return _INTEGER[op](self, kind, texts, args[0].lanes)
        if op in _FLOATING:
            return _FLOATING[op](self, kind, texts, args[0].lanes)
        return self.call(op, kind, texts, args[0].lanes)

    def call(self, name: str, kind: str, texts: Sequence[str], lanes: int) -> str:
        """Return the call of a function of ``libm``."""
        self.needed.add((name, self.element, lanes))
        arguments = ", ".join(f"{kind} {text}" for text in texts)
        return self.function.emit(f"call {kind} @{symbol(name, self.element, lanes)}({arguments})")

    def select(self, condition: str, yes: str, no: str, kind: str, lanes: int) -> str:
        """Return one of two by a condition per lane."""
        return self.function.emit(f"select {vector('i1', lanes)} {condition}, {kind} {yes}, {kind} {no}")

    def literals(self, number: float, lanes: int) -> str:
        """Return a literal of the compute type in every lane."""
        return splat(self._literal_text(number, self.element), self.element, lanes)


_Row = Callable[[ExpressionEmitter, str, Sequence[str], int], str]


def _fast(word: str) -> _Row:
    def row(s: ExpressionEmitter, kind: str, x: Sequence[str], _: int) -> str:
        return s.function.emit(f"{word}{' contract' * s.fuse} {kind} {', '.join(x)}")

    return row


def _plain(word: str) -> _Row:
    return lambda s, kind, x, _: s.function.emit(f"{word} {kind} {', '.join(x)}")


def _intrinsic(name: str, last: str = "") -> _Row:
    def row(s: ExpressionEmitter, kind: str, x: Sequence[str], _: int) -> str:
        arguments = ", ".join(f"{kind} {text}" for text in x)
        return s.function.emit(f"call {kind} @llvm.{name}.{suffix(kind)}({arguments}{last})")

    return row


def _reciprocal(s: ExpressionEmitter, kind: str, x: Sequence[str], lanes: int) -> str:
    return s.function.emit(f"fdiv {kind} {s.literals(1, lanes)}, {x[0]}")


def _inverse_root(s: ExpressionEmitter, kind: str, x: Sequence[str], lanes: int) -> str:
    return _reciprocal(s, kind, [_intrinsic("sqrt")(s, kind, x, lanes)], lanes)


def _sign(s: ExpressionEmitter, kind: str, x: Sequence[str], lanes: int) -> str:
    """Return one with the sign of x; zeros and NaN are their own."""
    own = s.function.emit(f"fcmp ueq {kind} {x[0]}, zeroinitializer")
    one = _intrinsic("copysign")(s, kind, [s.literals(1, lanes), x[0]], lanes)
    return s.select(own, x[0], one, kind, lanes)


def _extremum(order: str) -> _Row:
    def row(s: ExpressionEmitter, kind: str, x: Sequence[str], lanes: int) -> str:
        first = s.function.emit(f"fcmp {order} {kind} {x[0]}, {x[1]}")
        better = s.select(first, x[0], x[1], kind, lanes)
        unordered = s.function.emit(f"fcmp uno {kind} {x[0]}, zeroinitializer")
        return s.select(unordered, x[0], better, kind, lanes)

    return row


def _integer_sign(s: ExpressionEmitter, kind: str, x: Sequence[str], lanes: int) -> str:
    element = kind.rsplit(" x ", maxsplit=1)[-1].rstrip(">")
    one, minus = splat("1", element, lanes), splat("-1", element, lanes)
    high = _intrinsic("smin")(s, kind, [x[0], one], lanes)
    return _intrinsic("smax")(s, kind, [high, minus], lanes)


_LOGICAL: dict[str, _Row] = {
    "and": _plain("and"),
    "or": _plain("or"),
    "not": lambda s, kind, x, lanes: s.function.emit(f"xor {kind} {x[0]}, {splat('true', 'i1', lanes)}"),
    "where": lambda s, kind, x, lanes: s.select(x[0], x[1], x[2], kind, lanes),
}
_FLOATING: dict[str, _Row] = {
    "add": _fast("fadd"),
    "sub": _fast("fsub"),
    "mul": _fast("fmul"),
    "div": _plain("fdiv"),
    "fmod": _plain("frem"),
    "neg": _plain("fneg"),
    "abs": _intrinsic("fabs"),
    "sign": _sign,
    "copysign": _intrinsic("copysign"),
    "min": _extremum("olt"),
    "max": _extremum("ogt"),
    "sqrt": _intrinsic("sqrt"),
    "floor": _intrinsic("floor"),
    "rcp": _reciprocal,
    "rsqrt": _inverse_root,
}
_INTEGER: dict[str, _Row] = {
    "add": _plain("add"),
    "sub": _plain("sub"),
    "mul": _plain("mul"),
    "neg": lambda s, kind, x, _: s.function.emit(f"sub {kind} zeroinitializer, {x[0]}"),
    "abs": _intrinsic("abs", ", i1 false"),
    "sign": _integer_sign,
    "min": _intrinsic("smin"),
    "max": _intrinsic("smax"),
}
SPELLED = frozenset({*_FLOATING, *_ORDERED, *_LOGICAL, *FUNCTIONS})
