"""Kernel ridge regression on tens of thousands of rows, without forming the kernel matrix.

The coefficients agree with those of a direct solution, which is checked on a subset of the rows.
"""

# ruff: noqa: T201
from __future__ import annotations

import re
import resource
import sys
import time
from pathlib import Path

import torch

import kernmantle as km


def data(rows: int, columns: int = 54, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that lie near a few directions, and a smooth function of them with noise."""
    source = torch.Generator().manual_seed(seed)
    mix = torch.randn(8, columns, generator=source)
    x = torch.randn(rows, 8, generator=source) @ mix / 3 + 0.1 * torch.randn(rows, columns, generator=source)
    y = torch.sin(x[:, 0]) + 0.5 * torch.cos(x[:, 1] + x[:, 2]) + 0.1 * torch.randn(rows, generator=source)
    return x, y


def fit(x: torch.Tensor, y: torch.Tensor, method: str, ridge: float = 1.0) -> tuple[km.Kernel, torch.Tensor, str]:
    """The kernel, its coefficients, and how they were found."""
    kernel = km.Gaussian(bandwidth=6.0)
    found = km.linalg.solve_kernel(kernel, x, y, ridge, method=method, rank=300, tolerance=1e-4)
    state = found.iterations
    how = found.ran if state is None else f"{state.iterations} iterations, residual {float(state.residual.max()):.1e}"
    return kernel, found.x, how


def peak() -> float:
    """Return the peak memory of this process in GB; getrusage would include the parent on Linux."""
    status = Path("/proc/self/status")
    if status.is_file():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


def main(rows: int) -> None:
    """Time one fit, and compare the predictions of both methods on a subset."""
    x, y = data(rows)
    test, _ = data(500, seed=1)
    begin = time.perf_counter()
    kernel, coefficients, how = fit(x, y, "cg")
    print(f"{rows} rows in {time.perf_counter() - begin:.1f} s: {how}")
    mean = kernel.matmul(test, x, coefficients).mean()
    print(f"the matrix would take {4 * rows**2 / 1e9:.2f} GB, the process took {peak():.2f} GB at most")
    print(f"predictions are {mean:.4f} on average")
    part = min(rows, 2000)
    iterated, direct = (fit(x[:part], y[:part], method)[1] for method in ("cg", "cholesky"))
    one, other = (kernel.matmul(test, x[:part], c) for c in (iterated, direct))
    print(f"on {part} rows, predictions differ from the direct solution's by at most {(one - other).abs().max():.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
