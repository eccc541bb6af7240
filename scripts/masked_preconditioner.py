"""Iterations of masked Kronecker systems with Nyström preconditioners: ``python scripts/masked_preconditioner.py``."""

from __future__ import annotations

import sys

import torch

import kernmantle as km

SIDE, RANK, TOLERANCE = 40, 200, 1e-6


def main() -> None:
    """Print a row for each kernel, share of missing cells and noise."""
    axis = torch.linspace(0, 1, SIDE, dtype=torch.float64)[:, None]
    sys.stdout.write("| kernel | missing | noise | iterations | with a preconditioner |\n|---|---|---|---|---|\n")
    for kernel in (km.Gaussian(0.3), km.Matern(0.4, nu=1.5)):
        for missing in (0.1, 0.5):
            for noise in (1e-2, 1e-4):
                source = torch.Generator().manual_seed(1)
                mask = torch.rand(SIDE, SIDE, generator=source) > missing
                a = km.linalg.MaskedKronecker(km.KroneckerProduct([kernel(axis)] * 2), mask, noise)
                y = torch.sin(4 * axis + 3 * axis.T)[mask]
                y = y + noise**0.5 * torch.randn(y.shape, generator=source, dtype=y.dtype)
                better = km.linalg.nystrom(a, RANK, noise)
                counts = [
                    a.solve(y, tolerance=TOLERANCE, preconditioner=each, max_iterations=3000).iterations
                    for each in (None, better)
                ]
                sys.stdout.write(f"| {kernel!r} | {missing} | {noise} | {counts[0]} | {counts[1]} |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
