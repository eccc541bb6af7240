"""Patterns of the gradients of distances: factors by the axes they depend on, and the cheap forms of their slopes.

A VJP with an axis of outputs is ``out[o,m,d] = outer Σ_n coefficient[n,o] weight[m,n] slope(z[m,d], x[n,d])``. It is
recognised by the axes that the factors of a sum depend on: what the slope costs is then shared by all outputs, and the
sum over n is a matrix product for each point m.

Slopes are products of a cotangent over rows, numbers, a sign and a power of one difference. For operands whose
differences are finite, and 0 or normal, the sign is a bit of the difference wherever another factor vanishes with it, a
mask of the singular point changes nothing, and factors that are one number a row are multiplied once a row. A sign
alone is exact in two operations: with s = saturate(2^126 d + 1/2), which is 0, 1/2 or 1, the sum of g sign(d) is twice
the sum of g s less the sum of g.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from ..ir.node import Node, const, postorder, variables
from ..ir.program import Program
from .nest import Nest
from .patterns import factors, is_difference, product, root_or_power, signed_product, unmasked_factors


@dataclass(frozen=True)
class Vjp:
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


def sorted_factors(value: Node, axes: Mapping[str, str], m: str, d: str, n: str, o: str) -> Vjp | None:
    """Return the product by what its factors depend on, for these letters; None if it is of another kind."""
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
    return Vjp(m, d, n, o, **{kind: product(parts) for kind, parts in kinds.items()})


def _reaches(node: Node, axes: Mapping[str, str], letter: str) -> bool:
    return any(letter in axes.get(name, "") for name in variables([node]))


def recognised_vjp(program: Program) -> Vjp | None:
    """Return a program as a VJP, if it is a sum over one axis of such products and returns it as it is."""
    if len(program.map) != 1 or program.reductions[0].name != "sum" or len(program.reduced) != 1:
        return None
    if len(program.outputs) != 1 or program.outputs[0].op != "var" or program.outputs[0].name != "s0":
        return None
    axes = {operand.name: operand.axes for operand in program.operands}
    n = program.reduced
    best: tuple[tuple[int, int], Vjp] | None = None
    for m, d in permutations(program.out, 2):
        others = [letter for letter in program.out if letter not in m + d]
        for o in [*others, ""]:
            found = sorted_factors(program.map[0], axes, m, d, n, o)
            if found is not None:
                key = _fitness(found, axes)
                if best is None or key < best[0]:
                    best = key, found
    return best[1] if best is not None else None


def _fitness(found: Vjp, axes: Mapping[str, str]) -> tuple[int, int]:
    """Smaller for a better choice of letters: weights are not left in the slope, and outputs are found."""
    inside = [name for name in variables([found.slope]) if {found.points, found.rows} <= set(axes.get(name, ""))]
    across = [name for name in variables([found.slope]) if {found.columns, found.rows} <= set(axes.get(name, ""))]
    return len(inside) + (not across), 0 if found.outputs else 1


def decomposed(nest: Nest) -> Vjp | None:
    """Return a nest whose roles are those of a VJP, by its factors."""
    roles = {buffer.name: buffer.roles for buffer in nest.operands}
    outputs = "l" if "l" in nest.outs[0].roles else ""
    found = sorted_factors(nest.map[0], roles, "m", "n", "k", outputs)
    if found is None:
        return None
    outer = [factor for factor in factors(nest.outputs[0]) if factor.op != "var" or factor.name != "s0"]
    return replace(found, outer=product([found.outer, *outer]))


_ONE = const(1)


@dataclass(frozen=True)
class Slope:
    """How a slope is taken: ``kind`` is "plain" (as ``exact`` says), "signs" (of ``difference``) or "powers".

    A power is the sign of the difference times |difference|^exponent; the slope is ``factor`` times either.
    """

    exact: Node
    kind: str = "plain"
    difference: Node | None = None
    exponent: Node | None = None
    factor: Node = _ONE


def slope_of(nest: Nest, value: Node, rows: str) -> Slope:
    """Return the quickest right way to take a slope over the rows' operand of that name."""
    plain = Slope(value)
    masks: list[Node] = []
    parts = unmasked_factors(value, masks, nest.numbers)
    signs = [part.args[0] for part in parts if part.op == "sign" and is_difference(part.args[0])]
    cells = {buffer.name for buffer in nest.operands if set(buffer.roles) == {"m", "n"}}
    if len(signs) != 1:
        return plain
    difference = signs[0]
    named = set(variables([difference]))
    own = all(set(variables([mask])) == named for mask in masks)
    if not (rows in named and named & cells and own):
        return plain
    rest = [part for part in parts if part.op != "sign"]
    steady = [part for part in rest if set(variables([part])) <= set(nest.numbers)]
    moving = [part for part in rest if part not in steady]
    sign = Node("sign", (difference,))
    if not moving:
        return Slope(sign, "signs", difference, None, product(steady))
    power = root_or_power(moving[0]) if len(moving) == 1 else None
    if power is None or set(variables([power[0]])) != named or not set(variables([power[1]])) <= set(nest.numbers):
        return plain
    exact = Node("mul", (sign, Node("pow", (Node("abs", (difference,)), power[1]))))
    return Slope(exact, "powers", difference, power[1], product(steady))


