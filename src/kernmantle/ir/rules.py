"""The table of algebraic rules: each row rewrites one pattern into another of equal value.

In patterns ``x y z w`` stand for anything, ``n m`` for what is not a comparison or logical, ``q`` for what is,
``c d`` for numeric literals. "Equal" means equal for every float, NaN and infinities included, up to rounding
and the sign of zero. Where a row differs beyond that, ``holds`` says on which arguments it does not. Rows that
are ``finite`` are used where values are known to be finite (derivatives) and only promise equality there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from .node import Node
from .ops import OPS
from .pattern import fill, read

Binding = Mapping[str, Node]


@dataclass(frozen=True)
class Rule:
    """One row: ``left`` becomes ``right``; ``holds`` is a condition on the pattern's variables."""

    left: str
    right: str
    holds: str = "true"
    finite: bool = False

    @property
    def op(self) -> str:
        """Operation that the pattern begins with."""
        return self.left.partition("(")[0]

    @cached_property
    def before(self) -> Node:
        """Pattern to match."""
        return read(self.left)

    @cached_property
    def after(self) -> Node:
        """The pattern that replaces it."""
        return read(self.right)


def _normal(x: str) -> str:
    """Return the condition that squares of ``x`` neither overflow nor underflow."""
    return f"or(eq({x},0),and(lt(1e-140,abs({x})),lt(abs({x}),1e140)))"


def _powers() -> tuple[Rule, ...]:
    square = "mul(x,x)"
    fourth = f"mul({square},{square})"
    products = {
        1.5: "mul(x,sqrt(x))", 2: square, 2.5: f"mul({square},sqrt(x))", 3: f"mul(x,{square})", 4: fourth,
        5: f"mul(x,{fourth})", 6: f"mul({square},{fourth})", 7: f"mul(x,mul({square},{fourth}))",
        8: f"mul({fourth},{fourth})",
    }  # fmt: skip
    roots = {0.5: "sqrt(x)", -0.5: "rsqrt(x)", -1.5: "mul(rcp(x),rsqrt(x))"}
    unsigned = "or(eq(x,inf),lt(abs(x),inf))"
    moderate = "or(eq(x,0),and(lt(1e-35,abs(x)),lt(abs(x),1e35)))"
    return (
        Rule("pow(x,0)", "1"),
        Rule("pow(1,x)", "1"),
        Rule("pow(n,1)", "n"),
        Rule("pow(x,-1)", "rcp(x)"),
        *(Rule(f"pow(x,{p})", text, unsigned if p % 1 else "true") for p, text in products.items()),
        *(Rule(f"pow(x,{p})", text, f"and({unsigned},ne(x,0))" if p < 0 else unsigned) for p, text in roots.items()),
        *(Rule(f"pow(x,-{p})", f"rcp({products[p]})", f"and({moderate},ne(x,0))") for p in (2, 3, 4)),
        Rule("pow(2,x)", "exp2(x)"),
        Rule(f"mul(x,mul(x,{square}))", fourth),
    )


def _signs() -> tuple[Rule, ...]:
    """Return the rows that follow from what the table of operations says of a function's sign."""
    functions = [row for row in OPS.values() if row.arity == 1]
    even = tuple(Rule(f"{row.name}(neg(x))", f"{row.name}(x)") for row in functions if row.parity == "even")
    odd = tuple(Rule(f"{row.name}(neg(x))", f"neg({row.name}(x))") for row in functions if row.parity == "odd")
    positive = tuple(Rule(f"abs({row.name}(x))", f"{row.name}(x)") for row in functions if row.never_negative)
    return even + odd + positive


