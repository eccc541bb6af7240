"""Steps of all gradients of Kronecker products for the harness: cases, their float64 results, and how they run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import gradient_emit
from kernmantle.structured.kron.back_axis_plan import BackAxisPlan, back_axis
from kernmantle.structured.kron.back_registers_plan import TEAMS, WARP, BackRegistersPlan, back_registers_candidates
from kernmantle.structured.kron.back_wgmma_plan import BackWgmmaPlan, back_wgmma_candidates
from kernmantle.structured.kron.chain_gradient_plan import VECTOR, ChainPlan
from kernmantle.structured.kron.chain_gradient_plan import grouped as axes_of
from kernmantle.structured.kron.gradient_cost import PassPlan
from kernmantle.structured.kron.gradient_groups import Size, whole
from kernmantle.testing import assert_close
from kernmantle.testing.tolerances import DEVIATIONS

from .harness import Machine

Array = np.ndarray[Any, Any]
TYPES = {"f32": np.float32, "f16": np.float16}
BLOCKS = 4


@dataclass(frozen=True)
class BackCase(ABC):
    """A pass: the factors of an axis and of that behind it, or all, and what is beside them.

    Sizes are (rows, columns); ``used`` is how many items a tile takes.
    """

    first: tuple[Size, ...]
    last: tuple[Size, ...]
    items: int
    beside: int
    dtype: str
    used: int = 0

    @property
    def name(self) -> str:
        """What its test is called."""
        groups = "_".join("x".join(f"{q}.{p}" for q, p in group) for group in (self.first, self.last) if group)
        return f"back_{groups}_{self.items}x{self.beside}_{self.dtype}{self.used or ''}"

    @property
    def sizes(self) -> tuple[Size, ...]:
        """All factors."""
        return (*self.first, *self.last)

    @property
    def entries(self) -> int:
        """Entries of the larger array."""
        return self.items * max(whole(self.sizes)) * self.beside

    @abstractmethod
    def plan(self, own: DeviceLimits) -> PassPlan:
        """Of the pass."""

    def source(self, own: DeviceLimits) -> str:
        """CUDA C++ of the step."""
        return gradient_emit.emit(self.plan(own))

    def arrays(self) -> tuple[Array, Array, list[Array]]:
        """v, x and the factors (q, p)."""
        random, kind = np.random.default_rng(self.items), TYPES[self.dtype]
        v, x = (
            random.standard_normal((self.items, *(size[side] for size in self.sizes), self.beside)).astype(kind)
            for side in (0, 1)
        )
        return v, x, [(random.standard_normal(size) / math.sqrt(size[1])).astype(kind) for size in self.sizes]

    def _exact(self, square: bool) -> list[Array]:
        """What leaves and all gradients in float64, or the sums of the squares of their terms."""
        v, x, factors = self.arrays()
        v, x = (np.square(array, dtype=np.float64) if square else array.astype(np.float64) for array in (v, x))
        wide = [np.square(own, dtype=np.float64) if square else own.astype(np.float64) for own in factors]
        u, g = x, v
        found: list[Array] = []
        for place in range(len(wide)):
            left, right = g, u
            for other, factor in enumerate(wide):
                if other == place:
                    continue
                if other < place:
                    left = _along(left, factor.T, other + 1)
                else:
                    right = _along(right, factor, other + 1)
            moved = [np.moveaxis(array, place + 1, 0).reshape(array.shape[place + 1], -1) for array in (left, right)]
            found.append(moved[0] @ moved[1].T)
        for place, factor in enumerate(wide):
            g = _along(g, factor.T, place + 1)
        return [g, *found]

    def check(self, found: Sequence[Array]) -> None:
        """Assert that results are right."""
        rounds = DEVIATIONS * math.sqrt(2 * len(self.sizes)) if self.dtype == "f16" else 1
        for own, exact, terms in zip(found, self._exact(False), self._exact(True), strict=True):
            kind = "float16" if self.dtype == "f16" else "float32"
            size = rounds * np.sqrt(np.mean(terms)) if self.dtype == "f16" else np.sqrt(terms)
            assert_close(own, exact, dtype=kind, depth=self.entries, magnitude=size)


@dataclass(frozen=True)
class ChainCase(BackCase):
    """A pass over all of its factors at once; ``across`` and ``threads`` are those of its plan."""

    across: int = 1
    threads: int = 256

    @property
    def name(self) -> str:
        """What its test is called."""
        return f"{super().name}_{self.across}_{self.threads}".replace("back", "chain")

    def plan(self, own: DeviceLimits) -> ChainPlan:
        """Of the pass."""
        size = TYPES[self.dtype]().itemsize
        found = ChainPlan(
            axes_of(self.sizes), self.dtype, own.arch, max(1, self.used), self.across, self.beside > 1, VECTOR // size,
            self.threads, 1,
        )  # fmt: skip
        lengths = (self.across, self.beside) if self.beside > 1 else found.axes[-1]
        inner = None if self.beside > 1 else -1
        lengths = (*lengths, *(pitch for pitches in found.pitches for pitch in pitches[:inner]))
        return replace(found, vector=1) if any(length % found.vector for length in lengths) else found


@dataclass(frozen=True)
class RowsCase(BackCase):
    """A pass with ``before`` entries of a row in front of its factors, where rows have other magnitudes."""

    before: int = 1

    def arrays(self) -> tuple[Array, Array, list[Array]]:
        """v and x by another power of two for each row of x, and the factors."""
        v, x, factors = super().arrays()
        rows = np.arange(self.items) // self.before
        return _scaled(v, 2.0 ** (rows * 7 % 11 - 5)), _scaled(x, 2.0 ** (rows * 3 % 5 - 2)), factors


@dataclass(frozen=True)
class BackWgmmaCase(RowsCase):
    """A pass over two axes by wgmma."""

    @property
    def name(self) -> str:
        """What its test is called."""
        return super().name.replace("back", "tiles") + f"_{self.before}"

    def plan(self, own: DeviceLimits) -> BackWgmmaPlan:
        """Of the pass."""
        found = back_wgmma_candidates(self.sizes, self.before, self.dtype, own.arch)
        return next(plan for plan in found if len(plan.groups[0]) == len(self.first))


@dataclass(frozen=True)
class BackAxisCase(BackCase):
    """A pass over the product of its factors as one axis by wgmma."""

    @property
    def name(self) -> str:
        """What its test is called."""
        return super().name.replace("back", "axis")

    def arrays(self) -> tuple[Array, Array, list[Array]]:
        """v and x by another power of two for each item, and the factors."""
        v, x, factors = super().arrays()
        rows = np.arange(self.items)
        return _scaled(v, 2.0 ** (rows * 7 % 11 - 5)), _scaled(x, 2.0 ** (rows * 3 % 5 - 2)), factors

    def plan(self, own: DeviceLimits) -> BackAxisPlan:
        """Of the pass."""
        found = back_axis(self.sizes, self.beside, self.dtype, own)
        assert found is not None
        return found


@dataclass(frozen=True)
class BackRegistersCase(RowsCase):
    """A pass over two short axes whose warps keep all in registers; with columns ``team`` threads share a tile."""

    team: int = WARP

    @property
    def name(self) -> str:
        """What its test is called."""
        return super().name.replace("back", "registers") + f"_{self.before}_{self.team}"

    def plan(self, own: DeviceLimits) -> BackRegistersPlan:
        """Of the pass."""
        found = back_registers_candidates(self.sizes, self.before, self.beside, self.dtype, own.arch)
        return next(plan for plan in found if len(plan.groups[0]) == len(self.first) and plan.team == self.team)


def _along(array: Array, matrix: Array, axis: int) -> Array:
    """A matrix applied to one axis."""
    return np.moveaxis(np.tensordot(matrix, array, axes=(1, axis)), 0, axis)


def _scaled(array: Array, scales: Array) -> Array:
    """Every item by its scale."""
    return (array * scales.reshape(-1, *(1,) * (array.ndim - 1))).astype(array.dtype)


def _square(*extents: int) -> tuple[Size, ...]:
    return tuple((extent, extent) for extent in extents)


CHAINS = [
    ChainCase(sizes, (), items, beside, dtype, used=used, across=across, threads=threads)
    for sizes, items, beside, used, across, threads in (
        (_square(8, 8, 8), 21, 1, 4, 1, 256), (_square(10, 11, 12), 5, 1, 1, 1, 256),
        (_square(9, 2, 2, 16), 9, 1, 1, 1, 256), (_square(3, 24, 4), 7, 1, 2, 1, 256),
        (_square(34, 4, 10), 5, 1, 1, 1, 256), (_square(8, 8), 3, 41, 1, 16, 256), (_square(4, 5, 3), 13, 5, 3, 5, 256),
        (_square(40, 5), 3, 33, 1, 8, 256), (_square(8, 16, 32), 5, 1, 1, 1, 512), (_square(7), 30, 1, 9, 1, 256),
        (_square(16, 16), 9, 64, 1, 32, 256),
    )
    for dtype in ("f32", "f16")
]  # fmt: skip
CHAINS += [
    ChainCase(sizes, (), items, beside, dtype, used=used, across=across)
    for sizes, items, beside, used, across in (
        (((6, 20), (14, 10), (5, 5), (10, 2)), 5, 1, 1, 1), (((3, 5), (4, 2), (7, 9)), 31, 5, 3, 5),
        (((20, 31), (24, 10)), 9, 1, 2, 1), (((48, 3), (5, 9), (3, 1)), 7, 19, 1, 8),
    )
    for dtype in ("f32", "f16")
]  # fmt: skip

TILES = [
    BackWgmmaCase(first, last, items, 1, dtype, before=before)
    for first, last, items, before in (
        (_square(64), _square(64), 5, 1), (_square(8, 8), _square(8, 8), 45, 3), (_square(16), _square(16), 96, 16),
        (_square(32), _square(32), 24, 4), (((20, 31),), ((24, 10),), 12, 2), (((5, 7),), _square(9), 36, 6),
        (_square(2, 23), _square(6), 12, 3), (((1, 3),), ((64, 2),), 40, 8), (_square(64), _square(33), 12, 1),
    )
    for dtype in ("f32", "f16")
]  # fmt: skip

ALONE = [
    BackAxisCase(sizes, (), items, beside, "f32")
    for sizes, items, beside in (
        (_square(64), 9, 128), (_square(64), 2, 200), (_square(32), 5, 192), (_square(8, 8), 3, 320),
        (((20, 31),), 7, 264), (_square(21), 4, 1000), (_square(48), 30, 72), (((5, 9), (7, 3)), 11, 136),
    )
]  # fmt: skip

REGISTERS = [
    BackRegistersCase(first, last, items, beside, dtype, before=before, team=team)
    for first, last, items, beside, before in (
        (_square(16), _square(16), 96, 1, 16), (_square(10), _square(10), 100, 1, 5),
        (_square(5), _square(5), 100, 1, 25), (_square(2), _square(6), 60, 1, 20),
        (((5, 3),), ((8, 12),), 36, 1, 6), (_square(2, 3), _square(7), 50, 1, 10),
        (((15, 4),), _square(1), 64, 1, 8), (_square(16), _square(16), 3, 40, 1), (_square(10), _square(10), 5, 104, 1),
        (_square(5), _square(5), 4, 624, 1), (_square(4), _square(4), 5, 264, 1), (((5, 3),), ((8, 12),), 6, 48, 1),
        (_square(8), _square(8), 7, 24, 1), (_square(2, 3), _square(13), 9, 8, 1),
    )
    for dtype in ("f32", "f16")
    for team in (TEAMS if beside > 1 else (WARP,))
]  # fmt: skip


def run_back(machine: Machine, case: BackCase, own: DeviceLimits, binary: bytes) -> list[Array]:
    """What leaves the step and the gradients, by few blocks."""
    plan, (v, x, factors) = case.plan(own), case.arrays()
    kernel = Kernel(binary, gradient_emit.ENTRY, plan.threads, plan.shared, case.name)
    blocks = min(plan.tiles(case.items, case.beside), BLOCKS)
    out, parts = np.full(x.shape, np.nan, v.dtype), np.full((blocks, plan.parts), np.nan, np.float32)
    buffers = [machine.upload(array) for array in (v, x, out, parts, *factors)]
    strides = [step for array in factors for step in (array.shape[1], 1)]
    pointers = [int(buffer.handle) for buffer in buffers]
    for is_later in (0, 1):  # either order of reading x and factors
        numbers = (*pointers, *strides, case.items, case.beside, is_later, 1.0)
        kernel(0, int(machine.stream.handle), blocks, numbers)
    whole_sums = machine.download(buffers[3], parts).sum(0, dtype=np.float64).astype(np.float32)
    edges = np.cumsum([math.prod(size) for size in plan.sizes])[:-1]
    shares = [part.reshape(size) for part, size in zip(np.split(whole_sums, edges), plan.sizes, strict=True)]
    return [machine.download(buffers[2], out), *shares]
