"""Steps of a KSLinear layer beside those of nn.Linear on a GPU: eager, compiled, and compiled with ``reduce-overhead``.

``python scripts/compiled_steps.py [ROWS ...]`` from the root of a checkout prints microseconds of the clock on the
wall, steps in turns: medians of nine samples of 50, and the least. These are figures of decision 0050.
"""

# ruff: noqa: T201
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from kernmantle.kronsparse import KSLinear

IN, OUT, PATTERNS = 384, 1536, ((6, 64, 64, 1), (1, 768, 192, 2))
MODES = ("eager", "default", "reduce-overhead")
SAMPLES, COUNT, WARM = 9, 50, 25
Step = Callable[[], None]


def _step(module: torch.nn.Module, mode: str, x: torch.Tensor, cotangent: torch.Tensor) -> Step:
    function = module if mode == "eager" else torch.compile(module, mode=mode)
    leaves = [x, *module.parameters()]

    def call() -> None:
        for leaf in leaves:
            leaf.grad = None
        function(x).backward(cotangent)

    return call


def _seconds(call: Step, count: int) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def main(arguments: Sequence[str]) -> None:
    """Print a line for each number of rows, type and mode."""
    for rows in [int(each) for each in arguments] or [256]:
        for dtype in (torch.float32, torch.bfloat16):
            options = {"device": "cuda", "dtype": dtype}
            x, cotangent = torch.randn(rows, IN, **options).requires_grad_(), torch.randn(rows, OUT, **options)
            modules = {
                "KSLinear": KSLinear(IN, OUT, PATTERNS, **options),
                "nn.Linear": torch.nn.Linear(IN, OUT, **options),
            }
            for mode in MODES:
                torch._dynamo.reset()
                calls = {name: _step(module, mode, x, cotangent) for name, module in modules.items()}
                taken: dict[str, list[float]] = {name: [] for name in calls}
                for call in calls.values():
                    _seconds(call, WARM)
                for _ in range(SAMPLES):
                    for name, call in calls.items():
                        taken[name].append(1e6 * _seconds(call, COUNT))
                found = "; ".join(
                    f"{name} {statistics.median(each):.0f} ({min(each):.0f})" for name, each in taken.items()
                )
                print(f"{rows} rows, {str(dtype).removeprefix('torch.')}, {mode}: {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
