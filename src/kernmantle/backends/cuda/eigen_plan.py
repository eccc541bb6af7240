"""How the GPU finds the eigenvalues of batches of small matrices: a thread a matrix, or a column a lane."""

from __future__ import annotations

from dataclasses import dataclass

from .arch import arch

MOST = 32
"""Order at most: a warp has one matrix."""
THREADS = 128
BY_THREAD = 3
"""Order up to which a thread has a matrix of its own."""
_RESIDENT = {("f32", 32): 5, ("f32", 16): 7, ("f32", 8): 8, ("f64", 32): 2, ("f64", 16): 4, ("f64", 8): 5}
"""Blocks a multiprocessor that registers are to allow: with one, the compiler takes a third more than it needs."""


@dataclass(frozen=True)
class EigenPlan:
    """What a kernel does with matrices of up to ``width`` columns: eigenvalues, and ``vectors`` if wanted."""

    compute: str
    width: int
    vectors: bool
    arch: str

    def __str__(self) -> str:
        lanes = f"a thread a matrix of order {self.width}"
        if self.width > BY_THREAD:
            lanes = f"{self.width} lanes a matrix"
        found = "eigenvalues and vectors" if self.vectors else "eigenvalues"
        return f"{found} by Jacobi rotations, {lanes}, {self.compute}, {self.arch}"

    @property
    def resident(self) -> int:
        """Blocks a multiprocessor at least."""
        if "bounded_registers" in arch(self.arch).features:
            return _RESIDENT.get((self.compute, self.width), 1)
        return 1

    def blocks(self, count: int, multiprocessors: int) -> int:
        """Return the blocks for so many matrices."""
        per_block = THREADS if self.width <= BY_THREAD else THREADS // self.width
        return max(1, min(-(-count // per_block), 16 * multiprocessors))


def width_for(order: int) -> int:
    """Return the columns that a thread, or a group of lanes, has."""
    if order <= BY_THREAD:
        return order
    width = BY_THREAD + 1
    while width < order:
        width *= 2
    return width
