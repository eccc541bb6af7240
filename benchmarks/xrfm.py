"""The GPU suite of feature learning: the whole job on this library, and xrfm on its own kernel, ours and kermac's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernmantle.compat import install
from kernmantle.linalg import solve_cholesky
from kernmantle.pairwise import KERNELS
from kernmantle.pairwise.constructors import make

from .case import Arrays, Case, Exact, Peer, Picks, Prepare, Problem, Suite, Target
from .serve import xrfm_scores
from .work import Work

OWN, THROUGH, KERMAC = "xrfm, own kernel", "xrfm on this library", "xrfm on kermac"
MEASURED, KINDS = 10, 44
OPTIONS = {"bandwidth": 8.0, "ridge": 1.0, "rounds": 2}
SAME, SLOPES_AT_ZERO = 1e-3, 0.05
"""How near scores should be, and how far off they are where the slope of |0| is taken for 1, as kermac does."""


def table(rows: int) -> Problem:
    """Error and share of right classes among a fifth of the rows, which only three of 54 columns decide."""
    known = rows * 4 // 5

    def inputs(device: str) -> Arrays:
        source = torch.Generator().manual_seed(0)
        measured = torch.randn(rows, MEASURED, generator=source)
        kinds = torch.nn.functional.one_hot(torch.randint(KINDS, (rows,), generator=source), KINDS)
        score = 2 * torch.sin(measured[:, 0]) + measured[:, 1] + measured[:, 2].abs()
        x, y = torch.cat([measured, kinds], 1), torch.where(score > score.median(), 1.0, -1.0)[:, None]
        parts = {"x": x[:known], "y": y[:known], "held": x[known:], "truth": y[known:]}
        return {name: part.contiguous().to(device) for name, part in parts.items()}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        x, y, held, truth = (torch.from_numpy(given[name]).to(device) for name in ("x", "y", "held", "truth"))
        return scores(_by_definition(x, y, held), truth).cpu().numpy()[:, picks.columns]

    return Problem(inputs, exact, (1, 2), known, "f32")


def scores(found: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Mean squared error and share of right classes: (1, 2)."""
    right = ((found > 0) == (truth > 0)).double().mean()
    return torch.stack([(found - truth).double().square().mean(), right])[None]


def _root(metric: torch.Tensor) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(metric / metric.amax())
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def _by_definition(x: torch.Tensor, y: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
    """Predictions from matrices of all pairs, differences column by column."""
    width, root = OPTIONS["bandwidth"], torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for left in reversed(range(OPTIONS["rounds"] + 1)):
        own = x @ root
        matrix = torch.cdist(own, own, p=1).div_(-width).exp_()
        matrix.diagonal().add_(OPTIONS["ridge"])
        weights = torch.cholesky_solve(y, torch.linalg.cholesky(matrix))
        if not left:
            return torch.cdist(held @ root, own, p=1).div_(-width).exp_() @ weights
        slopes = matrix.mul_(weights[:, 0] / -width)
        columns = [(slopes * (one[:, None] - one).sign_()).sum(1) for one in own.mT]
        gradients = torch.stack(columns, 1) @ root
        root = _root(gradients.mT @ gradients)
    raise AssertionError


def ours(given: Arrays) -> Callable[[], torch.Tensor]:
    """Solve, take the gradients' outer product as the new metric, and again: no matrix of pairs but one."""
    x, y, held, truth = (given[name] for name in ("x", "y", "held", "truth"))
    plain = make(KERNELS["Laplace"], {"bandwidth": OPTIONS["bandwidth"], "p": 1})

    def call() -> torch.Tensor:
        kernel = plain
        for _ in range(OPTIONS["rounds"]):
            weights = solve_cholesky(kernel(x, diagonal=OPTIONS["ridge"]), y, overwrite_a=True).x
            kernel = plain.transformed(_root(kernel.agop(x, x, weights)))
        weights = solve_cholesky(kernel(x, diagonal=OPTIONS["ridge"]), y, overwrite_a=True).x
        return scores(kernel.matmul(held, x, weights), truth)

    return call


def _with_xrfm(kernel: str) -> Prepare:
    def prepare(given: Arrays) -> Callable[[], torch.Tensor]:
        install("kermac")
        return xrfm_scores(given, {**OPTIONS, "kernel": kernel})

    return prepare


def _case(rows: int) -> Case:
    remote = {**OPTIONS, "kernel": "KermacProductLaplaceKernel"}
    return Case(
        f"{rows} rows", f"feature learning, {rows * 4 // 5} x {MEASURED + KINDS}, {OPTIONS['rounds']} rounds",
        table(rows), ours,
        (
            Peer(THROUGH, _with_xrfm("KermacProductLaplaceKernel"), "xrfm"),
            Peer(OWN, _with_xrfm("ProductLaplaceKernel"), "xrfm"),
            Peer(KERMAC, None, "kermac", "xrfm.scores", remote, SLOPES_AT_ZERO),
        ),
        Work(), (Target("faster", 1, OWN), Target("faster", 1, KERMAC)), accuracy=SAME,
    )  # fmt: skip


SUITE = Suite("xrfm", "cuda", tuple(map(_case, (10_000, 20_000, 50_000))))
