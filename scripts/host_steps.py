"""What the host takes for a step of a KSLinear layer whose launches start nothing, beside Functions that only allocate.

``python scripts/host_steps.py [--compiled] [--apart]`` from the root of a checkout, on any machine: launches pack their
arguments and return, so that what is left is Python and torch. Microseconds of the thread, least of many samples; one
thread runs the backward pass too. ``--compiled`` adds steps by torch.compile, of a function with two operators as the
layer's too. ``--apart`` adds eager steps whose backward pass another thread runs, as for a GPU, by the clock on the
wall. These are figures of decisions 0050, 0108 and 0130.
"""

# ruff: noqa: T201
from __future__ import annotations

import operator
import struct
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch

from kernmantle.backends.cuda.launch import BoundLaunch, Queue
from kernmantle.kronsparse import KSLinear
from kernmantle.structured.kronsparse import chain_cpu, chain_training
from kernmantle.structured.kronsparse.chain_step import GROUPED
from kernmantle.structured.mode_product import grouped

ROWS, IN, OUT, BETWEEN = 16, 384, 1536, 384
PATTERNS = ((6, 64, 64, 1), (1, 768, 192, 2))
PARAMETERS = 20  # of one product of a launch, as many as a kernel has
Call = Callable[[], object]


class _Nothing:
    """A kernel that a launch prepares and does not start."""

    title, threads, handle = "nothing", 128, 0

    def packing(self, arguments: Sequence[Any]) -> struct.Struct:
        """Return what writes the arguments."""
        return struct.Struct(f"={len(arguments)}q")

    def configure(self, *_: int) -> None:
        """Return no configuration."""

    def launch(self, *_: object) -> tuple[int]:
        """Start nothing."""
        return (0,)


def _planned(products: Sequence[Any], *_: object, **__: object) -> grouped.PlannedProducts:
    plan: Any = "nothing"
    return grouped.PlannedProducts(plan, tuple(products), 0)


def _bound(launches: Sequence[grouped.PlannedProducts]) -> Sequence[grouped.BoundProducts]:
    """Return one launch of all products."""
    products = [product for each in launches for product in each.products]
    starts = range(0, PARAMETERS * len(products), PARAMETERS)
    positions = [start + operand for start in starts for operand in range(4)]
    nothing: Any = _Nothing()
    queue = Queue(int, operator.index, nullcontext, lambda: None)  # whose device and stream are 0
    launch = BoundLaunch(nothing, [0] * PARAMETERS * len(products), positions, 0, 64, queue)
    joined = grouped.JoinedLaunch(launch.__call__, tuple(launches), 0)  # from Python, as there is no driver
    return [grouped.BoundProducts("nothing", tuple(products), joined)]


def _replace_kernels() -> None:
    """Let layers on a CPU take the step of a launch a direction."""
    for module, name, other in (
        (grouped, "plan_products", _planned), (grouped, "bind_each", _bound),
        (grouped, "is_captured", lambda _: False), (chain_cpu, "bind", lambda *_: None),
        (chain_training, "kind_of", lambda *_, **__: GROUPED), (chain_training, "kind_for", lambda *_, **__: GROUPED),
    ):  # fmt: skip
        setattr(module, name, other)


class Allocating(torch.autograd.Function):
    """What no step of one Function can do without: its result, and a gradient for each tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        """Allocate the result."""
        ctx.save_for_backward(x, bias, *weights)
        return x.new_empty(ROWS, OUT)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Allocate the gradients."""
        return tuple([each.new_empty(each.shape) for each in ctx.saved_tensors])


