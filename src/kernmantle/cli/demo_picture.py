"""The plot of the demonstration."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from .demo_learning import DISTANCES, Digits, Learned
from .demo_times import OURS, SCIPY, TORCH, milliseconds

INK, PALE, BLUE, ORANGE, GREY, RED = "#22313f", "#9aa5b1", "#1b6ca8", "#e07a2f", "#8a94a0", "#c0392b"
SHOWN = 6
BARS = {
    "kernel regression, clean": BLUE,
    "kernel regression, corrupted": "#8fbbdc",
    "neighbours, clean": ORANGE,
    "neighbours, corrupted": "#f3c19c",
}


def draw(
    path: Path, digits: Digits, scores: dict[str, dict[str, float]], learned: Learned,
    times: dict[float, dict[str, float]], hardware: str,
) -> None:  # fmt: skip
    """Write the plot; needs matplotlib."""
    plots = import_module("matplotlib.figure")
    figure = plots.Figure(figsize=(13, 8.6), layout="constrained", facecolor="white")
    figure.suptitle(
        "kernmantle: one expression, any distance, one fused pass", fontsize=17, color=INK, x=0.012, ha="left"
    )
    figure.supxlabel(hardware, fontsize=9, color=GREY, x=0.012, ha="left")
    left, right = figure.subfigures(1, 2, width_ratios=[1.08, 1])
    top, bottom = left.subfigures(2, 1, height_ratios=[1.35, 1])
    _neighbours(top, digits)
    _accuracy(bottom.add_subplot(), scores, len(digits.test))
    upper, lower = right.subplots(2, 1, height_ratios=[1, 1.1])
    _times(upper, times)
    _weights(lower, learned)
    figure.savefig(path, dpi=130)


def _tidy(axes: Any, title: str, note: str) -> None:
    axes.set_title(f"{title}\n", loc="left", fontsize=12, color=INK, weight="bold")
    axes.text(0, 1.02, note, transform=axes.transAxes, fontsize=9.5, color=GREY, va="bottom")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)


def disputed(digits: Digits) -> tuple[list[int], torch.Tensor]:
    """Broken digits that only some distances read right, each digit once, and everybody's nearest neighbours."""
    nearest = torch.stack([each.sums(digits.broken, digits.train, **each.pixels).argmin(1) for each in DISTANCES])
    right = digits.labels[nearest] == digits.answers
    worth = 8 * right[-1].int() - 4 * right[-2].int() + right.sum(0)
    order = worth.argsort(descending=True, stable=True).tolist()
    picked: list[int] = []
    for index in order:
        if int(digits.answers[index]) not in {int(digits.answers[other]) for other in picked}:
            picked.append(index)
        if len(picked) == SHOWN:
            break
    return picked, nearest


def _neighbours(figure: Any, digits: Digits) -> None:
    picked, nearest = disputed(digits)
    heads = ["corrupted digit", *(each.name for each in DISTANCES)]
    grid = figure.subplots(SHOWN, len(heads))
    figure.suptitle("Which training digit is nearest?", x=0.012, ha="left", fontsize=12, color=INK, weight="bold")
    figure.supxlabel(
        "frame: blue if the label is right, red if it is wrong", x=0.012, ha="left", fontsize=9.5, color=GREY
    )
    for line, index in enumerate(picked):
        wanted = int(digits.answers[index])
        for column, head in enumerate(heads):
            axes = grid[line][column]
            image = digits.broken[index] if column == 0 else digits.train[nearest[column - 1, index]]
            axes.imshow(image.reshape(8, 8).cpu().numpy(), cmap="gray_r", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            good = column == 0 or int(digits.labels[nearest[column - 1, index]]) == wanted
            axes.spines[:].set_color(GREY if column == 0 else BLUE if good else RED)
            axes.spines[:].set_linewidth(1.0 if column == 0 else 2.4)
            if line == 0:
                axes.set_title(head, fontsize=9.5, color=INK)
            if column == 0:
                axes.set_ylabel(str(wanted), rotation=0, fontsize=11, color=INK, labelpad=12, va="center")


def _accuracy(axes: Any, scores: dict[str, dict[str, float]], count: int) -> None:
    names = list(scores)
    least = 100 * min(found[label] for found in scores.values() for label in BARS)
    bottom = 5 * int((least - 2) // 5)
    for bar, (label, colour) in enumerate(BARS.items()):
        values = [100 * scores[name][label] for name in names]
        positions = [index + 0.2 * (bar - 1.5) for index in range(len(names))]
        axes.bar(positions, [value - bottom for value in values], 0.19, bottom=bottom, color=colour, label=label)
        for index, value in zip(positions, values, strict=True):
            axes.text(index, value + 0.25, f"{value:.1f}", ha="center", fontsize=6.5, color=INK)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(bottom, 104)
    axes.set_yticks(range(bottom, 101, 5))
    axes.set_ylabel("accuracy (%)", color=INK, fontsize=9)
    axes.legend(fontsize=8, ncols=4, frameon=False, loc="upper center", columnspacing=1.0, handlelength=1.2)
    _tidy(axes, "Accuracy", f"{count} test digits, clean and with 20 % of the pixels corrupted")


def _times(axes: Any, times: dict[float, dict[str, float]]) -> None:
    colours = {OURS: BLUE, TORCH: ORANGE, SCIPY: PALE}
    present = [name for name in colours if any(name in found for found in times.values())]
    height = 0.8 / len(present)
    for group, found in enumerate(times.values()):
        for index, name in enumerate(present):
            if name not in found:
                continue
            at = group + (index - (len(present) - 1) / 2) * height
            axes.barh(at, found[name] * 1e3, height * 0.92, color=colours[name], label=name if group == 0 else None)
            factor = found[name] / found[OURS]
            note = milliseconds(found[name]) + (f"  ({factor:.1f}x)" if name != OURS else "")
            axes.text(found[name] * 1e3 * 1.08, at, note, va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(times)), [f"p = {p:g}" for p in times])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(right=axes.get_xlim()[1] * 6)
    axes.set_xlabel("milliseconds (log scale)", fontsize=9, color=INK)
    axes.legend(fontsize=8.5, frameon=False, loc="lower right")
    _tidy(
        axes,
        "Time for all distances between the 1797 digits",
        "medians, results checked first; in brackets: times slower than kernmantle",
    )


def _weights(axes: Any, learned: Learned) -> None:
    order = sorted(range(len(learned.weights)), key=lambda index: -learned.weights[index])
    noise = {index for index, name in enumerate(learned.names) if name.startswith("noise")}
    axes.bar(
        range(len(order)),
        [100 * learned.weights[index] for index in order],
        0.8,
        color=[PALE if index in noise else BLUE for index in order],
    )
    axes.set_xticks(
        range(len(order)), [learned.names[index] for index in order], rotation=60, ha="right", rotation_mode="anchor"
    )
    axes.set_ylabel("weight (%)", fontsize=9, color=INK)
    axes.text(
        0.98,
        0.93,
        f"R² on the test set\nequal weights  {learned.equal:.3f}\nlearned weights  {learned.own:.3f}",
        transform=axes.transAxes,
        ha="right",
        va="top",
        fontsize=10,
        color=INK,
        linespacing=1.5,
    )
    _tidy(
        axes, "Weights of the columns, learned by gradient", f"diabetes data; grey: {len(noise)} added columns of noise"
    )
