"""The GPU suite of contractions: large and small distances, a semiring, few columns."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from kernmantle.pairwise import KERNELS, cdist
from kernmantle.pairwise.constructors import make
from kernmantle.torch_ops.contract import Contraction

from . import problems
from .case import Case, Peer, Prepare, Problem, Suite, Target
from .work import Work

H200 = "H200"
BIG = (30000, 30000, 1024)
SMALL = ((2048, 2048, 256), (512, 512, 64))
MIDDLE = (8192, 8192, 512)
BANDWIDTH = 500.0
EXTRA_BYTES = 1e6
GRANULE = 2 * 2.0**20

# Instructions of a pair on the FP32 pipe, on the special function unit, and multiply-adds on tensor cores.
MIXES = {
    1.0: {"fp32": 2.0}, 2.0: {"fp16": 3.0}, 3.0: {"fp32": 3.0},
    1.3: {"mufu": 1.0}, 1.5: {"mufu": 0.65}, 0.5: {"mufu": 0.65},
}  # fmt: skip

_least_sum = Contraction("mk,nk->mn", lambda a, b: a + b, reduce="min")
_greatest_sum = Contraction("mk,nk->mn", lambda a, b: a + b, reduce="max")


def _ours(p: float, precision: str | None = None) -> Prepare:
    return lambda given: lambda: cdist(given["x"], given.get("y"), p=p, precision=precision)


def _kernel(name: str, bandwidth: float) -> Prepare:
    kernel = make(KERNELS[name], {"bandwidth": bandwidth})
    return lambda given: lambda: kernel(given["x"], given["y"])


def _backward(distance: Callable[..., torch.Tensor]) -> Prepare:
    """Gradients of both sets, that of the first returned, from distances computed before."""

    def prepare(given: dict[str, torch.Tensor]) -> Callable[[], Any]:
        x, y = (given[name].detach().requires_grad_() for name in "xy")
        out = distance(x, y, p=1.0)
        return lambda: torch.autograd.grad(out, (x, y), given["g"], retain_graph=True)[0]

    return prepare


def _torch(p: float) -> Prepare:
    return lambda given: lambda: torch.cdist(given["x"], given.get("y", given["x"]), p=p)


def _graph(p: float) -> Prepare:
    """Replay of the captured call."""

    def prepare(given: dict[str, torch.Tensor]) -> Callable[[], Any]:
        x, y = given["x"], given["y"]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = cdist(x, y, p=p)
            cdist(x, y, p=p, out=out)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cdist(x, y, p=p, out=out)

        def call() -> torch.Tensor:
            graph.replay()
            return out

        return call

    return prepare


def _peers(p: float) -> tuple[Peer, ...]:
    options = {"p": p}
    return (
        Peer("torch.cdist", _torch(p)),
        Peer("kermac", package="kermac", remote="kermac.cdist", options=options),
        Peer("mm-kermac", package="mm-kermac", remote="mm_kermac.norm", options=options),
    )


def _work(m: int, n: int, k: int, mix: dict[str, float], share: float = 1.0, size: float = 4.0) -> Work:
    pairs = share * m * n * k
    return Work(size * (m * k + n * k + m * n), {name: pairs * each for name, each in mix.items()}, serial=False)


def _case(name: str, title: str, problem: Problem, p: float, seconds: float, share: float = 1.0) -> Case:
    m, n = problem.shape
    k = problem.depth
    targets = (Target("seconds", seconds, machine=H200), Target("bytes", EXTRA_BYTES + _halves(p, m, n, k)))
    peers = _peers(p) if share == 1.0 else (Peer("torch.cdist", _torch(p)),)
    return Case(
        name, title, problem, _ours(p), peers, _work(m, n, k, MIXES[p], share), targets, "events", float(m * n * k)
    )


def _halves(p: float, m: int, n: int, k: int) -> float:
    """What products of halves keep: the operands, two facts of each row, 16 bytes for each tile of 128 x 192.

    The allocator rounds such a block up to its granule.
    """
    return 4.0 * (m + n) * (k + 2) + 16.0 * m * n / (128 * 192) + GRANULE if p == 2 else 0.0


_LARGE = tuple(
    _case(f"p={p:g}", f"distances of power {p:g}", problems.distances(*BIG, p), p, seconds)
    for p, seconds in ((1.0, 62e-3), (2.0, 18e-3), (1.3, 285e-3), (1.5, 192e-3), (0.5, 192e-3), (3.0, 95e-3))
)
_OWN = tuple(
    _case(
        f"p={p:g} own", f"distances of power {p:g}, one set", problems.own_distances(BIG[0], BIG[2], p), p, seconds, 0.5
    )
    for p, seconds in ((1.0, 32e-3), (1.3, 150e-3), (2.0, 9e-3))
)


def _variant(
    name: str, title: str, problem: Problem, ours: Prepare, mix: dict[str, float], seconds: float,
    size: float = 4.0, accuracy: float | None = None, power: float = 1.0,
) -> Case:  # fmt: skip
    m, n = problem.shape
    k = problem.depth
    targets = (Target("seconds", seconds, machine=H200), Target("bytes", EXTRA_BYTES + _halves(power, m, n, k)))
    work = _work(m, n, k, mix, size=size)
    return Case(name, title, problem, ours, (), work, targets, "events", float(m * n * k), accuracy)


_SQUARES = (
    *(
        _variant(
            f"p=2 {dtype}", f"distances of power 2, {dtype}", problems.distances(*BIG, 2.0, dtype), _ours(2.0),
            {"fp16": 1.0}, 5e-3, 2.0, power=2.0,
        )
        for dtype in ("f16", "bf16")
    ),
    _variant(
        "p=2 tf32", "distances of power 2, tf32", problems.distances(*BIG, 2.0), _ours(2.0, "tf32"), {"fp16": 1.0},
        7e-3, accuracy=2.0**-10, power=2.0,
    ),
    _variant(
        "p=2 clusters", "distances of power 2, near-duplicates", problems.clusters(*BIG, 7), _ours(2.0),
        {"fp16": 3.0}, 85e-3, power=2.0,
    ),
    _variant(
        "gaussian", "Gaussian kernel", problems.gaussian(*BIG, 32.0), _kernel("Gaussian", 32.0), {"fp16": 3.0},
        1.03 * 8.7e-3, power=2.0,
    ),
)  # fmt: skip
_SUMS = (
    *(
        _variant(
            f"p=1 {dtype}", f"distances of power 1, {dtype}", problems.distances(*BIG, 1.0, dtype), _ours(1.0),
            MIXES[1.0], 62e-3, 2.0,
        )
        for dtype in ("f16", "bf16")
    ),
    _variant(
        "p=1 half", "distances of power 1, sums of f16 in pairs", problems.distances(*BIG, 1.0, "f16"),
        _ours(1.0, "half"), {"fp32": 1.0}, 0.6 * 62e-3, 2.0, 6 * 2.0**-11,
    ),
    _variant(
        "laplace", "Laplace kernel", problems.laplace(*BIG, BANDWIDTH),
        _kernel("Laplace", BANDWIDTH), MIXES[1.0], 1.03 * 62e-3,
    ),
    _variant(
        "min-plus", "min-plus product", problems.least_sums(*BIG),
        lambda given: lambda: _least_sum(given["x"], given["y"]), {"fp32": 2.0}, 66e-3,
    ),
    _variant(
        "min-plus, positive", "min-plus product of positive numbers", problems.positive_least_sums(*BIG),
        lambda given: lambda: _least_sum(given["x"], given["y"]), {"fp32": 2.0}, 58e-3,
    ),
    _variant(
        "max-plus", "max-plus product", problems.least_sums(*BIG, sign=-1.0),
        lambda given: lambda: _greatest_sum(given["x"], given["y"]), {"fp32": 2.0}, 66e-3,
    ),
)  # fmt: skip
_GRADIENTS = (
    _case("8192 p=1", "8192 x 8192 x 512, power 1", problems.distances(*MIDDLE, 1.0), 1.0, 2.4e-3),
    Case(
        "8192 p=1 backward", "8192 x 8192 x 512, power 1, both gradients", problems.slopes(*MIDDLE),
        _backward(cdist), (Peer("torch.cdist", _backward(torch.cdist)),),
        _work(*MIDDLE, {"fp32": 6.0}), (Target("seconds", 3.3 * 2.4e-3, machine=H200),), "events", float(prod(MIDDLE)),
    ),
)  # fmt: skip
_FEW = Case(
    "K=3", "distances of 3 numbers", problems.distances(30000, 30000, 3, 1.0), _ours(1.0), _peers(1.0),
    _work(30000, 30000, 3, MIXES[1.0]), (Target("floor", 0.95),), "events", 30000.0 * 30000 * 3,
)  # fmt: skip
_CALLS = tuple(
    Case(
        f"{'x'.join(map(str, shape))} p={p:g}", f"{' x '.join(map(str, shape))}, power {p:g}, a call",
        problems.distances(*shape, p), _ours(p), (Peer("kernmantle, graph", _graph(p)), *_peers(p)),
        _work(*shape, MIXES[p]), (Target("seconds", seconds, machine=H200),), "wall", float(prod(shape)),
    )
    for shape, p, seconds in (
        (SMALL[0], 1.0, 90e-6), (SMALL[0], 1.3, 360e-6), (SMALL[0], 2.0, 50e-6), (SMALL[1], 1.0, 18e-6),
    )
)  # fmt: skip
_GRAPHS = Case(
    "512x512x64 graph", "512 x 512 x 64 in a CUDA graph", problems.distances(*SMALL[1], 1.0), _graph(1.0), (),
    _work(*SMALL[1], MIXES[1.0]), (Target("seconds", 5e-6, machine=H200),), "events", 512.0 * 512 * 64,
)  # fmt: skip

SUITE = Suite("contraction", "cuda", (*_LARGE, _FEW, *_CALLS, _GRAPHS, *_OWN, *_SQUARES, *_SUMS, *_GRADIENTS))
