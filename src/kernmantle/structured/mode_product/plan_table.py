"""Tables of plans: a plan whose fields are arrays stands for all candidates, which are priced at once.

What follows from the fields of a plan, and what it should take, is computed by the same functions for single plans and
for tables: :func:`larger`, :func:`smaller` and :func:`either` take numbers and arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

TABLES = 256
"""Tables of each kind that are cached, of tens of kilobytes each."""
Number = Any
"""A number of a single plan, or an array with those of all."""
Column = np.ndarray[Any, Any]
Plan = TypeVar("Plan")


def larger(one: Number, other: Number) -> Number:
    """Return the larger one of two numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.maximum(one, other)
    return max(one, other)


def smaller(one: Number, other: Number) -> Number:
    """Return the smaller one of two numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.minimum(one, other)
    return min(one, other)


def gcd(one: Number, other: Number) -> Number:
    """Return the greatest common divisor of two numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.gcd(one, other)
    return math.gcd(one, other)


def either(condition: Number, one: Number, other: Number) -> Number:
    """Return the first number where a condition holds, else the second one; both are computed."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, one, other)
    return one if condition else other


def grid(*axes: Sequence[Any]) -> list[Number]:
    """Return columns with every combination, in the order of nested loops."""
    return [own.reshape(-1) for own in np.meshgrid(*axes, indexing="ij")]


def columns_of(rows: Sequence[tuple[int, ...]], at: Number) -> list[Number]:
    """Return the columns of the rows at these positions."""
    return list(np.array(rows)[at].T)


def masked(table: Plan, rows: Number) -> Plan:
    """Return the table of the rows for which a mask is true."""
    return _mapped(table, lambda column: column[rows])


def row_of(table: Plan, index: int) -> Plan:
    """Return the plan of a row."""
    return _mapped(table, lambda column: column[index].item())


def quickest_row(table: Plan, seconds: Column) -> tuple[float, Plan]:
    """Return the least seconds, and the plan of their row."""
    index = int(seconds.argmin())
    return float(seconds[index]), row_of(table, index)


def rows_of(table: Plan) -> Iterator[Plan]:
    """Yield the plan of every row."""
    return (row_of(table, index) for index in range(count_of(table)))


def count_of(table: Any) -> int:
    """Return the number of rows."""
    return max(_lengths(table), default=1)


def _lengths(table: Any) -> Iterator[int]:
    for own in fields(table):
        value = getattr(table, own.name)
        if isinstance(value, np.ndarray):
            yield len(value)
        elif is_dataclass(value):
            yield from _lengths(value)


def _mapped(table: Any, function: Any) -> Any:
    """Return a table, or a plan, whose columns a function has been applied to."""
    changed: dict[str, Any] = {}
    for own in fields(table):
        value = getattr(table, own.name)
        if isinstance(value, np.ndarray):
            changed[own.name] = function(value)
        elif is_dataclass(value):
            changed[own.name] = _mapped(value, function)
    return replace(table, **changed)


def joined(tables: Sequence[Plan]) -> Plan:
    """Return the table with the rows of all."""
    if len(tables) == 1:
        return tables[0]
    counts, changed = [count_of(table) for table in tables], dict[str, Any]()
    for own in fields(tables[0]):  # pyright: ignore[reportArgumentType]
        values = [getattr(table, own.name) for table in tables]
        if is_dataclass(values[0]):
            changed[own.name] = joined(values)
        elif any(isinstance(value, np.ndarray) or value != values[0] for value in values):
            columns = [np.broadcast_to(value, count) for value, count in zip(values, counts, strict=True)]
            changed[own.name] = np.concatenate(columns)
    return replace(tables[0], **changed)  # pyright: ignore


def values_at(values: Mapping[int, float], keys: Number) -> Number:
    """Return the values of keys, 0 of others."""
    if not isinstance(keys, np.ndarray):
        return values.get(keys, 0.0)
    found = np.zeros(keys.shape)
    for key, value in values.items():
        found[keys == key] = value
    return found


def norm(parts: Iterable[Number], power: float) -> Number:
    """Return the norm of such an order of numbers that are not negative."""
    return sum(part**power for part in parts) ** (1 / power)
