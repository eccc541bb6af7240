"""The GPU suite of predictors' gradients: given weights, kernels, outer products, the backward pass of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernmantle.ir.functions import FUNCTIONS
from kernmantle.pairwise import KERNELS
from kernmantle.pairwise.constructors import make
from kernmantle.pairwise.kernel import Kernel
from kernmantle.pairwise.weighted_differences import differences
from kernmantle.torch_ops.contract import Contraction

from .case import Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .problems import normal
from .work import Work

H200 = "H200"
ROWS, COLUMNS = 10_000, 768
MIDDLE, FEW = 8192, 512
BANDWIDTH = 500.0
BLOCKS = 4.0 * 2**26
SECONDS = {
    (1.0, 1): 9.5e-3, (1.0, 16): 26e-3, (1.0, 32): 45e-3, (1.3, 1): 29e-3, (1.3, 16): 55e-3, (1.3, 32): 75e-3,
    (2.0, 1): 4.5e-3, (2.0, 16): 20e-3, (2.0, 32): 40e-3,
}  # fmt: skip


def _slope(gap: torch.Tensor, p: float) -> torch.Tensor:
    return gap.sign() * gap.abs() ** (p - 1)


def _weighted(p: float, outputs: int) -> Problem:
    """Gradients from weights, an output below the other."""

    def inputs(device: str) -> Arrays:
        return {
            "z": normal(ROWS, COLUMNS, "f32", device, 1), "x": normal(ROWS, COLUMNS, "f32", device, 2),
            "w": normal(ROWS, ROWS, "f32", device, 3), "c": normal(ROWS, outputs, "f32", device, 4),
        }  # fmt: skip

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        z, x, w, c = (torch.from_numpy(given[name]) for name in "zxwc")
        rows = []
        for output, point in (divmod(row, ROWS) for row in picks.rows):
            gaps = z[point, picks.columns] - x[:, picks.columns]
            rows.append((w[point] * c[:, output]) @ _slope(gaps, p))
        return torch.stack(rows).numpy()

    return Problem(inputs, exact, (outputs * ROWS, COLUMNS), ROWS, "f32")


_sign = FUNCTIONS["sign"]
_CONTRACTED = {
    1.0: Contraction("mk,nk,mn,no->omk", lambda z, x, w, c: c * w * _sign(z - x)),
    1.3: Contraction("mk,nk,mn,no->omk", lambda z, x, w, c, p=1.3: c * w * _sign(z - x) * abs(z - x) ** (p - 1)),
}


def _contracted(p: float) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        z, x, w, c = (given[name] for name in "zxwc")

        def call() -> torch.Tensor:
            if p == 2:
                found = differences(w, c, z, x, torch.empty(c.shape[1], *z.shape, device=z.device))
            else:
                found = _CONTRACTED[p](z, x, w, c)
            return found.view(-1, z.shape[1])

        return call

    return prepare


def _pairs(outputs: int, p: float) -> Work:
    pairs = float(ROWS) * ROWS * COLUMNS
    kinds = {1.0: {"fp32": 2.0 * pairs}, 2.0: {"fp16": 3.0 * pairs * outputs}}
    moved = 4.0 * (ROWS * (ROWS + (2 + outputs) * COLUMNS))
    if outputs > 1 and p != 2:
        return Work(moved, {"fp32": pairs, "fp16": 3.0 * pairs * outputs}, serial=False)
    return Work(moved, kinds.get(p, {"mufu": 0.5 * pairs}), serial=False)


_TABLE = tuple(
    Case(
        f"p={p:g} O={outputs}", f"gradients of power {p:g}, {outputs} outputs", _weighted(p, outputs), _contracted(p),
        (Peer("kermac", package="kermac", remote="kermac.cdist_grad", options={"p": p}),), _pairs(outputs, p),
        (Target("seconds", seconds, machine=H200),), "events", float(ROWS) * ROWS * COLUMNS * outputs,
    )
    for (p, outputs), seconds in SECONDS.items()
)  # fmt: skip


def _kernel(p: float) -> Kernel:
    if p == 2:
        return make(KERNELS["Gaussian"], {"bandwidth": 30.0})
    return make(KERNELS["Laplace"], {"bandwidth": BANDWIDTH, "p": p})


def _predictor(device: str) -> Arrays:
    return {
        "z": normal(ROWS, COLUMNS, "f32", device, 1), "x": normal(ROWS, COLUMNS, "f32", device, 2),
        "c": normal(ROWS, 1, "f32", device, 4),
    }  # fmt: skip


def _derivative(z: torch.Tensor, x: torch.Tensor, p: float) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
    """The outer factor of every pair, and the slope of each difference, of the kernel of a power."""
    distance = torch.cdist(z, x, p)
    if p == 2:
        return -torch.exp(-(distance**2) / (2 * 30.0**2)) / 30.0**2, lambda gap: gap
    return -torch.exp(-distance / BANDWIDTH) / BANDWIDTH * distance ** (1 - p), lambda gap: _slope(gap, p)


def _predicted(p: float) -> Problem:
    """Gradients of a kernel's predictor."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        z, x, c = (torch.from_numpy(given[name]) for name in "zxc")
        outer, slope = _derivative(z[picks.rows], x, p)
        rows = [
            (w * c[:, 0]) @ slope(z[point, picks.columns] - x[:, picks.columns])
            for point, w in zip(picks.rows, outer, strict=True)
        ]
        return torch.stack(rows).numpy()

    return Problem(_predictor, exact, (ROWS, COLUMNS), ROWS, "f32")


