"""Scalar expressions as CUDA C++ statements: a row of the table per operation, kinds converted where they meet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...compiler.patterns import is_abs_difference
from ...ir.node import Node, Number, postorder
from ...ir.ops import OPS

# A name is a function of namespace km; anything with braces is a pattern over the arguments.
SPELLINGS: dict[str, str] = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}", "pow": "pow",
    "fmod": "::fmod({}, {})",
    "abs": "abs", "sign": "sign", "copysign": "copysign", "min": "min", "max": "max", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "rcp": "rcp", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2",
    "log1p": "log1p", "sin": "sin", "cos": "cos", "tan": "tan", "acos": "acos", "tanh": "tanh", "erf": "erf",
    "sigmoid": "sigmoid", "floor": "floor", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}",
    "eq": "{} == {}", "ne": "{} != {}", "and": "{} && {}", "or": "{} || {}", "not": "!{}", "where": "{} ? {} : {}",
}  # fmt: skip

WITHIN = {"sin": "sine_within", "cos": "cosine_within"}
"""Functions with a form for moderate arguments, which reports other arguments: the name of that form."""

TYPES = {"value": "C", "bool": "bool", "index": "km::i64"}
_ROOTS = {0.5: "km::sqrt({0})", 1.5: "{0} * km::sqrt({0})", 2.5: "{0} * {0} * km::sqrt({0})"}
_APPROXIMATE = {0.5: "km::root_fast({0})", 1.5: "{0} * km::root_factor({0})", 2.5: "{0} * {0} * km::root_factor({0})"}
_PRODUCTS = {1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 4: "({0} * {0}) * ({0} * {0})"}

Typed = tuple[str, str]
"""Text of a value and its kind: "value", "bool" or "index"."""


def literal(value: Number, kind: str = "value") -> str:
    """Return a number as a constant of that kind."""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "index":
        return f"km::i64({int(value)})"
    if isinstance(value, bool):
        return f"C({int(value)})"
    if math.isnan(value):
        return "km::not_a_number<C>()"
    if math.isinf(value):
        return "km::infinity<C>()" if value > 0 else "km::negative_infinity<C>()"
    if isinstance(value, int) and abs(value) >= 2**31:
        return f"C({float(value)!r})" if abs(value) >= 2**62 else f"C({value}ll)"
    return f"C({value!r})"


def cast(typed: Typed, kind: str) -> str:
    """Return the text of a value as another kind."""
    text, own = typed
    if own == kind:
        return text
    if kind == "bool":
        return f"({text} != {'C' if own == 'value' else TYPES[own]}(0))"
    return f"{TYPES[kind]}({text})"


def _power(base: str, exponent_text: str, node: Node, approximate: bool) -> str | None:
    """Cheaper form of a power, where there is one; ``approximate`` allows the approximations of the inner loop."""
    exponent = node.args[1].number
    never_negative = bool(node.args[0].args) and OPS[node.args[0].op].never_negative
    if isinstance(exponent, bool):
        return None
    if exponent in _PRODUCTS:
        return _PRODUCTS[int(exponent)].format(base)
    if not never_negative:
        return None
    if exponent in _ROOTS:
        return (_APPROXIMATE if approximate else _ROOTS)[float(exponent)].format(base)
    if not approximate:
        return None
    return f"km::power_fast({base}, {exponent_text})"


def _mixed(approximate: str, base: str, exponent_text: str, exponent: object, difference: str, degree: int) -> str:
    """Return a power of |difference| by table, by special function or approximately, as the template parameter says."""
    unit = f"km::power_unit({difference}, {exponent_text})"
    if exponent in _ROOTS:
        unit = f"km::root_factor({base})" if exponent == 0.5 else approximate
    return _chosen(approximate, unit, difference, degree)


def _chosen(approximate: str, unit: str, difference: str, degree: int) -> str:
    coefficients = ", ".join(f"number.q{i + 1}" for i in range(degree))
    table = f"km::power_table({difference}, scale, {coefficients})"
    return f"METHOD == km::BY_TABLE ? {table} : METHOD == km::BY_UNIT ? {unit} : {approximate}"


class ExpressionEmitter:
    """Collects the statements of one function body.

    With ``table``, the degree of a polynomial, powers may be taken by table; with ``apart`` long functions are called,
    not put in place; with ``within`` those of ``WITHIN`` set ``large``.
    """

    def __init__(
        self,
        environment: Mapping[str, Typed],
        floating: bool,
        prefix: str = "t",
        approximate: bool = False,
        table: int = 0,
        apart: bool = False,
        within: bool = False,
    ):
        self.apart = apart
        self.within = within
        self.environment = environment
        self.approximate = approximate
        self.table = table
        self.floating = floating
        self.prefix = prefix
        self.code: list[str] = []
        self._emitted: dict[int, Typed] = {}

    def expressions(self, roots: Sequence[Node]) -> list[Typed]:
        """Emit statements for every node below the roots, and return the names of the roots."""
        for node in postorder(roots):
            if id(node) not in self._emitted:
                self._emitted[id(node)] = self._name(node)
        return [self._emitted[id(root)] for root in roots]

    def _name(self, node: Node) -> Typed:
        if node.op == "var":
            return self.environment[node.name]
        if node.number is not None:
            kind = "bool" if isinstance(node.number, bool) else "value"
            return literal(node.number, kind), kind
        text, kind = self._operation(node)
        name = f"{self.prefix}{len(self.code)}"
        self.code.append(f"const {TYPES[kind]} {name} = {text};")
        return name, kind

    def _operation(self, node: Node) -> Typed:
        args = [self._emitted[id(arg)] for arg in node.args]
        conditions = OPS[node.op].conditions
        wanted = self._wanted(node, [index for index in range(len(args)) if index not in conditions])
        texts = [
            self._argument(node.args[index], typed, "bool" if index in conditions else wanted)
            for index, typed in enumerate(args)
        ]
        kind = "bool" if OPS[node.op].boolean else wanted
        special = _power(texts[0], texts[1], node, self.approximate) if node.op == "pow" and self.floating else None
        if special is not None and self.table and node.args[1].number not in (1, 2, 3, 4):
            (difference,) = (self._emitted[id(inside)][0] for inside in node.args[0].args)
            return _mixed(special, texts[0], texts[1], node.args[1].number, difference, self.table), kind
        if special is not None:
            return special, kind
        if node.op == "sqrt" and self.table and is_abs_difference(node.args[0]):
            (difference,) = (self._emitted[id(inside)][0] for inside in node.args[0].args)
            return _chosen(f"km::root_fast({texts[0]})", f"km::root_factor({texts[0]})", difference, self.table), kind
        spelling = SPELLINGS[node.op]
        if "{" in spelling:
            return spelling.format(*texts), kind
        if self.within and node.op in WITHIN:
            return f"km::{WITHIN[node.op]}({texts[0]}, large)", kind
        called = self.apart and OPS[node.op].cost == "long" and self.floating
        return f"{'km::apart' if called else 'km'}::{spelling}({', '.join(texts)})", kind

    def _wanted(self, node: Node, operands: Sequence[int]) -> str:
        """Return the kind that an operation computes in: indices stay whole only among indices and whole numbers."""
        kinds = {self._emitted[id(node.args[index])][1] for index in operands}
        if node.op == "where" and kinds == {"bool"}:
            return "bool"
        others = [node.args[index] for index in operands if self._emitted[id(node.args[index])][1] != "index"]
        numbers = [other.number for other in others if other.number is not None]
        whole = len(numbers) == len(others) and all(
            math.isfinite(number) and number == int(number) for number in numbers
        )
        return "index" if "index" in kinds and whole and OPS[node.op].integer else "value"

    def _argument(self, node: Node, typed: Typed, kind: str) -> str:
        if node.number is not None:
            return literal(node.number, kind)
        return cast(typed, kind)
