"""Claimed residuals of kernel systems against those of a float64 oracle: ``python scripts/solver_accuracy.py``.

Conjugate gradients and Cholesky, in float32, in float64 and refined (float32 work, float64 residuals), for several
sizes and ridges. The oracle forms tiles of the matrix in float64 with torch alone. A row is written for each solution;
the exit status is 1 if any solution was said to have converged whose residual is above its tolerance.

    python scripts/solver_accuracy.py --rows 20000 100000 --device cuda --out rows.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import kernmantle as km
from benchmarks import machine

BANDWIDTH, COLUMNS, TILE = 1.5, 10, 2048
METHODS = {
    "cg f32": (torch.float32, "cg", 0), "cg f64": (torch.float64, "cg", 0), "cg refined": (torch.float64, "cg", 1),
    "cholesky f32": (torch.float32, "cholesky", 0), "cholesky f64": (torch.float64, "cholesky", 0),
    "cholesky refined": (torch.float64, "cholesky", 20),
}  # fmt: skip
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-8}


def problem(n: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows uniform in a cube, and a smooth function with noise, in float64."""
    source = torch.Generator().manual_seed(n)
    x = torch.rand(n, COLUMNS, generator=source, dtype=torch.float64)
    y = (3 * x[:, :4].sum(1)).sin() + 0.1 * torch.randn(n, generator=source, dtype=torch.float64)
    return x.to(device), y.to(device)


def residuals(x: torch.Tensor, y: torch.Tensor, solutions: list[tuple[float, torch.Tensor]]) -> list[float]:
    """``‖y - (K + ridge I) c‖ / ‖y‖`` of each, in float64, by torch alone."""
    c = torch.stack([solution.double() for _, solution in solutions], 1)
    ridges = torch.tensor([ridge for ridge, _ in solutions], dtype=torch.float64, device=x.device)
    norms = x.square().sum(1)
    products = torch.empty_like(c)
    for top in range(0, len(x), TILE):
        rows = x[top : top + TILE]
        squares = (norms[top : top + TILE, None] + norms - 2 * rows @ x.T).clamp_min(0)
        products[top : top + TILE] = squares.mul_(-0.5 / BANDWIDTH**2).exp_() @ c
    return ((y[:, None] - products - ridges * c).norm(dim=0) / y.norm()).tolist()


def solution(name: str, x: torch.Tensor, y: torch.Tensor, ridge: float, iterations: int) -> dict[str, Any]:
    """What a method finds and claims."""
    dtype, method, refine = METHODS[name]
    own: Any = method
    options: dict[str, Any] = {"refine": refine, "tolerance": TOLERANCE[dtype]}
    if own == "cg":
        options["max_iterations"] = iterations
    begun = time.perf_counter()
    found = km.linalg.solve_kernel(
        km.Gaussian(BANDWIDTH), x.to(dtype), y.to(dtype), ridge, method=own, check_errors=False, **options
    )
    claimed = None if found.iterations is None else float(found.iterations.residual.max())
    finite = bool(torch.isfinite(found.x).all())
    row = {
        "method": name, "n": len(x), "ridge": ridge, "seconds": time.perf_counter() - begun, "claimed": claimed,
        "finite": finite, "tolerance": TOLERANCE[dtype],
    }  # fmt: skip
    if found.iterations is not None:
        row |= {"iterations": found.iterations.iterations, "converged": bool(found.iterations.converged.all())}
    return row | {"x": found.x}


def main() -> int:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2000])
    parser.add_argument("--ridges", type=float, nargs="+", default=[1e-2, 1e-4, 1e-6, 1e-8])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no solution after so many")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", km.errors.KernmantleWarning)
    begun, lies = time.perf_counter(), 0
    stamp = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "stamp": machine.stamp(asked.device)}
    for n in asked.rows:
        x, y = problem(n, asked.device)
        rows: list[dict[str, Any]] = []
        for ridge in asked.ridges:
            for name in asked.methods:
                if time.perf_counter() - begun > asked.seconds:
                    continue
                try:
                    rows.append(solution(name, x, y, ridge, asked.iterations))
                except (km.errors.KernmantleError, RuntimeError) as error:
                    rows.append({"method": name, "n": n, "ridge": ridge, "error": str(error).splitlines()[0]})
                shown = {key: value for key, value in rows[-1].items() if key != "x"}
                sys.stdout.write(f"{shown}\n")
                sys.stdout.flush()
        solved = [row for row in rows if "x" in row and row["finite"]]
        true = residuals(x, y, [(row["ridge"], row["x"]) for row in solved]) if solved else []
        for row, value in zip(solved, true, strict=True):
            row["residual"] = value
            if row.get("converged") and value > row["tolerance"] * 1.01:
                lies += 1
        for row in rows:
            row.pop("x", None)
            sys.stdout.write(f"{row}\n")
            if asked.out:
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row | stamp) + "\n")
    sys.stdout.write(f"said to have converged without having: {lies}\n")
    return int(lies > 0)


if __name__ == "__main__":
    raise SystemExit(main())
