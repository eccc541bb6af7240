"""Powers without the special function unit: |d|^p = 2^(p e) times a polynomial in the mantissa, fitted for each p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from struct import pack, unpack

from ..expr.node import Node, const, postorder, variables
from ..expr.ops import evaluate
from .cuda_tame import is_gap, is_watched, tame
from .nest import Nest

DEGREE = 5
GOOD = 1.6e-6
_PROBES = 257
_EXCHANGES = 4
_TRIALS = 25
_UNUSED = (0.0, *(0,) * ((DEGREE + 1) // 2))


@dataclass(frozen=True)
class TablePower:
    """The power |x - y|^exponent of a map, the exponent made of the nest's ``numbers``; one cell in ``mix`` by table.

    With ``positive`` it may be used for a positive exponent only.
    """

    exponent: Node
    numbers: tuple[str, ...]
    mix: int
    positive: bool = False

    def arguments(self, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """What the kernel is passed behind the numbers."""
        (exponent,) = evaluate([self.exponent], dict(zip(self.numbers, numbers, strict=True)))
        usable = not self.positive or exponent > 0
        return power_arguments(float(exponent)) if usable else _UNUSED


def root_or_power(node: Node) -> tuple[Node, Node] | None:
    """Base and exponent of a power or square root of |a - b|."""
    if node.op not in ("pow", "sqrt") or not is_gap(node.args[0]):
        return None
    return node.args[0], node.args[1] if node.op == "pow" else const(0.5)


def table_power(nest: Nest) -> TablePower | None:
    """The one power of a nest's map that may be mixed from table and special functions, if it has one."""
    powers = [node for node in postorder(nest.map) if node.op in ("pow", "sqrt")]
    found = root_or_power(powers[0]) if len(powers) == 1 else None
    if nest.compute != "f32" or nest.reproducible or found is None or not is_watched(nest):
        return None
    exponent = found[1]
    as_product = tame(nest)
    positive = as_product is not None and as_product.positive
    names = variables([exponent])
    if names:
        return TablePower(exponent, nest.numbers, 2, positive) if set(names) <= set(nest.numbers) else None
    (value,) = evaluate([exponent], {})
    if isinstance(value, bool) or value in (0, 1, 2, 3, 4) or not is_good(float(value)):
        return None
    return TablePower(exponent, nest.numbers, 4 if value in (0.5, 1.5, 2.5) else 2, positive)


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
    return [rows[place][size] / rows[place][place] for place in range(size)]


def _value(coefficients: tuple[float, ...], mantissa: float) -> float:
    total = 0.0
    for coefficient in reversed(coefficients):
        total = total * mantissa + coefficient
    return total


@lru_cache(maxsize=4096)
def mantissa_polynomial(power: float) -> tuple[float, ...]:
    """Coefficients in float32, lowest first, of the polynomial nearest to m^power on [1, 2], relative (Remez)."""
    count = DEGREE + 2
    nodes = [1.5 - 0.5 * math.cos(math.pi * place / (count - 1)) for place in range(count)]
    exact: list[float] = []
    for _ in range(_EXCHANGES):
        system = [
            [node ** (degree - power) for degree in range(DEGREE + 1)] + [(-1.0) ** place]
            for place, node in enumerate(nodes)
        ]
        exact = _solve(system, [1.0] * count)[:-1]
        nodes = _extrema(tuple(exact), power, nodes)
    return unpack(f"{len(exact)}f", pack(f"{len(exact)}f", *exact))


def _extrema(coefficients: tuple[float, ...], power: float, nodes: list[float]) -> list[float]:
    """Where the relative error is largest between each node's neighbours, its sign kept; the ends stay."""
    moved = [nodes[0]]
    for place in range(1, len(nodes) - 1):
        left, right = (nodes[place - 1] + nodes[place]) / 2, (nodes[place] + nodes[place + 1]) / 2
        trials = [left + (right - left) * step / (_TRIALS - 1) for step in range(_TRIALS)]
        sign = 1.0 if _value(coefficients, nodes[place]) > nodes[place] ** power else -1.0
        moved.append(max(trials, key=lambda m: sign * (_value(coefficients, m) / m**power - 1)))
    return [*moved, nodes[-1]]


@lru_cache(maxsize=4096)
def is_good(power: float) -> bool:
    """Whether the polynomial is within GOOD, relative, on all of [1, 2]."""
    if not math.isfinite(power) or power == 0 or abs(power) > 16:
        return False
    coefficients = mantissa_polynomial(power)
    mantissas = (1 + place / (_PROBES - 1) for place in range(_PROBES))
    return all(abs(_value(coefficients, m) / m**power - 1) <= GOOD for m in mantissas)


@lru_cache(maxsize=4096)
def power_arguments(power: float) -> tuple[float, ...]:
    """Arguments of a kernel that mixes both ways: 1 where the polynomial may be used, then two coefficients at a time.

    A pair of float32 travels as the integer of its bits: a launch takes 1 us longer for each argument of that type.
    """
    if not is_good(power):
        return _UNUSED
    coefficients = mantissa_polynomial(power)
    return (1.0, *unpack(f"{len(coefficients) // 2}q", pack(f"{len(coefficients)}f", *coefficients)))
