"""Rows as text and plots: a table in the terminal, a comparison of two files, comma-separated values, bars."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.table import Table

from kernmantle.errors import BackendError, ParameterError

from . import machine
from .store import Row, latest

OURS = "kernmantle"
SLOWER = 1.1
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIGNS = {True: "[green]yes[/]", False: "[red]no[/]", None: "-"}


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    size, unit = next((pair for pair in _UNITS if seconds >= pair[0]), _UNITS[-1])
    return f"{digits(seconds / size)} {unit}"


def digits(value: float) -> str:
    """Three digits, without an exponent."""
    text = f"{value:.3g}"
    return f"{float(text):.0f}" if "e" in text else text


def goal(target: Mapping[str, Any]) -> str:
    """What was to be reached, and what was."""
    value, found = target["value"], target["found"]
    if target["kind"] == "seconds":
        wanted, got = f"at most {duration(value)}", duration(found) if found is not None else ""
    elif target["kind"] == "faster":
        wanted, got = f"{value:g} x {target['peer']}", f"{found:.1f} x" if found is not None else ""
    elif target["kind"] == "rate":
        wanted, got = f"{value:.3g} pairs/s", f"{found:.3g}" if found is not None else ""
    elif target["kind"] == "floor":
        wanted, got = f"{value:.0%} of the floor", f"{found:.0%}" if found is not None else ""
    else:
        wanted, got = f"{value:.3g} B beyond", f"{found:.3g} B" if found is not None else ""
    return f"{wanted}: {got or 'not here'}"


def share(row: Row) -> float | None:
    """How much of the speed that nothing can exceed was reached."""
    if "floor" not in row or row["status"] != "ok":
        return None
    return row["floor"]["seconds"] / row["results"][OURS]["median"]


def terminal(rows: Iterable[Row], targets: bool = False) -> Table:
    """Every library of every row, in 80 columns; ``targets`` adds what a row was to reach, for authors."""
    table = Table()
    table.add_column("case", ratio=3, min_width=18)
    table.add_column("library", ratio=2, min_width=12)
    for name in ("median", "p20", "p80", "x ours", "of peak"):
        table.add_column(name, no_wrap=True, justify="right")
    if targets:
        table.add_column("target")
        table.add_column("met")
    for row in rows:
        ours = row["results"].get(OURS, {}).get("median")
        for place, (name, found) in enumerate(row["results"].items()):
            head = row["title"] if place == 0 else ""
            if found["status"] != "ok":
                table.add_row(head, f"{name}: {found.get('reason') or found['status']}", found["status"])
                continue
            reached = share(row) if name == OURS else None
            wanted = row.get("targets", []) if name == OURS and targets else []
            cells = [
                duration(found["median"]),
                *(duration(found[name]) if name in found else "" for name in ("p20", "p80")),
                f"{found['median'] / ours:.2f}" if ours and name != OURS else "",
                f"{reached:.0%}" if reached is not None else "",
            ]
            if targets:
                cells += ["\n".join(map(goal, wanted)), "\n".join(_SIGNS[target["met"]] for target in wanted)]
            table.add_row(head, name, *cells)
        table.add_section()
    return table


def comparison(old: Sequence[Row], new: Sequence[Row]) -> Table:
    """Medians of two files case by case; a change counts where the spreads do not touch."""
    table = Table("case", "library", "before", "after", "after / before", "")
    for case, before, after in paired(old, new):
        for name in before["results"]:
            first, second = before["results"][name], after["results"].get(name, {})
            if "median" not in first or "median" not in second:
                continue
            ratio = second["median"] / first["median"]
            table.add_row(
                case,
                name,
                duration(first["median"]),
                duration(second["median"]),
                f"{ratio:.3f}",
                verdict(first, second),
            )
    return table


def spreadsheet(rows: Iterable[Row], path: Path) -> None:
    """Comma-separated values, a line for each contestant of each row."""
    fields = ("status", "median", "p20", "p80", "minimum", "samples", "error", "bytes")
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["suite", "case", "definition", "contestant", *fields, "machine", "commit", "date"])
        for row in rows:
            where = machine.title(row["stamp"]["machine"]), row["stamp"]["commit"], row["date"]
            for name, found in row["results"].items():
                what = row["suite"], row["case"], row["definition"], name
                lines.writerow([*what, *(found.get(field, "") for field in fields), *where])


def paired(old: Sequence[Row], new: Sequence[Row]) -> list[tuple[str, Row, Row]]:
    """Latest rows of the cases that both have."""
    before, after = latest(old), latest(new)
    return [(case, before[case], after[case]) for case in before if case in after]


def verdict(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Whether a difference is more than noise."""
    if after["p20"] > before["p80"] and after["median"] > before["median"] * SLOWER:
        return "slower"
    if after["p80"] < before["p20"] and after["median"] * SLOWER < before["median"]:
        return "faster"
    return ""


def picture(rows: Sequence[Row], path: Path) -> None:
    """Bars of how near to the floor everybody came, one group a case."""
    try:
        plots = import_module("matplotlib.figure")
    except ImportError as error:
        raise BackendError("a picture needs matplotlib: pip install matplotlib") from error
    good = [row for row in latest(rows).values() if "floor" in row and row["case"] != "tiny"]
    if not good:
        raise ParameterError("there are no rows with a floor to draw")
    names = list(dict.fromkeys(name for row in good for name, found in row["results"].items() if "median" in found))
    figure = plots.Figure(figsize=(9, 0.55 + 0.22 * sum(len(row["results"]) for row in good)), layout="constrained")
    axes = figure.add_subplot()
    colours = dict(zip(names, ["#1b6ca8", "#e07a2f", "#8a8a8a", "#4c9f70", "#b05a8e", "#b8a13a"] * 3, strict=False))
    place, ticks = 0.0, {}
    for row in reversed(good):
        found = [
            (name, row["results"][name]["median"])
            for name in reversed(names)
            if "median" in row["results"].get(name, {})
        ]
        for name, seconds in found:
            part = 100 * row["floor"]["seconds"] / seconds
            axes.barh(place, part, 0.9, color=colours[name])
            axes.text(part + 0.6, place, duration(seconds), va="center", fontsize=7, color="#333333")
            place += 1
        ticks[place - len(found) / 2 - 0.5] = row["title"]
        place += 0.8
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_xlim(0, 112)
    axes.axvline(100, color="#333333", linewidth=0.8, linestyle=":")
    axes.set_xlabel("per cent of the machine's peak (median time beside each bar)")
    axes.set_title(machine.title(good[-1]["stamp"]["machine"]), loc="left", fontsize=10)
    shown = [axes.barh(0, 0, color=colours[name]) for name in names]
    axes.legend(shown, names, loc="lower right", fontsize=8, framealpha=1, edgecolor="white")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
