"""The tiles that are taken by default against the quickest, over a grid of shapes: every tile is timed on each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from kernmantle.pairwise import cdist
from kernmantle.runtime.precompile import precompile
from kernmantle.torch_ops.tune import tune
from kernmantle.torch_ops.tuned_tiles import Tuned, tuning

from . import machine, store
from .report import duration
from .run import now

SIDES = (
    (32, 32), (128, 128), (512, 512), (2048, 2048), (8192, 8192), (65536, 65536), (32, 65536), (65536, 32),
    (512, 8192), (8192, 512),
)  # fmt: skip
DEPTHS = (1, 4, 16, 64, 256, 1024, 8192)
POWERS: Mapping[float, tuple[tuple[int, ...], float]] = {
    1.0: (DEPTHS, 4e11),
    2.0: ((16, 64, 256, 1024, 8192), 4e11),
    1.3: ((4, 64, 1024), 1e11),
}
NEAR = 1.05
MOST_NUMBERS = 1 << 30


@dataclass(frozen=True)
class Shape:
    """Distances of a power between ``m`` and ``n`` points of ``k`` numbers."""

    p: float
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        """What rows call it."""
        return f"p={self.p:g} {self.m}x{self.n}x{self.k}"


def grid() -> list[Shape]:
    """The shapes, those left out that take longer than a few tenths of a second or gigabytes of operands."""
    shapes = [Shape(p, m, n, k) for p, (depths, _) in POWERS.items() for m, n in SIDES for k in depths]
    return [
        one for one in shapes if one.m * one.n * one.k <= POWERS[one.p][1] and (one.m + one.n) * one.k <= MOST_NUMBERS
    ]


def row_of(shape: Shape, found: Tuned, stamp: Mapping[str, Any]) -> store.Row:
    """What is kept of a shape."""
    return {
        "suite": "tiles", "case": shape.name, "stamp": dict(stamp), "date": now(), "default": found.default,
        "best": found.best, "gain": found.gain, "seconds": dict(found.seconds),
    }  # fmt: skip


def _compile(shapes: Sequence[Shape]) -> int:
    """Compile every tile of every shape in processes of their own."""

    def call(shape: Shape) -> torch.Tensor:
        x, y = (torch.empty(rows, shape.k, device="cuda") for rows in (shape.m, shape.n))
        return cdist(x, y, p=shape.p)

    with tuning():
        return precompile([partial(call, shape) for shape in shapes])


def run(path: Path, budget: float, names: Sequence[str]) -> list[store.Row]:
    """Measure the shapes that the file lacks in this state; rows of all of them."""
    stamp = machine.stamp("cuda")
    kept = [row for row in store.read(path) if store.state(row) == store.state({"stamp": stamp})]
    known = {row["case"] for row in kept}
    due = [one for one in grid() if one.name not in known and (not names or one.name in names)]
    begin = time.monotonic()
    _compile(due)
    for shape in due:
        if time.monotonic() - begin > budget:
            break
        found = tune(partial(cdist, p=shape.p), [((shape.m, shape.k), (shape.n, shape.k))])
        if found:
            kept.append(row_of(shape, found[0], stamp))
            store.append(path, kept[-1])
    return kept


def table(rows: Sequence[store.Row]) -> Table:
    """Shapes whose default is not the quickest tile, and how many are near."""
    near = sum(row["gain"] <= NEAR for row in rows)
    shown = Table(
        "shape", "default", "its time", "quickest", "its time", "default / quickest",
        title=f"{near} of {len(rows)} defaults are within {NEAR - 1:.0%} of the quickest tile",
    )  # fmt: skip
    for row in sorted(rows, key=lambda row: -row["gain"]):
        if row["default"] != row["best"]:
            times = (row["seconds"][row[name]] for name in ("default", "best"))
            first, second = map(duration, times)
            shown.add_row(row["case"], row["default"], first, row["best"], second, f"{row['gain']:.3f}")
    return shown


def show(rows: Sequence[store.Row], console: Console) -> int:
    """Print; 1 where a default is not near."""
    console.print(table(rows))
    return int(any(row["gain"] > NEAR for row in rows))
