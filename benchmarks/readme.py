"""What README.md shows of the committed rows: a table for each suite between its markers, and one plot of both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kernmantle.errors import BackendError, ParameterError

from . import machine
from .report import OURS, digits, duration, share
from .store import Row, latest, state

CDIST = "torch.cdist"
PEERS = {"cpu": (CDIST, "scipy"), "contraction": (CDIST, "kermac", "mm-kermac")}
PLOT = Path("docs") / "_static" / "speed.svg"
COLOURS = {OURS: "#1b6ca8", CDIST: "#e07a2f", "scipy": "#8a8a8a", "kermac": "#4c9f70", "mm-kermac": "#b05a8e"}
PLOTTED = {
    "cpu": ("l1", "p=1.3", "p=2", "laplace", "l1 f64", "sums", "l1 backward"),
    "contraction": ("p=1", "p=1.3", "p=2", "p=3", "K=3", "2048x2048x256 p=1", "512x512x64 p=1"),
}


def chosen(rows: Sequence[Row], suite: str) -> list[Row]:
    """Rows of a suite that share machine, versions and source with its newest row; the last one of each case."""
    own = [row for row in rows if row.get("suite") == suite]
    if not own:
        return []
    newest = state(max(own, key=lambda row: row["date"]))
    return list(latest([row for row in own if state(row) == newest]).values())


def markdown(rows: Sequence[Row], suite: str = "cpu") -> str:
    """A table: our time, those of the peers, how many times faster, and the share of the machine's peak."""
    peers = PEERS[suite]
    good = list(latest(rows).values())
    if not good:
        raise ParameterError("there are no rows to show; run the suite first")
    grams = [row for row in good if "floor" in row and row["case"] != "tiny"]
    starts = {row["case"]: row["results"][OURS]["median"] for row in good if "floor" not in row}
    lines = [
        f"| | kernmantle | {' | '.join(peers)} | faster than {CDIST} | of the machine's peak |",
        "|---|" + "---:|" * (len(peers) + 3),
    ]
    for row in grams:
        results = row["results"]
        ours = results[OURS]["median"]
        times = [duration(results[name]["median"]) if "median" in results.get(name, {}) else "" for name in peers]
        first = results.get(CDIST, {})
        ratio = f"{digits(first['median'] / ours)} x" if "median" in first else ""
        reached = share(row)
        lines.append(
            f"| {row['title']} | {duration(ours)} | {' | '.join(times)} | {ratio} | "
            f"{f'{reached:.0%}' if reached is not None else ''} |"
        )
    lines += ["", f"{_setting(grams)}median times on {origin(good)}."]
    if starts:
        lines.append(_starts(starts))
    return "\n".join(lines)


def origin(rows: Sequence[Row]) -> str:
    """Machine, versions, commit and day of the last of some rows."""
    last = max(rows, key=lambda row: row["date"])
    versions = last["stamp"]["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "scipy") if name in versions)
    commit = last["stamp"]["commit"]
    where = f"{machine.title(last['stamp']['machine'])}; {named}" + (f"; commit {commit}" if commit else "")
    return f"{where}; {last['date'][:10]}"


def _setting(grams: Sequence[Row]) -> str:
    found = re.match(r"(\d+)x(\d+), depth (\d+), f32", grams[0]["definition"]) if grams else None
    return f"{found[1]} x {found[2]} points with {found[3]} columns, float32 unless stated; " if found else ""


def _starts(starts: Mapping[str, float]) -> str:
    sentences = {
        "cold f32": "Compiling a new kernel takes {}",
        "warm": "Loading one from the disk cache in a new process takes {}",
        "import": "Importing kernmantle adds {} to importing torch",
    }
    found = [text.format(duration(starts[name])) for name, text in sentences.items() if name in starts]
    return "".join(f"{sentence}. " for sentence in found).rstrip()


def insert(text: str, name: str, block: str) -> str:
    """Text with what stands between the markers of that name replaced."""
    begin, end = f"<!-- begin generated: {name} -->", f"<!-- end generated: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ParameterError(f"there must be one {begin} and one {end} after it")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"


def caption(rows: Mapping[str, Sequence[Row]]) -> str:
    """Everything that the plot shows as text, which the file carries as its description."""
    lines: list[str] = []
    for suite, good in rows.items():
        lines.append(f"{_setting(good)}median times on {origin(good)}")
        for row in good:
            times = [(name, row["results"].get(name, {}).get("median")) for name in (OURS, *PEERS[suite])]
            lines.append(f"{row['title']}: " + ", ".join(f"{name} {duration(t)}" for name, t in times if t))
    return "\n".join(lines)


def plotted(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows that the plot shows, by suite."""
    found: dict[str, list[Row]] = {}
    for suite, cases in PLOTTED.items():
        by_case = {row["case"]: row for row in chosen(rows, suite) if "median" in row["results"].get(OURS, {})}
        if own := [by_case[case] for case in cases if case in by_case]:
            found[suite] = own
    return found


def draw(rows: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Write the plot of README as SVG: the time of every library, a panel for each suite."""
    try:
        plots, matplotlib = import_module("matplotlib.figure"), import_module("matplotlib")
    except ImportError as error:
        raise BackendError("the plot of README needs matplotlib: pip install matplotlib") from error
    figure = plots.Figure(figsize=(10, 3.5), layout="constrained", facecolor="white")
    panels = figure.subplots(1, len(rows), squeeze=False)[0]
    for axes, (suite, good) in zip(panels, rows.items(), strict=True):
        _panel(axes, good, PEERS[suite])
    marks = {name: handle for axes in panels for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    order = [name for name in COLOURS if name in marks]
    figure.legend(
        [marks[name] for name in order], order, loc="outside lower center", ncols=len(order), frameon=False, fontsize=9
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "kernmantle"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Description": caption(rows)})


def _panel(axes: Any, rows: Sequence[Row], peers: Sequence[str]) -> None:
    ours = [row["results"][OURS]["median"] for row in rows]
    heights = range(len(rows), 0, -1)
    for name in peers:
        found = [
            (row["results"].get(name, {}).get("median"), height) for row, height in zip(rows, heights, strict=True)
        ]
        points = [point for point in found if point[0]]
        if points:
            axes.plot(*zip(*points, strict=True), "o", color=COLOURS[name], label=name, markersize=6)
    for row, mine, height in zip(rows, ours, heights, strict=True):
        last = max(row["results"].get(name, {}).get("median") or mine for name in peers)
        axes.plot([mine, last], [height, height], color="#d5dbe0", linewidth=1.5, zorder=0)
    axes.plot(ours, heights, "D", color=COLOURS[OURS], label=OURS, markersize=7)
    axes.set_xscale("log")
    axes.set_yticks(list(heights), [row["title"] for row in rows], fontsize=9)
    axes.set_ylim(0.4, len(rows) + 0.6)
    axes.set_xlabel("seconds per call (log scale, less is better)", fontsize=9)
    axes.set_title(machine.title(rows[-1]["stamp"]["machine"]), loc="left", fontsize=9, color="#5c6b78")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
