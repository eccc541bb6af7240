"""Kernel ridge regression of a taxi-like task of any number of rows: ``python scripts/taxi.py --rows 1000000``.

Nine columns as trips have them, all of unit variance: where a trip begins and ends (two points, each of one of eight
hot spots and a normal around it), hour, weekday, day, month and passengers. The target is the logarithm of the distance
times one plus half of the traffic, a function of hour and weekday, with noise of 0.1, standardised. Rows are made on
the device in chunks of 1 000 000 from ``torch.Generator``, whose seed is the chunk's number. ``--noise 0`` leaves the
noise out: of any number of rows the solution is then close to that of infinitely many with noise.

With ``--memmap`` the rows are written to files first, and streamed from there with at most ``--memory`` bytes of them
in memory. Prints, and writes to ``--out``, the error on ``--test`` other rows, the largest memory and the time of
each: ``falkon`` with some numbers of ``--centres``, ``sketch`` (``km.linalg.sketch_and_project``) after each time limit
in ``--seconds``, ``askotch`` (``benchmarks/askotch.py``) after each of its ``--reports``, until the last; ``cg``,
conjugate gradients for coefficients of all rows in float64; and ``--subsample``, Cholesky for the first rows.
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
from benchmarks.askotch import askotch

CHUNK = 1_000_000


def rows(start: int, count: int, device: str, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
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
    y = torch.log1p(3 * distance * (1 + 0.5 * traffic)) + noise * torch.randn(count, generator=source, device=device)
    x = torch.stack([*begin.T, *end.T, hour, weekday, *calendar], 1)
    center = torch.tensor([0.1, 0.2, 0.1, 0.2, 12, 3, 15, 5.5, 1.0], device=device)
    scale = torch.tensor([0.9, 1.1, 0.9, 1.1, 6.93, 2, 8.94, 3.45, 1.5], device=device)
    return (x - center) / scale, (y - 1.6) / 0.5


def data(n: int, device: str, folder: Path | None, noise: float) -> tuple[Any, Any]:
    """Rows and targets on the device, or in files."""
    if folder is None:
        parts = [rows(start, min(CHUNK, n - start), device, noise) for start in range(0, n, CHUNK)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    x = np.memmap(folder / "x.f32", np.float32, "w+", shape=(n, 9))
    y = np.memmap(folder / "y.f32", np.float32, "w+", shape=(n,))
    for start in range(0, n, CHUNK):
        count = min(CHUNK, n - start)
        made = (part.cpu().numpy() for part in rows(start, count, device, noise))
        x[start : start + count], y[start : start + count] = made
    x.flush()
    y.flush()
    return np.memmap(folder / "x.f32", np.float32, "r", shape=(n, 9)), np.memmap(folder / "y.f32", np.float32, "r")


def peak(device: str) -> int:
    """Bytes at most so far: of the GPU's allocator, or of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cut(x: Any, start: int, device: str) -> torch.Tensor:
    """One chunk of rows, or of their numbers, on the device."""
    part = x[start : start + CHUNK]
    return (part if isinstance(part, torch.Tensor) else torch.from_numpy(np.array(part))).to(device)


class Task:
    """The rows, and what is said of each method."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.kernel = asked, km.Gaussian(asked.bandwidth)
        begun = time.perf_counter()
        self.x, self.y = data(asked.rows, asked.device, asked.memmap, asked.noise)
        self.test, self.wanted = rows(10**12, asked.test, asked.device, asked.noise)
        synchronize(asked.device)
        self.made, self.ridge = time.perf_counter() - begun, asked.ridge * asked.rows
        self.stamp = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "stamp": machine.stamp(asked.device)
        }  # fmt: skip

    def error(self, points: Any, weights: torch.Tensor) -> float:
        """On rows that were not among those that were learned."""
        total = torch.zeros(self.asked.test, device=self.asked.device)
        for start in range(0, len(weights), CHUNK):
            part = weights[start : start + CHUNK].reshape(-1).to(self.asked.device)
            total += self.kernel.matmul(self.test, cut(points, start, self.asked.device), part)
        return float((total - self.wanted).square().mean().sqrt())

    def say(self, case: str, seconds: float, **row: Any) -> None:
        """Print a row, and write it."""
        task = {"rows": self.asked.rows, "test rows": self.asked.test, "noise": self.asked.noise}
        row = {"case": case, **task, "seconds": seconds, "made in": self.made, **row}
        row["bytes"] = peak(self.asked.device)
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        if self.asked.out:
            with self.asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row | self.stamp) + "\n")


def synchronize(device: str) -> None:
    """Wait for a GPU; its largest memory is counted from here."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def subsample(task: Task) -> None:
    """Cholesky for the first rows."""
    count, asked = task.asked.subsample, task.asked
    some, targets = (t[:count] for t in rows(0, min(CHUNK, asked.rows), asked.device, asked.noise))
    begun = time.perf_counter()
    found = km.linalg.solve_kernel(task.kernel, some, targets, max(asked.ridge * count, 1e-3), method="cholesky")
    rmse = task.error(some, found.x)
    task.say("subsample", time.perf_counter() - begun, of=count, rmse=rmse)


