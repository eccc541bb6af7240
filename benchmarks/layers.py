"""The suite of layers: training steps and single tokens of Kronecker-sparse layers against dense ones.

The layer of a vision transformer, and those of a language model as Monarch matrices of 32 and 64 blocks; whole blocks
of both; training steps of layers that are Kronecker products of two matrices; each call in a CUDA graph, started alone,
and compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from kernmantle.kron import kron_linear

from .blocks import BLOCKS, FORMS, STACKS, block_case
from .case import DTYPES, Arrays, Case, Exact, Peer, Picks, Problem, Suite
from .kronsparse import CHAIN, clock_of, layer_case, training_step
from .work import Work

VIT = "ViT"
CHAINS = {
    VIT: CHAIN,
    "4096 to 4096, 32 blocks": ((32, 128, 128, 1), (1, 128, 128, 32)),
    "4096 to 4096, 64 blocks": ((64, 64, 64, 1), (1, 64, 64, 64)),
    "4096 to 11008, 32 blocks": ((32, 128, 128, 1), (1, 344, 128, 32)),
    "4096 to 11008, 64 blocks": ((64, 64, 64, 1), (1, 172, 64, 64)),
}
"""Patterns by the name of a layer, the first applied first."""
ROWS, LONG_ROWS, TOKENS = (16, 256, 1024, 4096, 16384, 65536), (4096, 16384), (1, 16, 64)
EAGER, COMPILED = (16, 1024, 4096), (16, 4096)
TYPES = ("bf16", "f32")
KRON = {
    "1024 to 1024": ((32, 32), (32, 32)),
    "4096 to 4096": ((64, 64), (64, 64)),
    "4096 to 11008": ((86, 64), (128, 64)),
}
"""Shapes of both weights of a ``kron_linear`` by the name of a layer."""
KRON_ROWS = (16, 256, 4096, 16384)
_ROUNDINGS = 4  # of a gradient in halves: a dense layer's matrix, what lies between two products, and both results


def _case(name: str, rows: int, dtype: str, step: bool, how: str = "", bias: bool = False) -> Case:
    return layer_case(rows, dtype, step, "cuda", how, CHAINS[name], name, bias)


class _KronLinear(nn.Module):
    """A ``kron_linear`` without a base."""

    def __init__(self, given: Arrays) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(given["w1"]), nn.Parameter(given["w2"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kron_linear(x, self.w1, self.w2)


def _dense(given: Arrays) -> nn.Module:
    matrix = torch.kron(given["w1"], given["w2"])
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(matrix)
    return layer


def kron_case(
    name: str, shapes: Sequence[tuple[int, int]], rows: int, dtype: str, how: str = "", device: str = "cuda"
) -> Case:
    """A training step of a ``kron_linear`` against that of the dense layer of the same matrix.

    On a GPU by its own clock in replays of a graph, or what a call takes in all if ``how`` is "eager" or "compiled".
    The gradients are those of x, by which all are compared, and of the weights.
    """
    (a, b), (c, d) = shapes

    def make(device: str) -> Arrays:
        source = torch.Generator(device).manual_seed(0)
        x, w1, w2 = (
            torch.randn(shape, generator=source, device=device) / scale
            for shape, scale in (((rows, b * d), 1), ((a, b), math.sqrt(b)), ((c, d), math.sqrt(d)))
        )
        return {name: value.to(DTYPES[dtype]) for name, value in (("x", x), ("w1", w1), ("w2", w2))}

    def exact(given: Exact, picks: Picks) -> np.ndarray[Any, Any]:
        found = np.outer(given["w1"].sum(0), given["w2"].sum(0)).reshape(-1)
        return np.broadcast_to(found[picks.columns], (len(picks.rows), len(picks.columns)))

    after, clock = (f" {how}", "wall") if how else ("", clock_of(device))
    dense = Peer("dense", training_step(_dense, how), compiles=how == "compiled")
    return Case(
        f"kron_linear {name} training step {rows} {dtype}{after}",
        f"training step of kron_linear {name}, batch {rows}, {dtype}{after}",
        Problem(make, exact, (rows, b * d), a * c, dtype, lambda given, _: {key: given[key] for key in ("w1", "w2")}),
        training_step(_KronLinear, how), (dense,), Work(), (), clock,
        roundings=_ROUNDINGS if DTYPES[dtype].itemsize < 4 else 0,
    )  # fmt: skip


def _kron_cases(how: str, names: Sequence[str], rows: Sequence[int]) -> list[Case]:
    return [kron_case(name, KRON[name], each, dtype, how) for name in names for each in rows for dtype in TYPES]


def suite() -> Suite:
    """All layers, what takes long to compile last."""
    models = [name for name in CHAINS if name != VIT]
    steps = [_case(name, rows, dtype, True) for name in models for rows in LONG_ROWS for dtype in TYPES]
    steps += [_case(name, LONG_ROWS[0], "bf16", True, bias=True) for name in models]
    tokens = [_case(name, rows, dtype, False) for name in models for rows in TOKENS for dtype in TYPES]
    own = [_case(VIT, rows, dtype, True) for rows in ROWS for dtype in TYPES]
    own += [_case(VIT, rows, dtype, True, bias=True) for rows in ROWS for dtype in TYPES]
    first, biased = list(CHAINS)[:2], (False, True)
    eager = [
        _case(name, rows, dtype, True, "eager", bias) for bias in biased for name in first for rows in EAGER
        for dtype in TYPES
    ]  # fmt: skip
    late = [
        _case(name, rows, dtype, True, "compiled", bias) for bias in biased for name in first for rows in COMPILED
        for dtype in TYPES
    ]  # fmt: skip
    blocks, compiled = (
        [block_case(name, shape, dtype, how) for how in hows for name, shape in BLOCKS.items() for dtype in TYPES]
        for hows in (("", "eager"), ("compiled",))
    )
    forms = [
        block_case(name, shape, "bf16", "eager", form=form) for name, shape in BLOCKS.items() for form in FORMS if form
    ]  # fmt: skip
    forms += [
        block_case(name, shape, "bf16", "eager", form=form) for name, shape in STACKS.items() for form in ("", "group")
    ]
    compiled += [
        block_case(name, shape, dtype, "compiled", form="group") for name, shape in BLOCKS.items() for dtype in TYPES
    ]
    own += [*_kron_cases("", [*KRON], KRON_ROWS), *_kron_cases("eager", [*KRON], KRON_ROWS)]
    late += _kron_cases("compiled", [*KRON][:2], COMPILED)
    return Suite("layers", "cuda", (*tokens, *own, *blocks, *forms, *steps, *eager, *late, *compiled))
