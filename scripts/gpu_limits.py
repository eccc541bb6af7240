"""Calls the headline kernels of contractions once each, for the profiler; prints their names in that order.

``ncu --profile-from-start off --section SpeedOfLight --section WarpStateStats --section ComputeWorkloadAnalysis
--section Occupancy --csv --page raw --log-file limits.csv python3 scripts/gpu_limits.py``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch

import kernmantle as km


def calls() -> dict[str, Callable[[], object]]:
    """The kernels by name."""
    x, y = (torch.randn(8192, 1024, device="cuda") for _ in "xy")
    a, b = (torch.randn(8192, 512, device="cuda", requires_grad=True) for _ in "ab")
    distances = km.cdist(a, b, p=1)
    least = km.Contraction("mk,nk->mn", lambda s, t: s + t, reduce="min")
    found: dict[str, Callable[[], object]] = {f"p={p}": partial(km.cdist, x, y, p=p) for p in (1, 1.3, 1.5, 0.5, 3, 2)}
    return found | {
        "min-plus": partial(least, x, y),
        "p=1 half": partial(km.cdist, x.half(), y.half(), p=1, precision="half"),
        "gaussian": partial(km.Gaussian(32.0), x, y),
        "p=1 backward": partial(
            torch.autograd.grad, distances, (a, b), torch.randn_like(distances), retain_graph=True
        ),
    }  # fmt: skip


def main() -> None:
    """Compile all of them, then call them under the profiler."""
    found = calls()
    for call in found.values():
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for name, call in found.items():
        sys.stdout.write(f"{name}\n")
        call()
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