def falkon(task: Task) -> None:
    """Some numbers of centres."""
    for centres in task.asked.centres:
        synchronize(task.asked.device)
        begun, spent = time.perf_counter(), time.process_time()
        found = km.linalg.falkon(
            task.kernel, task.x, task.y, task.ridge, centres, sample=task.asked.sample,
            tolerance=task.asked.residual, memory=task.asked.memory, device=task.asked.device, max_iterations=12,
        )  # fmt: skip
        synchronize_only(task.asked.device)
        seconds, spent = time.perf_counter() - begun, time.process_time() - spent
        task.say(
            "falkon", seconds, **{"processor seconds": spent}, centres=centres, ran=found.ran,
            iterations=found.iterations, history=[float(h) for h in found.history], residual=float(found.residual),
            error=float(found.error), converged=bool(found.converged),
            rmse=task.error(torch.as_tensor(found.centres), torch.as_tensor(found.x)),
        )  # fmt: skip


def synchronize_only(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def sketch(task: Task) -> None:
    """Some time limits."""
    asked = task.asked
    for limit in asked.seconds:
        synchronize(asked.device)
        begun = time.perf_counter()
        found = km.linalg.sketch_and_project(
            task.kernel, task.x, task.y, task.ridge, block=asked.block, rank=asked.rank, passes=asked.passes,
            tolerance=asked.tolerance, seconds=limit, memory=asked.memory, device=asked.device,
        )  # fmt: skip
        spent = time.perf_counter() - begun
        blocks = math.ceil(asked.rows / int(found.ran.split("blocks of ")[1].split()[0]))
        task.say(
            "sketch-and-project", spent, steps=found.iterations, passes=found.iterations / blocks, ran=found.ran,
            residual=float(found.residual), error=float(found.error), converged=bool(found.converged),
            rmse=task.error(task.x, torch.as_tensor(found.x)),
        )  # fmt: skip


def block_descent(task: Task) -> None:
    """ASkotch, reported at some times."""
    asked, due = task.asked, sorted(task.asked.reports)
    synchronize(asked.device)
    block = asked.block or max(1, asked.rows // 2000)

    def report(w: torch.Tensor, steps: int, seconds: float) -> bool:
        if seconds >= due[0]:
            while due and seconds >= due[0]:
                due.pop(0)
            rmse = task.error(task.x, w)
            task.say("askotch", seconds, steps=steps, block=block, rank=asked.rank or 100, mu=asked.mu, rmse=rmse)
        return not due

    askotch(task.kernel, task.x, task.y, task.ridge, report, block=block, rank=asked.rank or 100, mu=asked.mu)


def iterated(task: Task) -> None:
    """Coefficients for all rows, which converge to those that other methods approximate."""
    asked = task.asked
    synchronize(asked.device)
    begun = time.perf_counter()
    found = km.linalg.solve_kernel(
        task.kernel, task.x.double(), task.y.double(), task.ridge, method="cg", rank=asked.rank, refine=1,
        tolerance=asked.residual, max_iterations=asked.iterations,
    )  # fmt: skip
    synchronize_only(asked.device)
    seconds, steps = time.perf_counter() - begun, found.iterations
    task.say(
        "cg", seconds, iterations=steps.iterations, rank=asked.rank, residual=float(steps.residual.max()),
        converged=bool(steps.converged.all()), rmse=task.error(task.x, found.x.float()),
    )  # fmt: skip


METHODS = {"falkon": falkon, "cg": iterated, "sketch": sketch, "askotch": block_descent}


def main() -> None:
    """Fit by each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=["falkon"])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--centres", type=int, nargs="+", default=[2000])
    parser.add_argument("--sample", type=int)
    parser.add_argument("--residual", type=float, default=0.05, help="tolerance of falkon and cg")
    parser.add_argument("--iterations", type=int, default=1000, help="of cg, at most")
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, nargs="+", default=[30.0])
    parser.add_argument("--reports", type=float, nargs="+", default=[10.0, 30.0])
    parser.add_argument("--mu", type=float)
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
    task = Task(asked)
    if asked.subsample:
        subsample(task)
    for name in asked.methods:
        METHODS[name](task)


if __name__ == "__main__":
    main()
