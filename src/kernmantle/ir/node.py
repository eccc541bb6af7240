"""Immutable, hash-consed scalar expressions.

A node is a constant, a variable or one operation of the table in ``ops``. Equal expressions are the same
object, so comparison is identity and shared subexpressions are found for free.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from threading import Lock
from weakref import WeakValueDictionary

Number = bool | int | float
Order = tuple[int, str, str]

_INTERNED: WeakValueDictionary[tuple[object, ...], Node] = WeakValueDictionary()
_INTERNING = Lock()
_EXACT_INTEGER = 2**53  # integers below are exact in float64
_INFINITE = 2**1024  # integers from here on are infinite in float64
_LONGEST_ORDER = 160  # characters; longer ones are shortened to a digest
_LONGEST_REPR = 400  # characters


class Node:
    """One vertex of an expression: ``op`` is "const", "var" or the name of a row of ``ops.OPS``.

    ``order`` sorts the arguments of commutative operations: it depends on the expression alone, never on
    identities, and compares liftable literals last so that their values rarely decide.
    """

    __slots__ = ("__weakref__", "args", "op", "order", "value")

    op: str
    order: Order
    args: tuple[Node, ...]
    value: Number | str | None

    def __new__(cls, op: str, args: tuple[Node, ...] = (), value: Number | str | None = None) -> Node:
        """Return the one node of this operation, arguments and value."""
        key = (op, tuple(map(id, args)), type(value), repr(value))
        with _INTERNING:  # torch.compile does not trace locks: it stops here, before it guards every entry of the table
            found = _INTERNED.get(key)
        if found is not None:
            return found
        node = object.__new__(cls)
        object.__setattr__(node, "op", op)
        object.__setattr__(node, "args", args)
        object.__setattr__(node, "value", value)
        object.__setattr__(node, "order", _order(op, args, value))
        with _INTERNING:
            return _INTERNED.setdefault(key, node)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Node is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[Callable[[list[Record]], Node], tuple[list[Record]]]:
        return _unpickle, (_records(self),)

    def __repr__(self) -> str:
        text: dict[int, str] = {}
        for node in postorder([self]):
            joined = f"{node.op}({', '.join(text[id(arg)] for arg in node.args)})" if node.args else str(node.value)
            text[id(node)] = joined if len(joined) <= _LONGEST_REPR else f"{node.op}(...)"
        return text[id(self)]

    @property
    def name(self) -> str:
        """Name of a variable."""
        assert self.op == "var"
        return str(self.value)

    @property
    def number(self) -> Number | None:
        """Value of a constant, None for anything else."""
        return self.value if self.op == "const" and not isinstance(self.value, str) else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_INTERNING.acquire, after_in_parent=_INTERNING.release, after_in_child=_INTERNING.release
    )


Record = tuple[str, tuple[int, ...], Number | str | None]


def _records(root: Node) -> list[Record]:
    """Return the flat form of an expression, whose depth no pickle recurses into."""
    order = postorder([root])
    position = {id(node): index for index, node in enumerate(order)}
    return [(node.op, tuple(position[id(arg)] for arg in node.args), node.value) for node in order]


def _unpickle(records: list[Record]) -> Node:
    built: list[Node] = []
    for op, args, value in records:
        built.append(Node(op, tuple(built[arg] for arg in args), value))
    return built[-1]


def liftable(value: Number | None) -> bool:
    """Return whether a literal is passed as a parameter rather than compiled in."""
    return value is not None and not isinstance(value, bool) and math.isfinite(value) and value not in (-1, 0, 1, 2)


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_ORDER:
        return text
    return text[: _LONGEST_ORDER // 2] + "#" + blake2b(text.encode(), digest_size=12).hexdigest()


def _order(op: str, args: tuple[Node, ...], value: Number | str | None) -> Order:
    if op == "var":
        return 0, str(value), ""
    if op == "const":
        assert not isinstance(value, str)
        return 2, "~" if liftable(value) else repr(value), repr(value)
    shape = f"{op}({','.join(arg.order[1] for arg in args)})"
    exact = f"{op}({','.join(arg.order[2] or arg.order[1] for arg in args)})"
    return 1, _shortened(shape), _shortened(exact)


def var(name: str) -> Node:
    """Return the variable of that name."""
    return Node("var", (), name)


def const(value: Number) -> Node:
    """Return the constant; a float with an exact integer value becomes that integer, so 2 and 2.0 are one node."""
    if isinstance(value, int) and abs(value) >= _INFINITE:
        value = math.inf if value > 0 else -math.inf
    elif isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_INTEGER and repr(value) != "-0.0":
        value = int(value)
    return Node("const", (), value)


def postorder(roots: Iterable[Node]) -> list[Node]:
    """Return every node below the roots once, arguments before their users."""
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
    """Return the names of the variables below the roots, in order of first use."""
    return [node.name for node in postorder(roots) if node.op == "var"]


def rewrite(
    roots: Iterable[Node], leaf: Callable[[Node], Node], build: Callable[[Node, tuple[Node, ...]], Node]
) -> list[Node]:
    """Rebuild expressions bottom-up: ``leaf`` maps constants and variables, ``build`` the operations."""
    roots = list(roots)
    new: dict[int, Node] = {}
    for node in postorder(roots):
        if node.args:
            new[id(node)] = build(node, tuple(new[id(arg)] for arg in node.args))
        else:
            new[id(node)] = leaf(node)
    return [new[id(root)] for root in roots]


def substitute(roots: Iterable[Node], by: Mapping[str, Node]) -> list[Node]:
    """Replace variables by expressions."""
    return rewrite(
        roots,
        lambda leaf: by.get(leaf.name, leaf) if leaf.op == "var" else leaf,
        lambda node, args: Node(node.op, args),
    )
