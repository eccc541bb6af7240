"""Expressions as text: a canonical form for keys and a readable one for people."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .node import Node, Number, const, postorder, var
from .ops import OPS

_PRECEDENCE = {"or": 1, "and": 2, "not": 3, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4}
_PRECEDENCE |= {"add": 5, "sub": 5, "mul": 6, "div": 6, "neg": 7, "pow": 8}
_NUMBER = re.compile(r"-?(\d|inf|nan)")


def _literal(value: Number) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


def _number(text: str) -> Number:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else float(text)


def to_ssa(roots: Sequence[Node]) -> str:
    """Canonical text: operations in postorder, each naming earlier ones by %position, then the roots."""
    names: dict[int, str] = {}
    lines: list[str] = []
    for node in postorder(roots):
        if node.op == "var":
            names[id(node)] = node.name
        elif node.number is not None:
            names[id(node)] = _literal(node.number)
        else:
            names[id(node)] = f"%{len(lines)}"
            lines.append(" ".join([node.op, *(names[id(arg)] for arg in node.args)]))
    return ";".join([*lines, "> " + " ".join(names[id(root)] for root in roots)])


def from_ssa(text: str) -> tuple[Node, ...]:
    """Inverse of ``to_ssa``."""
    built: list[Node] = []

    def value(token: str) -> Node:
        if token.startswith("%"):
            return built[int(token[1:])]
        return const(_number(token)) if token in ("true", "false") or _NUMBER.match(token) else var(token)

    *lines, last = text.split(";")
    for line in lines:
        op, *args = line.split(" ")
        built.append(Node(op, tuple(map(value, args))))
    return tuple(map(value, last.split(" ")[1:]))


def pretty(node: Node, context: int = 0) -> str:
    """Python-like source of an expression."""
    if node.op == "var":
        return node.name
    if node.number is not None:
        number = node.number
        return str(number) if isinstance(number, bool) or math.isfinite(number) else f"{float(number)}"
    level = _PRECEDENCE.get(node.op, 9)
    symbol = OPS[node.op].infix
    if symbol is not None:
        left, right = node.args
        text = f"{pretty(left, level + (node.op == 'pow'))} {symbol} {pretty(right, level + (node.op != 'pow'))}"
    elif node.op == "neg":
        text = "-" + pretty(node.args[0], level)
    elif node.op == "not":
        text = "~" + pretty(node.args[0], level)
    else:
        return f"{node.op}({', '.join(map(pretty, node.args))})"
    return f"({text})" if level < context else text
