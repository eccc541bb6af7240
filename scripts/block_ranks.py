"""What the rank of a block's approximation does to errors of early passes: ``python scripts/block_ranks.py``.

Sketch-and-project on the task of ``scripts/taxi.py``, for blocks whose matrix is factored and for Nyström
approximations of some ranks, after some passes: the error on 2000 other rows, the residual of all equations, and the
time.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import taxi
import torch

import kernmantle as km

KERNEL = km.Gaussian(2.0)


def main() -> None:
    """Print a row for each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--block", type=int, default=400)
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 100, 40, 10], help="0 factors the matrix")
    parser.add_argument("--passes", type=float, nargs="+", default=[0.3, 1, 3])
    parser.add_argument("--ridge", type=float, default=1e-5, help="times the number of rows")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", km.errors.KernmantleWarning)
    x, y = taxi.rows(0, asked.rows, "cpu")
    test, wanted = taxi.rows(10**12, 2000, "cpu")

    def error(some: torch.Tensor, c: torch.Tensor) -> float:
        return float((KERNEL.matmul(test, some, c) - wanted).square().mean().sqrt())

    ridge = asked.ridge * asked.rows
    first = min(asked.rows, 8000)
    known = x[:first].double(), y[:first].double()
    exact = km.linalg.solve_kernel(KERNEL, *known, asked.ridge * first, method="cholesky").x.float()
    sys.stdout.write(f"RMSE of the exact solution for {first} rows {error(x[:first], exact):.4f}\n")
    sys.stdout.write("| rank | passes | RMSE | residual | s |\n")
    for rank in asked.ranks:
        for passes in asked.passes:
            begun = time.perf_counter()
            found = km.linalg.sketch_and_project(
                KERNEL, x, y, ridge, block=asked.block, rank=rank or None, passes=passes, tolerance=1e-9
            )
            spent = time.perf_counter() - begun
            sys.stdout.write(
                f"| {rank} | {passes} | {error(x, found.x):.4f} | {float(found.residual):.4f} | {spent:.1f} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
