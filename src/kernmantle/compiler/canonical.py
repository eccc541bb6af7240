"""Canonical text of plans: all that a generator of code is told, as a part of the key of what it makes."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

from ..ir.node import Node
from ..ir.show import to_ssa


def canonical(value: Any) -> str:
    """Return the text that two plans share only if they are equal; the same in every process.

    Raises
    ------
    TypeError
        For what is neither a dataclass, an expression, a tuple, a text nor a number.
    """
    return json.dumps(_document(value), separators=(",", ":"))


def _document(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Node):
        return ["expression", to_ssa([value])]
    if isinstance(value, tuple):
        return ["tuple", *map(_document, value)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if is_dataclass(value):
        return [type(value).__name__, *(_document(getattr(value, field.name)) for field in fields(value))]
    raise TypeError(f"{type(value).__name__} has no canonical text")
