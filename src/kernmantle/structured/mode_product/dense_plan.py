"""How a GPU makes the dense matrix of Kronecker-sparse weights, see ``kronsparse_dense.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Pattern

_VECTOR = 16  # bytes that a thread writes


@dataclass(frozen=True)
class DensePlan:
    """Bytes of a number, and whether rows are whole vectors."""

    arch: str
    size: int
    whole: bool

    threads = 256

    def blocks(self, pattern: Pattern) -> int:
        """Return the blocks of a launch."""
        a, b, c, d = pattern
        entries = a * b * d * a * c * d
        return -(-entries // (self.threads * (_VECTOR // self.size if self.whole else 1)))

    def __str__(self) -> str:
        return f"kron sparse matrix {self.arch} of {self.size} bytes{', whole vectors' if self.whole else ''}"


def dense_plan(arch: str, pattern: Pattern, size: int) -> DensePlan:
    """Return the plan for weights of so many bytes."""
    a, _, c, d = pattern
    return DensePlan(arch, size, a * c * d * size % _VECTOR == 0)
