"""The suite of products with a Laplace kernel's matrix that is never stored, on the GPU, and their case on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from kernmantle.pairwise import KERNELS
from kernmantle.pairwise.constructors import make

from . import problems
from .case import Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .work import Work

H200 = "H200"
ROOM = 64e6
BIG = (30000, 30000, 1024)
TORCH, KEOPS = "torch, the matrix stored", "KeOps"
_WARM_ROWS = 64


def product(m: int, n: int, k: int, columns: int) -> Problem:
    """exp(-sum of absolute differences / k) times v, whose numbers are not negative."""

    def inputs(device: str) -> Arrays:
        plain = problems.distances(m, n, k, 1.0).inputs(device)
        return {**plain, "v": problems.normal(n, columns, "f32", device, 3).abs()}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        x, y, v = (torch.from_numpy(given[name]).to(device) for name in "xyv")
        rows = [torch.exp(-(x[row] - y).abs().sum(1) / k) @ v[:, picks.columns] for row in picks.rows]
        return torch.stack(rows).cpu().numpy()

    return Problem(inputs, exact, (m, columns), n + k, "f32")


def ours(given: Arrays) -> Callable[[], Any]:
    """The product in one kernel."""
    kernel = make(KERNELS["Laplace"], {"bandwidth": float(given["x"].shape[1])})
    return lambda: kernel.matmul(given["x"], given["y"], given["v"])


def dense(given: Arrays) -> Callable[[], Any]:
    """The matrix by torch, then the vendor's product."""
    width = given["x"].shape[1]
    return lambda: torch.cdist(given["x"], given["y"], p=1).div_(-width).exp_() @ given["v"]


def keops(given: Arrays) -> Callable[[], Any]:
    """KeOps' reduction; what it compiles does not depend on the number of rows."""
    lazy = import_module("pykeops.torch").LazyTensor

    def of(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> Any:
        gaps = (lazy(x[:, None]) - lazy(y[None])).abs().sum(-1)
        return (-gaps / x.shape[1]).exp() @ v

    of(*(given[name][:_WARM_ROWS] for name in "xyv"))
    return lambda: of(given["x"], given["y"], given["v"])


def _matrix(given: Arrays) -> Callable[[], Any]:
    kernel = make(KERNELS["Laplace"], {"bandwidth": float(given["x"].shape[1])})
    return lambda: kernel(given["x"], given["y"])


def _work(m: int, n: int, k: int, columns: int) -> Work:
    pairs = float(m) * n
    return Work(
        4.0 * (m * k + n * k + (m + n) * columns), {"fp32": pairs * (2 * k + columns), "mufu": pairs}, serial=False
    )


def _case(
    shape: tuple[int, int, int], columns: int, peers: dict[str, Prepare], *targets: Target, clock: str = "events"
) -> Case:
    m, n, k = shape
    contestants = tuple(Peer(name, call, "pykeops" if name == KEOPS else "torch") for name, call in peers.items())
    on_gpu = clock == "events"
    return Case(
        f"{m:.0e} K={k} C={columns}".replace("e+0", "e"),
        f"product with a Laplace kernel's matrix, {m} x {n}, {k} numbers a row, {columns} columns",
        product(m, n, k, columns), ours, contestants,
        _work(m, n, k, columns) if on_gpu else Work(0.0, {"sub-abs-add.f32": float(m) * n * k}),
        (*targets, *[Target("bytes", ROOM, machine=H200)] * on_gpu), clock, float(m) * n * k,
    )  # fmt: skip


def _seconds(value: float) -> Target:
    return Target("seconds", value, machine=H200)


_BOTH, _ONLY = {TORCH: dense, KEOPS: keops}, {KEOPS: keops}
_MATRIX = Case(
    "matrix K=1024", "the same kernel's matrix, stored", problems.laplace(*BIG, float(BIG[2])), _matrix, (),
    Work(4.0 * (2 * BIG[0] * BIG[2] + BIG[0] * BIG[1]), {"fp32": 2.0 * BIG[0] * BIG[1] * BIG[2]}, serial=False),
    (), "events", float(BIG[0]) * BIG[1] * BIG[2],
)  # fmt: skip
_AHEAD = Target("faster", 1, TORCH), Target("faster", 1, KEOPS)
_FAR_AHEAD = Target("faster", 5, KEOPS)


def suite(full: bool = False) -> Suite:
    """The cases on the GPU, in full also those of minutes; torch's matrix of 10^10 entries is wrong."""
    some, many = 100_000, 1_000_000
    rows = (
        _MATRIX,
        _case(BIG, 16, {TORCH: dense}, _seconds(1.04 * 62e-3)),
        _case((some, some, 3), 1, _ONLY, _seconds(3.1e-3), _AHEAD[1]),
        _case((some, some, 10), 1, _ONLY, _seconds(8e-3), _AHEAD[1]),
        _case((some, some, 100), 1, _ONLY, _seconds(70e-3), _FAR_AHEAD),
        _case((many, many, 3), 1, _ONLY, _seconds(300e-3), _AHEAD[1]),
        _case((some, some, 1000), 1, _ONLY, _FAR_AHEAD),
        _case((many, many, 10), 1, _ONLY, _AHEAD[1]),
    )
    long = tuple(_case((many, many, k), 1, _ONLY, _FAR_AHEAD) for k in (100, 1000)) if full else ()
    return Suite("apply", "cuda", rows + long)


CPU_SUITE = Suite(
    "apply-cpu",
    "cpu",
    tuple(
        _case((20_000, 20_000, k), columns, _BOTH, *_AHEAD, clock="wall") for k, columns in ((20, 1), (20, 16), (3, 1))
    ),
)
