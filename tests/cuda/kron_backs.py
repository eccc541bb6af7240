"""Steps of all gradients of Kronecker products for the harness: cases, their float64 results, and how they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmantle.codegen import kron_back
from kernmantle.contraction.cuda_tiles import DeviceLimits
from kernmantle.contraction.kron_back import THREADS, BackPlan
from kernmantle.runtime.launch import Kernel
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import DEVIATIONS

from .harness import Machine

Array = np.ndarray[Any, Any]
TYPES = {"f32": np.float32, "f16": np.float16}
BLOCKS = 4


@dataclass(frozen=True)
class BackCase:
    """A step of all gradients: factors of an axis and of that behind it, at most two each, and what is beside both."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    items: int
    beside: int
    dtype: str
    splits: bool = False

    @property
    def name(self) -> str:
        """What its test is called."""
        groups = "_".join("x".join(map(str, group)) for group in (self.first, self.last) if group)
        return f"back_{groups}_{self.items}x{self.beside}_{self.dtype}{'_halves' * self.splits}"

    @property
    def lines(self) -> int:
        """Lines of both arrays."""
        return self.items * math.prod(self.first) * (math.prod(self.last) if self.beside > 1 else 1)

    @property
    def width(self) -> int:
        """Entries of a line."""
        return self.beside if self.beside > 1 else math.prod(self.last)

    def plan(self, own: DeviceLimits) -> BackPlan:
        """Of the step alone."""
        return BackPlan(self.first, self.last, self.dtype, own.arch, self.beside > 1, self.splits)

    def arrays(self) -> tuple[Array, Array, list[Array]]:
        """v, x and the factors (q, p)."""
        random, kind = np.random.default_rng(self.items), TYPES[self.dtype]
        v, x = (random.standard_normal((self.lines, self.width)).astype(kind) for _ in range(2))
        sizes = (*self.first, *self.last)
        return v, x, [(random.standard_normal((size, size)) / math.sqrt(size)).astype(kind) for size in sizes]

    def _exact(self, square: bool) -> list[Array]:
        """What leaves and all gradients in float64, or the sums of the squares of their terms."""
        v, x, factors = self.arrays()
        v, x = (np.square(array, dtype=np.float64) if square else array.astype(np.float64) for array in (v, x))
        wide = [np.square(own, dtype=np.float64) if square else own.astype(np.float64) for own in factors]
        shape = (self.items, *self.first, *self.last, self.beside)
        u, g = x.reshape(shape), v.reshape(shape)
        found: list[Array] = []
        for place, size in enumerate((*self.first, *self.last)):
            left, right = g, u
            for other, factor in enumerate(wide):
                if other == place:
                    continue
                if other < place:
                    left = _along(left, factor.T, other + 1)
                else:
                    right = _along(right, factor, other + 1)
            moved = [np.moveaxis(array, place + 1, 0).reshape(size, -1) for array in (left, right)]
            found.append(moved[0] @ moved[1].T)
        for place, factor in enumerate(wide):
            g = _along(g, factor.T, place + 1)
        return [g.reshape(v.shape), *found]

    def check(self, found: Sequence[Array]) -> None:
        """Assert that results are right."""
        rounds = DEVIATIONS * math.sqrt(2 * len(self.first + self.last)) if self.dtype == "f16" else 1
        for own, exact, terms in zip(found, self._exact(False), self._exact(True), strict=True):
            kind = "float16" if self.dtype == "f16" else "float32"
            size = rounds * np.sqrt(np.mean(terms)) if self.dtype == "f16" else np.sqrt(terms)
            assert_close(own, exact, dtype=kind, depth=self.lines * self.width, magnitude=size)


def _along(array: Array, matrix: Array, axis: int) -> Array:
    """A matrix applied to one axis."""
    return np.moveaxis(np.tensordot(matrix, array, axes=(1, axis)), 0, axis)


BACKS = [
    BackCase(first, last, items, beside, dtype, splits)
    for first, last, items, beside in (
        ((8,), (), 70, 72), ((16,), (), 9, 136), ((4, 8), (), 5, 264), ((64,), (), 3, 80), ((8, 8), (), 2, 64),
        ((16,), (16,), 150, 1), ((32,), (32,), 13, 1), ((64,), (64,), 4, 1), ((8,), (8, 8), 37, 1),
        ((8, 8), (4, 4), 9, 1), ((8, 8), (8, 8), 5, 1), ((4, 4), (32,), 40, 1), ((16,), (16,), 3, 40),
    )
    for dtype, splits in (("f32", True), ("f32", False), ("f16", True), ("f16", False))
    if not splits or math.prod(first) >= 16
]  # fmt: skip


def run_back(machine: Machine, case: BackCase, own: DeviceLimits, binary: bytes) -> list[Array]:
    """What leaves the step and the gradients, by few blocks."""
    plan, (v, x, factors) = case.plan(own), case.arrays()
    kernel = Kernel(binary, kron_back.ENTRY, THREADS, plan.shared, case.name)
    blocks = min(plan.tiles(case.lines, case.width), BLOCKS)
    out, parts = np.full(v.shape, np.nan, v.dtype), np.full((blocks, plan.parts), np.nan, np.float32)
    count = len(case.first)
    given = [*factors[:count], *factors[:1] * (2 - count), *factors[count:]]
    given += factors[:1] * (kron_back.FACTORS - len(given))
    buffers = [machine.upload(array) for array in (v, x, out, parts, *given)]
    strides = [step for array in given for step in (array.shape[1], 1)]
    pointers = [int(buffer.handle) for buffer in buffers]
    kernel(0, int(machine.stream.handle), blocks, (*pointers, *strides, case.lines, case.width, 1.0))
    whole = machine.download(buffers[3], parts).sum(0, dtype=np.float64).astype(np.float32)
    edges = np.cumsum([size * size for size in plan.sizes])[:-1]
    shares = [part.reshape(size, size) for part, size in zip(np.split(whole, edges), plan.sizes, strict=True)]
    return [machine.download(buffers[2], out), *shares]
