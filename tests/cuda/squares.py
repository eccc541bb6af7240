"""Sums of squared differences through products: cases for every tile, and how far they may be from float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernmantle.backends.cuda.gram_plan import DeviceLimits
from kernmantle.backends.cuda.squares_plan import SquaresPlan, squares_plan
from kernmantle.backends.cuda.tiles import PRODUCT_TILES
from kernmantle.compiler.nest import Layout, Nest
from kernmantle.ir.node import Node

from .nests import SQUARE, Case, W, expected, gram, op, var

Array = np.ndarray[Any, Any]
SHAPE = {"m": 150, "n": 210, "k": 100}
BATCH = SHAPE | {"a": 2, "b": 2, "m": 70, "n": 66}
DEPTHS = (1, 15, 16, 17, 63, 64, 65, 127, 128, 129)


def squares(mapped: Node = SQUARE, precision: str = "default", **more: Any) -> Nest:
    """The nest of a sum of squared differences whose products may be taken by any means."""
    return replace(gram(mapped, **more), precision=precision)


@dataclass(frozen=True)
class Given:
    """A case, what is done to its arrays first, and the tile it runs in."""

    case: Case
    change: Callable[[list[Array]], None] | None = None

    @property
    def name(self) -> str:
        """What the case is called."""
        return self.case.name

    def arrays(self) -> list[Array]:
        """Operands in memory order."""
        made = self.case.arrays()
        if self.change is not None:
            shape = [[self.case.length(place, role) for role in self.case.roles(place)] for place in range(len(made))]
            self.change([array.reshape(extents).squeeze() for array, extents in zip(made, shape, strict=True)])
        return made


def planned(case: Case, device: DeviceLimits) -> SquaresPlan:
    """Plan of a case in its tile, all arrays well aligned."""
    buffers = range(len(case.nest.buffers))
    facts = Layout(tuple(case.strides(i) for i in buffers), (16,) * len(buffers))
    found = squares_plan(case.nest, case.extents(), device, facts, case.tile)
    assert found is not None
    return found


def error(given: Given, found: Array) -> float:
    """Largest relative error; infinite where NaN, infinity or zero differ."""
    (want,) = expected(given.case, given.arrays())
    kept = found.astype(np.float64)
    same = (kept == want) | (np.isnan(kept) & np.isnan(want))
    with np.errstate(all="ignore"):
        off = np.abs(kept - want) / np.abs(want)
    return float(np.where(same, 0.0, np.where(np.isfinite(off), off, np.inf)).max(initial=0.0))


def _alike(arrays: list[Array]) -> None:
    x, y = arrays[:2]
    y[:40] = x[:40]
    y[40:80] = x[40:80] * (1 + 1e-7)
    y[80:100] = x[80:100] + 1e-3


def _moved(offset: float) -> Callable[[list[Array]], None]:
    def change(arrays: list[Array]) -> None:
        for array in arrays[:2]:
            array += offset

    return change


def _wild(arrays: list[Array]) -> None:
    x, y = arrays[:2]
    x[5, 3], x[70, 9] = np.inf, np.nan
    if x is not y:
        y[8, 3], y[9, 3] = np.inf, -np.inf


def _uneven(arrays: list[Array]) -> None:
    for array in arrays[:2]:
        array *= 10.0 ** (np.arange(len(array)) % 12 - 6)[:, None]


def _clusters(count: int) -> Callable[[list[Array]], None]:
    def change(arrays: list[Array]) -> None:
        centres = 10 * arrays[0][:count].copy()
        for array in arrays[:2]:
            array *= 1e-4
            array += centres[np.arange(len(array)) % count]

    return change


def _scaled(factor: float) -> Callable[[list[Array]], None]:
    def change(arrays: list[Array]) -> None:
        for array in arrays[:2]:
            array *= factor

    return change


def _negative(arrays: list[Array]) -> None:
    arrays[2][:] = np.abs(arrays[2])
    arrays[2][3] = -1


def _positive(arrays: list[Array]) -> None:
    arrays[2][:] = np.abs(arrays[2])


def _everywhere(tile: str) -> list[Given]:
    """What every tile has to get right."""
    weighted = squares(op("mul", W, SQUARE), w="k")

    def case(name: str, nest: Nest, sizes: dict[str, int] = SHAPE, **more: Any) -> Case:
        return Case(f"squares_{name}_{tile.partition(' ')[0]}", nest, sizes, tile=tile, **more)

    return [
        Given(case("alike", squares()), _alike),
        Given(case("wild", squares()), _wild),
        Given(case("few_clusters", squares()), _clusters(2)),
        Given(case("weights", weighted), _positive),
        Given(case("symmetric", squares(symmetric=True), {"m": 500, "n": 500, "k": 33})),
        Given(case("symmetric_wild", squares(symmetric=True), {"m": 150, "n": 150, "k": 100}), _wild),
        Given(case("broadcast", squares(), BATCH, batched={"x0": "a", "x1": "b"})),
        Given(case("odd", squares(), {"m": 131, "n": 201, "k": 97})),
        Given(case("half", squares(dtype="f16"))),
        Given(case("half_moved", squares(dtype="f16")), _moved(8)),
    ]


def _once(tile: str) -> list[Given]:
    """What does not depend on the tile."""
    weighted = squares(op("mul", W, SQUARE), w="k")
    root = squares(outputs=(op("mul", op("sqrt", var("s0")), var("r0")), var("s0")), r0="m")
    half = squares(dtype="f16").operands[:1] + squares().operands[1:]

    def case(name: str, nest: Nest, sizes: dict[str, int] = SHAPE, **more: Any) -> Case:
        return Case(f"squares_{name}", nest, sizes, tile=tile, **more)

    return [
        *(Given(case(f"k{k}", squares(), {"m": 65, "n": 193, "k": k})) for k in DEPTHS),
        Given(case("deep", squares(), SHAPE | {"k": 1031}), _alike),
        Given(case("deep_whole", squares(), SHAPE | {"k": 1024}), _alike),
        Given(case("moved", squares()), _moved(1e4)),
        Given(case("uneven", squares()), _uneven),
        Given(case("large", squares()), _scaled(1e15)),
        Given(case("small", squares()), _scaled(1e-15)),
        Given(case("tiny", squares()), _scaled(1e-19)),
        Given(case("clusters", squares()), _clusters(12)),
        Given(case("negative_weights", weighted), _negative),
        Given(case("divided", squares(op("mul", *2 * (op("div", SQUARE.args[0], W),)), w="k"))),
        Given(case("number", squares(op("mul", var("p"), SQUARE), numbers=("p",)), numbers=(1.7,))),
        Given(case("batch", squares(), BATCH)),
        Given(case("batched_weights", weighted, BATCH, batched={"x0": "", "x1": "b", "w": "a"}), _positive),
        Given(case("transposed", squares(), layout={"x0": "km", "out0": "nm"})),
        Given(case("epilogue", replace(root, outs=root.outs[:1], outputs=root.outputs[:1]), BATCH)),
        Given(case("brain", squares(dtype="bf16"))),
        Given(case("bytes", squares(dtype="i8"))),
        Given(case("mixed", replace(squares(), operands=half))),
    ]


def squares_cases() -> list[Given]:
    """Every case."""
    tiles = [tile.name for tile in PRODUCT_TILES]
    return [*_once(tiles[0]), *(given for tile in tiles for given in _everywhere(tile))]
