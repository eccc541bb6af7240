"""``kernmantle demo``: kernel regression and nearest neighbours on real data, under distances of every kind."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from .._version import __version__
from ..errors import BackendError, DeviceError
from ..runtime import progress
from . import demo_learning as learning
from . import demo_picture, demo_times, info

WIDTH = 110
_INSTALL = "pip install {}, or in a checkout: pip install '.[demo]'"
Scores = dict[str, dict[str, float]]


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        "kernmantle demo",
        description="Kernel regression and nearest neighbours on real data, under several distances. Needs "
        "scikit-learn for the data and matplotlib for the plot: the extra demo.",
    )
    parser.add_argument("--output", type=Path, default=Path("kernmantle-demo.png"), help="file of the plot")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    begin = time.perf_counter()
    _check_device(options.device)
    _check_packages(console)
    hardware = _hardware(options.device)
    console.print(f"[bold]kernmantle {__version__}[/] on {hardware}", highlight=False)
    digits, diabetes = learning.load(options.device)
    scores: Scores = {}
    times: dict[float, dict[str, float]] = {}
    pixels = torch.cat([digits.train, digits.test])
    total = len(learning.DISTANCES) + len(demo_times.POWERS) + 1
    with progress.bar(total=total, unit="step", delay=0, leave=False) as bar:
        for distance in learning.DISTANCES:
            bar.set_description(f"learning under {distance.name}")
            scores[distance.name] = score(distance, digits, diabetes)
            bar.update()
        bar.set_description("learning weights by gradient")
        learned = learning.trained_weights(diabetes)
        bar.update()
        for p in demo_times.POWERS:
            bar.set_description(f"timing p = {p:g}")
            times[p] = demo_times.measure(pixels, p)
            bar.update()
    console.print(_score_table(scores))
    console.print(
        "[bold]your own[/] is [italic]lambda a, b, c: 1 - km.exp(-(((a - b) / c) ** 2))[/]: no column adds more\n"
        "than 1 to it, so corrupted pixels cost little accuracy.",
        highlight=False,
    )
    console.print(_weight_line(learned), highlight=False)
    console.print(_time_table(times, len(pixels), pixels.shape[1]))
    _picture(options.output, digits, scores, learned, times, hardware, console)
    console.print(f"{time.perf_counter() - begin:.0f} s in total", highlight=False)
    return 0


def _check_device(device: str) -> None:
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise DeviceError(f"invalid device {device!r}; --device takes cpu, cuda or cuda:<number>")
    count = torch.cuda.device_count()
    if kind == "cuda" and int(index or 0) >= count:
        raise DeviceError(f"--device {device}: this machine has {count} CUDA devices; use --device cpu")


def _check_packages(console: Console) -> None:
    """Raise for what the demonstration cannot do without, and print what will be left out."""
    if find_spec("sklearn") is None:
        raise BackendError(f"the demonstration needs scikit-learn for its data: {_INSTALL.format('scikit-learn')}")
    if find_spec("matplotlib") is None:
        console.print(f"No plot will be drawn without matplotlib: {_INSTALL.format('matplotlib')}", highlight=False)


def _hardware(device: str) -> str:
    name = "cuda:0" if device == "cuda" else device
    return f"{dict(info.devices())[name]}; torch {torch.__version__}"


def score(distance: learning.Distance, digits: learning.Digits, diabetes: learning.Diabetes) -> dict[str, float]:
    """Return everything that is learned under one distance."""
    whole, broken = learning.read_digits(distance, digits)
    return {
        "kernel regression, clean": whole,
        "kernel regression, corrupted": broken,
        "neighbours, clean": learning.neighbours(distance, digits, digits.test),
        "neighbours, corrupted": learning.neighbours(distance, digits, digits.broken),
        "disease": learning.predict_disease(distance, diabetes),
    }


def _score_table(scores: Scores) -> Table:
    table = Table(
        "distance",
        title="digits: accuracy (%) on clean images and with 20 % of pixels corrupted; diabetes: R²",
        title_justify="left",
    )
    for name in ("kernel\nregression", "\ncorrupted", "5 nearest\nneighbours", "\ncorrupted", "diabetes\nregression"):
        table.add_column(name, justify="right")
    best = {column: max(found[column] for found in scores.values()) for column in next(iter(scores.values()))}
    for name, found in scores.items():
        cells: list[str] = []
        for column, value in found.items():
            text = f"{value:.3f}" if column == "disease" else f"{100 * value:.1f}"
            cells.append(f"[bold green]{text}[/]" if value == best[column] else text)
        table.add_row(name, *cells)
    return table


def _weight_line(learned: learning.Learned) -> str:
    order = sorted(zip(learned.weights, learned.names, strict=True), reverse=True)
    top = ", ".join(name for _, name in order[:4])
    noise = sum(weight for weight, name in order if name.startswith("noise"))
    return (
        f"Diabetes with {learning.FOREIGN} columns of noise added: R² is {learned.equal:.3f} with equal weights, and "
        f"{learned.own:.3f} with weights\n"
        f"learned by gradient. The largest are {top}; the noise gets {100 * noise:.0f} %."
    )


def _time_table(times: dict[float, dict[str, float]], rows: int, columns: int) -> Table:
    title = f"median time of all {rows} x {rows} distances between images of {columns} pixels, results checked"
    table = Table("", title=title, title_justify="left")
    names = list(dict.fromkeys(name for found in times.values() for name in found))
    for name in names:
        table.add_column(name, justify="right")
    for p, found in times.items():
        ours = found[demo_times.OURS]
        cells = [
            demo_times.milliseconds(found[name]) + ("" if name == demo_times.OURS else f"  ({found[name] / ours:.1f}x)")
            for name in names
        ]
        table.add_row(f"p = {p:g}", *cells)
    return table


def _picture(
    path: Path, digits: learning.Digits, scores: Scores, learned: learning.Learned,
    times: dict[float, dict[str, float]], hardware: str, console: Console,
) -> None:  # fmt: skip
    if find_spec("matplotlib") is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    demo_picture.draw(path, digits, scores, learned, times, hardware)
    console.print(f"plot in {path.resolve()}", soft_wrap=True, highlight=False)
