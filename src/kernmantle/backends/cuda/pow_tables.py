"""Powers without the special function unit: table entries times a polynomial that is fitted for each p.

The gram schema takes |d|^p = c^p (1 + r)^p with the middle c of one of four intervals of the octave; VJPs take
|d|^p = 2^(p e) m^p with the mantissa m.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import pack, unpack

from ...compiler.gradient_patterns import match_signed_product, operands_pass_range_check
from ...compiler.nest import Nest
from ...compiler.patterns import is_abs_difference, root_or_power
from ...ir.node import Node, const, postorder, rewrite, variables
from ...ir.ops import evaluate

DEGREE = 5  # of the polynomial of a mantissa
DEGREES = (3, 4, 5)
"""Degrees of the polynomial of an interval, a kernel each: steeper powers take more."""
TABLE_SIXTEENTHS, ROOT_TABLE_SIXTEENTHS = 8, 5  # share of the powers that are taken from tables, in sixteenths
MAX_RELATIVE_ERROR = 1.6e-6  # of a polynomial against the power
_PROBES = 257  # points of an interval where a polynomial is compared with the power
_EXCHANGES = 4  # rounds of Remez exchange
_TRIALS = 25  # points of an interval in which an extremum of the error is looked for
MIDDLES = (1.125, 1.375, 1.625, 1.875)  # centres of the intervals of a mantissa
_REACH = 1 / 9  # half width of an interval over its centre, at most


@dataclass(frozen=True)
class TablePower:
    """The power |x - y|^exponent of a map, the exponent made of the nest's ``numbers``; ``share`` of 16 cells by table.

    With ``positive`` it may be used for a positive exponent only. ``degree`` is that of the kernel's polynomial.
    """

    exponent: Node
    numbers: tuple[str, ...]
    share: int
    positive: bool = False
    degree: int = DEGREES[0]

    def value(self, numbers: tuple[float, ...]) -> float:
        """Return the exponent."""
        (exponent,) = evaluate([self.exponent], dict(zip(self.numbers, numbers, strict=True)))
        return float(exponent)

    def arguments(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Return the arguments of the kernel behind the numbers."""
        exponent = self.value(numbers)
        usable = not self.positive or exponent > 0
        return power_arguments(exponent if usable else 0.0, self.degree)

    def degree_for(self, numbers: tuple[float, ...]) -> int:
        """Return the degree that these numbers take."""
        return least_degree(self.value(numbers)) or self.degree


def table_power(nest: Nest) -> TablePower | None:
    """Return the one power of a nest's map that may be mixed from table and special functions, if it has one."""
    powers = [node for node in postorder(nest.map) if node.op in ("pow", "sqrt")]
    found = root_or_power(powers[0]) if len(powers) == 1 else None
    if nest.compute != "f32" or nest.reproducible or found is None or not operands_pass_range_check(nest):
        return None
    exponent = found[1]
    as_product = match_signed_product(nest)
    positive = as_product is not None and as_product.positive
    names = variables([exponent])
    if names:
        return (
            TablePower(exponent, nest.numbers, TABLE_SIXTEENTHS, positive) if set(names) <= set(nest.numbers) else None
        )
    (value,) = evaluate([exponent], {})
    degree = None if isinstance(value, bool) or value in (0, 1, 2, 3, 4) else least_degree(float(value))
    if degree is None:
        return None
    share = ROOT_TABLE_SIXTEENTHS if value in (0.5, 1.5, 2.5) else TABLE_SIXTEENTHS
    return TablePower(exponent, nest.numbers, share, positive, degree)


def gathered(nest: Nest) -> Nest:
    """The nest with |a - b| or its square, times the root of |a - b|, as one power where that may be by table."""
    if table_power(nest) is None:
        return nest
    return replace(nest, map=tuple(rewrite(nest.map, lambda leaf: leaf, _one_power)))


def _one_power(node: Node, args: tuple[Node, ...]) -> Node:
    built = Node(node.op, args)
    if node.op != "mul" or args[1].op != "sqrt" or not is_abs_difference(args[1].args[0]):
        return built
    size = args[1].args[0]
    gap = size.args[0]
    exponents = {size: 1.5, Node("mul", (gap, gap)): 2.5, Node("mul", (size, size)): 2.5}
    return Node("pow", (size, const(exponents[args[0]]))) if args[0] in exponents else built


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination with pivoting."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(size):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [rows[index][size] / rows[index][index] for index in range(size)]


