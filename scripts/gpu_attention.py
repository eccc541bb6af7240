"""Times attention, its gradients and its tangent on the present GPU, rows of 64 and of 128 numbers: a line per case."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from gpu_clock import elapsed

import kernmantle as km

SCORES: dict[str, Any] = {"products": lambda a, b: a * b, "squared distances": "sqeuclidean"}
ITEMS, HEADS, LENGTH, SCALE = 2, 16, 8192, 0.05


def milliseconds(call: Callable[[], Any], count: int = 9) -> str:
    """Return the median time of a call."""
    _, *times = (elapsed(call) for _ in range(count + 1))
    return f"{statistics.median(times):.3f}"


def line(dtype: torch.dtype, width: int, score: Any) -> str:
    """Return the times of a score."""
    q, k, v, g = (torch.randn(ITEMS, HEADS, LENGTH, width, device="cuda", dtype=dtype) for _ in range(4))
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]

    def of(*tensors: torch.Tensor) -> torch.Tensor:
        return km.attention(*tensors, score=score, scale=SCALE)

    out = of(*leaves)
    shown = {
        "forward": milliseconds(lambda: of(q, k, v)),
        "gradients": milliseconds(lambda: torch.autograd.grad(out, leaves, g, retain_graph=True)),
        "forward and tangent": milliseconds(lambda: torch.func.jvp(of, (q, k, v), (g, q, k))),
    }
    return ", ".join(f"{what} {time} ms" for what, time in shown.items())


def main() -> None:
    """Write the times of all cases."""
    for width in (64, 128):
        for dtype in (torch.float32, torch.bfloat16):
            for name, score in SCORES.items():
                sys.stdout.write(f"{km.__file__} {dtype} {width} {name}: {line(dtype, width, score)}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