_SMALL = "and(lt(0.1,abs(x)),lt(abs(x),700))"
_TRANSPARENT = (
    Rule("add(n,0)", "n"),
    Rule("sub(0,x)", "neg(x)"),
    Rule("sub(x,c)", "add(x,neg(c))"),
    Rule("add(n,n)", "mul(n,2)"),
    Rule("mul(n,1)", "n"),
    Rule("mul(n,-1)", "neg(n)"),
    Rule("div(1,x)", "rcp(x)"),
    Rule("div(n,1)", "n"),
    Rule("div(n,-1)", "neg(n)"),
    Rule("div(x,2)", "mul(x,0.5)"),
    Rule("div(x,-2)", "mul(x,-0.5)"),
    Rule("neg(neg(n))", "n"),
    Rule("add(x,neg(y))", "sub(x,y)"),
    Rule("sub(x,neg(y))", "add(x,y)"),
    Rule("sub(neg(x),y)", "neg(add(x,y))"),
    Rule("neg(sub(x,y))", "sub(y,x)"),
    Rule("neg(add(x,c))", "sub(neg(c),x)"),
    Rule("sub(x,mul(y,c))", "add(x,mul(y,neg(c)))"),
    Rule("mul(neg(x),y)", "neg(mul(x,y))"),
    Rule("div(neg(x),y)", "neg(div(x,y))"),
    Rule("div(x,neg(y))", "neg(div(x,y))"),
    Rule("neg(mul(x,c))", "mul(x,neg(c))"),
    Rule("neg(div(x,c))", "div(x,neg(c))"),
    Rule("neg(div(c,x))", "div(neg(c),x)"),
    Rule("neg(rcp(x))", "div(-1,x)"),
    Rule("mul(x,rcp(y))", "div(x,y)", f"or(eq(y,0),and({_normal('x')},{_normal('y')}))"),
    Rule("rcp(sqrt(x))", "rsqrt(x)"),
    Rule("rcp(rsqrt(x))", "sqrt(x)"),
    Rule("mul(abs(x),abs(x))", "mul(x,x)"),
    Rule("abs(mul(x,x))", "mul(x,x)"),
    Rule("abs(mul(x,c))", "mul(abs(x),abs(c))"),
    Rule("abs(copysign(x,y))", "abs(x)"),
    Rule("sqrt(mul(x,x))", "abs(x)", f"or({_normal('x')},eq(abs(x),inf))"),
    Rule("mul(sign(x),abs(x))", "x"),
    Rule("mul(x,sign(x))", "abs(x)"),
    Rule("copysign(abs(x),y)", "copysign(x,y)"),
    Rule("copysign(neg(x),y)", "copysign(x,y)"),
    Rule("copysign(n,n)", "n"),
    Rule("log(exp(x))", "x", _SMALL),
    Rule("log2(exp2(x))", "x", _SMALL),
    Rule("log1p(expm1(x))", "x", "and(lt(0.1,abs(x)),lt(abs(x),30))"),
    Rule("min(x,x)", "x"),
    Rule("max(x,x)", "x"),
    Rule("min(n,inf)", "n"),
    Rule("max(n,-inf)", "n"),
    Rule("min(neg(x),neg(y))", "neg(max(x,y))"),
    Rule("max(neg(x),neg(y))", "neg(min(x,y))"),
)
_LOGICAL = (
    Rule("gt(x,y)", "lt(y,x)"),
    Rule("ge(x,y)", "le(y,x)"),
    Rule("lt(x,x)", "false"),
    Rule("eq(abs(x),0)", "eq(x,0)"),
    Rule("eq(neg(x),0)", "eq(x,0)"),
    Rule("not(not(q))", "q"),
    Rule("not(eq(x,y))", "ne(x,y)"),
    Rule("not(ne(x,y))", "eq(x,y)"),
    Rule("and(q,true)", "q"),
    Rule("and(x,false)", "false"),
    Rule("and(q,q)", "q"),
    Rule("or(x,true)", "true"),
    Rule("or(q,false)", "q"),
    Rule("or(q,q)", "q"),
    Rule("where(true,x,y)", "x"),
    Rule("where(false,x,y)", "y"),
    Rule("where(z,x,x)", "x"),
    Rule("where(q,true,false)", "q"),
    Rule("where(q,false,true)", "not(q)"),
    Rule("where(not(z),x,y)", "where(z,y,x)"),
    Rule("where(ne(x,y),z,w)", "where(eq(x,y),w,z)"),
    Rule("where(z,where(z,x,y),w)", "where(z,x,w)"),
    Rule("where(z,x,where(z,y,w))", "where(z,x,w)"),
    Rule("where(eq(n,0),0,n)", "n"),
    Rule("where(z,0,neg(x))", "neg(where(z,0,x))"),
    Rule("add(where(z,0,x),where(z,0,y))", "where(z,0,add(x,y))"),
    Rule("sub(where(z,0,x),where(z,0,y))", "where(z,0,sub(x,y))"),
    Rule("mul(where(z,0,x),where(z,0,y))", "where(z,0,mul(x,y))"),
)
_FINITE = tuple(
    Rule(left, right, holds, finite=True)
    for left, right, holds in (
        ("mul(x,0)", "0", "true"),
        ("div(0,x)", "0", "ne(x,0)"),
        ("sub(x,x)", "0", "true"),
        ("mul(mul(x,c),d)", "mul(x,mul(c,d))", "true"),
        ("mul(div(x,c),d)", "mul(x,div(d,c))", "ne(c,0)"),
        ("mul(div(c,x),d)", "div(mul(c,d),x)", "ne(x,0)"),
        ("div(mul(x,c),d)", "mul(x,div(c,d))", "ne(d,0)"),
        ("mul(y,mul(x,c))", "mul(mul(x,y),c)", "true"),
        ("div(mul(x,c),y)", "mul(div(x,y),c)", "ne(y,0)"),
        ("add(mul(x,c),mul(x,d))", "mul(x,add(c,d))", "true"),
        ("add(n,mul(n,c))", "mul(n,add(c,1))", "true"),
        ("sub(n,mul(n,c))", "mul(n,sub(1,c))", "true"),
        ("sub(mul(n,c),n)", "mul(n,sub(c,1))", "true"),
        ("mul(sqrt(x),sqrt(x))", "x", "le(0,x)"),
        ("mul(rsqrt(x),rsqrt(x))", "rcp(x)", "lt(0,x)"),
        ("mul(x,rsqrt(x))", "sqrt(x)", "lt(0,x)"),
        ("div(sqrt(x),x)", "rsqrt(x)", "lt(0,x)"),
        ("div(x,sqrt(x))", "sqrt(x)", "lt(0,x)"),
        ("div(x,rcp(y))", "mul(x,y)", "ne(y,0)"),
        ("rcp(rcp(n))", "n", "ne(n,0)"),
        ("mul(x,div(y,x))", "y", "ne(x,0)"),
        ("mul(sign(n),mul(n,x))", "mul(abs(n),x)", "true"),
        ("mul(sign(n),div(n,x))", "div(abs(n),x)", "ne(x,0)"),
        ("mul(sign(n),mul(sign(n),x))", "where(eq(n,0),0,x)", "true"),
        ("mul(sign(n),div(sign(n),x))", "where(eq(n,0),0,rcp(x))", "ne(x,0)"),
        ("mul(sign(n),sign(n))", "where(eq(n,0),0,1)", "true"),
        ("where(z,0,mul(x,c))", "mul(where(z,0,x),c)", "true"),
    )
)

