"""What a call with a number of rows that was not seen before takes, of structured products and layers.

``python scripts/new_rows.py [ROWS ...]`` from the root of a checkout. Without a GPU: milliseconds of the process to
choose plans for an H200, and Python functions that are called, for a first number of rows and in the median of others.
On a GPU: milliseconds of whole calls, of which the host waits for each, beside torch's dense layer. These are figures
of decision 0103.
"""

# ruff: noqa: T201
from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from unittest import mock

import torch

import kernmantle as km
from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.structured.kron import cuda as kron_cuda
from kernmantle.structured.kron.modes import parse
from kernmantle.structured.kron.run import arranged
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.mode_product import cuda
from kernmantle.structured.mode_product.torch_op import Options

PATTERNS = (
    ((1, 96, 48, 16),), ((6, 64, 64, 1),), ((32, 32, 32, 1), (1, 32, 32, 32)),
    ((7, 28, 112, 1), (1, 1000, 196, 1)), ((1, 384, 96, 12),),
)  # fmt: skip
FACTORS = ([(16, 16)] * 4, [(64, 64)] * 2, [(5, 5)] * 6, [(53, 4), (4, 14), (14, 2), (2, 23)])
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ROWS = (101, 333, 1000, 4097, 2222, 77, 128, 3000)
CARD, DEVICE = CARDS["sm_90"], torch.device("cuda:0")
Call = Callable[[int], object]


def planned(shapes: list[tuple[int, int]], dtype: str, options: str, rows: int) -> object:
    """Return the plan of a Kronecker product of so many rows."""
    sides = [math.prod(each[side] for each in shapes) for side in (1, 0)]
    x, out = (torch.empty(rows, side, 1, dtype=DTYPES[dtype], device="meta") for side in sides)
    factors = [torch.empty(each, dtype=DTYPES[dtype], device="meta") for each in shapes]
    modes = parse(" ".join(map(str, range(len(shapes)))), tuple(shapes))
    return kron_cuda.planned_for(CARD, modes, arranged(x, factors, None, out), options)


def choices() -> Iterator[tuple[str, Call]]:
    """Yield names and what chooses the plans of so many rows."""
    free = Options(False, "auto", "")
    for dtype in DTYPES:
        for patterns in PATTERNS:
            for last in (False, True):
                name = f"step {patterns} {dtype}{', batch last' * last}"
                yield (
                    name,
                    lambda rows, own=(patterns, dtype, last): chain_training.kind_for(
                        own[0], rows, own[1], own[2], free, DEVICE
                    ),
                )
        for shapes in FACTORS:
            saving = f"default saving {'1' * (len(shapes) + 1)} fuse"
            yield f"product {shapes} {dtype}", partial(planned, shapes, dtype, "default fuse")
            yield f"product and gradients {shapes} {dtype}", partial(planned, shapes, dtype, saving)


def layers() -> Iterator[tuple[str, Call]]:
    """Yield names and calls on a GPU."""

    def step(layer: torch.nn.Module, width: int, dtype: torch.dtype, rows: int) -> None:
        out = layer(torch.randn(rows, width, device="cuda", dtype=dtype, requires_grad=True))
        out.backward(torch.ones_like(out))

    for name, dtype in DTYPES.items():
        yield f"nn.Linear 768 {name}", partial(step, torch.nn.Linear(768, 768, device="cuda", dtype=dtype), 768, dtype)
        for patterns in PATTERNS[:3]:
            a, _, c, d = patterns[0]
            e, b, _, f = patterns[-1]
            layer = km.KSLinear(a * c * d, e * b * f, patterns, device="cuda", dtype=dtype)
            yield f"KSLinear {patterns} {name}", partial(step, layer, a * c * d, dtype)


def passed(call: Call, rows: int) -> int:
    """Return how many Python functions a call enters."""
    count = 0

    def noted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(noted)
    try:
        call(rows)
    finally:
        sys.setprofile(None)
    return count


def timed(call: Call, rows: int) -> float:
    """Return the milliseconds of a call, of the process without a GPU."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    begin = clock()
    call(rows)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e3 * (clock() - begin)


def report(calls: Iterable[tuple[str, Call]], rows: list[int]) -> None:
    """Print a line for each call."""
    for name, call in calls:
        first, *others = [timed(call, count) for count in rows]
        line = f"{name}: first {first:.1f} ms, then {statistics.median(others):.2f}, at most {max(others):.2f}"
        if not torch.cuda.is_available():
            line += f", {statistics.median([passed(call, count + 5000) for count in rows]):.0f} functions"
        print(line, flush=True)


if __name__ == "__main__":
    counts = list(map(int, sys.argv[1:])) or [50, *ROWS]
    if torch.cuda.is_available():
        report(layers(), counts)
    else:
        with mock.patch.object(cuda, "limits", return_value=CARD):
            report(choices(), counts)
