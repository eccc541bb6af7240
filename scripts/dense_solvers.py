"""Dense systems on a GPU, with nvmath-python and as if it were not there: ``python scripts/dense_solvers.py``.

``solve_cholesky`` of a copy and in place, ``cholesky_factor`` and ``solve_lu`` beside torch's own calls: medians of the
clock on the wall, in milliseconds. Solutions and factors are compared with float64 first: ``error`` is the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import kernmantle as km
from benchmarks import machine
from kernmantle.linalg import cusolver

ORDERS = (600, 1000, 2000, 4000, 6000, 10_000)


def milliseconds(call: Callable[..., Any], prepare: Callable[[], Any] | None = None, repeats: int = 15) -> float:
    """Median of the repeats after three more; what ``prepare`` returns is the argument, which is not timed."""
    taken: list[float] = []
    for _ in range(repeats + 3):
        given = () if prepare is None else (prepare(),)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call(*given)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return round(1e3 * statistics.median(taken[3:]), 4)


def of_this_library(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> dict[str, float]:
    """Errors and times of the solvers as they are found now."""
    errors = [
        float((km.linalg.solve_cholesky(a.clone(), b, overwrite_a=own, lower=lower).x.double() - x).norm() / x.norm())
        for lower in (True, False)
        for own in (True, False)
    ]
    factor = km.linalg.cholesky_factor(a).factor.double()
    errors.append(float((factor @ factor.mT - a.double()).abs().max()))
    return {
        "error": max(errors),
        "copy": milliseconds(lambda: km.linalg.solve_cholesky(a, b)),
        "in place": milliseconds(lambda own: km.linalg.solve_cholesky(own, b, overwrite_a=True), a.clone),
        "factor": milliseconds(lambda: km.linalg.cholesky_factor(a)),
        "lu": milliseconds(lambda: km.linalg.solve_lu(a, b)),
    }


def row(n: int, dtype: torch.dtype) -> dict[str, Any]:
    """All times of an order and a type, of a well-conditioned matrix."""
    root = torch.randn(n, n, device="cuda", dtype=torch.float64)
    exact = root @ root.T / n + torch.eye(n, device="cuda", dtype=torch.float64)
    x = torch.randn(n, 1, device="cuda", dtype=torch.float64)
    a, b = exact.to(dtype), (exact @ x).to(dtype)
    found: dict[str, Any] = {
        "n": n, "dtype": str(dtype).removeprefix("torch."),
        "torch": milliseconds(lambda: torch.cholesky_solve(b, torch.linalg.cholesky_ex(a).L)),
        "torch factor": milliseconds(lambda: torch.linalg.cholesky_ex(a)),
        "torch lu": milliseconds(lambda: torch.linalg.solve_ex(a, b)),
        "with nvmath": of_this_library(a, b, x),
    }  # fmt: skip
    installed = cusolver.load
    cusolver.load = lambda: "hidden"
    try:
        return found | {"without nvmath": of_this_library(a, b, x)}
    finally:
        cusolver.load = installed


def main() -> None:
    """Print the rows, and write them with the machine they are of."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition(":")[0])
    parser.add_argument("--orders", type=int, nargs="+", default=ORDERS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for n in asked.orders:
        for dtype in (torch.float32, torch.float64):
            found = row(n, dtype)
            sys.stdout.write(f"{found}\n")
            if asked.out:
                now = datetime.now(timezone.utc).isoformat(timespec="seconds")
                stamp = {"date": now, "stamp": machine.stamp("cuda")}
                with asked.out.open("a") as file:
                    file.write(json.dumps(found | stamp) + "\n")


if __name__ == "__main__":
    main()
