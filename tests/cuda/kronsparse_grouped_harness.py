"""Runs small products of Kronecker-sparse training steps on a GPU with cuda.core alone, for compute-sanitizer.

``python -m tests.cuda.kronsparse_grouped_harness [word ...]`` runs all, or the cases whose name has one of the words.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.mode_product import cuda_emit
from kernmantle.structured.mode_product.chain_plan import fused
from kernmantle.structured.mode_product.grouped_plan import (
    GroupedPlan,
    GroupedProduct,
    View,
    bias_view,
    factor,
    neighbours,
    numbers_of,
    plan_grouped,
    sums,
)
from kernmantle.testing import assert_close

from .report import report, selected

TYPES = {"f32": np.float32, "f16": np.float16}
FACTORS = ((6, 32, 24, 1), (1, 48, 40, 2), (2, 37, 45, 1), (1, 20, 33, 3), (3, 8, 4, 6), (1, 40, 24, 4), (1, 24, 20, 8))
LONG = (1, 16, 320, 2)  # summed by all warps of a block
CHAINS = (((6, 32, 24, 1), (1, 72, 96, 2)), ((4, 6, 5, 1), (1, 7, 8, 3)), ((4, 6, 5, 2), (2, 7, 4, 6)))
GROUP = (6, 12, 24, 1), (1, 24, 12, 6)
BATCHES = (1, 16, 37)


@dataclass(frozen=True)
class FewCase:
    """A launch: of a factor (a pattern) or of pairs that meet, for a batch or none, memory orders of x and y."""

    kind: str
    patterns: tuple[tuple[int, int, int, int], ...]
    batch: int
    dtype: str
    x_first: bool = True
    y_first: bool = True

    @property
    def name(self) -> str:
        """What its test is called."""
        size = "_".join("x".join(map(str, pattern)) for pattern in self.patterns)
        ways = "".join("first" if first else "last" for first in (self.x_first, self.y_first))
        return f"few_{self.kind}_{size}_{self.batch}_{self.dtype}_{ways}"

    def products(self) -> list[GroupedProduct]:
        """What one launch computes."""
        if self.kind == "summed":
            a, b, _, d = self.patterns[0]
            return [sums(a * b * d, self.batch, (a * b * d, 1, 16) if self.y_first else (1, self.batch, 16))]
        if self.kind in ("join", "part"):
            each = [neighbours(*pair) for pair in zip(self.patterns[::2], self.patterns[1::2], strict=True)]
            if self.kind == "join":
                return [own.forward() for own in each]
            return [product for own in each for product in (own.of_x(), own.of_weight())]
        (a, b, c, d), rows = self.patterns[0], self.batch
        size = np.dtype(TYPES[self.dtype]).itemsize
        sides = [
            (features, 1, 16) if first else (1, rows, 16)
            for features, first in ((a * c * d, self.x_first), (a * b * d, self.y_first))
        ]
        own = factor((a, b, c, d), rows, *sides)
        bias = bias_view((a, b, c, d), math.gcd(16, 4 * size))
        return (
            [own.forward(bias)]
            if self.kind == "forward"
            else [own.of_x(), own.of_weight(), sums(a * b * d, rows, sides[1])]
        )

    def plan(self, own: DeviceLimits) -> GroupedPlan:
        """As planned."""
        return plan_grouped(own, self.dtype, self.products(), "relu" if self.kind == "forward" else "")

    def arrays(self) -> list[list[np.ndarray[Any, Any] | None]]:
        """Memory of left, right and bias of each product."""
        random = np.random.default_rng(self.batch)
        made: list[list[np.ndarray[Any, Any] | None]] = []
        for product in self.products():
            sides = (product.left, product.right, product.bias)
            ends = ((product.p, product.r), (product.q, product.r), (product.q, 1))
            made.append(
                [
                    None
                    if side is None
                    else random.standard_normal(_length(side, product, end)).astype(TYPES[self.dtype])
                    for side, end in zip(sides, ends, strict=True)
                ]
            )
        return made


def _length(view: View, product: GroupedProduct, extents: tuple[int, int]) -> int:
    """Numbers from the first to the last of a view."""
    ends = zip((*product.sizes, *extents), (*view.batch, view.first, view.second), strict=True)
    return 1 + sum((extent - 1) * step for extent, step in ends)


def seen(array: Any, view: View, product: GroupedProduct, extents: tuple[int, int]) -> Any:
    """An array as a product sees it: batch axes, then its own two."""
    shape = (*product.sizes, *extents)
    steps = [array.itemsize * step for step in (*view.batch, view.first, view.second)]
    return np.lib.stride_tricks.as_strided(array, shape, steps)


def expected(
    product: GroupedProduct, given: Sequence[np.ndarray[Any, Any] | None], activation: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Result and size of its terms in float64, batch axes first."""
    left = seen(given[0], product.left, product, (product.p, product.r)).astype(np.float64)
    right = np.ones((*product.sizes, product.q, product.r))
    if product.right is not None and given[1] is not None:
        right = seen(given[1], product.right, product, (product.q, product.r)).astype(np.float64)
    value, terms = (np.einsum("abcdpr,abcdqr->abcdpq", *sides) for sides in ((left, right), (abs(left), abs(right))))
    if product.bias is not None:
        bias = seen(given[2], product.bias, product, (product.q, 1)).astype(np.float64)[..., 0][..., None, :]
        value, terms = value + bias, terms + abs(bias)
    return np.maximum(value, 0) if activation else value, terms


