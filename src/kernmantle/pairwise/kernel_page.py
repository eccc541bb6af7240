"""The table of kernels as Markdown."""

from __future__ import annotations

import sys

from .kernel_row import Row
from .kernels import KERNELS


def _arguments(row: Row) -> str:
    defaults = [(h.name, "columns" if isinstance(h.default, str) else f"{h.default:g}", h.meaning) for h in row.hyper]
    defaults += [(option.name, f"{option.default:g}", option.allowed) for option in row.options]
    return ", ".join(f"`{name}={default}` {meaning}" for name, default, meaning in defaults)


def _flags(row: Row) -> str:
    return "stationary" if row.stationary else ""


def markdown() -> str:
    """Return one line a kernel."""
    lines = ["| kernel | k(x, y) | arguments | k(x, x) | type | notes |", "|---|---|---|---|---|---|"]
    for row in KERNELS.values():
        formula = row.formula.replace("|", "\\|")
        lines.append(
            f"| `{row.name}` | {formula} | {_arguments(row)} | `{row.diagonal}` | {_flags(row)} | {row.summary} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown() + "\n")
