"""Kernel ridge regression of a taxi-like task of any number of rows: ``python scripts/taxi.py --rows 1000000``.

Nine columns as trips have them, all of unit variance: where a trip begins and ends (two points, each of one of eight
hot spots and a normal around it), hour, weekday, day, month and passengers. The target is the logarithm of the distance
times one plus half of the traffic, a function of hour and weekday, with noise of 0.1, standardised. Rows are made on
the device in chunks of 1 000 000 from ``torch.Generator``, whose seed is the chunk's number.

With ``--memmap`` the rows are written to files first, and streamed from there with at most ``--memory`` bytes of them
in memory. Prints, and writes to ``--out``, the error on 10 000 other rows after each time limit in ``--seconds``, the
largest memory, and that of a system of the first ``--subsample`` rows by Cholesky.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kernmantle as km
from benchmarks import machine

CHUNK = 1_000_000
TEST = 10_000


def rows(start: int, count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk, of the seed of its first row."""
    source = torch.Generator(device).manual_seed(start // CHUNK)
    spots = torch.tensor(
        [(0, 0), (1, 0.5), (-1, 1), (0.5, -1.5), (2, 2), (-2, -1), (0, 2), (1.5, -0.5)], device=device
    )  # fmt: skip

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=source, device=device)

    def point() -> torch.Tensor:
        where = spots[(uniform(count) ** 2 * len(spots)).long()]
        return where + 0.35 * torch.randn(count, 2, generator=source, device=device)

    begin, end = point(), point()
    hour, weekday = 24 * uniform(count), (7 * uniform(count)).floor()
    calendar = [(31 * uniform(count)).floor(), (12 * uniform(count)).floor(), (6 * uniform(count) ** 3).floor()]
    traffic = torch.exp(-((hour - 8.5) ** 2) / 4) + torch.exp(-((hour - 17.5) ** 2) / 8)
    traffic = traffic * torch.where(weekday < 5, 1.0, 0.3)
    distance = (begin - end).norm(dim=1)
    y = torch.log1p(3 * distance * (1 + 0.5 * traffic)) + 0.1 * torch.randn(count, generator=source, device=device)
    x = torch.stack([*begin.T, *end.T, hour, weekday, *calendar], 1)
    center = torch.tensor([0.1, 0.2, 0.1, 0.2, 12, 3, 15, 5.5, 1.0], device=device)
    scale = torch.tensor([0.9, 1.1, 0.9, 1.1, 6.93, 2, 8.94, 3.45, 1.5], device=device)
    return (x - center) / scale, (y - 1.6) / 0.5


def data(n: int, device: str, folder: Path | None) -> tuple[Any, Any]:
    """Rows and targets on the device, or in files."""
    if folder is None:
        parts = [rows(start, min(CHUNK, n - start), device) for start in range(0, n, CHUNK)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    x = np.memmap(folder / "x.f32", np.float32, "w+", shape=(n, 9))
    y = np.memmap(folder / "y.f32", np.float32, "w+", shape=(n,))
    for start in range(0, n, CHUNK):
        count = min(CHUNK, n - start)
        x[start : start + count], y[start : start + count] = (t.cpu().numpy() for t in rows(start, count, device))
    x.flush(), y.flush()
    return np.memmap(folder / "x.f32", np.float32, "r", shape=(n, 9)), np.memmap(folder / "y.f32", np.float32, "r")


def peak(device: str) -> int:
    """Bytes at most so far: of the GPU's allocator, or of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Fit under each time limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, nargs="+", default=[30.0])
    parser.add_argument("--passes", type=float, default=30.0)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--block", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--memmap", type=Path)
    parser.add_argument("--subsample", type=int, default=0)
    parser.add_argument("--ridge", type=float, default=2e-7, help="times the number of rows")
    parser.add_argument("--bandwidth", type=float, default=2.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", km.errors.KernmantleWarning)
    kernel = km.Gaussian(asked.bandwidth)
    begun = time.perf_counter()
    x, y = data(asked.rows, asked.device, asked.memmap)
    made = time.perf_counter() - begun
    test, wanted = rows(10**12, TEST, asked.device)
    stamp = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "stamp": machine.stamp(asked.device)}

    def said(row: dict[str, Any]) -> None:
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row | stamp) + "\n")

    def error(some: Any, weights: torch.Tensor) -> float:
        total = torch.zeros(TEST, device=asked.device)
        for start in range(0, len(weights), CHUNK):
            part = (
                torch.as_tensor(np.array(some[start : start + CHUNK])) if asked.memmap else some[start : start + CHUNK]
            )
            total += kernel.matmul(test, part.to(asked.device), weights[start : start + CHUNK].to(asked.device))
        return float((total - wanted).square().mean().sqrt())

    if asked.subsample:
        few, targets = rows(0, min(CHUNK, asked.rows), asked.device)
        few, targets = few[: asked.subsample], targets[: asked.subsample]
        begun = time.perf_counter()
        found = km.linalg.solve_kernel(
            kernel, few, targets, max(asked.ridge * asked.subsample, 1e-3), method="cholesky"
        )
        rmse = error(few, found.x) if not asked.memmap else float(
            (kernel.matmul(test, few, found.x) - wanted).square().mean().sqrt()
        )  # fmt: skip
        said({"case": "subsample", "rows": asked.subsample, "rmse": rmse, "seconds": time.perf_counter() - begun})
    for limit in asked.seconds:
        begun = time.perf_counter()
        found = km.linalg.sketch_and_project(
            kernel, x, torch.as_tensor(np.array(y)) if asked.memmap else y, asked.ridge * asked.rows, block=asked.block,
            rank=asked.rank, passes=asked.passes, tolerance=asked.tolerance, seconds=limit, memory=asked.memory,
            device=asked.device,
        )  # fmt: skip
        spent = time.perf_counter() - begun
        blocks = math.ceil(asked.rows / int(found.ran.split("blocks of ")[1].split()[0]))
        said(
            {
                "case": "sketch-and-project", "rows": asked.rows, "seconds": spent, "made in": made,
                "steps": found.iterations, "passes": found.iterations / blocks, "ran": found.ran,
                "residual": float(found.residual), "error": float(found.error), "converged": bool(found.converged),
                "rmse": error(x, found.x), "bytes": peak(asked.device),
            }
        )  # fmt: skip


if __name__ == "__main__":
    main()
