"""Expressions as text: a canonical form for keys and a readable one for people."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .node import Node, Number, const, postorder, var
from .ops import OPS

_LEVELS = (
    ("lt", "le", "gt", "ge", "eq", "ne"),
    ("or",),
    ("and",),
    ("add", "sub"),
    ("mul", "div"),
    ("neg", "not"),
    ("pow",),
)
_PRECEDENCE = {op: level for level, ops in enumerate(_LEVELS, 1) for op in ops}
_SIGNED, _ATOM = 6, 8
_COMPARISON = 1
_NUMBER = re.compile(r"-?(\d.*|inf|nan)")
_LONGEST = 600  # characters
_WORDS = ("true", "false", "inf", "nan")


def _literal(value: Number) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


def number_of(text: str) -> Number:
    """Return the number of its text: integers stay integers."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else float(text)


def to_ssa(roots: Sequence[Node]) -> str:
    """Return the canonical text: operations in postorder, each naming earlier ones by %position, then the roots."""
    names: dict[int, str] = {}
    lines: list[str] = []
    for node in postorder(roots):
        if node.op == "var":
            names[id(node)] = f"${node.name}" if node.name in _WORDS else node.name
        elif node.number is not None:
            names[id(node)] = _literal(node.number)
        else:
            names[id(node)] = f"%{len(lines)}"
            lines.append(" ".join([node.op, *(names[id(arg)] for arg in node.args)]))
    return ";".join([*lines, "> " + " ".join(names[id(root)] for root in roots)])


def from_ssa(text: str) -> tuple[Node, ...]:
    """Return the inverse of ``to_ssa``."""
    built: list[Node] = []

    def value(token: str) -> Node:
        if token.startswith("%"):
            return built[int(token[1:])]
        if token in ("true", "false") or _NUMBER.fullmatch(token):
            return const(number_of(token))
        return var(token.removeprefix("$"))

    *lines, last = text.split(";")
    for line in lines:
        op, *args = line.split(" ")
        built.append(Node(op, tuple(map(value, args))))
    return tuple(map(value, last.split(" ")[1:]))


def _bracketed(text: tuple[str, int], context: int) -> str:
    return f"({text[0]})" if text[1] < context else text[0]


def _spell(node: Node, args: list[tuple[str, int]]) -> tuple[str, int]:
    """Return the source of one node and its precedence, given those of its arguments."""
    if node.op == "var":
        return node.name, _ATOM
    if node.number is not None:
        number = node.number
        text = str(number) if isinstance(number, bool) or math.isfinite(number) else f"{float(number)}"
        return text, _SIGNED if text.startswith("-") else _ATOM
    level = _PRECEDENCE.get(node.op, _ATOM)
    symbol = OPS[node.op].infix
    if symbol is not None:
        (left, right), power = args, node.op == "pow"
        head = _bracketed(left, level + (power or level == _COMPARISON))
        if node.op == "add" and right[0].startswith("-") and node.args[1].number is not None:
            return f"{head} - {right[0][1:]}", level
        return f"{head} {symbol} {_bracketed(right, level + (not power))}", level
    if node.op in ("neg", "not"):
        return ("-" if node.op == "neg" else "~") + _bracketed(args[0], level), level
    return f"{node.op}({', '.join(text for text, _ in args)})", _ATOM


def pretty(node: Node, longest: int = _LONGEST) -> str:
    """Python source of an expression; parts of more than ``longest`` characters are elided."""
    texts: dict[int, tuple[str, int]] = {}
    for part in postorder([node]):
        text, level = _spell(part, [texts[id(arg)] for arg in part.args])
        texts[id(part)] = (text, level) if len(text) <= longest else (f"{part.op}(...)", _ATOM)
    return texts[id(node)][0]
