"""A model of kernel products over many GPUs: ``python scripts/weak_scaling.py --plot docs/_static/weak_scaling.svg``.

A ring of W processes has n / W rows each. In each of W steps a process computes the kernel values of its rows with one
shard, while the next shard, rows and vectors, is under way:

    T(W) = t_values(n / W) + (W - 1) max(t_values(n / W), t_link((n / W) (k + c) 4 bytes)) + W t_host
    t_values(r) = r² e,  t_link(b) = latency + b / bandwidth,

and an iteration of conjugate gradients has three sums over all processes, 2 log2(W) latency each. Bandwidth and latency
are those of NVLink for up to 8 GPUs, of the network above, since the slowest link sets the pace of a ring. The work of
a GPU is constant: n = n(1) sqrt(W). e is a row of ``benchmarks/results``; what is assumed is named ASSUMED. Products
that were measured on 2 and 4 GPUs are predicted too, by the time of one GPU in the same row.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
NODE = 8
ASSUMED = {
    "NVLink, bytes/s": 360e9, "network, bytes/s for each GPU": 40e9, "NVLink latency, s": 10e-6,
    "network latency, s": 30e-6, "host, s a step": 100e-6,
}  # fmt: skip
"""80 % of NVLink 4 (450 GB/s) and of a 400 Gbit/s adapter for each GPU; latencies of a send and receive by NCCL; what
the host needs to start a step where a kernel is too short to hide it."""
GPUS = tuple(2**i for i in range(11))


@dataclass(frozen=True)
class Model:
    """Seconds for one kernel value, columns of the rows and of the vectors."""

    value: float
    columns: int
    vectors: int

    def product(self, n: float, gpus: int) -> float:
        """Seconds of ``k(x, x) @ v``."""
        rows = n / gpus
        link = "NVLink" if gpus <= NODE else "network"
        rate = ASSUMED["NVLink, bytes/s" if gpus <= NODE else "network, bytes/s for each GPU"]
        moved = ASSUMED[f"{link} latency, s"] + rows * (self.columns + self.vectors) * 4 / rate
        values = rows**2 * self.value
        host = ASSUMED["host, s a step"]
        return max(values, host) + (gpus - 1) * max(values, moved, host)

    def iteration(self, n: float, gpus: int) -> float:
        """Seconds of one iteration of conjugate gradients."""
        latency = ASSUMED["NVLink latency, s" if gpus <= NODE else "network latency, s"]
        return self.product(n, gpus) + 3 * 2 * math.log2(gpus) * latency


def rows(name: str) -> list[dict[str, Any]]:
    """Rows of a file of results."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


def measured_value() -> tuple[float, int]:
    """Seconds for one value of a Gaussian, and the columns, of an H200."""
    wanted = {"what": "product", "m": 100_000, "n": 100_000, "k": 20, "columns": 1, "form": "score"}
    (found,) = (row for row in rows("h200-apply-forms.jsonl") if wanted.items() <= row.items())
    return found["ms"] * 1e-3 / (found["m"] * found["n"]), found["k"]


def checked() -> list[tuple[str, float, float]]:
    """Products on several GPUs of one host: the case, seconds predicted and measured."""
    found: list[tuple[str, float, float]] = []
    for row in rows("h200-many.jsonl"):
        if not row["case"].startswith("ring matmul"):
            continue
        n, gpus = int(row["case"].split("n=")[1].split(",")[0]), int(row["case"].split(", ")[1].split()[0])
        alone = row["results"]["one GPU, as much work"]["median"]
        model = Model(alone / (n * n / gpus), 64, 1)
        found.append((row["case"], model.product(n, gpus), row["results"]["kernmantle"]["median"]))
    return found


def plot(path: Path, lines: dict[str, list[float]]) -> None:
    """Draw the efficiency over the number of GPUs."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kernmantle"
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(6, 3.2))
    for label, values in lines.items():
        axes.plot(GPUS, [100 * value for value in values], marker="o", markersize=3, label=label)
    axes.set(xscale="log", xlabel="GPUs", ylabel="efficiency, %", ylim=(0, 105))
    axes.set_xticks(GPUS, [str(gpus) for gpus in GPUS])
    axes.minorticks_off()
    axes.legend(frameon=False, title="rows of one GPU at W = 1")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the table, and draw it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 3e5, 1e6])
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    value, columns = measured_value()
    model = Model(value, columns, 1)
    out = sys.stdout.write
    out(f"{value * 1e12:.3f} ps for a kernel value, {columns} columns; assumed: {ASSUMED}\n\n")
    for case, predicted, measured in checked():
        out(f"{case}: predicted {predicted:.4f} s, measured {measured:.4f} s\n")
    lines: dict[str, list[float]] = {}
    for first in asked.rows:
        alone = model.iteration(first, 1)
        out("\n| GPUs | rows | seconds an iteration | efficiency |\n|---|---|---|---|\n")
        for gpus in GPUS:
            spent = model.iteration(first * gpus**0.5, gpus)
            lines.setdefault(f"{first:,.0f}", []).append(alone / spent)
            out(f"| {gpus} | {first * gpus**0.5:,.0f} | {spent:.4f} | {alone / spent:.1%} |\n")
    if asked.plot:
        plot(asked.plot, lines)


if __name__ == "__main__":
    main()
