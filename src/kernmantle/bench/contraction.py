"""The GPU suite of contractions: large and small distances, a semiring, few columns."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from ..distances import cdist
from ..ops.contract import Contraction
from . import problems
from .case import Case, Peer, Prepare, Problem, Suite, Target
from .work import Work

H200 = "H200"
BIG = (30000, 30000, 1024)
SMALL = ((2048, 2048, 256), (512, 512, 64))
EXTRA_BYTES = 1e6

# Instructions of a pair on the FP32 pipe, on the special function unit, and multiply-adds on tensor cores.
MIXES = {
    1.0: {"fp32": 2.0}, 2.0: {"fp16": 3.0}, 3.0: {"fp32": 3.0},
    1.3: {"mufu": 1.0}, 1.5: {"mufu": 0.65}, 0.5: {"mufu": 0.65},
}  # fmt: skip

_tropical = Contraction("mk,nk->mn", lambda a, b: a + b, reduce="min")


def _ours(p: float) -> Prepare:
    return lambda given: lambda: cdist(given["x"], given.get("y"), p=p)


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
    """What products of halves keep: the operands, two facts of each row, 16 bytes for each tile of 128 x 192."""
    return 4.0 * (m + n) * (k + 2) + 16.0 * m * n / (128 * 192) if p == 2 else 0.0


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
_NARROW = tuple(
    Case(
        f"p=2 {dtype}", f"distances of power 2, {dtype}", problems.distances(*BIG, 2.0, dtype), _ours(2.0), (),
        _work(*BIG, {"fp16": 1.0}, size=2.0),
        (Target("seconds", 5e-3, machine=H200), Target("bytes", EXTRA_BYTES + _halves(2.0, *BIG))),
        "events", float(BIG[0] * BIG[1] * BIG[2]),
    )
    for dtype in ("f16", "bf16")
)  # fmt: skip
_TROPICAL = Case(
    "min-plus", "min-plus product", problems.least_sums(*BIG),
    lambda given: lambda: _tropical(given["x"], given["y"]), (), _work(*BIG, {"fp32": 2.0}),
    (Target("seconds", 66e-3, machine=H200), Target("bytes", EXTRA_BYTES)), "events", float(BIG[0] * BIG[1] * BIG[2]),
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

SUITE = Suite("contraction", "cuda", (*_LARGE, *_OWN, *_NARROW, _TROPICAL, _FEW, *_CALLS, _GRAPHS))