POWERS = tuple(
    Rule(left, right, finite=True)
    for left, right in (
        ("mul(x,sqrt(x))", "pow(x,1.5)"),
        ("mul(mul(x,x),sqrt(x))", "pow(x,2.5)"),
        ("mul(mul(x,x),sqrt(abs(x)))", "pow(abs(x),2.5)"),
        ("mul(abs(x),mul(x,x))", "pow(abs(x),3)"),
    )
)
"""Rows that gather the products of a power class again, whose derivatives are then free of masks."""

RULES: tuple[Rule, ...] = _powers() + _signs() + _TRANSPARENT + _LOGICAL + _FINITE


def is_boolean(node: Node) -> bool:
    """Return whether an expression is a comparison, a logical operation or true or false."""
    return OPS[node.op].boolean if node.args else isinstance(node.number, bool)


def _fits(name: str, node: Node) -> bool:
    if name in ("n", "m"):
        return not is_boolean(node)
    if name == "q":
        return is_boolean(node)
    return name not in ("c", "d") or (node.number is not None and not is_boolean(node))


def _match(pattern: Node, node: Node, bound: Binding) -> Binding | None:
    if pattern.op == "var":
        name = pattern.name
        if name in bound:
            return bound if bound[name] is node else None
        return {**bound, name: node} if _fits(name, node) else None
    if not pattern.args or pattern.op != node.op:
        return bound if pattern is node else None
    orders = (node.args, node.args[::-1]) if OPS[node.op].commutative else (node.args,)
    for args in orders:
        found: Binding | None = bound
        for part, arg in zip(pattern.args, args, strict=True):
            found = _match(part, arg, found)
            if found is None:
                break
        if found is not None:
            return found
    return None


@cache
def _by_operation(finite: bool) -> dict[str, tuple[tuple[Rule, frozenset[str]], ...]]:
    """Return the rules of each operation and which operations its arguments must have, for most do not fit by these."""
    table: dict[str, list[tuple[Rule, frozenset[str]]]] = defaultdict(list)
    for rule in RULES:
        if finite or not rule.finite:
            table[rule.op].append((rule, frozenset(arg.op for arg in rule.before.args if arg.op != "var")))
    return {op: tuple(rules) for op, rules in table.items()}


def apply(rule: Rule, node: Node) -> Node | None:
    """Return the node rewritten by a rule, None where the rule does not fit."""
    bound = _match(rule.before, node, {})
    return None if bound is None else fill(rule.after, bound)


def rewritten(node: Node, finite: bool) -> Node | None:
    """Return the node rewritten by the first rule that fits."""
    present = {arg.op for arg in node.args}
    for rule, needed in _by_operation(finite).get(node.op, ()):
        new = apply(rule, node) if needed <= present else None
        if new is not None and new is not node:
            return new
    return None
