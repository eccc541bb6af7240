"""Expressions evaluated for every pair, rid of what is the same for all pairs.

Factors that are the same everywhere are gathered into one, so that a division by a bandwidth costs no division,
and what is made of numbers alone is evaluated once, by the host and in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ir.node import Node, const, postorder, rewrite, var

_FACTORED = ("neg", "mul", "div")


@dataclass(frozen=True)
class Folded:
    """Expressions that read the further numbers ``names``, which are the values of ``values``."""

    outputs: tuple[Node, ...]
    names: tuple[str, ...]
    values: tuple[Node, ...]


class _Uniform:
    """Which expressions are made of constants and some variables."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._uniform: dict[Node, bool] = {}

    def covers(self, root: Node) -> bool:
        if root not in self._uniform:
            for node in postorder([root]):
                if node not in self._uniform:
                    of_leaf = node.op == "const" or (node.op == "var" and node.name in self.names)
                    self._uniform[node] = all(self._uniform[arg] for arg in node.args) if node.args else of_leaf
        return self._uniform[root]

    def split(self, node: Node) -> tuple[Node, Node | None]:
        """Return an expression as a core times a uniform factor, None for 1."""
        if node.op == "neg":
            core, factor = self.split(node.args[0])
            return core, const(-1) if factor is None else Node("neg", (factor,))
        if node.op == "mul":
            for mine, other in (node.args, node.args[::-1]):
                if self.covers(mine):
                    core, factor = self.split(other)
                    return core, mine if factor is None else Node("mul", (factor, mine))
        if node.op == "div" and self.covers(node.args[1]):
            core, factor = self.split(node.args[0])
            below = node.args[1]
            return core, Node("rcp", (below,)) if factor is None else Node("div", (factor, below))
        return node, None

    def gathered(self, old: Node, args: tuple[Node, ...]) -> Node:
        """Return a node with new arguments, its uniform factors in one."""
        node = Node(old.op, args)
        if node.op not in _FACTORED or self.covers(node):
            return node
        core, factor = self.split(node)
        if factor is None:
            return node
        return Node("neg", (core,)) if factor.number == -1 else Node("mul", (core, factor))


def by_reciprocals(roots: Sequence[Node], names: Iterable[str]) -> tuple[Node, ...]:
    """Return expressions that multiply by the reciprocal of what is made of ``names`` instead of dividing by it."""
    uniform = _Uniform(names)

    def multiplied(old: Node, args: tuple[Node, ...]) -> Node:
        if old.op == "div" and args[1].number is None and uniform.covers(args[1]):
            return Node("mul", (args[0], Node("rcp", (args[1],))))
        return Node(old.op, args)

    return tuple(rewrite(roots, lambda leaf: leaf, multiplied))


def fold(outputs: Sequence[Node], numbers: Sequence[str], scalars: Sequence[str] = (), letter: str = "u") -> Folded:
    """Gather what is made of ``numbers`` and name it; also the factors with ``scalars``, which are uniform as well."""
    uniform, of_numbers = _Uniform((*numbers, *scalars)), _Uniform(numbers)
    roots = rewrite(outputs, lambda leaf: leaf, uniform.gathered)
    found: dict[Node, str] = {}
    new: dict[Node, Node] = {}
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in new or not node.args:
            new.setdefault(node, node)
            stack.pop()
        elif of_numbers.covers(node):
            new[node] = var(found.setdefault(node, f"{letter}{len(found)}"))
        else:
            pending = [arg for arg in node.args if arg not in new]
            stack.extend(pending)
            if not pending:
                new[node] = Node(node.op, tuple(new[arg] for arg in node.args))
    return Folded(tuple(new[root] for root in roots), tuple(found.values()), tuple(found))
