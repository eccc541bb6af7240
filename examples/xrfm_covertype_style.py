"""Feature learning on a table like covertype with 54 columns: ten measurements, forty-four indicators, two classes.

The package xrfm runs unmodified with this library in place of kermac, and is compared with its own kernels. Then the
same task uses the kernels and solvers of this library directly; the only M x N array is the kernel matrix.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

import kernmantle as km
import kernmantle.compat

km.compat.install("kermac")
try:
    from xrfm import RFM
    from xrfm.rfm_src import kernels as theirs
except ImportError:
    RFM, theirs = None, None

BANDWIDTH, RIDGE, ROUNDS = 8.0, 1e-3, 3


def table(rows: int, device: str) -> tuple[torch.Tensor, ...]:
    """Training rows and their classes, test rows and theirs; only three columns decide the class."""
    generator = torch.Generator().manual_seed(0)
    measured = torch.randn(rows, 10, generator=generator)
    kinds = torch.randint(44, (rows,), generator=generator)
    x = torch.cat([measured, torch.nn.functional.one_hot(kinds, 44)], 1)
    score = 2 * torch.sin(measured[:, 0]) + measured[:, 1] + measured[:, 2].abs()
    x, y = x.to(device), (score > score.median()).float()[:, None].to(device)
    count = rows * 4 // 5
    return x[:count], y[:count], x[count:], y[count:]


def timed(device: str, work: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float, float]:
    """Return the result, the seconds it took, and the peak GPU memory in gigabytes."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    result = work().cpu()
    return result, time.perf_counter() - begun, torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0


def with_xrfm(
    kernel: object, x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor, y_test: torch.Tensor
) -> torch.Tensor:
    """Return the package's scores of the test rows; its own kernel samples from more than 10 000 rows."""
    model = RFM(kernel, iters=ROUNDS, device=str(x.device), verbose=False, tuning_metric="mse", diag=False)
    model.fit((x, y), (x_test, y_test), reg=RIDGE, total_points_to_sample=len(x))
    return model.predict(x_test)


def ours(x: torch.Tensor, y: torch.Tensor, x_test: torch.Tensor) -> torch.Tensor:
    """Return scores of the test rows: solve, use the outer product of the gradients as the new metric, repeat."""
    kernel = km.Laplace(bandwidth=BANDWIDTH, p=1)
    for round_ in range(ROUNDS + 1):
        weights = km.linalg.solve_cholesky(kernel(x, diagonal=RIDGE), y - 0.5, overwrite_a=True).x
        if round_ == ROUNDS:
            return kernel.matmul(x_test, x, weights) + 0.5
        metric = kernel.agop(x, x, weights)
        values, vectors = torch.linalg.eigh(metric / metric.diagonal().amax())
        kernel = km.Laplace(bandwidth=BANDWIDTH, p=1).transformed((vectors * values.clamp(min=0).sqrt()) @ vectors.T)
    raise AssertionError


def main() -> None:
    """Compare."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000 if device == "cuda" else 800)
    x, y, x_test, y_test = table(parser.parse_args().rows, device)
    jobs = {"this library": lambda: ours(x, y, x_test)}
    if RFM is None:
        print("xrfm is not installed: only this library's own form runs (pip install xrfm)")
    else:
        for name, form in [("xrfm, own kernel", "ProductLaplaceKernel"), ("xrfm, ours", "KermacProductLaplaceKernel")]:
            kernel = getattr(theirs, form)(bandwidth=BANDWIDTH, exponent=1.0)
            jobs[name] = lambda kernel=kernel: with_xrfm(kernel, x, y, x_test, y_test)
    for name, work in jobs.items():
        scores, seconds, gigabytes = timed(device, work)
        right = ((scores > 0.5) == (y_test.cpu() > 0.5)).float().mean().item()
        memory = f", {gigabytes:.1f} GB at most" if gigabytes else ""
        print(f"{name:18} {right:.4f} right in {seconds:6.2f} s{memory}")
        assert right > 0.7


if __name__ == "__main__":
    main()