def _value(coefficients: Sequence[float], point: float) -> float:
    total = 0.0
    for coefficient in reversed(coefficients):
        total = total * point + coefficient
    return total


def _minimax(power: float, degree: int, start: float, low: float, high: float) -> tuple[float, ...]:
    """Coefficients, lowest first, of the polynomial nearest to (start + r)^power on [low, high], relative (Remez)."""
    count = degree + 2
    middle, reach = (low + high) / 2, (high - low) / 2
    nodes = [middle - reach * math.cos(math.pi * index / (count - 1)) for index in range(count)]
    exact: tuple[float, ...] = ()
    for _ in range(_EXCHANGES):
        system = [
            [node**each / (start + node) ** power for each in range(degree + 1)] + [(-1.0) ** index]
            for index, node in enumerate(nodes)
        ]
        exact = tuple(_solve(system, [1.0] * count)[:-1])
        nodes = _extrema(exact, power, start, nodes)
    return exact


def _extrema(coefficients: Sequence[float], power: float, start: float, nodes: list[float]) -> list[float]:
    """Return for each node the point between its neighbours of the largest error of its sign; the ends stay."""
    moved = [nodes[0]]
    for index in range(1, len(nodes) - 1):
        left, right = (nodes[index - 1] + nodes[index]) / 2, (nodes[index] + nodes[index + 1]) / 2
        trials = [left + (right - left) * step / (_TRIALS - 1) for step in range(_TRIALS)]
        sign = 1.0 if _value(coefficients, nodes[index]) > (start + nodes[index]) ** power else -1.0
        moved.append(max(trials, key=lambda r: sign * (_value(coefficients, r) / (start + r) ** power - 1)))
    return [*moved, nodes[-1]]


def _is_within_error(coefficients: Sequence[float], power: float, start: float, low: float, high: float) -> bool:
    points = (low + (high - low) * index / (_PROBES - 1) for index in range(_PROBES))
    return all(abs(_value(coefficients, r) / (start + r) ** power - 1) <= MAX_RELATIVE_ERROR for r in points)


def _is_moderate(power: float) -> bool:
    return math.isfinite(power) and power != 0 and abs(power) <= 16


def _single(values: Sequence[float]) -> tuple[float, ...]:
    return unpack(f"{len(values)}f", pack(f"{len(values)}f", *values))


@lru_cache(maxsize=4096)
def mantissa_polynomial(power: float) -> tuple[float, ...]:
    """Return the coefficients in float32, lowest first, of the polynomial nearest to m^power on [1, 2], relative."""
    return _single(_minimax(power, DEGREE, 0.0, 1.0, 2.0))


@lru_cache(maxsize=4096)
def is_accurate(power: float) -> bool:
    """Return whether that polynomial is within MAX_RELATIVE_ERROR, relative."""
    return _is_moderate(power) and _is_within_error(mantissa_polynomial(power), power, 0.0, 1.0, 2.0)


@lru_cache(maxsize=4096)
def interval_polynomial(power: float, degree: int = DEGREES[0]) -> tuple[float, ...] | None:
    """Return the factor a and slopes of a (1 + q1 r + q2 r^2 + ...), None if it is not accurate for (1 + r)^power."""
    if not _is_moderate(power):
        return None
    exact = _minimax(power, degree, 1.0, -_REACH, _REACH)
    if not _is_within_error(exact, power, 1.0, -_REACH, _REACH):
        return None
    return (exact[0], *_single([coefficient / exact[0] for coefficient in exact[1:]]))


@lru_cache(maxsize=4096)
def least_degree(power: float) -> int | None:
    """Return the smallest degree that is accurate, None where none is."""
    return next((degree for degree in DEGREES if interval_polynomial(power, degree) is not None), None)


@lru_cache(maxsize=4096)
def power_arguments(power: float, degree: int = DEGREES[0]) -> tuple[float, ...]:
    """Arguments of a kernel that mixes both ways: 1 where the table may be used, then slopes and powers of the middles.

    A pair of float32 travels as the integer of its bits: a launch takes 1 us longer for each argument of that type.
    """
    found = interval_polynomial(power, degree)
    words = (degree + 1) // 2
    if found is None:
        return (0.0, *(0,) * (words + 2))
    first, *slopes = found
    values = (*slopes, *(0.0,) * (2 * words - degree), *(first * middle**power for middle in MIDDLES))
    return (1.0, *unpack(f"{words + 2}q", pack(f"{2 * words + 4}f", *values)))
