"""What a training step of a KSLinear layer takes by each of its kinds, beside nn.Linear: eager, and in a CUDA graph.

``python scripts/gpu_steps.py [ROWS ...]`` from the root of a checkout. Gradients are compared with float64 first. The
second table has steps with and without what the forward pass takes for the backward pass (decision 0039).
"""

# ruff: noqa: T201
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernmantle.kronsparse import KSLinear
from kernmantle.runtime.dispatch import PLANS
from kernmantle.structured.kronsparse import chain_training
from kernmantle.structured.kronsparse.chain_step import FACTORS, GROUPED, MATRIX
from kernmantle.structured.kronsparse.chain_training import RecordedChain
from kernmantle.testing import tolerance

PATTERNS = ((6, 64, 64, 1), (1, 768, 192, 2))
ROWS = (16, 256, 1024, 4096)
Call = Callable[[], object]


def step(
    layer: torch.nn.Module, x: torch.Tensor, cotangent: torch.Tensor, function: Callable[..., Any] | None = None
) -> Call:
    """Return a training step of a layer, which runs as ``function`` if it is compiled."""
    function, leaves = layer if function is None else function, [x, *layer.parameters()]

    def call() -> None:
        for each in leaves:
            each.grad = None
        function(x).backward(cotangent)

    return call


def _check(layer: KSLinear, x: torch.Tensor, cotangent: torch.Tensor) -> None:
    """AssertionError unless gradients of x and of the weights are those of float64."""
    weights = [weight.detach().double().requires_grad_() for weight in layer.weights]
    source = x.detach().double().requires_grad_()
    value = source
    for weight in weights:
        a, _, c, d = weight.shape
        value = torch.einsum("nikl,ijkl->nijl", value.reshape(-1, a, c, d), weight).reshape(len(value), -1)
    value.backward(cotangent.double())
    bound = tolerance(str(x.dtype).removeprefix("torch."), len(x) * 256)
    for own, exact in zip((x, *layer.weights), (source, *weights), strict=True):
        assert own.grad is not None
        assert exact.grad is not None
        error = float((own.grad.double() - exact.grad).norm() / exact.grad.norm())
        assert error <= bound, f"a gradient is off by {error:.1e}, {bound:.1e} is allowed"


def timed(call: Call, count: int = 100) -> float:
    """Microseconds of a call by the clock on the wall."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / count


def _replayed(call: Call) -> float:
    """Microseconds of a call in a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return min(timed(graph.replay) for _ in range(3))


def case(rows: int, dtype: torch.dtype) -> tuple[KSLinear, torch.nn.Linear, torch.Tensor, torch.Tensor]:
    """Return a layer, a dense one, rows and a cotangent."""
    torch.manual_seed(0)
    options: Any = {"device": "cuda", "dtype": dtype}
    x = torch.randn(rows, 384, requires_grad=True, **options)
    return KSLinear(384, 1536, PATTERNS, **options), torch.nn.Linear(384, 1536, **options), x, torch.randn(
        rows, 1536, **options
    )  # fmt: skip


def kinds(rows: int, dtype: torch.dtype) -> None:
    """Print a step of each kind: median and least of seven samples, and in a graph."""
    layer, dense, x, cotangent = case(rows, dtype)
    found, choose = [], chain_training.kind_of
    for name in ("nn.Linear", GROUPED, MATRIX, FACTORS):
        call = step(dense if name == "nn.Linear" else layer, x, cotangent)
        setattr(chain_training, "kind_of", lambda *_, name=name: name)  # noqa: B010
        PLANS.clear()
        timed(call, 40)
        if name != "nn.Linear":
            _check(layer, x, cotangent)
        taken = [timed(call) for _ in range(7)]
        found.append(f"{name} {statistics.median(taken):.0f} (least {min(taken):.0f}, graph {_replayed(call):.0f})")
    setattr(chain_training, "kind_of", choose)  # noqa: B010
    PLANS.clear()
    print(rows, str(dtype).removeprefix("torch."), *found, flush=True)


def prepared(rows: int, dtype: torch.dtype) -> None:
    """Print a step whose backward pass is prepared, one whose is not, and nn.Linear's."""
    layer, dense, x, cotangent = case(rows, dtype)
    keep, own, other = RecordedChain.keep_launched, step(layer, x, cotangent), step(dense, x, cotangent)
    taken: dict[str, list[float]] = {"prepared": [], "not prepared": [], "nn.Linear": []}
    for _ in range(9):
        for name, sample in taken.items():
            setattr(RecordedChain, "keep_launched", keep if name == "prepared" else lambda *_: None)  # noqa: B010
            PLANS.clear()
            call = other if name == "nn.Linear" else own
            timed(call, 10)
            sample.append(timed(call, 150))
    setattr(RecordedChain, "keep_launched", keep)  # noqa: B010
    print(rows, str(dtype).removeprefix("torch."), *(f"{n} {statistics.median(t):.0f}" for n, t in taken.items()))


def main(arguments: Sequence[str]) -> None:
    """Print both tables."""
    for dtype in (torch.float32, torch.bfloat16):
        for rows in map(int, arguments or ROWS):
            kinds(rows, dtype)
    for dtype in (torch.float32, torch.bfloat16):
        for rows in (16, 256):
            prepared(rows, dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
