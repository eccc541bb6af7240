"""Canonical expressions: constants folded, rules applied, commutative arguments in one order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .node import Node, Number, const, liftable, postorder, rewrite, var, variables
from .ops import OPS
from .rules import rewritten


def power_classes() -> tuple[float, ...]:
    """Return the exponents with kernels of their own.

    torch.compile takes the numbers of a function as they are; those of a module are symbolic where sizes are dynamic.
    """
    return 0.5, 1, 1.5, 2, 2.5, 3, 4


POWER_CLASSES = power_classes()
_LONGEST_CHAIN = 8  # terms of a sum that are collected


def _folded(node: Node) -> Node | None:
    numbers = [arg.number for arg in node.args]
    values = [number for number in numbers if number is not None]
    if len(values) < len(numbers):
        return None
    return const(OPS[node.op].value(*values))


def _ordered(node: Node) -> Node:
    if OPS[node.op].commutative and node.args[0].order > node.args[1].order:
        return Node(node.op, (node.args[1], node.args[0]))
    return node


def _backwards(node: Node) -> bool:
    return node.op == "sub" and node.args[0].order > node.args[1].order


def _swapped(node: Node) -> Node:
    return Node("sub", (node.args[1], node.args[0]))


def _negated(node: Node, depth: int = _LONGEST_CHAIN) -> Node | None:
    """Return the negative of an odd function of a difference that is the wrong way round, by turning that."""
    if _backwards(node):
        return _swapped(node)
    if not depth or not node.args or OPS[node.op].parity != "odd":
        return None
    negated = [_negated(arg, depth - 1) for arg in node.args]
    if sum(arg is not None for arg in negated) != 1:
        return None
    return Node(node.op, tuple(new or old for new, old in zip(negated, node.args, strict=True)))


def _difference_ordered(node: Node) -> Node | None:
    """Differences in one order below even functions and in products of two of them."""
    if OPS[node.op].parity == "even":
        inner = _negated(node.args[0])
        return None if inner is None else Node(node.op, (inner,))
    if node.op == "mul":
        left, right = node.args
        if left is right:
            inner = _negated(left)
            return None if inner is None else Node("mul", (inner, inner))
        if left.op == right.op == "sub" and left is not right and (_backwards(left) or _backwards(right)):
            factors = tuple(_swapped(arg) if _backwards(arg) else arg for arg in node.args)
            product = Node("mul", factors)
            return product if _backwards(left) and _backwards(right) else Node("neg", (product,))
    return None


def _chain(node: Node) -> list[Node]:
    """Return the arguments of nested uses of one operation; none if there are too many."""
    parts: list[Node] = []
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if part.op == node.op:
            waiting.extend(part.args)
        else:
            parts.append(part)
        if len(parts) + len(waiting) > _LONGEST_CHAIN:
            return []
    return parts


def _associated(node: Node) -> Node | None:
    """Return the chains of an operation that is associative for every float, in one order and without repetition."""
    if not OPS[node.op].associative or all(arg.op != node.op for arg in node.args):
        return None
    chain: Node | None = None
    for part in sorted(dict.fromkeys(_chain(node)), key=lambda part: part.order):
        chain = part if chain is None else _ordered(Node(node.op, (chain, part)))
    return chain


def _chosen(node: Node) -> Node | None:
    """Return the branch of a ``where`` on a number."""
    number = node.args[0].number if node.op == "where" else None
    return None if number is None else node.args[1] if number else node.args[2]


def _step(node: Node, finite: bool) -> Node | None:
    for rule in (_folded, _difference_ordered, _associated, _chosen):
        new = rule(node)
        if new is not None and new is not node:
            return new
    return rewritten(node, finite)


def _simplified(roots: Sequence[Node], finite: bool, done: dict[Node, Node], exact: dict[Node, Node]) -> None:
    """Fill ``done`` with the canonical form of everything below the roots, ``exact`` with that of comparisons."""
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        if finite and node.args and OPS[node.op].comparison:
            # Values that are compared must round as they do where they were computed, or ties are missed.
            _simplified([node], False, exact, exact)
            done[node] = exact[node]
            continue
        pending = [arg for arg in node.args if arg not in done]
        if pending:
            stack.extend(pending)
            continue
        if not node.args:
            done[node] = node
            continue
        rebuilt = _ordered(Node(node.op, tuple(done[arg] for arg in node.args)))
        if rebuilt not in done:
            new = _step(rebuilt, finite)
            if new is None:
                done[rebuilt] = rebuilt
            else:
                _simplified([new], finite, done, exact)
                done[rebuilt] = done[new]
        done[node] = done[rebuilt]


@lru_cache(maxsize=1024)
def _cached(roots: tuple[Node, ...], finite: bool) -> tuple[Node, ...]:
    done: dict[Node, Node] = {}
    _simplified(roots, finite, done, {} if finite else done)
    return tuple(done[root] for root in roots)


def simplify(roots: Sequence[Node], finite: bool = False) -> tuple[Node, ...]:
    """Return the canonical form of expressions: of equal value, up to rounding and the sign of zero.

    Expressions that the rules prove equal become the same. ``finite`` allows rules that hold for finite values only,
    such as ``0 * x -> 0``; for derivatives.
    """
    return _cached(tuple(roots), finite)


def _is_class_exponent(node: Node) -> bool:
    number = node.number
    return number is not None and not isinstance(number, bool) and abs(number) in POWER_CLASSES


def lift(roots: Sequence[Node]) -> tuple[tuple[Node, ...], dict[str, Number]]:
    """Turn numeric literals of simplified expressions into variables, so that their values do not matter to the code.

    Return the expressions over c0, c1, ..., one per distinct literal in order of appearance, and the number of each.
    Booleans, infinities, NaN, -1, 0, 1, 2 and exponents of a power class stay.
    """
    taken = set(variables(roots))
    fresh = (name for name in (f"c{index}" for index in range(len(taken) + len(postorder(roots)))) if name not in taken)
    names: dict[Node, str] = {}

    def leaf(node: Node) -> Node:
        if not liftable(node.number):
            return node
        return var(names[node])

    def build(node: Node, args: tuple[Node, ...]) -> Node:
        if node.op == "pow" and _is_class_exponent(node.args[1]):
            args = (args[0], node.args[1])
        return _ordered(Node(node.op, args))

    for node in _lifted_order(roots):
        names[node] = next(fresh)
    lifted = rewrite(roots, lambda node: leaf(node) if node in names else node, build)
    values = {name: node.number for node, name in names.items() if node.number is not None}
    return tuple(lifted), values


def _lifted_order(roots: Sequence[Node]) -> list[Node]:
    """Return literals that some operation uses other than as an exponent of a power class."""
    used = {
        arg
        for node in postorder(roots)
        for at, arg in enumerate(node.args)
        if liftable(arg.number) and not (node.op == "pow" and at == 1 and _is_class_exponent(arg))
    }
    used |= {root for root in roots if liftable(root.number)}
    return [node for node in postorder(roots) if node in used]


def exponents(roots: Sequence[Node]) -> set[str]:
    """Return the names of the variables that appear in the exponent of a power."""
    return {name for node in postorder(roots) if node.op == "pow" for name in variables([node.args[1]])}
