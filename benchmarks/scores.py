"""The suite of scores between two sets of rows: their nearest columns, kernel products, semirings, powers, on the GPU.

Scores are reduced or stored; neighbours are compared by their distances, so that ties may come in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from kernmantle.ir.functions import FUNCTIONS
from kernmantle.pairwise import KERNELS, argkmin, cdist
from kernmantle.pairwise.constructors import make
from kernmantle.torch_ops.contract import Contraction

from . import problems
from .case import Arrays, Case, Exact, Peer, Picks, Problem, Suite, Target
from .work import Work

H200 = "H200"
FLASHLIB, TORCH = "FlashLib", "torch"
_BLOCK_BYTES = 1 << 30
_PICKED = 12
_WARM_CALLS = 3
"""Calls in which a library that compiles and chooses among its kernels does so."""
_ABOUT_RIGHT = 0.02
"""How far distances of neighbours found by rounded products may be from the nearest ones'."""
_TYPES = {"f32": 4, "bf16": 2}


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _ms(value: float) -> Target:
    return Target("seconds", 1e-3 * value, machine=H200)


def _blocks(x: torch.Tensor, columns: int) -> tuple[torch.Tensor, ...]:
    return x.split(max(1, _BLOCK_BYTES // (4 * columns)))


def _nearest(m: int, n: int, k: int, count: int, p: float, dtype: str) -> Problem:
    """Distances of the nearest rows of y, nearest first."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        x, y = (torch.from_numpy(given[name]).to(_device()) for name in "xy")
        found = [((x[row] - y).abs() ** p).sum(1).topk(count, largest=False).values for row in picks.rows]
        return (torch.stack(found) ** (1 / p)).cpu().numpy()[:, picks.columns]

    return Problem(problems.distances(m, n, k, p, dtype).inputs, exact, (m, count), k, dtype, picked=_PICKED)


def _ours_nearest(count: int, p: float) -> Callable[[Arrays], Callable[[], Any]]:
    return lambda given: lambda: argkmin(given["x"], given["y"], count, p=p, return_values=True)[0]


def _flashlib(count: int) -> Callable[[Arrays], Callable[[], Any]]:
    def prepare(given: Arrays) -> Callable[[], Any]:
        knn = import_module("flashlib.primitives.knn")
        for _ in range(_WARM_CALLS):
            knn.flash_knn_dispatch(given["x"], given["y"], count)
        return lambda: torch.sqrt(knn.flash_knn_dispatch(given["x"], given["y"], count)[0])

    return prepare


def _torch_nearest(count: int, p: float) -> Callable[[Arrays], Callable[[], Any]]:
    def prepare(given: Arrays) -> Callable[[], Any]:
        x, y = given["x"].float(), given["y"].float()

        def run() -> torch.Tensor:
            rows = [torch.cdist(part, y, p=p).topk(count, largest=False).values for part in _blocks(x, len(y))]
            return torch.cat(rows).to(given["x"].dtype)

        return run

    return prepare


def nearest(m: int, n: int, k: int, count: int, dtype: str, reached: float | None, p: float = 2.0) -> Case:
    """A case of nearest rows, to be had in so many milliseconds."""
    size, pairs = _TYPES[dtype], float(m) * n * k
    euclidean = p == 2
    floors = {"fp16": pairs} if euclidean else {"fp32": 2 * pairs}
    flashlib = (Peer(FLASHLIB, _flashlib(count), "flashlib", accuracy=_ABOUT_RIGHT),) if euclidean else ()
    with_torch = pairs < 1e12 and m * n < 1e10
    accuracy = _ABOUT_RIGHT if euclidean else None
    peers = (*flashlib, *([Peer(TORCH, _torch_nearest(count, p), accuracy=accuracy)] if with_torch else []))
    return Case(
        f"L{p:g} {m:.5g}x{n:.5g}x{k} count={count} {dtype}".replace("e+0", "e"),
        f"distances to the {count} nearest rows, L{p:g}, {m} x {n}, {k} numbers a row, {dtype}",
        _nearest(m, n, k, count, p, dtype), _ours_nearest(count, p), peers,
        Work(float(size) * k * (m + n), floors, serial=False), () if reached is None else (_ms(reached),), "events",
        pairs,
    )  # fmt: skip


def _gaussian(m: int, n: int, k: int, columns: int) -> Problem:
    """A Gaussian kernel's matrix times v."""

    def inputs(device: str) -> Arrays:
        plain = problems.distances(m, n, k, 1.0).inputs(device)
        return {**plain, "v": problems.normal(n, columns, "f32", device, 3)}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        x, y, v = (torch.from_numpy(given[name]).to(_device()) for name in "xyv")
        rows = [torch.exp(-0.5 * ((x[row] - y) ** 2).sum(1) / k) @ v for row in picks.rows]
        return torch.stack(rows).cpu().numpy()[:, picks.columns]

    return Problem(inputs, exact, (m, columns), n, "f32", picked=_PICKED)


def _gaussian_gradients(m: int, k: int, columns: int) -> Problem:
    """Gradients of a Gaussian kernel's product by x, y and v, side by side; as many rows of each."""
    forward = _gaussian(m, m, k, columns)

    def inputs(device: str) -> Arrays:
        return {**forward.inputs(device), "g": problems.normal(m, columns, "f32", device, 5)}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        x, y, v, g = (torch.from_numpy(given[name]).to(_device()) for name in "xyvg")

        def by_points(own: torch.Tensor, others: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            gaps = own - others
            return -(gaps.mT * torch.exp(-0.5 * (gaps**2).sum(1) / k)) @ weights / k

        rows = [
            torch.cat([
                by_points(x[row], y, v @ g[row]), by_points(y[row], x, g @ v[row]),
                torch.exp(-0.5 * ((x - y[row]) ** 2).sum(1) / k) @ g,
            ])
            for row in picks.rows
        ]  # fmt: skip
        return torch.stack(rows).cpu().numpy()[:, picks.columns]

    return Problem(inputs, exact, (m, 2 * k + columns), m, "f32", picked=_PICKED)


def _kernel(given: Arrays) -> Any:
    return make(KERNELS["Gaussian"], {"bandwidth": float(given["x"].shape[1]) ** 0.5})


def _ours_product(given: Arrays) -> Callable[[], Any]:
    kernel = _kernel(given)
    return lambda: kernel.matmul(given["x"], given["y"], given["v"])


def _ours_back(given: Arrays) -> Callable[[], Any]:
    kernel = _kernel(given)
    wanted = [given[name].clone().requires_grad_() for name in "xyv"]
    result = kernel.matmul(*wanted)
    return lambda: torch.cat(torch.autograd.grad(result, wanted, given["g"], retain_graph=True), 1)


def _dense(given: Arrays) -> torch.Tensor:
    return torch.cdist(given["x"], given["y"]).square_().div_(-2 * given["x"].shape[1]).exp_()


def _torch_product(given: Arrays) -> Callable[[], Any]:
    return lambda: torch.cat(
        [_dense({**given, "x": part}) @ given["v"] for part in _blocks(given["x"], len(given["y"]))]
    )


def product(m: int, n: int, k: int, columns: int, reached: float | None) -> Case:
    """A case of a Gaussian kernel's product, to be had in so many milliseconds."""
    pairs = float(m) * n
    return Case(
        f"Gaussian {m:.5g}x{n:.5g}x{k} C={columns}".replace("e+0", "e"),
        f"a Gaussian kernel's product, {m} x {n}, {k} numbers a row, {columns} columns",
        _gaussian(m, n, k, columns), _ours_product, (Peer(TORCH, _torch_product, accuracy=_ABOUT_RIGHT),),
        Work(4.0 * (m + n) * (k + columns), {"fp16": 3 * pairs * (k + columns), "mufu": pairs}, serial=False),
        () if reached is None else (_ms(reached),), "events", pairs * k,
    )  # fmt: skip


def gradients(m: int, k: int, columns: int, reached: float) -> Case:
    """A case of the gradients of a Gaussian kernel's product by x, y and v."""
    pairs = float(m) * m
    return Case(
        f"Gaussian {m:.5g}x{m:.5g}x{k} C={columns} backward".replace("e+0", "e"),
        f"gradients by x, y and v of a Gaussian kernel's product, {m} x {m}, {k} numbers a row, {columns} columns",
        _gaussian_gradients(m, k, columns), _ours_back, (),
        Work(12.0 * m * (2 * k + columns), {"fp16": 9 * pairs * k, "mufu": 3 * pairs}, serial=False), (_ms(reached),),
        "events", pairs * k,
    )  # fmt: skip


def _log_semiring(m: int, n: int, k: int) -> Problem:
    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return np.logaddexp.reduce(given["x"][picks.rows][:, None] + given["y"][picks.columns][None], -1)

    return Problem(problems.distances(m, n, k, 1.0).inputs, exact, (m, n), k, "f32")


def _positions(m: int, n: int, k: int) -> Problem:
    """Where the smallest sum is, as numbers: sums are taken in float32, as everybody takes them."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        x, y = (given[name].astype(np.float32) for name in "xy")
        return (x[picks.rows][:, None] + y[picks.columns][None]).argmin(-1).astype(np.float64)

    return Problem(problems.distances(m, n, k, 1.0).inputs, exact, (m, n), 1, "f32")


def _cosines(m: int, n: int, k: int) -> Problem:
    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        return np.cos(given["x"][picks.rows][:, None] - given["y"][picks.columns][None]).sum(-1)

    return Problem(problems.distances(m, n, k, 1.0).inputs, exact, (m, n), k, "f32")


def _sum_of(a: Any, b: Any) -> Any:
    return a + b


def _contraction(**kind: Any) -> Callable[[Arrays], Callable[[], Any]]:
    call = Contraction("mk,nk->mn", kind.pop("map", _sum_of), **kind)
    return lambda given: lambda: call(given["x"], given["y"])


def _torch_rows(reduced: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Arrays], Callable[[], Any]]:
    """Torch's broadcasting, so many rows at a time."""

    def prepare(given: Arrays) -> Callable[[], Any]:
        y = given["y"]
        return lambda: torch.cat([reduced(part, y) for part in _blocks(given["x"], y.numel())])

    return prepare


def _grams() -> tuple[Case, ...]:
    """Matrices that are stored."""
    m, k = 8192, 1024
    pairs, big, wide, few = float(m) * m * k, 30000, 10000, 512
    bytes_of = lambda rows, depth: 4.0 * (2 * rows * depth + rows * rows)  # noqa: E731
    logs = Peer(TORCH, _torch_rows(lambda x, y: torch.logsumexp(x[:, None] + y, -1)))
    places = Peer(TORCH, _torch_rows(lambda x, y: (x[:, None] + y).argmin(-1)))
    waves = Peer(TORCH, _torch_rows(lambda x, y: (x[:, None] - y).cos_().sum(-1)))
    # fmt: off
    return (
        Case("logsumexp 8192x8192x1024", "logarithms of sums of exponentials of x + y",
             _log_semiring(m, m, k), _contraction(reduce="logsumexp"), (logs,),
             Work(bytes_of(m, k), {"fp16": 3 * pairs}, serial=False), (_ms(2),), "events", pairs),
        Case("min 8192x8192x1024", "smallest x + y",
             problems.least_sums(m, m, k), _contraction(reduce="min"), (),
             Work(bytes_of(m, k), {"fp32": 2 * pairs}, serial=False), (), "events", pairs),
        Case("argmin 8192x8192x1024", "where x + y is smallest",
             _positions(m, m, k), _contraction(reduce="argmin"), (places,),
             Work(bytes_of(m, k), {"fp32": 2 * pairs}, serial=False), (_ms(8),), "events", pairs),
        Case("cos 10000x10000x512", "sums of cosines of x - y",
             _cosines(wide, wide, few), _contraction(map=lambda a, b: FUNCTIONS["cos"](a - b)), (waves,),
             Work(bytes_of(wide, few), {"fp32": 2.0 * wide * wide * few}, serial=False), (_ms(35),), "events",
             float(wide) * wide * few),
        Case("p=4.2 30000x30000x1024", "Minkowski distances, p = 4.2", problems.distances(big, big, k, 4.2),
             lambda given: lambda: cdist(given["x"], given["y"], p=4.2), (),
             Work(bytes_of(big, k), {"mufu": 2.0 * big * big * k}, serial=False), (_ms(285),), "events",
             float(big) * big * k),
    )
    # fmt: on


def suite() -> Suite:
    """The cases, each with what is to be reached."""
    some, ten = 100_000, 10_000_000
    rows = (
        nearest(20_000, some, 64, 10, "f32", 1.1),
        *(nearest(16_384, some, 128, count, "f32", to) for count, to in ((1, 1.2), (10, 1.4), (32, 2.2))),
        *(nearest(16_384, some, 128, count, "bf16", to) for count, to in ((1, 1.0), (10, 1.2), (32, 2.0))),
        nearest(some, some, 64, 10, "f32", 4.5),
        nearest(1, ten, 64, 10, "f32", 0.75),
        nearest(1, ten, 64, 10, "bf16", 0.4),
        nearest(20_000, some, 64, 10, "f32", 10, p=1.0),
        nearest(20_000, some, 64, 100, "f32", None),
        nearest(20_000, some, 256, 10, "f32", None),
        *(product(some, some, k, 1, to) for k, to in ((20, 4.2), (50, 6.0), (100, 9.5))),
        product(some, some, 3, 64, 8),
        product(some, some, 64, 64, 12),
        product(some, some, 64, 128, None),
        product(30_000, 30_000, 1024, 16, 10),
        gradients(some, 20, 1, 3.5 * 4.2),
        *_grams(),
    )
    return Suite("scores", "cuda", rows)
