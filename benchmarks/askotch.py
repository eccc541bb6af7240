"""ASkotch, step by step as its public code has it (github.com/pratikrathore8/fast_krr, ``ASkotchV2``), for comparisons.

Rathore, Frangella, Yang, Derezinski and Udell, Have ASkotch, 2024 (arXiv 2407.10070). Products are those of this
library, where the public code has KeOps; blocks are drawn without a list of all probabilities, which takes NumPy
seconds for 1e8 rows. Everything else is plain torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from kernmantle.pairwise import Kernel

PIECE = 1 << 23
POWER_STEPS = 10
Report = Callable[[torch.Tensor, int, float], bool]


def _drawn(n: int, count: int, source: torch.Generator, device: torch.device) -> torch.Tensor:
    """Distinct rows."""
    found = torch.randint(n, (count + count // 4 + 16,), generator=source, device=device).unique()
    return found[torch.randperm(len(found), generator=source, device=device)[:count]]


def _nystrom(
    kernel: Kernel, rows: torch.Tensor, ridge: float, rank: int, source: torch.Generator
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Approximate inverse of a block's matrix, damped by the approximation's smallest eigenvalue."""
    test = torch.randn(len(rows), rank, generator=source, device=rows.device, dtype=rows.dtype)
    test = torch.linalg.qr(test / len(rows) ** 0.5)[0].contiguous()
    shift = torch.finfo(rows.dtype).eps * len(rows)
    shifted = kernel.matmul(rows, None, test) + shift * test
    lower = torch.linalg.cholesky(test.T @ shifted)
    root = torch.linalg.solve_triangular(lower.T, shifted, upper=True, left=False)
    basis, values, _ = torch.linalg.svd(root, full_matrices=False)
    values = (values.square() - shift).clamp_min(0)
    values[values < torch.finfo(rows.dtype).eps] = 1e-4
    damped = ridge + float(values[-1])
    small = torch.linalg.cholesky(torch.diag(damped / values) + basis.T @ basis)
    return lambda v: (v - basis @ torch.cholesky_solve(basis.T @ v, small)) / damped


def _step_size(
    kernel: Kernel, rows: torch.Tensor, ridge: float, inverse: Callable[[torch.Tensor], torch.Tensor],
    source: torch.Generator,
) -> float:  # fmt: skip
    """The inverse of the largest eigenvalue of the preconditioned block, by power iteration."""
    v = torch.randn(len(rows), 1, generator=source, device=rows.device, dtype=rows.dtype)
    v, top = v / v.norm(), v.new_ones(())
    for _ in range(POWER_STEPS):
        before, v = v, inverse(v)
        v = kernel.matmul(rows, None, v) + ridge * v
        top = (before * v).sum()
        v = v / v.norm()
    return 1 / float(top)


def askotch(
    kernel: Kernel, x: torch.Tensor, y: torch.Tensor, ridge: float, report: Report, *, block: int | None = None,
    rank: int = 100, mu: float | None = None, seed: int = 0,
) -> torch.Tensor:  # fmt: skip
    """Coefficients of all rows; ends where ``report(coefficients, steps, seconds)`` says so.

    By default a block is a hundredth of the rows, mu the ridge and nu the number of blocks, as its authors recommend.
    The time of reports is not counted.
    """
    n, device = len(x), x.device
    block = n // 100 if block is None else block
    source = torch.Generator(device).manual_seed(seed)
    mu, nu = ridge if mu is None else mu, n / block
    beta, gamma = 1 - (mu / nu) ** 0.5, (mu * nu) ** -0.5
    alpha = 1 / (1 + gamma * nu)
    w = torch.zeros(n, 1, device=device, dtype=x.dtype)
    v, point = w.clone(), w.clone()
    steps, spent, begun = 0, 0.0, time.perf_counter()
    while True:
        chosen = _drawn(n, block, source, device)
        rows = x[chosen]
        inverse = _nystrom(kernel, rows, ridge, rank, source)
        eta = _step_size(kernel, rows, ridge, inverse, source)
        gap = ridge * point[chosen] - y[chosen, None]
        for start in range(0, n, PIECE):
            gap += kernel.matmul(rows, x[start : start + PIECE], point[start : start + PIECE])
        change = eta * inverse(gap)
        w.copy_(point)
        w[chosen] -= change
        v.mul_(beta).add_(point, alpha=1 - beta)
        v[chosen] -= gamma * change
        torch.lerp(w, v, alpha, out=point)
        steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent += time.perf_counter() - begun
        if report(w, steps, spent):
            return w
        begun = time.perf_counter()
