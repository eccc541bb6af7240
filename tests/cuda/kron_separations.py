"""Gradients of matrices from that of their Kronecker product, for the harness: cases, results, and how they run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernmantle.backends.cuda.launch import Kernel
from kernmantle.backends.cuda.tiles import DeviceLimits
from kernmantle.structured.kron import separation
from kernmantle.structured.kron.separation import SeparationPlan, Size
from kernmantle.testing import assert_close

from .harness import Machine

Array = np.ndarray[Any, Any]
TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@dataclass(frozen=True)
class SeparationCase:
    """Matrices of ``sizes`` (rows, columns), of which every other one lies in columns."""

    sizes: tuple[Size, ...]
    dtype: str

    @property
    def name(self) -> str:
        """What its test is called."""
        return f"separation_{'*'.join(f'{rows}x{columns}' for rows, columns in self.sizes)}_{self.dtype}"

    @property
    def entries(self) -> int:
        """Entries of the joint gradient."""
        return math.prod(rows * columns for rows, columns in self.sizes)

    def plan(self, own: DeviceLimits) -> SeparationPlan:
        """Of the joint gradient in float32, in float64 of such matrices."""
        return SeparationPlan(self.sizes, self.dtype, "f64" if self.dtype == "f64" else "f32", own.arch)

    def arrays(self) -> tuple[Array, list[Array]]:
        """The joint gradient and the matrices."""
        random = np.random.default_rng(len(self.sizes))
        joint = random.standard_normal([math.prod(size[side] for size in self.sizes) for side in (0, 1)])
        matrices = [random.standard_normal(size).astype(TYPES[self.dtype]) for size in self.sizes]
        return joint.astype(np.float64 if self.dtype == "f64" else np.float32), matrices

    def check(self, found: Sequence[Array]) -> None:
        """Assert that results are right."""
        joint, matrices = self.arrays()
        count = len(matrices)
        wide = joint.astype(np.float64).reshape([size[side] for side in (0, 1) for size in self.sizes])
        axes = list(range(2 * count))
        for place, own in enumerate(found):
            others = [at for at in range(count) if at != place]
            given = [part for at in others for part in (matrices[at].astype(np.float64), [at, count + at])]
            exact = np.einsum(wide, axes, *given, [place, count + place])
            squares = [part**2 if isinstance(part, np.ndarray) else part for part in given]
            terms = np.sqrt(np.einsum(wide**2, axes, *squares, [place, count + place]))
            assert_close(own, exact, depth=self.entries, magnitude=terms)


SEPARATIONS = [
    SeparationCase(sizes, dtype)
    for sizes in (
        ((3, 5), (4, 2)), ((64, 64), (2, 3)), ((1, 7), (20, 1), (9, 9)), ((2, 2),) * 6, ((300, 7), (2, 300)),
        ((5, 2), (1, 1), (3, 8), (2, 9)),
    )
    for dtype in TYPES
]  # fmt: skip


def run_separation(machine: Machine, case: SeparationCase, own: DeviceLimits, binary: bytes) -> list[Array]:
    """The gradients."""
    plan, (joint, matrices) = case.plan(own), case.arrays()
    kernel = Kernel(binary, separation.ENTRY, separation.THREADS, 0, case.name)
    sizes = [rows * columns for rows, columns in case.sizes]
    out = np.full(sum(sizes), np.nan, TYPES[case.dtype])
    lying = [matrix.T.copy() if place % 2 else matrix for place, matrix in enumerate(matrices)]
    there = [machine.upload(array) for array in (joint, out, *lying)]
    steps = [(1, rows) if place % 2 else (columns, 1) for place, (rows, columns) in enumerate(case.sizes)]
    given = [v for buffer, own_steps in zip(there[2:], steps, strict=True) for v in (int(buffer.handle), *own_steps)]
    kernel(0, int(machine.stream.handle), plan.blocks, (int(there[0].handle), int(there[1].handle), *given))
    parts = np.split(machine.download(there[1], out), np.cumsum(sizes)[:-1])
    return [part.reshape(size) for part, size in zip(parts, case.sizes, strict=True)]
