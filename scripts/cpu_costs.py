"""What algorithms for Kronecker-sparse products take on a core of a CPU: measured, and as tables of ``cpu_cost.py``.

``python scripts/cpu_costs.py measure ROWS.jsonl [--seconds 400] [--seed 1]`` adds random products and gradients of
weights with every algorithm to a file: the least of the thread's own seconds of several calls, on one thread.
``python scripts/cpu_costs.py fit ROWS.jsonl`` prints the tables fitted to them and, for half of the rows by tables of
the other half, how much longer than the quickest algorithm the chosen one took, beside the tables that are there.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from kernmantle.structured.mode_product import cpu_cost, execute
from kernmantle.structured.mode_product.cpu_cost import SURE, Costs, Pattern
from kernmantle.structured.mode_product.operands import Operands
from kernmantle.structured.mode_product.pack import PackedWeights

TYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
KINDS = ("product", "packed", "gradient")
Row = dict[str, Any]
Tables = Mapping[bool, Mapping[str, Costs]]


def _least(call: Callable[[], object]) -> float:
    """Seconds of the thread for a call, without those in which it waited for others."""
    call()
    taken: list[float] = []
    while len(taken) < 3 or (sum(taken) < 0.012 and len(taken) < 60):
        begin = time.thread_time()
        call()
        taken.append(time.thread_time() - begin)
    return min(taken)


def _drawn(source: random.Random) -> tuple[Pattern, int, str, bool]:
    """Return a pattern, the rows, the type and the layout of a product of up to 5 GFLOP."""

    def about(low: int, high: int) -> int:
        return round(math.exp(source.uniform(math.log(low), math.log(high))))

    while True:
        large = source.random() < 0.15
        a, d = (about(1, 64) if source.random() < share else 1 for share in (0.7, 0.6))
        b, c = (about(4, 1024) if large else about(1, 256) for _ in range(2))
        batch = about(16, 30000) if large else about(1, 8192)
        work, ends = batch * a * b * c * d, batch * a * d * (b + c)
        most = (2.5e9, 4e7, 8e6) if large else (1.5e8, 4e6, 2e6)
        if work <= most[0] and ends <= most[1] and a * b * c * d <= most[2]:
            return (a, b, c, d), batch, source.choice(["f32", "f32", "f64", "bf16", "bf16"]), source.random() < 0.4


def _row(pattern: Pattern, batch: int, dtype: str, last: bool) -> Row:
    """Time every algorithm of a product, with packed weights too, and of the gradient of its weights."""
    a, b, c, d = pattern

    def array(features: int) -> torch.Tensor:
        made = torch.randn(1, features, batch) if last else torch.randn(1, batch, features)
        return made.to(TYPES[dtype]).mT if last else made.to(TYPES[dtype])

    x, grad, weight = array(a * c * d), array(a * b * d), torch.randn(1, a, b, c, d).to(TYPES[dtype])

    def product(algorithm: str, packed: PackedWeights | None) -> float:
        return _least(lambda: execute.product_by(algorithm, Operands(x, weight, batch_last=last, packed=packed)))

    def gradient(algorithm: str) -> float:
        return _least(lambda: execute.gradient(x, grad, pattern, algorithm, ""))

    names = cpu_cost.product_seconds(pattern, batch, dtype, last, True)
    with torch.no_grad():
        return {
            "pattern": pattern, "batch": batch, "dtype": dtype, "last": last,
            "product": {each: product(each, None) for each in names if each != "dense"},
            "packed": {each: product(each, PackedWeights()) for each in names},
            "gradient": {each: gradient(each) for each in cpu_cost.gradient_seconds(pattern, batch, dtype, last)},
        }  # fmt: skip


def measure(path: Path, seconds: float, seed: int) -> None:
    """Add rows to a file."""
    torch.set_num_threads(1)
    source, end = random.Random(seed), time.time() + seconds
    while time.time() < end:
        row = _row(*_drawn(source))
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _fitted(rows: Sequence[Row]) -> Tables:
    """Six numbers that are not negative for each row of the tables: the errors of estimates are relative ones."""
    found: dict[tuple[bool, str], list[tuple[tuple[float, ...], float]]] = {}
    for row in rows:
        given = tuple(row["pattern"]), row["batch"], row["dtype"], row["last"]
        for kind in KINDS:
            for each, seconds in row[kind].items():
                if kind == "packed" and each != "dense":
                    continue
                name = cpu_cost.row_of(each, given[0], *given[2:])
                amounts = cpu_cost.amounts(each, *given, kind == "gradient")
                found.setdefault((kind == "gradient", name), []).append((tuple(amounts), seconds))
    tables: dict[bool, dict[str, Costs]] = {False: {}, True: {}}
    for (is_gradient, name), samples in sorted(found.items()):
        counts, taken = np.array([own for own, _ in samples], float), np.array([seconds for _, seconds in samples])
        scale = np.maximum(counts.max(0), 1e-300)
        share, each = 1 / taken, np.zeros(6)
        for _ in range(8):  # between the errors against what was measured and against what is estimated
            each, _ = nnls(counts / scale * share[:, None], taken * share)
            share = 1 / np.sqrt(taken * np.maximum(counts / scale @ each, taken / 5))
        tables[is_gradient][name] = Costs(*(float(f"{value:.2g}") for value in each / scale))
    return tables


def _chosen(row: Row, kind: str, tables: Tables) -> str:
    given = tuple(row["pattern"]), row["batch"], row["dtype"], row["last"]

    def estimate(each: str) -> float:
        seconds = cpu_cost.estimate(each, tables[kind == "gradient"], *given, kind == "gradient")
        return seconds * (SURE if each == "kernel" else 1)

    return min(row[kind], key=estimate)


def fit(path: Path) -> None:
    """Print the tables, and what they choose."""
    rows: list[Row] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for is_gradient, table in _fitted(rows).items():
        print("GRADIENT" if is_gradient else "PRODUCT")
        for name, costs in table.items():
            print(f'    "{name}": Costs({", ".join(f"{value:.2g}" for value in costs)}),')
    split = _fitted(rows[::2])
    present = {False: cpu_cost.PRODUCT, True: cpu_cost.GRADIENT}
    for kind in KINDS:
        for half in (False, True):
            some = [r for r in rows[1::2] if len(r[kind]) > 1 and (r["dtype"] == "bf16") == half]
            if not some:
                continue
            said: list[str] = []
            for name, choose in (
                ("fitted to the other half", lambda row, kind=kind: _chosen(row, kind, split)),
                ("of the tables there", lambda row, kind=kind: _chosen(row, kind, present)),
                ("the kernel always", lambda _: "kernel"),
            ):
                ratios = np.array([row[kind][choose(row)] / min(row[kind].values()) for row in some])
                mean = math.exp(float(np.log(ratios).mean()))
                said.append(f"{name} {mean:.3f} ({np.quantile(ratios, 0.99):.2f}, {ratios.max():.2f})")
            print(f"{kind}, {'halves' if half else 'float32 and float64'}, {len(some)} rows:", "; ".join(said))
    print("(mean of times over the quickest, the 99th percentile and the most)")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "fit"))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.what == "measure":
        measure(options.rows, options.seconds, options.seed)
    else:
        fit(options.rows)


if __name__ == "__main__":
    main()
