"""Committed rows as pages: Markdown for the documentation, one HTML file with plots for the rest of the world."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import kron, kronsparse, machine, many, store, structured_random, xrfm
from .host import WITHOUT
from .report import OURS, digits, duration, share
from .startup import QUESTIONS
from .store import Row, latest

COLOURS = ("#1b6ca8", "#e07a2f", "#8a8a8a", "#4c9f70", "#b05a8e", "#b8a13a", "#22313f")
MARKS = "oDs^vP*"
TITLES = {
    "attention": "Attention and soft minima",
    "apply": "Products with a kernel's matrix", "apply-cpu": "Products with a kernel's matrix",
    "clusters": "Clusters",
    "clusters-cpu": "Clusters, on the CPU",
    "compile": "Compiling", "contraction": "Distances and contractions", "cpu": "Distances and contractions",
    "estimators": "Estimators", "estimators-cpu": "Estimators", "gradient": "Gradients of predictors",
    "host": "Time of the host", "host-cuda": "Time of the host",
    "keops-gallery": "KeOps' benchmark gallery",
    "kron": "Kronecker products", "kronsparse": "Kronecker-sparse products",
    "kronsparse-models": "Models with Kronecker-sparse layers", "layers": "Kronecker-sparse layers",
    "many": "Several GPUs",
    "scores": "Scores", "solvers": "Solvers",
    "solvers-cpu": "Kernel systems", structured_random.SUITE: "Random structured products",
    "tables": "Rows of the tables", "unseen": "Shapes that no prediction was fitted to", "xrfm": "Feature learning",
}  # fmt: skip


@dataclass(frozen=True)
class Large:
    """A suite of more rows than a table takes: whether it lists a row, what all come to, and their plot."""

    listed: Callable[[Row], bool]
    summary: Callable[[Sequence[Row]], str]
    drawn: Callable[[Sequence[Row]], Any]


LARGE = {
    "kronsparse": Large(kronsparse.listed, kronsparse.summary, kronsparse.drawn),
    structured_random.SUITE: Large(structured_random.is_behind, structured_random.in_short, structured_random.drawn),
}
# Contestants that are our own kernels too: with other weights, a part of the work, uncompiled, on fewer GPUs.
VARIANTS = frozenset({
    kron.PRODUCT, kronsparse.UNPACKED, kronsparse.KERNEL, xrfm.THROUGH, many.ALONE, WITHOUT, "all at once", "eager",
    "second call",
})  # fmt: skip
_FIELDS = {"suite", "case", "title", "status", "results", "stamp", "date"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22313f; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .3rem .7rem; text-align: right }
td:first-child, th:first-child { text-align: left } td + td { white-space: nowrap }
tr + tr { border-top: 1px solid #dde3e8 }
th { color: #5c6b78; font-weight: 600 } p { color: #5c6b78 } svg { max-width: 100%; height: auto }
"""


@dataclass(frozen=True)
class Group:
    """The last good rows of one suite on one machine."""

    suite: str
    machine: str
    rows: tuple[Row, ...]

    @property
    def peers(self) -> list[str]:
        """Everybody but us who has a time in the table, in the order of their first appearance, our variants last."""
        names = (name for row in self.listed for name, found in row["results"].items() if "median" in found)
        return sorted((name for name in dict.fromkeys(names) if name != OURS), key=VARIANTS.__contains__)

    @property
    def listed(self) -> tuple[Row, ...]:
        """The rows that tables have; the others of a large suite are in its note and its picture."""
        own = LARGE.get(self.suite)
        return tuple(row for row in self.rows if own is None or own.listed(row))

    @property
    def notes(self) -> list[str]:
        """What all rows of a large suite come to."""
        own = LARGE.get(self.suite)
        return [line for line in own.summary(self.rows).split("\n") if line] if own else []

    @property
    def title(self) -> str:
        """What was measured, and on what."""
        return f"{TITLES.get(self.suite, self.suite)}: {self.machine}"

    @property
    def origin(self) -> str:
        """Machine, versions, commit and dates."""
        stamp = self.rows[-1]["stamp"]
        dates = sorted({row["date"][:10] for row in self.rows})
        versions = ", ".join(f"{name} {stamp['versions'][name]}" for name in ("torch",) if name in stamp["versions"])
        commits = dict.fromkeys(row["stamp"]["commit"] for row in self.rows if row["stamp"]["commit"])
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        commit = f"commit {', '.join(commits)}" if commits else ""
        return "; ".join(part for part in (self.machine, versions, commit, when) if part)

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(line)}</p>" for line in self.notes)
        return f"{notes}{large(self)}{figure(self)}{html_table(self)}<p>Medians; {escape(self.origin)}.</p>"


def _ours_first(row: Row) -> Row:
    """The row with our result under our name, also where another library ran on our kernels.

    Of what a new process pays our first call alone: the second one is no rival.
    """
    results: Mapping[str, Any] = row.get("results", {})
    named = {OURS if name.endswith(", ours") else name: found for name, found in results.items()}
    if row.get("definition") in QUESTIONS:
        named = {OURS: named.get(OURS, {})}
    return {**row, "results": named}


