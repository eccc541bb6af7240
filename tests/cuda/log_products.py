"""Logarithms of sums of exponentials through products: cases for every tile, and how far they may be from float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kernmantle.backends.cuda.squares_plan import product_tiles
from kernmantle.backends.cuda.tiles import CARDS
from kernmantle.compiler.nest import Nest
from kernmantle.ir.node import Node

from .nests import Case, P, W, X, Y, expected, gram, op, var
from .squares import BATCH, SHAPE, Given

Array = np.ndarray[Any, Any]
PLUS = op("add", X, Y)
PROMISE = 3e-6
"""Largest error of a logarithm, beside roundings of its size."""


def logarithms(mapped: Node = PLUS, **more: Any) -> Nest:
    """The nest of a log-sum-exp whose products may be taken by any means."""
    return replace(gram(mapped, "logsumexp", **more), precision="default")


def log_error(given: Given, found: Array) -> float:
    """Largest error in units of what is allowed; infinite where NaN or infinities differ."""
    (want,) = expected(given.case, given.arrays())
    rounding = 2.0**-10 if given.case.nest.outs[0].dtype == "f16" else 2.0**-22
    kept = found.astype(np.float64)
    same = (kept == want) | (np.isnan(kept) & np.isnan(want))
    with np.errstate(all="ignore"):
        off = np.abs(kept - want) / (PROMISE + rounding * np.abs(want))
    return float(np.where(same, 0.0, np.where(np.isfinite(off), off, np.inf)).max(initial=0.0))


def _scaled(factor: float) -> Callable[[list[Array]], None]:
    def change(arrays: list[Array]) -> None:
        for array in arrays[:2]:
            array *= factor

    return change


def _moved(arrays: list[Array]) -> None:
    arrays[0] += 1000
    arrays[1] -= 300


def _masked(arrays: list[Array]) -> None:
    """Whole rows and most of others forbidden; some pairs have nothing in common."""
    x, y = arrays[:2]
    x[3], y[7] = -np.inf, -np.inf
    x[4, 1:], y[9, :1] = -np.inf, -np.inf
    x[20:40, ::2], y[20:60, 1::2] = -np.inf, -np.inf


def _wild(arrays: list[Array]) -> None:
    x, y = arrays[:2]
    x[5, 3], x[70, 9], y[11, 2], y[12] = np.inf, np.nan, np.inf, -np.inf
    if len(y) > 140:
        y[140, 0] = np.nan


def _apart(arrays: list[Array]) -> None:
    """The largest terms of rows and columns lie apart: what is left of the products underflows."""
    x, y = arrays[:2]
    x[::7, 0] += 60
    y[::5, 1] += 60


def _positive(arrays: list[Array]) -> None:
    arrays[2][:] = np.abs(arrays[2])


def log_cases() -> list[Given]:
    """Every case."""
    weighted = op("add", op("mul", P, X), op("sub", Y, op("div", W, P)))
    common = {"numbers": ("p",), "w": "k"}
    likelihood = logarithms(outputs=(op("mul", op("sub", var("s0"), 2), var("r0")),), r0="m")
    any_tile = {"tile": "synchronous products"}

    def case(name: str, nest: Nest, sizes: dict[str, int] = SHAPE, **more: Any) -> Case:
        return Case(f"logs_{name}", nest, sizes, **more)

    extents = case("", logarithms(), SHAPE).extents()
    tiles = {tile.name for card in CARDS.values() for tile in product_tiles(logarithms(), extents, card, False)}
    plain = [
        ("plain", logarithms(), None), ("steep", logarithms(), _scaled(6)), ("steeper", logarithms(), _scaled(40)),
        ("moved", logarithms(), _moved), ("masked", logarithms(), _masked), ("wild", logarithms(), _wild),
        ("apart", logarithms(), _apart), ("half", logarithms(dtype="f16"), None),
    ]  # fmt: skip
    found = [
        Given(case(f"{name}_{tile.partition(' ')[0]}", nest, tile=tile), change)
        for tile in sorted(tiles)
        for name, nest, change in plain
    ]
    return [
        *found,
        *(Given(case(f"k{k}", logarithms(), {"m": 65, "n": 130, "k": k}, **any_tile)) for k in (1, 15, 64, 65, 129)),
        Given(case("weighted", logarithms(weighted, **common), numbers=(1.5,), **any_tile), _positive),
        Given(case("batch", logarithms(), BATCH, **any_tile)),
        Given(case("broadcast", logarithms(), BATCH, batched={"x0": "a", "x1": "b"}, **any_tile)),
        Given(case("symmetric", logarithms(symmetric=True), {"m": 200, "n": 200, "k": 40}, **any_tile)),
        Given(case("transposed", logarithms(), layout={"x0": "km", "out0": "nm"}, **any_tile)),
        Given(case("likelihood", likelihood, BATCH, **any_tile)),
    ]
