"""Immutable, hash-consed scalar expressions.

A node is a constant, a variable or one operation of the table in ``ops``. Equal expressions are the same
object, so comparison is identity and shared subexpressions are found for free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from weakref import WeakValueDictionary

Number = bool | int | float

_INTERNED: WeakValueDictionary[tuple[object, ...], Node] = WeakValueDictionary()
_EXACT_INTEGER = 2**53


class Node:
    """One vertex of an expression: ``op`` is "const", "var" or the name of a row of ``ops.OPS``."""

    __slots__ = ("__weakref__", "args", "op", "value")

    op: str
    args: tuple[Node, ...]
    value: Number | str | None

    def __new__(cls, op: str, args: tuple[Node, ...] = (), value: Number | str | None = None) -> Node:
        key = (op, tuple(map(id, args)), type(value), repr(value))
        found = _INTERNED.get(key)
        if found is not None:
            return found
        node = object.__new__(cls)
        object.__setattr__(node, "op", op)
        object.__setattr__(node, "args", args)
        object.__setattr__(node, "value", value)
        return _INTERNED.setdefault(key, node)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Node is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[type[Node], tuple[object, ...]]:
        return Node, (self.op, self.args, self.value)

    def __repr__(self) -> str:
        if self.op in ("const", "var"):
            return str(self.value)
        return f"{self.op}({', '.join(map(repr, self.args))})"

    @property
    def name(self) -> str:
        """Name of a variable."""
        assert self.op == "var"
        return str(self.value)

    @property
    def number(self) -> Number | None:
        """Value of a constant, None for anything else."""
        return self.value if self.op == "const" and not isinstance(self.value, str) else None


def var(name: str) -> Node:
    """Variable of that name."""
    return Node("var", (), name)


def const(value: Number) -> Node:
    """Constant; a float with an exact integer value becomes that integer, so 2 and 2.0 are one node."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_INTEGER:
        if value != 0.0 or math.copysign(1.0, value) > 0:
            value = int(value)
    return Node("const", (), value)


def postorder(roots: Iterable[Node]) -> list[Node]:
    """Every node below the roots once, arguments before their users."""
    seen: set[int] = set()
    order: list[Node] = []
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args))
    return order


def variables(roots: Iterable[Node]) -> list[str]:
    """Names of the variables below the roots, in order of first use."""
    return [node.name for node in postorder(roots) if node.op == "var"]


def rewrite(roots: Iterable[Node], leaf: Callable[[Node], Node], build: Callable[[Node, tuple[Node, ...]], Node]) -> list[Node]:
    """Rebuild expressions bottom-up: ``leaf`` maps constants and variables, ``build`` the operations."""
    roots = list(roots)
    new: dict[int, Node] = {}
    for node in postorder(roots):
        if node.args:
            new[id(node)] = build(node, tuple(new[id(arg)] for arg in node.args))
        else:
            new[id(node)] = leaf(node)
    return [new[id(root)] for root in roots]


def _same_operation(node: Node, args: tuple[Node, ...]) -> Node:
    return Node(node.op, args)


def substitute(roots: Iterable[Node], by: Mapping[str, Node]) -> list[Node]:
    """Replace variables by expressions."""
    return rewrite(roots, lambda leaf: by.get(leaf.name, leaf) if leaf.op == "var" else leaf, _same_operation)