def groups(paths: Iterable[Path]) -> list[Group]:
    """Rows of suites in some files, by suite and machine; rows of other forms are left out.

    A case that several suites measure on a machine is shown once, by its newest row.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for row in (_ours_first(row) for path in paths for row in store.read(path)):
        if row.keys() >= _FIELDS and "median" in row["results"].get(OURS, {}):
            found.setdefault((row["suite"], machine.title(row["stamp"]["machine"])), []).append(row)
    kept = {key: latest(rows).values() for key, rows in found.items()}
    newest: dict[tuple[str, ...], str] = {}
    for (_, title), rows in kept.items():
        for row in rows:
            newest[_measured(title, row)] = max(row["date"], newest.get(_measured(title, row), ""))
    return [
        Group(suite, title, shown)
        for (suite, title), rows in sorted(kept.items())
        if (shown := tuple(row for row in rows if row["date"] == newest[_measured(title, row)]))
    ]


def _measured(title: str, row: Row) -> tuple[str, ...]:
    """Return what a row is a measurement of."""
    return title, row["case"], row.get("definition", "")


def cells(row: Row, peers: Sequence[str]) -> list[str]:
    """A line of the table: title, our time, theirs, how many times faster than the best of them, share of the peak.

    What is ``VARIANTS`` or begins with our name is ours: no rival.
    """
    results: Mapping[str, Any] = row["results"]
    ours = results[OURS]["median"]
    others = {name: results[name]["median"] for name in peers if "median" in results.get(name, {})}
    rivals = [seconds for name, seconds in others.items() if not name.startswith(OURS) and name not in VARIANTS]
    reached = share(row)
    return [
        row["title"],
        duration(ours),
        *(duration(others[name]) if name in others else "" for name in peers),
        f"{digits(min(rivals) / ours)} x" if rivals else "",
        f"{reached:.0%}" if reached is not None else "",
    ]


def head(peers: Sequence[str]) -> list[str]:
    """The head of the table."""
    return ["", OURS, *peers, "faster", "of peak"]


def markdown(group: Group) -> str:
    """Table and origin of a group."""
    lines = [head(group.peers), ["---", *["---:"] * (len(group.peers) + 3)]]
    lines += [[cell.replace("|", "\\|") for cell in cells(row, group.peers)] for row in group.listed]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"* {line}\n" for line in group.notes)
    text = f"{notes}\n{text}" if notes else text
    return f"{text}\n\nMedians of `python -m benchmarks {group.suite}`; {group.origin}."


def figure(group: Group) -> str:
    """Times of everybody over ours as a picture in SVG; empty without matplotlib or without others."""
    if find_spec("matplotlib") is None or not group.peers:
        return ""
    plots = import_module("matplotlib.figure")
    peers = group.peers
    rows = [row for row in reversed(group.listed) if any("median" in row["results"].get(name, {}) for name in peers)]
    # Margins in inches, from counts of letters and lines: a layout that measures every text takes three times as long.
    left, right, bottom, top = 0.15 + 0.065 * max(len(row["title"]) for row in rows), 0.15, 0.55, 0.1
    top, width = top + 0.18 * -(-len(peers) // 4), 9
    height = bottom + top + 0.24 * len(rows)
    drawn = plots.Figure(figsize=(width, height), facecolor="white")
    drawn.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height)
    axes = drawn.add_subplot()
    axes.axvline(1, color=COLOURS[0], linewidth=2)
    low, high = 0.5, 2.0
    for number, name in enumerate(peers):
        points = [
            (row["results"][name]["median"] / row["results"][OURS]["median"], place)
            for place, row in enumerate(rows) if "median" in row["results"].get(name, {})
        ]  # fmt: skip
        low, high = min(low, *(ratio for ratio, _ in points)), max(high, *(ratio for ratio, _ in points))
        style = number % (len(COLOURS) - 1)
        axes.plot(*zip(*points, strict=True), MARKS[style], color=COLOURS[style + 1], label=name, markersize=6)
    axes.set_xscale("log")
    axes.set_xlim(low / 1.2, high * 1.2)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows], fontsize=8)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.grid(axis="y", color="#e8ecef")
    axes.set_axisbelow(True)
    axes.set_xlabel(f"time over that of {OURS} (line)")
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return _svg(drawn, group)


def large(group: Group) -> str:
    """The picture that a large suite has of all its rows, in SVG; empty for others and without matplotlib."""
    if find_spec("matplotlib") is None or not group.notes:
        return ""
    return _svg(LARGE[group.suite].drawn(group.rows), group)


def _svg(drawn: Any, group: Group) -> str:
    matplotlib = import_module("matplotlib")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"{group.suite} {group.machine}"}):
        drawn.savefig(text, format="svg", dpi=150, metadata={"Date": None})
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    return re.sub(r'^<svg[^>]*?width="[^"]*" height="[^"]*"', '<svg style="width: 100%; height: auto"', svg, count=1)


def page(paths: Iterable[Path]) -> str:
    """Everything as Markdown with pictures, for a page that MyST reads."""
    parts: list[str] = []
    for group in groups(paths):
        parts += [f"## {group.title}", markdown(group)]
        parts += [f"```{{raw}} html\n{drawn}\n```" for drawn in (large(group), figure(group)) if drawn]
    return "\n\n".join(parts)


def html(paths: Iterable[Path]) -> str:
    """Everything as one HTML file that needs no other."""
    parts: list[str] = []
    for group in groups(paths):
        parts += [f"<h2>{escape(group.title)}</h2>", group._repr_html_()]
    body = "\n".join(parts) or "<p>There are no rows.</p>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>kernmantle benchmarks</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>kernmantle benchmarks</h1>\n{body}\n</body></html>\n"
    )


def html_table(group: Group) -> str:
    """Table of a group."""
    lines = [cells(row, group.peers) for row in group.listed]
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head(group.peers))
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>\n" for line in lines)
    return f"<table><tr>{top}</tr>\n{rows}</table>"
