"""Rows under the roofs of the machine: how often a resource was used a second, over how often for each byte."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import numpy as np

from kernmantle.errors import BackendError, ParameterError

from . import machine
from .case import Case, Suite
from .report import OURS
from .store import Row, latest

_NAMES = {"fp32": "float32 instructions", "mufu": "special functions", "fp16": "products on tensor cores"}
_APART, _CLOSE = 1.7, 1.12
_COLOURS = {"fp32": "#1b6ca8", "mufu": "#e07a2f", "fp16": "#4c9f70"}


def points(rows: Iterable[Row], suite: Suite) -> list[tuple[str, str, float, float]]:
    """Of each good row its case, the resource that it uses longest, uses a byte and uses a second."""
    works = {row.name: row.work for row in suite.rows if isinstance(row, Case)}
    found: list[tuple[str, str, float, float]] = []
    for name, row in latest(rows).items():
        work, rates = works.get(name), row.get("rates", {})
        if work is None or not work.bytes or not work.compute or not set(work.compute) <= set(rates):
            continue
        resource, uses = max(work.compute.items(), key=lambda one: one[1] / rates[one[0]])
        found.append((name, resource, uses / work.bytes, uses / row["results"][OURS]["median"]))
    return found


def _together(mine: Iterable[tuple[str, str, float, float]]) -> dict[tuple[float, float], list[str]]:
    """Names of points that lie so near that their labels would overlap, by the first of them."""
    found: dict[tuple[float, float], list[str]] = {}
    for name, _, x, y in mine:
        near = next(
            (one for one in found if max(x / one[0], one[0] / x) < _APART and 1 / _CLOSE < y / one[1] < _CLOSE), (x, y)
        )
        found.setdefault(near, []).append(name)
    return found


def draw(rows: Iterable[Row], suite: Suite, path: Path) -> None:
    """Write the picture."""
    try:
        plots = import_module("matplotlib.figure")
    except ImportError as error:
        raise BackendError("a roofline needs matplotlib: pip install matplotlib") from error
    kept = list(rows)
    found = points(kept, suite)
    if not found:
        raise ParameterError(f"there are no rows of {suite.name} with floors to draw")
    rates: dict[str, float] = {}
    for row in kept:
        rates |= row.get("rates", {})
    figure = plots.Figure(figsize=(9, 6), layout="constrained")
    axes = figure.add_subplot()
    least, most = (edge(point[2] for point in found) for edge in (min, max))
    across = np.geomspace(least / 3, most * 3, 200)
    for resource in dict.fromkeys(point[1] for point in found):
        colour = _COLOURS.get(resource, "#8a8a8a")
        axes.plot(across, np.minimum(across * rates["bytes"], rates[resource]), color=colour, linewidth=1)
        mine = [point for point in found if point[1] == resource]
        label = _NAMES.get(resource, resource)
        axes.plot([point[2] for point in mine], [point[3] for point in mine], "o", color=colour, label=label)
        for (x, y), names in _together(mine).items():
            axes.annotate(", ".join(names), (x, y), (5, -9), textcoords="offset points", fontsize=6, color="#333333")
    axes.set(xscale="log", yscale="log", xlabel="uses a byte that must move", ylabel="uses a second")
    axes.set_title(machine.title(kept[-1]["stamp"]["machine"]), loc="left", fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
