"""Hypothesis strategies: random expressions that are finite and well conditioned, random lambdas, edge sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from ..ir.functions import FUNCTIONS
from ..ir.node import Node, const, var, variables
from ..ir.ops import OPS, REAL, Op
from ..ir.show import pretty

Interval = tuple[float, float]
Ranged = tuple[Node, Interval]

VARIABLE: Interval = (-2.0, 2.0)
JUMPS = frozenset(name for name, row in OPS.items() if row.boolean) | {"floor", "sign", "copysign", "where"}
LOGICAL = frozenset({"and", "or", "not"})
KINKS = frozenset({"abs", "min", "max"})
KINDS = {"smooth": frozenset(OPS) - JUMPS - KINKS, "continuous": frozenset(OPS) - JUMPS, "any": frozenset(OPS)}
_GRID = 9
_MARGIN = 1.0625


def _grid(interval: Interval) -> list[float]:
    low, high = interval
    return [low + (high - low) * step / (_GRID - 1) for step in range(_GRID)]


def _image(row: Op, domains: Sequence[Interval]) -> Interval:
    """Return the interval that holds the values of an operation, a little widened."""
    values = [float(row.value(*point)) for point in itertools.product(*map(_grid, domains))]
    middle, half = (min(values) + max(values)) / 2, (max(values) - min(values)) / 2
    return middle - half * _MARGIN, middle + half * _MARGIN


def _fitted(ranged: Ranged, domain: Interval) -> Ranged:
    """Return the expression, shifted and shrunk by short literals so that it stays inside a domain."""
    node, (low, high) = ranged
    if domain[0] <= low and high <= domain[1]:
        return ranged
    ratio = (domain[1] - domain[0]) / (high - low) if high > low else 1.0
    scale = 1.0 if ratio >= 1 else _short(ratio * 0.75)
    shift = _short((domain[0] + domain[1]) / 2 - scale * (low + high) / 2)
    moved = Node("add", (Node("mul", (node, const(scale))), const(shift)))
    return moved, (low * scale + shift, high * scale + shift)


def _short(number: float) -> float:
    """Return the nearby number of few digits, the same in every floating-point type that is not very narrow."""
    return float(f"{number:.2g}") if abs(number) < 1 else round(number * 16) / 16


def _positive(node: Node) -> Node:
    return Node("lt", (const(0), node))


def _applied(name: str, args: Sequence[Ranged]) -> Ranged:
    row = OPS[name]
    if name == "where":
        (test, _), (yes, yes_range), (no, no_range) = args
        joined = min(yes_range[0], no_range[0]), max(yes_range[1], no_range[1])
        return Node(name, (_positive(test), yes, no)), joined
    fitted = [_fitted(arg, domain) for arg, domain in zip(args, row.domains, strict=True)]
    nodes = [node for node, _ in fitted]
    if name in LOGICAL:
        nodes = [_positive(node) for node in nodes]
    node = Node(name, tuple(nodes))
    if row.boolean:
        return Node("where", (node, const(1), const(0))), (0.0, 1.0)
    return node, _image(row, [interval for _, interval in fitted])


def _variable(names: Sequence[str]) -> st.SearchStrategy[Ranged]:
    return st.sampled_from([(var(name), VARIABLE) for name in names])


def _leaves(names: Sequence[str]) -> st.SearchStrategy[Ranged]:
    literals = st.sampled_from([-1.5, -1, 0.25, 0.5, 1, 1.25, 2, 3])
    numbers = literals.map(lambda number: (const(number), (float(number), float(number))))
    return st.one_of(_variable(names), numbers)


@st.composite
def expressions(draw: st.DrawFn, names: Sequence[str], depth: int = 4, kind: str = "continuous") -> Node:
    """Return random expressions that use at least one variable.

    Parameters
    ----------
    draw
        Given by hypothesis.
    names
        Variables, which may be anything in the interval ``VARIABLE``.
    depth
        Longest chain of operations, not counting those that keep arguments inside a domain.
    kind
        "smooth", "continuous" (adds abs, min, max) or "any" (adds what jumps).
    """
    rows = st.sampled_from(sorted(KINDS[kind]))

    def grow(levels: int) -> Ranged:
        if levels == 0 or draw(st.integers(0, 4)) == 0:
            return draw(_leaves(names))
        name = draw(rows)
        args = [grow(levels - 1) for _ in range(OPS[name].arity)]
        if not variables(node for node, _ in args):
            args[0] = draw(_variable(names))
        return _applied(name, args)

    node, interval = _fitted(grow(depth), REAL)
    if variables([node]):
        return node
    return Node("add", (_fitted((node, interval), VARIABLE)[0], var(draw(st.sampled_from(names)))))


def as_lambda(node: Node, names: Sequence[str]) -> Callable[..., Any]:
    """Python function of the variables that computes an expression when traced."""
    source = f"lambda {', '.join(names)}: {pretty(node, longest=1_000_000)}"
    function = eval(source, dict(FUNCTIONS))
    function.__doc__ = source
    return function


def lambdas(names: Sequence[str], depth: int = 4, kind: str = "continuous") -> st.SearchStrategy[Callable[..., Any]]:
    """Return random functions for a map, as a user would write them; the source is in ``__doc__``."""
    return expressions(names, depth, kind).map(lambda node: as_lambda(node, names))


def edges(tile: int) -> tuple[int, ...]:
    """Return the axis lengths where a tiled loop may go wrong."""
    return tuple(sorted({0, 1, max(tile - 1, 0), tile, tile + 1}))


def shapes(*tiles: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Return the shapes with one axis per tile, each of an edge length: 0, 1, tile - 1, tile or tile + 1."""
    return st.tuples(*(st.sampled_from(edges(tile)) for tile in tiles))
