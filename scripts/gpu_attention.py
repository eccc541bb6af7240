"""Times attention and its gradients on the present GPU, to compare two checkouts: a line per type."""

from __future__ import annotations

import statistics
import sys

import torch

import kernmantle as km


def main() -> None:
    """Write the times of both passes."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v, w = (torch.randn(2, 16, 8192, 64, device="cuda", dtype=dtype) for _ in range(4))
        for each in (q, k, v):
            each.requires_grad_()
        both: list[tuple[float, float]] = []
        for _ in range(9):
            begin.record()
            out = km.attention(q, k, v, score=lambda a, b: a * b)
            end.record()
            end.synchronize()
            forward = begin.elapsed_time(end)
            begin.record()
            torch.autograd.grad(out, (q, k, v), w)
            end.record()
            end.synchronize()
            both.append((forward, begin.elapsed_time(end)))
        shown = [f"{statistics.median(times):.3f}" for times in zip(*both, strict=True)]
        sys.stdout.write(f"{km.__file__} {dtype} forward {shown[0]} ms, backward {shown[1]} ms\n")


if __name__ == "__main__":
    main()
