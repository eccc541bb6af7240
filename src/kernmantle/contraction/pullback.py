"""Pullbacks with an axis of outputs: ``out[o,m,d] = outer Σ_n coefficient[n,o] weight[m,n] slope(z[m,d], x[n,d])``.

They are recognised by the axes that the factors of a sum depend on. What the slope costs is then shared by all
outputs, and the sum over n is a matrix product for each point m.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations

from ..expr.node import Node, const, variables
from .program import Program


@dataclass(frozen=True)
class Pullback:
    """Letters of the axes (outputs "" where there are none) and the factors by what they depend on.

    ``outer`` varies with points and columns, ``coefficient`` with rows and outputs, ``weight`` with points and
    rows, ``slope`` with columns, rows and perhaps points.
    """

    points: str
    columns: str
    rows: str
    outputs: str
    outer: Node
    coefficient: Node
    weight: Node
    slope: Node

    @property
    def roles(self) -> dict[str, str]:
        """Role of each axis in a nest."""
        axes = {self.points: "m", self.columns: "n", self.rows: "k"}
        return axes | ({self.outputs: "l"} if self.outputs else {})


def factors(node: Node) -> list[Node]:
    """What an expression is the product of."""
    if node.op == "mul":
        return [factor for arg in node.args for factor in factors(arg)]
    if node.op == "neg":
        return [const(-1), *factors(node.args[0])]
    if node.op == "div":
        return [*factors(node.args[0]), *(Node("rcp", (factor,)) for factor in factors(node.args[1]))]
    return [node]


def product(parts: Iterable[Node]) -> Node:
    """Factors multiplied in order, numbers first."""
    literal, total = 1.0, None
    for part in parts:
        if part.number is not None:
            literal *= part.number
        else:
            total = part if total is None else Node("mul", (total, part))
    if total is None:
        return const(literal)
    return total if literal == 1 else Node("mul", (const(literal), total))


def sorted_factors(value: Node, axes: Mapping[str, str], m: str, d: str, n: str, o: str) -> Pullback | None:
    """The product by what its factors depend on, for these letters; None if it is of another kind."""
    kinds: dict[str, list[Node]] = {"outer": [], "coefficient": [], "weight": [], "slope": []}
    for factor in factors(value):
        over = {axis for name in variables([factor]) for axis in axes.get(name, "") if axis in m + d + n + o}
        if o and o in over:
            kind = "coefficient" if over <= {o, n} else ""
        elif n not in over:
            kind = "outer"
        else:
            kind = "slope" if d in over else "weight"
        if not kind:
            return None
        kinds[kind].append(factor)
    if not kinds["slope"] or (o and not kinds["coefficient"]):
        return None
    if not o:
        kinds["weight"], kinds["coefficient"] = (
            [factor for factor in kinds["weight"] if _reaches(factor, axes, m)],
            [factor for factor in kinds["weight"] if not _reaches(factor, axes, m)],
        )
    return Pullback(m, d, n, o, **{kind: product(parts) for kind, parts in kinds.items()})


def _reaches(node: Node, axes: Mapping[str, str], letter: str) -> bool:
    return any(letter in axes.get(name, "") for name in variables([node]))


def pullback(program: Program) -> Pullback | None:
    """A program as a pullback, if it is a sum over one axis of such products and returns it as it is."""
    if len(program.map) != 1 or program.reductions[0].name != "sum" or len(program.reduced) != 1:
        return None
    if len(program.outputs) != 1 or program.outputs[0].op != "var" or program.outputs[0].name != "s0":
        return None
    axes = {operand.name: operand.axes for operand in program.operands}
    n = program.reduced
    best: tuple[tuple[int, int], Pullback] | None = None
    for m, d in permutations(program.out, 2):
        others = [letter for letter in program.out if letter not in m + d]
        for o in [*others, ""]:
            found = sorted_factors(program.map[0], axes, m, d, n, o)
            if found is not None:
                key = _fitness(found, axes)
                if best is None or key < best[0]:
                    best = key, found
    return best[1] if best is not None else None


def _fitness(found: Pullback, axes: Mapping[str, str]) -> tuple[int, int]:
    """Smaller for a better choice of letters: weights are not left in the slope, and outputs are found."""
    inside = [name for name in variables([found.slope]) if {found.points, found.rows} <= set(axes.get(name, ""))]
    across = [name for name in variables([found.slope]) if {found.columns, found.rows} <= set(axes.get(name, ""))]
    return len(inside) + (not across), 0 if found.outputs else 1
