"""How the GPU solves batches of small systems: a row a lane, in registers."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 32
"""Unknowns at most: a warp holds one matrix."""
THREADS = 128
_NARROWEST = 4


@dataclass(frozen=True)
class SystemPlan:
    """One kernel for matrices of up to ``width`` rows, by LU where ``pivoted``, else by Cholesky.

    It ``factors`` them, or reads factors, of the transposed matrix where ``transposed``; it ``solves``, or not.
    """

    compute: str
    width: int
    pivoted: bool
    transposed: bool
    factors: bool
    solves: bool
    arch: str

    def __str__(self) -> str:
        steps = " and ".join(name for name, done in (("factors", self.factors), ("solutions", self.solves)) if done)
        kind = ("transposed " if self.transposed else "") + ("LU" if self.pivoted else "Cholesky")
        return f"{kind} {steps} of systems up to {self.width}, a row a lane, {self.compute}, {self.arch}"

    def blocks(self, count: int, multiprocessors: int) -> int:
        """Return the blocks for so many systems."""
        per_block = THREADS // self.width
        return max(1, min(-(-count // per_block), 16 * multiprocessors))


def width_for(order: int) -> int:
    """Return the lanes that hold a matrix."""
    width = _NARROWEST
    while width < order:
        width *= 2
    return width
