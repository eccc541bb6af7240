"""The tables of operations and reductions as Markdown, for ``docs/maps.md`` and ``docs/reductions.md``."""

from __future__ import annotations

import sys

from .ops import OPS, Op
from .reductions import REDUCTIONS, Reduction


def _operation(row: Op) -> str:
    names = dict.fromkeys((row.name, *row.torch, *([row.numpy] if row.numpy else [])))
    spelt = ", ".join(f"`{name}`" for name in names)
    sign = f"`{row.infix}`".replace("|", "\\|") if row.infix else ""
    return f"| {spelt} | {sign} | {'yes' if row.integer else ''} | {'yes' if row.slopes else ''} | {row.singular} |"


def operations() -> str:
    """Return one line an operation."""
    head = ["| names | sign | integers | gradient | where the slope is not finite |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_operation, OPS.values())])


def _reduction(row: Reduction) -> str:
    return f"| `{row.name}` | {row.meaning} | `{row.identity}` | {'yes' if row.differentiable else ''} |"


def reductions() -> str:
    """Return one line a reduction."""
    head = ["| name | result | over nothing | gradient |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_reduction, REDUCTIONS.values())])


if __name__ == "__main__":
    sys.stdout.write(f"{operations()}\n\n{reductions()}\n")
