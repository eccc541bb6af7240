"""Symbolic derivatives of expressions."""

from __future__ import annotations

from collections.abc import Sequence

from .node import Node, const, postorder, rewrite, substitute, var
from .ops import OPS
from .rules import POWERS, apply
from .simplify import simplify

_ZERO, _ONE = const(0), const(1)
_DEEPEST_MASK = 2  # nested masks through which a slope is simplified


def _times(slope: Node, tangent: Node, masks: int = _DEEPEST_MASK) -> Node:
    """Return the product that leaves masks outermost: what is masked away is never multiplied."""
    if slope is _ZERO or tangent is _ZERO:
        return _ZERO
    if tangent is _ONE:
        return slope
    if slope is _ONE:
        return tangent
    if slope.op == "where" and masks:
        condition, yes, no = slope.args
        return Node("where", (condition, _times(yes, tangent, masks - 1), _times(no, tangent, masks - 1)))
    if tangent.op == "where" and tangent.args[1] is _ZERO:
        condition, _, rest = tangent.args
        return Node("where", (condition, _ZERO, Node("mul", (slope, rest))))
    return Node("mul", (slope, tangent))


def _plus(left: Node, right: Node) -> Node:
    if left is _ZERO or right is _ZERO:
        return right if left is _ZERO else left
    return Node("add", (left, right))


def _tangent(node: Node, tangents: Sequence[Node]) -> Node:
    """Return the derivative of an operation given those of its arguments."""
    row = OPS[node.op]
    if not row.slopes or all(tangent is _ZERO for tangent in tangents):
        return _ZERO
    if node.op == "where":
        _, yes, no = tangents
        return yes if yes is no else Node("where", (node.args[0], yes, no))
    total = _ZERO
    for slope, tangent in zip(row.partials(node), tangents, strict=True):
        if slope is not None:
            total = _plus(total, _times(slope, tangent))
    return total


def _gathered(root: Node) -> Node:
    def build(node: Node, args: tuple[Node, ...]) -> Node:
        rebuilt = Node(node.op, args)
        powers = (apply(rule, rebuilt) for rule in POWERS if node.op == "mul")
        return next((power for power in powers if power is not None), rebuilt)

    return rewrite([root], lambda leaf: leaf, build)[0]


def _partial(order: Sequence[Node], name: str) -> Node:
    tangents: dict[Node, Node] = {}
    for node in order:
        if node.args:
            tangents[node] = _tangent(node, [tangents[arg] for arg in node.args])
        else:
            tangents[node] = _ONE if node is var(name) else _ZERO
    return tangents[order[-1]]


def differentiate(root: Node, names: Sequence[str]) -> tuple[Node, ...]:
    """Return the simplified partial derivatives of an expression by variables, 0 where it does not depend on one.

    The branch that a ``where`` does not select never contributes, and slopes are masked at singular points.
    """
    order = postorder([_gathered(root)])
    return simplify([_partial(order, name) for name in names], finite=True)


def is_symmetric(roots: Sequence[Node], first: str, second: str) -> bool:
    """Return whether the rules prove that swapping two variables changes nothing."""
    swapped = substitute(roots, {first: var(second), second: var(first)})
    return simplify(swapped) == simplify(roots)
