"""Steps of a KSLinear layer beside those of nn.Linear on a GPU: eager, compiled, and compiled with ``reduce-overhead``.

``python scripts/compiled_steps.py [ROWS ...]`` from the root of a checkout prints microseconds of the clock on the
wall, steps in turns: medians of nine samples of 50, and the least. These are figures of decision 0050.
"""

# ruff: noqa: T201
from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import torch
from gpu_steps import case, step, timed

MODES = ("eager", "default", "reduce-overhead")
SAMPLES, COUNT, WARM = 9, 50, 25


def main(arguments: Sequence[str]) -> None:
    """Print a line for each number of rows, type and mode."""
    for rows in [int(each) for each in arguments] or [256]:
        for dtype in (torch.float32, torch.bfloat16):
            layer, dense, x, cotangent = case(rows, dtype)
            modules = {"KSLinear": layer, "nn.Linear": dense}
            for mode in MODES:
                torch._dynamo.reset()
                calls = {
                    name: step(module, x, cotangent, None if mode == "eager" else torch.compile(module, mode=mode))
                    for name, module in modules.items()
                }
                taken: dict[str, list[float]] = {name: [] for name in calls}
                for call in calls.values():
                    timed(call, WARM)
                for _ in range(SAMPLES):
                    for name, call in calls.items():
                        taken[name].append(timed(call, COUNT))
                found = "; ".join(
                    f"{name} {statistics.median(each):.0f} ({min(each):.0f})" for name, each in taken.items()
                )
                print(f"{rows} rows, {str(dtype).removeprefix('torch.')}, {mode}: {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
