"""Which rows are within a radius of which, as float32 arithmetic decides, mostly by products on tensor cores.

``‖x - y‖ <= r`` is ``x·y >= (‖x‖² + ‖y‖² - r²) / 2``. Of centred rows the two sides are known to within a band that
depends on the longest rows alone: distances outside of it decide, and rows for which one inside matters are asked again
in float32, by differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.functions import FUNCTIONS
from ..pairwise.distance import Distances, Entry
from ..torch_ops.contract import Contraction
from .measure import Measure

_where = FUNCTIONS["where"]
_PRODUCTS = Contraction("mk,nk->mn", lambda a, b: a * b)
COUNT, SMALLEST, WEIGHT = "count", "smallest", "weight"
_BY_DISTANCE = {
    COUNT: Entry(lambda d, radius: _where(d <= radius, 1, 0), rows=("radius",)),
    SMALLEST: Entry(
        lambda d, radius, own, other: _where((d <= radius) & (own != other), other, math.inf),
        rows=("radius", "own"), columns=("other",),
    ),
    WEIGHT: Entry(
        lambda d, radius, weight: _where(d <= radius, weight, 0), rows=("radius",), columns=("weight",)
    ),
}  # fmt: skip
"""Reductions over the rows within the radius, by their names."""
_BY_PRODUCT = {
    COUNT: Entry(lambda s, row, column: _where(s >= row + column, 1, 0), rows=("row",), columns=("column",)),
    SMALLEST: Entry(
        lambda s, row, own, column, other: _where((s >= row + column) & (own != other), other, math.inf),
        rows=("row", "own"), columns=("column", "other"),
    ),
}  # fmt: skip
_HOW = {COUNT: "sum", SMALLEST: "min", WEIGHT: "sum"}
_PRODUCT_ERROR = 4e-6
"""Error of a product as a share of the product of the longest rows: four times what is promised (docs/numerics.md)."""
_DISTANCE_ERROR = 2e-5
"""Twice the relative error that squared distances in float32 may have."""
_NUMBERS, _LEAST_ROWS = range(16, 129), 4096
"""Numbers a row, and rows, for which products are on tensor cores."""
_LARGEST_SQUARE = 1e30  # squared length of a row, and its inverse, within which float32 has its digits


@dataclass(frozen=True)
class Rounded:
    """Products of centred rows, and bounds of rows and of columns that their sum is compared with.

    Bounds are in float64: what a product is compared with is rounded once.
    """

    products: Distances
    rows: torch.Tensor
    columns: torch.Tensor
    half: float
    """Half the squared radius."""
    band: float
    """Error of a product."""

    @staticmethod
    def of(rows: torch.Tensor, square: float) -> Rounded | None:
        """Return the products of all rows, for a squared radius; None where float32 does not hold them."""
        centred = rows - rows.mean(0)
        halves = centred.double().square().sum(1) / 2
        longest = 2 * float(halves.max())
        if not 1 / _LARGEST_SQUARE < longest < _LARGEST_SQUARE:
            return None
        products = Distances(_PRODUCTS, (centred, centred), {}, True, precision=None)
        return Rounded(products, halves, halves, square / 2, _PRODUCT_ERROR * longest)

    def part(self, rows: torch.Tensor | None, columns: torch.Tensor | None) -> Rounded:
        """Return the products of some of the rows with some of the others."""
        own = self.rows if rows is None else self.rows[rows]
        other = self.columns if columns is None else self.columns[columns]
        return Rounded(self.products.part(rows, columns), own, other, self.half, self.band)

    def bounds(self, side: int) -> dict[str, torch.Tensor]:
        """Return the bounds for those surely within the radius (-1), or perhaps (1)."""
        slack = side * (self.band + _DISTANCE_ERROR * self.half)
        return {"row": self.rows - self.half - slack, "column": self.columns}


def rounded(measure: Measure, rows: torch.Tensor, radius: float) -> Rounded | None:
    """Return the products that decide for most rows, None where distances do as well."""
    power = measure.euclidean_power
    suits = power and rows.is_cuda and rows.dtype == torch.float32
    if not suits or rows.shape[1] not in _NUMBERS or len(rows) < _LEAST_ROWS:
        return None
    return Rounded.of(rows.detach(), radius ** (2 / power))


class Neighbourhood:
    """The rows within a radius of every row, as distances in float32 arithmetic decide.

    With ``products`` these decide for most rows; the others are asked again.
    """

    def __init__(self, found: Distances, radius: float, products: Rounded | None = None, bar: Any = None) -> None:
        self.found, self.radius, self.products, self._bar = found, radius, products, bar

    def part(self, rows: torch.Tensor | None, columns: torch.Tensor | None = None) -> Neighbourhood:
        """Return that of some of the rows among some of the others."""
        products = None if self.products is None else self.products.part(rows, columns)
        return Neighbourhood(self.found.part(rows, columns), self.radius, products, self._bar)

    def reduced(self, what: str, side: int = 0, **terms: torch.Tensor) -> torch.Tensor:
        """Return a reduction over the rows within by float32 (0), over those surely within (-1), or perhaps (1)."""
        if side:
            assert self.products is not None
            found, entry, bounds = self.products.products, _BY_PRODUCT[what], self.products.bounds(side)
        else:
            found, entry = self.found, _BY_DISTANCE[what]
            bounds = {"radius": found.operands[0].new_full(found.shape[:1], self.radius)}
        return found.reduced(_HOW[what], entry, bar=self._bar, **bounds, **terms)

    def has(self, wanted: float) -> torch.Tensor:
        """Return whether each row has so many rows within the radius."""
        if self.products is None:
            return self.reduced(COUNT) >= wanted
        found = self.reduced(COUNT, -1) >= wanted
        rest = (~found).nonzero()[:, 0]
        if len(rest):
            rest = rest[self.part(rest).reduced(COUNT, 1) >= wanted]
        if len(rest):
            found[rest] = self.part(rest).reduced(COUNT) >= wanted
        return found

    def smallest(self, side: int, own: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the smallest label within the radius of each row that is not its own, infinity where there is none."""
        dtype = self.found.dtype
        return self.reduced(SMALLEST, side, own=own.to(dtype), other=other.to(dtype))

    def first(self, other: torch.Tensor) -> torch.Tensor:
        """Return the smallest label within the radius of each row, infinity where there is none."""
        own = other.new_full(self.found.shape[:1], -1)
        if self.products is None:
            return self.smallest(0, own, other)
        surely, perhaps = self.smallest(-1, own, other), self.smallest(1, own, other)
        rest = (perhaps < surely).nonzero()[:, 0]
        if len(rest):
            surely[rest] = self.part(rest).smallest(0, own[rest], other)
        return surely
