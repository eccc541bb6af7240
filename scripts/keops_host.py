"""What the host takes for small KeOps reductions: ``python scripts/keops_host.py``, least of five samples in us.

Rows are 100 points of 3 numbers on the CPU, so that hardly anything is computed. Run it in two checkouts to compare.
"""
# ruff: noqa: T201

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import kernmantle as km
from kernmantle.compat.pykeops import torch as keops

ROWS, SAMPLES, CALLS = 100, 5, 200
SOLVED = 300


def cases() -> dict[str, Callable[[], Any]]:
    """The programs of KeOps' gallery, small, and a product without KeOps' names."""
    torch.manual_seed(0)
    x, y, b, a = (torch.rand(ROWS, 3) for _ in range(4))
    column, scale, tracked = b[:, :1].contiguous(), torch.tensor([0.17]), x.clone().requires_grad_()
    aliases = ["X = Vi(3)", "Y = Vj(3)", "B = Vj(1)"]
    product = keops.generic_sum("Exp(-SqDist(X,Y)) * B", "A = Vi(1)", *aliases)
    solve = keops.KernelSolve("Exp(- G * SqDist(X,Y)) * B", [*aliases, "G = Pm(1)"], "B", axis=1)
    points, right = torch.rand(SOLVED, 3), torch.rand(SOLVED, 1)

    def lazy() -> Any:
        gaps = ((keops.LazyTensor(x[:, None]) - keops.LazyTensor(y[None])) ** 2).sum(-1)
        return ((-gaps).exp() * keops.LazyTensor(column[None])).sum(dim=1)

    def convolution(rows: torch.Tensor) -> Any:
        return (-(keops.Pm(scale) * keops.Vi(rows).sqdist(keops.Vj(y)))).exp() @ b

    def gradient() -> Any:
        return torch.autograd.grad((a * convolution(tracked)).sum(), tracked)[0]

    return {
        "Genred": lambda: product(x, y, column),
        "LazyTensor": lazy,
        "convolution": lambda: convolution(x),
        "convolution and gradient": gradient,
        f"system of {SOLVED}": lambda: solve(points, points, right, torch.tensor([30.0]), alpha=0.1),
        "km.Gaussian(...).matmul": lambda: km.Gaussian(0.7).matmul(x, y, column),
    }


def main() -> None:
    """Print a line for each case."""
    for name, call in cases().items():
        count = CALLS if "system" not in name else 1
        for _ in range(5):
            call()
        found: list[float] = []
        for _ in range(SAMPLES):
            begin = time.perf_counter()
            for _ in range(count):
                call()
            found.append((time.perf_counter() - begin) / count)
        print(f"{name:28} {min(found) * 1e6:9.0f} us", flush=True)


if __name__ == "__main__":
    main()
