"""A suite made of the library's own tables: every metric, kernel, reduction and operation, one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kernmantle.config import config
from kernmantle.ir.node import Node, const
from kernmantle.ir.ops import OPS, Op
from kernmantle.ir.reductions import REDUCTIONS
from kernmantle.ir.traced import Traced
from kernmantle.pairwise import KERNELS
from kernmantle.pairwise.constructors import make
from kernmantle.pairwise.kernel_row import Row
from kernmantle.torch_ops.contract import Contraction

from . import metrics
from .case import Arrays, Case, Exact, Picks, Prepare, Problem, Suite
from .work import Work

Exactly = Callable[[Exact, Picks], np.ndarray[Any, Any]]
M = N = 512
K = 64
STEPS = 1024
_TRUTHS = {"and": (0, 1), "or": (0, 1), "not": (0,), "where": (0,)}


def _uniform(rows: int, device: str, seed: int) -> torch.Tensor:
    """Multiples of 1/1024 in (0, 1), exact in every type and in sums of a few."""
    source = torch.Generator().manual_seed(seed)
    return (torch.randint(1, STEPS, (rows, K), generator=source) / STEPS).to(device)


def _case(name: str, title: str, call: Prepare, exact: Exactly) -> Case:
    problem = Problem(_pair, exact, (M, N), K, "f32")
    return Case(name, title, problem, call, (), Work(4.0 * (M * K + N * K + M * N)), elements=float(M * N * K))


def _pair(device: str) -> Arrays:
    return {"x": _uniform(M, device, 1), "y": _uniform(N, device, 2)}


def reduction_case(name: str) -> Case:
    """Sums reduced by one of the table's reductions; whether they are large, where it takes only truths."""
    truths = "bool" in REDUCTIONS[name].kinds
    contraction = Contraction("mk,nk->mn", (lambda a, b: a + b > 1.9) if truths else (lambda a, b: a + b), reduce=name)

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        with config(backend="reference"):
            return contraction(given["x"][picks.rows], given["y"][picks.columns])

    return _case(
        f"reduce {name}", f"reduction by {name}", lambda given: lambda: contraction(given["x"], given["y"]), exact
    )


def _arguments(row: Op, a: Any, b: Any) -> list[Any]:
    """Numbers (or traced ones) in the domain of an operation, from two in (0, 1)."""
    given = ((a + b) / 2,) if row.arity == 1 else (a, b, 1 - a)[: row.arity]
    return [low + value * (high - low) for value, (low, high) in zip(given, row.domains, strict=True)]


def operation_case(row: Op) -> Case:
    """Sum of an operation's values."""
    truths = _TRUTHS.get(row.name, ())

    def traced(a: Traced, b: Traced) -> Traced:
        nodes = [value.node for value in _arguments(row, a, b)]
        middles = [const((low + high) / 2) for low, high in row.domains]
        nodes = [Node("gt", (n, middles[i])) if i in truths else n for i, n in enumerate(nodes)]
        result = Node(row.name, tuple(nodes))
        return Traced(Node("where", (result, const(1), const(0))) if row.boolean else result)

    def plain(a: float, b: float) -> float:
        values = _arguments(row, a, b)
        middles = [(low + high) / 2 for low, high in row.domains]
        return float(row.value(*(v > middles[i] if i in truths else v for i, v in enumerate(values))))

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        value = np.vectorize(plain, otypes=[np.float64])
        return value(given["x"][picks.rows][:, None], given["y"][picks.columns][None]).sum(-1)

    contraction = Contraction("mk,nk->mn", traced)
    return _case(
        f"operation {row.name}", f"operation {row.name}", lambda given: lambda: contraction(given["x"], given["y"]),
        exact,
    )  # fmt: skip


def kernel_case(row: Row) -> Case:
    """Matrix of a kernel with its own hyperparameters."""
    kernel = make(row, {})

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        with config(backend="reference"):
            return kernel(given["x"][picks.rows], given["y"][picks.columns])

    return _case(
        f"kernel {row.name}", f"{row.name} kernel", lambda given: lambda: kernel(given["x"], given["y"]), exact
    )


def suite() -> Suite:
    """The rows that the tables have now."""
    rows = [*metrics.cases(), *map(kernel_case, KERNELS.values())]
    rows += [reduction_case(name) for name in REDUCTIONS]
    rows += [operation_case(row) for row in OPS.values()]
    return Suite("tables", "cpu", tuple(rows))
