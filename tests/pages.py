"""The tables of the documentation that are written from those of the library: ``python -m tests.pages`` writes them."""

from __future__ import annotations

from pathlib import Path

from kernmantle.ir.ops import OPS, Op
from kernmantle.ir.reductions import REDUCTIONS, Reduction
from kernmantle.pairwise.kernel_row import Row
from kernmantle.pairwise.kernels import KERNELS
from kernmantle.pairwise.metric import Metric
from kernmantle.pairwise.metrics import METRICS


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


def _arguments(row: Row) -> str:
    defaults = [(h.name, "columns" if isinstance(h.default, str) else f"{h.default:g}", h.meaning) for h in row.hyper]
    defaults += [(option.name, f"{option.default:g}", option.allowed) for option in row.options]
    return ", ".join(f"`{name}={default}` {meaning}" for name, default, meaning in defaults)


def kernels() -> str:
    """Return one line a kernel."""
    lines = ["| kernel | k(x, y) | arguments | k(x, x) | type | notes |", "|---|---|---|---|---|---|"]
    for row in KERNELS.values():
        formula, kind = row.formula.replace("|", "\\|"), "stationary" if row.stationary else ""
        diagonal = f"`{row.diagonal}`" if row.diagonal else ""
        lines.append(f"| `{row.name}` | {formula} | {_arguments(row)} | {diagonal} | {kind} | {row.summary} |")
    return "\n".join(lines)


def _yes(flag: bool) -> str:
    return "yes" if flag else ""


def _metric(row: Metric) -> str:
    options = ", ".join(f"`{name}`" for name in row.options)
    flags = [_yes(flag) for flag in (row.symmetric, row.zero_diagonal, row.differentiable)]
    cells = [f"`{row.name}`", row.formula.replace("|", "\\|"), options, *flags, row.note, ", ".join(row.aliases)]
    return "| " + " | ".join(cells) + " |"


def metrics() -> str:
    """Return one line a metric."""
    head = "| metric | definition | options | symmetric | zero | gradients | notes | also called |"
    return "\n".join([head, "|---|---|---|---|---|---|---|---|", *map(_metric, METRICS.values())])


TABLES = {"maps": operations, "reductions": reductions, "kernels": kernels, "distances": metrics}
"""The table of a page of the documentation."""


def page(name: str) -> Path:
    """Return the file of a page."""
    return Path(__file__).parents[1] / "docs" / f"{name}.md"


def with_table(text: str, table: str) -> str:
    """Return a page with the table in place of the one that has its head."""
    before, head, rest = text.partition(table.partition("\n")[0] + "\n")
    if not head:
        raise ValueError(f"no table of the page begins with {table.partition(chr(10))[0]!r}")
    following = rest.splitlines(keepends=True)
    while following and following[0].startswith("|"):
        del following[0]
    return before + table + "\n" + "".join(following)


if __name__ == "__main__":
    for name, table in TABLES.items():
        page(name).write_text(with_table(page(name).read_text(encoding="utf-8"), table()), encoding="utf-8")
