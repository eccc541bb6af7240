"""Gradients of factors on a CPU: sums over the entries before and behind an axis, by tiles or by the vendor's products.

Tiles sum over the entries before an axis for each entry behind it, or over those behind it for each before; what is
left is one sum more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...backends.cpu import jit
from ...compiler.nest import BYTES
from ...torch_ops.dtypes import NAMES
from ..mode_product.cpu import ready, summed_of
from ..mode_product.cpu_plan import SIZES, group_of
from ..mode_product.cpu_start import Call

MACHINE = "AMD EPYC (znver5, AVX-512 and its products of bfloat16), one core"
"""The machine that the tables were fitted on (decision 0135)."""


class Costs(NamedTuple):
    """Seconds of a sum, and of each number, matrix, product of vectors, and number that is written."""

    start: float
    number: float
    matrix: float
    product: float
    written: float


BEFORE: Mapping[bool, Costs] = {
    False: Costs(9.9e-6, 1.4e-10, 3.2e-9, 1.8e-10, 4.5e-10), True: Costs(1.8e-5, 1.2e-10, 3.5e-9, 5.9e-11, 3.4e-10),
}  # fmt: skip
"""Costs of tiles that sum over what is before an axis, by whether numbers are bfloat16 (decision 0135)."""
AFTER: Mapping[bool, Costs] = {
    False: Costs(1.6e-5, 5.8e-11, 2.4e-8, 1.4e-10, 1.7e-10), True: Costs(1.8e-5, 4.5e-11, 4.6e-8, 6.5e-11, 1.7e-10),
}  # fmt: skip
"""Costs of tiles that sum over what is behind an axis, likewise."""
VENDOR: Mapping[bool, Costs] = {
    False: Costs(8e-6, 1.1e-10, 3.5e-8, 3.7e-10, 3.1e-10), True: Costs(2.1e-5, 7.3e-11, 7.6e-8, 5.2e-11, 2.3e-10),
}  # fmt: skip
"""Costs of the vendor's products, which write copies in another order, likewise."""


@dataclass(frozen=True)
class TileSum:
    """The sum of v[l, q, r] u[l, p, r] over l and r by tiles; ``swapped`` where vectors go along q.

    ``right`` is the extent behind the axis where they sum over what is before it, else 0.
    """

    call: Call
    shape: tuple[int, ...]
    right: int
    swapped: bool

    def __call__(self, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the gradient (q, p) of arrays at these addresses."""
        rows, lanes = (u, v) if self.swapped else (v, u)
        parts = u.new_empty(self.shape, dtype=torch.float32 if self.call.wide else u.dtype)
        self.call.start.run(rows.data_ptr(), lanes.data_ptr(), parts.data_ptr())
        if self.right == 0:
            found = parts.sum(0) if len(parts) > 1 else parts[0]
        elif self.right == 1:
            found = parts.squeeze(-1)
        else:  # as torch's sums over a short last axis take long
            found = torch.mv(parts.view(-1, self.right), parts.new_ones(self.right)).view(self.shape[:2])
        return (found.mT if self.swapped else found).to(u.dtype)


def bind(u: torch.Tensor, v: torch.Tensor) -> TileSum | None:
    """Return the sum of contiguous u (l, p, r) and v (l, q, r) by tiles; None where the vendor is quicker."""
    if not (ready(u.dtype) and u.is_contiguous() and v.is_contiguous()):
        return None
    (count, p, right), q, dtype = u.shape, v.shape[1], NAMES[u.dtype]
    lanes = jit.host().vector_bytes // SIZES[dtype]
    found = [_before(count, p, q, right, lanes, dtype)]
    if right > 1:
        found.append(_after(count, p, q, right, lanes, dtype))
    taken, is_before, swapped = min(found)
    if dtype != "f16" and _vendor(count, p, q, right, lanes, dtype) < taken:
        return None
    b, c = (p, q) if swapped else (q, p)
    pattern, batch = ((1, b, c, right), count) if is_before else ((count, b, c, 1), right)
    call = summed_of(pattern, batch, u.dtype, not is_before)
    return TileSum(call, (b, c, right) if is_before else (count, b, c), right if is_before else 0, swapped)


def _sides(p: int, q: int, lanes: int) -> tuple[int, int, bool]:
    """Return the rows and vectors of tiles for the result (q, p) or its transpose, which has fewer, and which it is."""
    plain, swapped = (q, -(-p // lanes)), (p, -(-q // lanes))
    return (*swapped, True) if math.prod(swapped) < math.prod(plain) else (*plain, False)


def _before(count: int, p: int, q: int, right: int, lanes: int, dtype: str) -> tuple[float, bool, bool]:
    """Return the seconds of tiles that sum over what is before an axis, that they do, and whether sides are swapped."""
    costs, found = BEFORE[dtype == "bf16"], list[tuple[float, bool]]()
    for swapped in (False, True):
        b, c = (p, q) if swapped else (q, p)
        group = group_of((1, b, c, right), count, BYTES[dtype] == 2, lanes, True)
        matrices, vectors = count * -(-right // group), -(-c * group // lanes)
        found.append((matrices * (costs.matrix + costs.product * b * vectors), swapped))
    taken, swapped = min(found)
    taken += costs.start + costs.number * count * right * (p + q) + costs.written * p * q * right
    return taken, True, swapped


def _after(count: int, p: int, q: int, right: int, lanes: int, dtype: str) -> tuple[float, bool, bool]:
    """Return what ``_before`` does, of tiles that sum over what is behind the axis."""
    costs = AFTER[dtype == "bf16"]
    rows, vectors, swapped = _sides(p, q, lanes)
    taken = costs.start + costs.number * count * right * (vectors * lanes + rows) + costs.matrix * count
    return taken + costs.product * count * right * rows * vectors + costs.written * count * p * q, False, swapped


def _vendor(count: int, p: int, q: int, right: int, lanes: int, dtype: str) -> float:
    """Return the seconds of the vendor's products, of a matrix for each l where r is long, else of copies."""
    costs, numbers = VENDOR[BYTES[dtype] == 2], count * right * (p + q)
    taken = costs.start + costs.number * numbers + costs.product * count * right * p * q / lanes
    if 1 in (count, right):
        return taken
    return taken + (costs.matrix * count if right >= max(p, q) else costs.written * numbers)
