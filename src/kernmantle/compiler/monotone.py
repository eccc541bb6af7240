"""Whether entries of a matrix come in the order of the sums that they are made of, or in the reverse order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..ir.node import Node, var

_INCREASING = ("exp", "exp2")
_OF_SQUARES = ("sqrt", "pow")


@dataclass(frozen=True)
class Order:
    """Entries never fall (``sign`` 1) or never rise (-1) as the sum grows from 0, where ``factor`` is above 0.

    ``factor`` is a uniform variable, or None where entries read none; below 0 the order is reversed.
    """

    sign: int
    factor: Node | None = None


def order(output: Node, uniform: Collection[str], total: Node | None = None) -> Order | None:
    """Return the order of an entry in its sum, which is not negative, or None where it is not known.

    Every step must be monotone and NaN for NaN alone: roots, positive powers, exponentials, a sign, and products with
    literals or with one of the ``uniform`` variables.
    """
    total = var("s0") if total is None else total
    if output is total:
        return Order(1)
    if output.op == "neg":
        found = order(output.args[0], uniform, total)
        return None if found is None else Order(-found.sign, found.factor)
    if output.op in _INCREASING:
        return order(output.args[0], uniform, total)
    if output.op in _OF_SQUARES:
        return _root(output, uniform, total)
    return _scaled(output, uniform, total) if output.op == "mul" else None


def _root(output: Node, uniform: Collection[str], total: Node) -> Order | None:
    """Return the order of a root or a positive power of a value that is never negative."""
    exponent = output.args[1].number if output.op == "pow" else 0.5
    positive = exponent is not None and not isinstance(exponent, bool) and 0 < exponent < float("inf")
    found = order(output.args[0], uniform, total) if positive else None
    return found if found == Order(1) else None


def _scaled(output: Node, uniform: Collection[str], total: Node) -> Order | None:
    """Return the order of a product with a literal, or with a uniform variable as its factor."""
    for inner, other in (output.args, output.args[::-1]):
        found = order(inner, uniform, total)
        if found is None:
            continue
        if other.number is not None and other.number != 0 and abs(other.number) < float("inf"):
            return Order(found.sign if other.number > 0 else -found.sign, found.factor)
        if other.op == "var" and other.name in uniform and found.factor is None:
            return Order(found.sign, other)
    return None
