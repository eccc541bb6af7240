"""Known algebra, recognised on the canonical expression and never by a name: the one recogniser of all schedules.

Products and their factors, differences and their absolute values, powers, matrix products, sums of squared
differences, homogeneous maps. What gradients of distances look like is in ``gradient_patterns``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..ir.node import Node, const, postorder, rewrite, var, variables
from ..ir.ops import OPS
from ..ir.program import Program
from .nest import Nest

SCALED = "t0"
_MOST_PARTS = 1024
"""Factors or terms above which an expression is one part: squares of squares have twice as many at every step."""


def factors(node: Node) -> list[Node]:
    """Return what an expression of any depth is the product of."""
    found: dict[Node, list[Node]] = {}
    for part in postorder([node]):
        of_args = [found[arg] for arg in part.args]
        if sum(map(len, of_args)) > _MOST_PARTS:
            found[part] = [part]
        elif part.op == "mul":
            found[part] = of_args[0] + of_args[1]
        elif part.op == "neg":
            found[part] = [const(-1), *of_args[0]]
        elif part.op == "div":
            found[part] = [*of_args[0], *(Node("rcp", (factor,)) for factor in of_args[1])]
        else:
            found[part] = [part]
    return found[node]


def _gathered(parts: Iterable[Node]) -> tuple[float, Node | None]:
    """Return the product of the numbers among factors, and that of the others in order, None where there are none."""
    literal, rest = 1.0, None
    for part in parts:
        if part.number is not None:
            literal *= part.number
        else:
            rest = part if rest is None else Node("mul", (rest, part))
    return literal, rest


def product(parts: Iterable[Node]) -> Node:
    """Return factors multiplied in order, numbers first."""
    literal, rest = _gathered(parts)
    if rest is None:
        return const(literal)
    return rest if literal == 1 else Node("mul", (const(literal), rest))


def signed_product(parts: Iterable[Node]) -> Node:
    """Return factors multiplied in order, numbers first, their sign outermost."""
    literal, rest = _gathered(parts)
    if rest is None:
        return const(literal)
    total = product([const(abs(literal)), rest])
    return Node("neg", (total,)) if literal < 0 else total


def is_difference(node: Node) -> bool:
    """Return whether it is a - b of two operands."""
    return node.op == "sub" and all(arg.op == "var" for arg in node.args)


def is_abs_difference(node: Node) -> bool:
    """Return whether it is |a - b| of two operands, which is finite where they are small enough."""
    return node.op == "abs" and is_difference(node.args[0])


def _mask(node: Node) -> Node | None:
    """Return the difference whose zero a condition asks for, among others."""
    if node.op == "and":
        return next((found for found in map(_mask, node.args) if found is not None), None)
    zero = node.op == "eq" and any(arg.number == 0 and not isinstance(arg.number, bool) for arg in node.args)
    return next((arg for arg in node.args if is_difference(arg)), None) if zero else None


def unmasked_factors(node: Node, masks: list[Node], numbers: Sequence[str]) -> list[Node]:
    """Factors of a product, masks of a difference left out and noted where they cover nothing but its functions."""
    found: list[Node] = []
    waiting = [node]
    while waiting:
        part = waiting.pop()
        masked = _mask(part.args[0]) if part.op == "where" and part.args[1].number == 0 else None
        if part.op == "mul":
            waiting += reversed(part.args)
        elif part.op == "neg":
            found.append(const(-1))
            waiting.append(part.args[0])
        elif masked is not None and set(variables([part.args[2]])) <= {*variables([masked]), *numbers}:
            masks.append(masked)
            waiting.append(part.args[2])
        else:
            found.append(part)
    return found


def root_or_power(node: Node) -> tuple[Node, Node] | None:
    """Return the base and exponent of a power or square root of |a - b|."""
    if node.op not in ("pow", "sqrt") or not is_abs_difference(node.args[0]):
        return None
    return node.args[0], node.args[1] if node.op == "pow" else const(0.5)


def never_negative(node: Node) -> bool:
    """Return whether an expression is at least zero, or NaN, by its form."""
    waiting, seen = [node], set[Node]()
    while waiting:
        part = waiting.pop()
        if part in seen or (part.op == "mul" and part.args[0] is part.args[1]):
            continue
        seen.add(part)
        if part.op in ("mul", "add", "div", "min", "max"):
            waiting += part.args
        elif part.number is not None:
            if not part.number >= 0:
                return False
        elif not part.args or not OPS[part.op].never_negative:
            return False
    return True


@dataclass(frozen=True)
class Matmul:
    """``Σ_k left · right``: which operands multiply and their axes; the outputs still follow."""

    left: str
    right: str
    reduced: str


def matmul(program: Program) -> Matmul | None:
    """Return the program as a matrix product, if its only accumulator is a sum of products of two tensors."""
    if len(program.map) != 1 or program.reductions[0].name != "sum" or len(program.reduced) != 1:
        return None
    product = program.map[0]
    if product.op != "mul" or any(arg.op != "var" for arg in product.args):
        return None
    left, right = (program.operand(arg.name) for arg in product.args)
    axis = program.reduced
    if left.number or right.number or axis not in left.axes or axis not in right.axes:
        return None
    remaining = left.axes.replace(axis, "") + right.axes.replace(axis, "")
    if len(remaining) > 2 or sorted(remaining) != sorted(program.out):
        return None
    return Matmul(left.name, right.name, axis)


@dataclass(frozen=True)
class Squares:
    """``Σ_k weight · (row − column)²``, the weight over k and numbers, or None."""

    row: str
    column: str
    weight: Node | None


def _parts(node: Node) -> list[Node]:
    """Return the factors, those of a square twice."""
    return [
        part
        for factor in factors(node)
        for part in (2 * _parts(factor.args[0]) if factor.op == "pow" and factor.args[1].number == 2 else [factor])
    ]


def squared_differences(nest: Nest) -> Squares | None:
    """Return the nest as a sum of squared differences of one operand over (m, k) and one over (n, k)."""
    roles = {buffer.name: buffer.roles for buffer in nest.operands}
    looped = nest.has_outer_loop
    if nest.compute != "f32" or nest.partial or looped or [red.name for red in nest.reductions] != ["sum"]:
        return None
    parts = _parts(nest.map[0])
    gaps = [part for part in parts if part.op == "sub" and all(arg.op == "var" for arg in part.args)]
    if len(gaps) != 2 or gaps[0] is not gaps[1]:
        return None
    names = sorted((arg.name for arg in gaps[0].args), key=lambda name: roles.get(name, ""))
    rest = [part for part in parts if part is not gaps[0]]
    weight = product(rest) if rest else None
    others = set(variables(rest)) - set(nest.numbers)
    plain = all(set(roles[name]) <= {"k"} for name in others)
    positive = weight is None or weight.number is None or weight.number > 0
    if [roles.get(name) for name in names] != ["mk", "nk"] or not plain or not positive:
        return None
    return Squares(names[0], names[1], weight)


def is_by_products(nest: Nest) -> bool:
    """Return whether matrix products may make it: sums of squared differences, log-sum-exps."""
    return squared_differences(nest) is not None or log_product(nest) is not None


def inner_product(nest: Nest) -> bool:
    """Return whether the nest is a sum over k of an operand over (m, k) times one over (n, k)."""
    roles = {buffer.name: buffer.roles for buffer in nest.operands}
    if nest.compute != "f32" or nest.partial or [red.name for red in nest.reductions] != ["sum"]:
        return False
    parts = factors(nest.map[0])
    return sorted(roles.get(part.name, "") if part.op == "var" else "" for part in parts) == ["mk", "nk"]


@dataclass(frozen=True)
class LogProduct:
    """``log Σ_k exp(row_part + column_part)``: what an operand over (m, k) and one over (n, k) add to the exponent."""

    row: str
    column: str
    row_part: Node
    column_part: Node


def _terms(node: Node, uniform: Collection[str]) -> list[Node]:
    """Return the terms of a sum of any depth, uniform factors multiplied in."""
    found: dict[Node, list[Node]] = {}
    for part in postorder([node]):
        of_args = [found[arg] for arg in part.args]
        is_uniform = [part.op in ("mul", "div") and set(variables([arg])) <= set(uniform) for arg in part.args]
        if sum(map(len, of_args)) > _MOST_PARTS:
            found[part] = [part]
        elif part.op == "add":
            found[part] = of_args[0] + of_args[1]
        elif part.op == "sub":
            found[part] = [*of_args[0], *(Node("neg", (term,)) for term in of_args[1])]
        elif part.op == "neg":
            found[part] = [Node("neg", (term,)) for term in of_args[0]]
        elif part.op == "div" and is_uniform[1]:
            found[part] = [Node("div", (term, part.args[1])) for term in of_args[0]]
        elif part.op == "mul" and any(is_uniform):
            factor = is_uniform.index(True)
            found[part] = [Node("mul", (part.args[factor], term)) for term in of_args[1 - factor]]
        else:
            found[part] = [part]
    return found[node]


def _same(node: Node, args: tuple[Node, ...]) -> Node:
    return Node(node.op, args)


def _sum(terms: Sequence[Node]) -> Node:
    total, *rest = terms
    for term in rest:
        total = Node("add", (total, term))
    return total


def log_product(nest: Nest) -> LogProduct | None:
    """Return the nest as the logarithm of a matrix product of exponentials, each of which one of two operands makes."""
    looped = nest.has_outer_loop
    floating = nest.compute in ("f32", "f64")
    if not floating or nest.partial or looped or [red.name for red in nest.reductions] != ["logsumexp"]:
        return None
    used = set(variables(nest.map))
    named = {role: [p.name for p in nest.operands if p.roles == role and p.name in used] for role in ("mk", "nk", "k")}
    available = {*nest.numbers, *(name for names in named.values() for name in names)}
    if any(len(named[role]) != 1 for role in ("mk", "nk")) or used - available:
        return None
    (row,), (column,) = named["mk"], named["nk"]
    parts: dict[str, list[Node]] = {row: [], column: []}
    for term in _terms(nest.map[0], nest.numbers):
        owners = {row, column} & set(variables([term]))
        if len(owners) == 2:
            return None
        parts[next(iter(owners), row)].append(term)
    if not parts[row] or not parts[column]:
        return None
    found = LogProduct(row, column, _sum(parts[row]), _sum(parts[column]))
    renamed = rewrite([found.row_part], lambda leaf: var(column) if leaf == var(row) else leaf, _same)
    return None if nest.mirrors and renamed[0] != found.column_part else found


@dataclass(frozen=True)
class Scale:
    """``output`` reads ``SCALED``, the sum of rows times |factor|^(1 / degree), of a factor below 0."""

    factor: Node
    degree: int
    output: Node


def _degree(node: Node, degrees: Mapping[Node, float | None]) -> float | None:
    """Power of a with which an operation grows, if one; constants have power 0."""
    parts = [degrees[arg] for arg in node.args]
    found_degrees = [part for part in parts if part is not None]
    if len(found_degrees) < len(parts):
        return None
    if node.op in ("add", "sub", "min", "max"):
        return found_degrees[0] if found_degrees[0] == found_degrees[1] else None
    if node.op in ("neg", "abs"):
        return found_degrees[0]
    if node.op == "mul":
        return found_degrees[0] + found_degrees[1]
    exponent = node.args[1].number if node.op == "pow" else None
    return found_degrees[0] * exponent if exponent is not None else None


def degree(nest: Nest) -> int | None:
    """1 or 2 if the only map is homogeneous of that degree in the rows of both arrays and has no other operand."""
    if len(nest.map) != 1 or nest.reductions[0].name != "sum" or nest.compute != "f32" or nest.reproducible:
        return None
    rows = {buffer.name for buffer in nest.operands if set(buffer.roles) in ({"m", "k"}, {"n", "k"})}
    degrees: dict[Node, float | None] = {}
    for node in postorder(nest.map):
        if node.op == "var":
            degrees[node] = 1 if node.name in rows else None
        else:
            degrees[node] = _degree(node, degrees) if node.args else 0
    found = degrees[nest.map[0]]
    return int(found) if found in (1, 2) else None


def scale(nest: Nest, output: Node, uniform: Collection[str]) -> Scale | None:
    """Return how an entry reads its sum times a factor of ``uniform`` variables, if that is all it reads of it."""
    power, total = degree(nest), var("s0")
    users = [node for node in postorder([output]) if total in node.args]
    if power is None or len(users) != 1 or users[0].op != "mul" or output is total:
        return None
    (product,) = users
    factor = product.args[1] if product.args[0] is total else product.args[0]
    if factor.op != "var" or factor.name not in uniform:
        return None
    readers = [node for node in postorder([output]) if product in node.args]
    if not readers or any(node.op not in ("exp", "exp2") for node in readers):
        return None

    def replaced(node: Node, args: tuple[Node, ...]) -> Node:
        return Node("neg", (var(SCALED),)) if node is product else Node(node.op, args)

    (root,) = rewrite([output], lambda leaf: leaf, replaced)
    return None if "s0" in variables([root]) else Scale(factor, power, root)


def is_linear(output: Node, uniform: Collection[str]) -> bool:
    """Return whether an entry is its sum times a value of ``uniform`` variables, plus what is free of the sum."""
    if output is var("s0"):
        return True
    parts = [part for part in output.args if "s0" in variables([part])]
    if not parts or not all(is_linear(part, uniform) for part in parts):
        return False
    if output.op in ("neg", "add", "sub"):
        return True
    scaled = output.op == "mul" or (output.op == "div" and parts[0] is output.args[0])
    others = [part for part in output.args if part is not parts[0]]
    return scaled and len(parts) == 1 and set(variables(others)) <= set(uniform)


def is_proportional(output: Node) -> bool:
    """Return whether an entry by ``scale`` is its only exponential, of base 2, times what does not read the sum."""
    if sum(node.op == "exp2" for node in postorder([output])) != 1:
        return False
    while output.op != "exp2":
        readers = [each for each in output.args if SCALED in variables([each])]
        if output.op not in ("mul", "neg") or len(readers) != 1:
            return False
        (output,) = readers
    return True


ARITHMETIC = ("add", "sub", "mul")


def negative(node: Node) -> Node:
    """Return the negative of a value, which is no operation more where it is a sum, a difference or a product."""
    if node.op not in ARITHMETIC:
        return Node("neg", (node,))
    a, b = node.args
    opposite = Node("neg", (a,))
    return {"add": Node("sub", (opposite, b)), "sub": Node("sub", (b, a)), "mul": Node("mul", (opposite, b))}[node.op]