def _operators() -> type[torch.autograd.Function]:
    """Return a Function of two operators in Python, which only allocate what those of the layer do."""
    library = torch.library.Library("floor", "DEF")
    library.define("forward(Tensor x, Tensor[] weights, Tensor? bias) -> Tensor[]")
    library.define("backward(Tensor x, Tensor[] weights, Tensor[] saved, Tensor grad) -> Tensor[]")

    def forward(x: torch.Tensor, *_: object) -> list[torch.Tensor]:
        return [x.new_empty(ROWS, OUT), x.new_empty(ROWS, BETWEEN)]

    def backward(x: torch.Tensor, weights: Sequence[torch.Tensor], *_: object) -> list[torch.Tensor]:
        return [x.new_empty(x.shape), x.new_empty(OUT), *[x.new_empty(weight.shape) for weight in weights]]

    for name, function in (("forward", forward), ("backward", backward)):
        library.impl(name, function, "CPU")
        torch.library.register_fake(f"floor::{name}", function, lib=library)
    ops: Any = torch.ops.floor
    first, second = ops.forward.default, ops.backward.default

    class Operators(torch.autograd.Function):
        """The same by operators."""

        library_ = library  # which lives as long as they do

        @staticmethod
        def forward(x: torch.Tensor, bias: torch.Tensor, *weights: torch.Tensor) -> Any:  # pyright: ignore
            return tuple(first(x, list(weights), bias))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
            x, _, *weights = inputs
            ctx.mark_non_differentiable(*output[1:])
            ctx.save_for_backward(x, *weights, *output[1:])

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            x, *weights, saved = ctx.saved_tensors
            return tuple(second(x, weights, [saved], grads[0]))

    return Operators


class _Module(torch.nn.Module):
    """A Function on the parameters of a layer."""

    def __init__(self, layer: KSLinear, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function, self.bias = function, layer.bias
        self.first, self.second = layer.weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        found: Any = self.function.apply(x, self.bias, self.first, self.second)
        return found if isinstance(found, torch.Tensor) else found[0]


def _step(module: Any, x: torch.Tensor, cotangent: torch.Tensor) -> Call:
    leaves = [x, *module.parameters()]

    def call() -> None:
        for leaf in leaves:
            leaf.grad = None
        module(x).backward(cotangent)

    return call


def _apart(module: Any, x: torch.Tensor, cotangent: torch.Tensor, own: ThreadPoolExecutor) -> Call:
    """Return a step whose backward pass another thread runs."""
    leaves = [x, *module.parameters()]

    def call() -> None:
        for leaf in leaves:
            leaf.grad = None
        own.submit(module(x).backward, cotangent).result()

    return call


def _least(
    calls: dict[str, Call], samples: int = 40, count: int = 60, now: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return the least microseconds of each call, in turns, by the clock of this thread."""
    for call in calls.values():
        for _ in range(count):
            call()
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(samples):
        for name, call in calls.items():
            begin = now()
            for _ in range(count):
                call()
            found[name] = min(found[name], 1e6 * (now() - begin) / count)
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the microseconds of each step."""
    torch.set_num_threads(1)
    _replace_kernels()
    layer, x = KSLinear(IN, OUT, PATTERNS), torch.randn(ROWS, IN, requires_grad=True)
    small, one = torch.nn.Linear(8, 8), torch.randn(1, 8, requires_grad=True)
    cotangent, other = torch.randn(ROWS, OUT), torch.randn(1, 8)
    modules = {"the layer": (layer, x, cotangent), "nn.Linear of 8": (small, one, other)}
    modules["a Function that allocates"] = _Module(layer, Allocating), x, cotangent
    if "--compiled" in arguments:
        modules["a Function of two operators"] = _Module(layer, _operators()), x, cotangent
    calls = {name: _step(*each) for name, each in modules.items()}
    if "--compiled" in arguments:
        calls |= {
            f"{name}, compiled": _step(torch.compile(m, fullgraph=True), v, g) for name, (m, v, g) in modules.items()
        }
    for name, taken in _least(calls).items():
        print(f"{name}: {taken:.1f} us")
    if "--apart" in arguments:
        with ThreadPoolExecutor(1) as own:
            apart = {name: _apart(module, v, g, own) for name, (module, v, g) in modules.items()}
            apart["nothing"] = lambda: own.submit(int).result()
            for name, taken in _least(apart, now=time.perf_counter).items():
                print(f"{name}, backward in another thread: {taken:.1f} us")


if __name__ == "__main__":
    main(sys.argv[1:])
