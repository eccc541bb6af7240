"""Expressions written as nested calls, ``where(eq(x,0),0,rcp(x))``, and filled in for their variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from .node import Node, Number, const, var

_TOKEN = re.compile(r"\s*([(),]|[^\s(),]+)")
_WORDS: dict[str, Number] = {"true": True, "false": False, "inf": float("inf"), "-inf": float("-inf")}


@lru_cache(maxsize=1024)
def read(text: str) -> Node:
    """Return the expression of a text."""
    tokens = [match.group(1) for match in _TOKEN.finditer(text)]

    def expression() -> Node:
        head = tokens.pop(0)
        if tokens and tokens[0] == "(":
            args: list[Node] = []
            while tokens.pop(0) != ")":
                args.append(expression())
            return Node(head, tuple(args))
        if head in _WORDS:
            return const(_WORDS[head])
        return var(head) if head.isidentifier() else const(float(head))

    return expression()


def fill(pattern: Node, values: Mapping[str, Node]) -> Node:
    """Return the pattern with its variables replaced."""
    if pattern.op == "var":
        return values[pattern.name]
    return Node(pattern.op, tuple(fill(arg, values) for arg in pattern.args)) if pattern.args else pattern