def cases() -> Iterator[FewCase]:
    """Every kind of launch, at its edges."""
    for place, (pattern, dtype, kind) in enumerate(itertools.product(FACTORS, TYPES, ("forward", "backward"))):
        x_first, y_first = ((True, True), (False, False), (True, False))[place // 2 % 3]
        yield FewCase(kind, (pattern,), BATCHES[place % 3], dtype, x_first, y_first)
        yield FewCase(kind, (pattern,), BATCHES[(place + 1) % 3], dtype)
    for dtype, kind in itertools.product(TYPES, ("forward", "backward")):
        yield FewCase(kind, (LONG,), 300, dtype)
    for pattern, dtype, first in itertools.product(FACTORS[:2], TYPES, (True, False)):
        yield FewCase("summed", (pattern,), 1300, dtype, first, first)
    for chain, dtype, kind in itertools.product(CHAINS, TYPES, ("join", "part")):
        assert fused(*chain)
        yield FewCase(kind, chain, 0, dtype)
    for dtype, kind in itertools.product(TYPES, ("join", "part")):
        yield FewCase(kind, (*CHAINS[0], *CHAINS[2], *GROUP, *GROUP), 0, dtype)


def run(machine: Any, case: FewCase, own: DeviceLimits) -> list[np.ndarray[Any, Any]]:
    """Results as the products see them."""
    from kernmantle.backends.cuda.launch import Kernel

    from .harness import compiled

    chosen, products = case.plan(own), case.products()
    kernel = Kernel(
        compiled(cuda_emit.emit_grouped(chosen), own.arch).binary, cuda_emit.ENTRY, chosen.threads,
        chosen.shared, case.name, own.has(("overlapped_launch",)),
    )  # fmt: skip
    arguments: list[int] = []
    held, blocks = [], 0
    outs = []
    for product, tile, (left, right, bias) in zip(products, chosen.tiles, case.arrays(), strict=True):
        blank = np.full(_length(product.out, product, (product.p, product.q)), np.nan, TYPES[case.dtype])
        buffers = [None if array is None else machine.upload(array) for array in (left, right, blank, bias)]
        numbers, count = numbers_of(product, tile, case.dtype, chosen.warps, own)
        arguments += [0 if buffer is None else int(buffer.handle) for buffer in buffers]
        arguments += [*numbers, count]
        outs.append((buffers[2], blank, product))
        held.append(buffers)
        blocks += count
    kernel(0, int(machine.stream.handle), blocks, tuple(arguments))
    return [
        seen(machine.download(buffer, blank), product.out, product, (product.p, product.q))
        for buffer, blank, product in outs
    ]


def check(case: FewCase, found: Sequence[np.ndarray[Any, Any]]) -> None:
    """Assert that results are right."""
    activation = "relu" if case.kind == "forward" else ""
    for product, given, own in zip(case.products(), case.arrays(), found, strict=True):
        wanted, terms = expected(product, given, activation)
        assert_close(own, wanted, depth=product.r + 1, magnitude=terms)


def main(words: Sequence[str]) -> int:
    """Run and report; the number of cases that disagree."""
    from .harness import Machine, limits

    machine = Machine()
    return report(selected(cases(), words), lambda case: check(case, run(machine, case, limits())))


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