@dataclass(frozen=True)
class SignedProduct:
    """The product ``prefix`` times ``rest``, times the sign of ``difference`` in the way that ``sign`` says.

    ``sign`` is "bit" (the bit of the difference, where the rest vanishes at 0), "half" (s instead, corrected by the
    sum of the prefixes) or "" (there is none). With ``positive`` the exponent of the power must be positive.
    """

    prefix: Node
    rest: tuple[Node, ...]
    difference: Node | None
    sign: str
    positive: bool


def _of_one_row(factor: Node, nest: Nest) -> bool:
    """Return whether a factor is the same for all cells of a row, or for all cells."""
    columns = {buffer.name for buffer in nest.operands if "n" in buffer.roles}
    return not columns & set(variables([factor])) and "index" not in variables([factor])


def _vanishes(factor: Node, difference: Node) -> bool:
    """Return whether a factor is 0 where the difference is, at least with a positive exponent."""
    if factor.op in ("pow", "sqrt"):
        factor = factor.args[0]
    return factor.op == "abs" and factor.args[0] is difference


def match_signed_product(nest: Nest) -> SignedProduct | None:
    """Return the map of a nest as such a product, if it is one and if that is right and of use."""
    if nest.compute != "f32" or nest.reproducible or len(nest.map) != 1 or nest.reductions[0].name != "sum":
        return None
    if not operands_pass_range_check(nest):
        return None
    masks: list[Node] = []
    factors = unmasked_factors(nest.map[0], masks, nest.numbers)
    signs = [f.args[0] for f in factors if f.op == "sign" and is_difference(f.args[0])]
    if len(signs) > 1 or len({*masks, *signs}) > 1:
        return None
    rest = [f for f in factors if f.op != "sign" or f.args[0] not in signs]
    prefix = [f for f in rest if _of_one_row(f, nest)]
    rest = [f for f in rest if f not in prefix]
    difference = next(iter([*masks, *signs]), None)
    if difference is None:
        return (
            SignedProduct(signed_product(prefix), tuple(rest), None, "", False)
            if len(factors) > 2 and prefix and rest
            else None
        )
    vanishing = [f for f in rest if _vanishes(f, difference)]
    if vanishing:
        positive = all(f.op == "pow" for f in vanishing)
        return SignedProduct(
            signed_product(prefix), tuple(rest), difference if signs else None, "bit" if signs else "", positive
        )
    named = set(variables(prefix))
    if masks or rest or not named or named & set(nest.numbers):
        return None
    return SignedProduct(signed_product(prefix), (), difference, "half", False)


def differing(nest: Nest) -> frozenset[str]:
    """Return the names of the operands that differences of the map are made of."""
    differences = [node for node in postorder(nest.map) if is_difference(node)]
    return frozenset(variables(differences))


def operands_pass_range_check(nest: Nest) -> bool:
    """Return whether a kernel sees these operands before it reduces: none varies with the cell at every step."""
    varying = {buffer.name for buffer in nest.operands if {"m", "n"} < set(buffer.roles)}
    return not varying & differing(nest)
