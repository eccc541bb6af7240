"""Contractions that every backend must compute, as a table that tests and benchmarks iterate over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.functions import FUNCTIONS
from ..ir.traced import Traced

Values = np.ndarray[Any, np.dtype[np.float64]]
_exp, _log, _maximum, _sqrt = (FUNCTIONS[name] for name in ("exp", "log", "maximum", "sqrt"))
_tanh, _where, _xlogy = (FUNCTIONS[name] for name in ("tanh", "where", "xlogy"))


@dataclass(frozen=True)
class Case:
    """One contraction and where its operands live.

    Attributes
    ----------
    name, equation, map, reduce, epilogue, params
        The contraction, its name and its parameters.
    interval : (float, float)
        Where the operands live.
    smooth : bool
        Whether it has derivatives almost everywhere.
    """

    name: str
    equation: str
    map: Callable[..., Any]
    reduce: str = "sum"
    epilogue: Callable[..., Any] | None = None
    params: Mapping[str, float] = field(default_factory=dict[str, float])
    interval: tuple[float, float] = (-2.0, 2.0)
    smooth: bool = True

    def operands(self, sizes: Mapping[str, int], seed: int = 0) -> list[Values]:
        """Return random operands of the given axis lengths, in float64 but exact in float16."""
        random = np.random.default_rng(seed)
        low, high = self.interval
        inputs = self.equation.partition("->")[0].split(",")
        draws = (random.uniform(low, high, tuple(sizes[axis] for axis in axes)) for axes in inputs)
        return [draw.astype(np.float16).astype(np.float64) for draw in draws]


def _canberra(a: Traced, b: Traced) -> Traced:
    total = abs(a) + abs(b)
    return _where(total == 0, 0, abs(a - b) / total)


def _bray_curtis(a: Traced, b: Traced) -> tuple[Traced, Traced]:
    return abs(a - b), abs(a + b)


def _jensen_shannon(a: Traced, b: Traced) -> Traced:
    middle = (a + b) / 2
    return _xlogy(a, a / middle) + _xlogy(b, b / middle)


_PROBABILITY = (0.05, 1.0)
_ROWS = (
    Case("matmul", "mk,nk->mn", lambda a, b: a * b),
    Case("manhattan", "mk,nk->mn", lambda a, b: abs(a - b)),
    Case("squared_euclidean", "mk,nk->mn", lambda a, b: (a - b) ** 2),
    Case("euclidean", "mk,nk->mn", lambda a, b: (a - b) ** 2, epilogue=_sqrt),
    Case("chebyshev", "mk,nk->mn", lambda a, b: abs(a - b), "max"),
    Case(
        "minkowski", "mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p: s ** (1 / p),
        params={"p": 1.3},
    ),
    Case("half_power", "mk,nk->mn", lambda a, b: abs(a - b) ** 0.5),
    Case(
        "laplace", "mk,nk->mn", lambda a, b: abs(a - b), epilogue=lambda s, bandwidth: _exp(-s / bandwidth),
        params={"bandwidth": 7.0},
    ),
    Case("canberra", "mk,nk->mn", _canberra),
    Case("bray_curtis", "mk,nk->mn", _bray_curtis, epilogue=lambda s, t: s / t),
    Case("jensen_shannon", "mk,nk->mn", _jensen_shannon, interval=_PROBABILITY),
    Case("weighted", "mk,nk,k->mn", lambda a, b, w: w * (a - b) ** 2),
    Case("ard", "mk,nk,k->mn", lambda a, b, scale: ((a - b) / scale) ** 2, interval=(0.5, 2.0)),
    Case("biased", "mk,nk,m,n->mn", lambda a, b, row, column: _tanh(a * b + row - column)),
    Case("table", "mk,nk,mn->mn", lambda a, b, table: table * abs(a - b)),
    Case("tropical", "mk,nk->mn", lambda a, b: a + b, "min"),
    Case("bottleneck", "mk,nk->mn", _maximum, "min"),
    Case("product", "mk,nk->mn", lambda a, b: 1 + (a * b) / 16, "prod"),
    Case("soft_maximum", "mk,nk->mn", lambda a, b: a * b, "logsumexp"),
    Case("any_near", "mk,nk->mn", lambda a, b: abs(a - b) < 0.125, "any", smooth=False),
    Case("all_near", "mk,nk->mn", lambda a, b: abs(a - b) < 3.5, "all", smooth=False),
    Case("nearest", "mk,nk->mn", lambda a, b: abs(a - b), "argmin", smooth=False),
    Case("farthest", "mk,nk->mn", lambda a, b: abs(a - b), "argmax", smooth=False),
    Case("row_sums", "mk,nk->m", lambda a, b: _exp(-abs(a - b))),
    Case("feature_sums", "mk,nk->k", lambda a, b: (a - b) ** 2),
    Case("total", "mk,nk->", lambda a, b: _log(1 + (a - b) ** 2)),
    Case("gradient", "mk,nk,mn->mk", lambda a, b, g: g * (a - b)),
)  # fmt: skip

CASES: dict[str, Case] = {row.name: row for row in _ROWS}
