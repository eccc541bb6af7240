"""What plans of Kronecker products take on this GPU beside the one that is chosen, as JSON lines.

For every product the plan that is chosen from all kernels and the plans from some of them are captured in a CUDA graph,
so that the device is timed and not the host; ``--seed`` draws other products than the listed ones.

    PYTHONPATH=src python scripts/gpu_kron_plans.py --seconds 60 --output plans.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from kernmantle.structured.kron import cuda, run
from kernmantle.structured.kron.cuda_plan import KINDS, plan
from kernmantle.structured.kron.modes import Mode
from kernmantle.structured.kron.tensor_plan import Tensor
from kernmantle.torch_ops.cuda import limits

TYPES = {
    "bf16": (torch.bfloat16, Tensor("bf16", 1)), "f16": (torch.float16, Tensor("f16", 1)),
    "f32": (torch.float32, Tensor("f16", 3)),
}  # fmt: skip
CHOICES = (KINDS, ("mma", "fma"), ("mma",), ("fma",), ("matmul",))
LISTED: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1024, (8,) * 5), (1024, (64, 64)), (256, (64,) * 3), (512, (16,) * 4), (1024, (32,) * 3), (500, (12,) * 4),
    (200, (48,) * 3), (2000, (10,) * 4), (200, (100, 100)), (256, (128, 128)), (300, (24,) * 3), (64, (20,) * 4),
    (64, (256, 256)), (64, (40,) * 3), (1000, (96, 96)), (4096, (16,) * 3),
)  # fmt: skip
Product = tuple[str, int, tuple[int, ...]]


def products(seed: int | None) -> Iterator[Product]:
    """Types, rows and extents of square factors."""
    if seed is None:
        yield from ((dtype, rows, sizes) for dtype in TYPES for rows, sizes in LISTED)
        return
    draw = random.Random(seed)
    while True:
        sizes = tuple(draw.randint(2, 160) for _ in range(draw.randint(2, 5)))
        most = 2**24 // math.prod(sizes)
        if most:
            yield draw.choice(list(TYPES)), draw.randint(1, min(most, 8192)), sizes


def seconds(function: partial[None]) -> float:
    """Least seconds of a call in a graph."""
    function()
    function()
    torch.cuda.synchronize()
    graph, best = torch.cuda.CUDAGraph(), math.inf
    with torch.cuda.graph(graph):
        function()
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(8):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 8e3)
    return best


def measured(dtype: str, rows: int, sizes: tuple[int, ...]) -> dict[str, object]:
    """The row of a product: seconds by plan, and which one is chosen."""
    kind, tensor = TYPES[dtype]
    modes = tuple(Mode(size, size, place) for place, size in enumerate(sizes))
    x = torch.randn(rows, math.prod(sizes), 1, device="cuda", dtype=kind)
    factors = [(torch.randn(size, size, device="cuda") / math.sqrt(size)).to(kind) for size in sizes]
    out, found, chosen = torch.empty_like(x), dict[str, float](), ""
    arrays = run.arranged(x, factors, None, out)
    for kinds in CHOICES:
        try:
            own = plan(modes, 1, dtype, limits(0), True, tensor, rows, kinds)
        except AssertionError:  # these kernels do not take it
            continue
        chosen = chosen or str(own)
        if str(own) in found:
            continue
        ready = run.prepare(own.passes, modes, arrays, partial(cuda._prepare, tensor=tensor, index=0))
        if ready is not None:
            found[str(own)] = seconds(partial(ready, x, factors, None, out, (1.0, 0.0)))
    return {"dtype": dtype, "rows": rows, "sizes": sizes, "chosen": chosen, "seconds": found}


def main() -> None:
    """Measure and write until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="draw products instead of the listed ones")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    end, worst = time.monotonic() + options.seconds, []
    card = torch.cuda.get_device_name()
    for product in products(options.seed):
        if time.monotonic() > end:
            break
        row = {"card": card} | measured(*product)
        times = row["seconds"]
        assert isinstance(times, dict)
        if not times:
            continue
        ratio = times.get(row["chosen"], math.nan) / min(times.values())
        worst.append(ratio)
        parts = ", ".join(f"{name}: {1e6 * value:.1f}" for name, value in times.items())
        sys.stdout.write(f"{product} {ratio:.2f} of the best; us: {parts}\n")
        sys.stdout.flush()
        if options.output:
            with options.output.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
    worst.sort()
    sys.stdout.write(f"{len(worst)} products; median {worst[len(worst) // 2]:.2f}, worst {worst[-1]:.2f} of the best\n")


if __name__ == "__main__":
    main()
