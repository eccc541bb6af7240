"""Every kernel for small systems and spectra on tiny batches, for compute-sanitizer; says how far results are off."""

from __future__ import annotations

import sys

import torch

import kernmantle as km

worst = 0.0
for dtype in (torch.float32, torch.float64):
    for n in (1, 4, 7, 16, 31, 32):
        root = torch.randn(9, n, n, device="cuda", dtype=dtype)
        a = root @ root.mT + n * torch.eye(n, device="cuda", dtype=dtype)
        b = torch.randn(9, n, 2, device="cuda", dtype=dtype)
        exact = torch.linalg.solve(a.double(), b.double())
        lu = km.linalg.lu_factor(a)
        found = [
            km.linalg.solve_cholesky(a, b).x, km.linalg.solve_lu(a, b).x, km.linalg.lu_solve(lu, b).x,
            km.linalg.cholesky_solve(km.linalg.cholesky_factor(a, lower=False), b).x,
            km.linalg.lu_solve(lu, b, transpose=True).x,
        ]  # fmt: skip
        worst = max(worst, *(float((x.double() - exact).abs().max()) for x in found))
        values, vectors = km.linalg.eigh(a)[:2]
        gap = a.double() @ vectors.double() - vectors.double() * values.double()[:, None]
        worst = max(worst, float(gap.abs().max()) / n)
sys.stdout.write(f"largest error {worst:.2g}\n")