def _outer_products(p: float) -> Problem:
    """The sum of the outer products of a predictor's gradients, from all of them in float64."""

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        z, x, c = (torch.from_numpy(given[name]).to(device) for name in "zxc")
        outer, slope = _derivative(z, x, p)
        weights = outer * c[:, 0]
        wanted = sorted({*picks.rows, *picks.columns})
        gradients = torch.stack([(weights * slope(z[:, column, None] - x[:, column])).sum(1) for column in wanted], 1)
        rows, columns = ([wanted.index(each) for each in some] for some in (picks.rows, picks.columns))
        return (gradients[:, rows].mT @ gradients[:, columns]).cpu().numpy()

    return Problem(_predictor, exact, (COLUMNS, COLUMNS), ROWS, "f32")


def _gradient(p: float) -> Prepare:
    kernel = _kernel(p)
    return lambda given: lambda: kernel.gradient(given["z"], given["x"], given["c"][:, 0])


def _agop(p: float) -> Prepare:
    kernel = _kernel(p)
    return lambda given: lambda: kernel.agop(given["z"], given["x"], given["c"][:, 0])


def _all_at_once(p: float) -> Prepare:
    """All gradients in one array, then the vendor's product."""
    gradients = _gradient(p)

    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        found = gradients(given)

        def call() -> torch.Tensor:
            rows = found()
            return rows.mT @ rows

        return call

    return prepare


_PREDICTORS = tuple(
    case
    for p in (1.0, 1.3, 2.0)
    for case in (
        Case(
            f"p={p:g} kernel", f"gradient of a predictor, power {p:g}", _predicted(p), _gradient(p), (),
            Work(), clock="events", elements=float(ROWS) * ROWS * COLUMNS,
        ),
        Case(
            f"p={p:g} agop", f"outer products of the gradient, power {p:g}", _outer_products(p), _agop(p),
            (Peer("all at once", _all_at_once(p)),), Work(),
            (Target("faster", 1 / 1.15, "all at once", H200), Target("bytes", BLOCKS, machine=H200)), "events",
            float(ROWS) * ROWS * COLUMNS,
        ),
    )
)  # fmt: skip


def _laplace_slopes() -> Problem:
    """Gradient by x of a weighted sum of a Laplace kernel's entries."""

    def inputs(device: str) -> Arrays:
        return {
            "x": normal(MIDDLE, FEW, "f32", device, 1), "y": normal(MIDDLE, FEW, "f32", device, 2),
            "g": normal(MIDDLE, MIDDLE, "f32", device, 3),
        }  # fmt: skip

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        x, y, g = (torch.from_numpy(given[name]) for name in "xyg")
        outer, slope = _derivative(x[picks.rows], y, 1.0)
        rows = [
            (w * g[point]) @ slope(x[point, picks.columns] - y[:, picks.columns])
            for point, w in zip(picks.rows, outer, strict=True)
        ]
        return torch.stack(rows).numpy()

    return Problem(inputs, exact, (MIDDLE, FEW), MIDDLE, "f32")


def _backward(given: Arrays) -> Callable[[], torch.Tensor]:
    """Gradients of both sets and of the bandwidth, the first returned, from a matrix made before."""
    x, y = (given[name].detach().requires_grad_() for name in "xy")
    bandwidth = torch.tensor(BANDWIDTH, device=x.device, requires_grad=True)
    out = make(KERNELS["Laplace"], {"bandwidth": bandwidth})(x, y)
    return lambda: torch.autograd.grad(out, (x, y, bandwidth), given["g"], retain_graph=True)[0]


_BACKWARD = Case(
    "laplace backward", f"Laplace kernel {MIDDLE} x {MIDDLE} x {FEW}, gradients of both sets and of the bandwidth",
    _laplace_slopes(), _backward, (), Work(0.0, {"fp32": 4.0 * MIDDLE * MIDDLE * FEW}, serial=False),
    (Target("seconds", 3.3 * 2.4e-3, machine=H200),), "events", float(MIDDLE) * MIDDLE * FEW,
)  # fmt: skip

SUITE = Suite("gradient", "cuda", (*_TABLE, *_PREDICTORS, _BACKWARD))
