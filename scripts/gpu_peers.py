"""What torch takes for the shapes of the gram timings, in the same run: one JSON row each."""

import json
import sys

import torch

SHAPES = ((30000, 30000, 1024), (2048, 2048, 256), (512, 512, 64), (30000, 30000, 3))


def main() -> None:
    """Time and print."""
    for m, n, k in SHAPES:
        x, y = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        for p in (1.0, 1.3, 2.0) if m < 30000 or k < 100 else (1.0, 2.0):
            torch.cdist(x, y, p)
            times = []
            for _ in range(3):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                torch.cdist(x, y, p)
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end))
            row = {"peer": "torch.cdist", "p": p, "m": m, "n": n, "k": k, "ms": round(sorted(times)[1], 5)}
            sys.stdout.write(json.dumps(row | {"torch": torch.__version__}) + "\n")
    a, b = torch.empty(1 << 30, device="cuda"), torch.randn(1 << 30, device="cuda")
    a.copy_(b)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    a.copy_(b)
    end.record()
    end.synchronize()
    sys.stdout.write(
        json.dumps({"peer": "copy", "tb_per_s": round(8 * 2**30 / start.elapsed_time(end) / 1e9, 3)}) + "\n"
    )


if __name__ == "__main__":
    main()
