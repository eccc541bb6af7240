"""How a GPU applies an activation, or multiplies a gradient by its slope, see ``kronsparse_activation.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

BYTES = 16
"""Bytes of a vector; arrays are whole vectors."""
_VECTORS = 4  # of a thread


@dataclass(frozen=True)
class ActivationPlan:
    """Type of arrays, the activation, and whether a gradient is multiplied by its slope."""

    arch: str
    dtype: str
    activation: str
    slope: bool

    threads = 256

    def blocks(self, vectors: int) -> int:
        """Return the blocks of a launch."""
        return -(-vectors // (self.threads * _VECTORS))

    def __str__(self) -> str:
        return f"{'slope of ' if self.slope else ''}{self.activation} {self.arch}, {self.dtype}"
