"""Plans of Kronecker passes on tensor cores: how these multiply, the layout of arrays, and what all plans have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ...backends.cuda.arch import arch as generation
from .passes import Pass

WIDEST = 256  # rows or columns of a factor that tensor cores take
# float64: 128 x 128 takes 14.0 ms three times over 320 * 128^2 columns on an H200, the vendor's product 12.8. float32:
# 190 x 190 on 134e6 numbers takes 0.86 ms, the vendor's product 1.3, but 193 x 193 takes 1.8.
WIDEST_DOUBLE, WIDEST_SPLIT = 64, 192
# Factors are multiplied out up to this size, by three products and by one.
JOINED_DOUBLE, JOINED_SPLIT, JOINED = 64, 96, 128


@dataclass(frozen=True)
class Tensor:
    """How tensor cores multiply: ``products`` of operands in the type ``half``.

    ``has_wgmma``: nothing is added, and the GPU has wgmma. ``is_aligned``: and arrays are rows of whole vectors of 16
    bytes.
    """

    half: str
    products: int
    has_wgmma: bool = False
    is_aligned: bool = False

    @property
    def is_rounded(self) -> bool:
        """Return whether operands are."""
        return self.products == 1 and self.half != "f64"

    @property
    def holds_products(self) -> bool:
        """Return whether operands hold what factors are multiplied out to, which float16 may not."""
        return self.half != "f16" or self.products > 1

    @property
    def widest(self) -> int:
        """Rows or columns of the largest factor that pays."""
        return WIDEST_DOUBLE if self.half == "f64" else WIDEST_SPLIT if self.products > 1 else WIDEST

    @property
    def joined(self) -> int:
        """Rows or columns of the largest product of small factors that pays."""
        return JOINED_DOUBLE if self.half == "f64" else JOINED_SPLIT if self.products > 1 else JOINED

    def __str__(self) -> str:
        if self.half == "f64":
            return "f64 tensor cores"
        return f"{self.products} products of scaled f16 halves" if self.products > 1 else f"{self.half} products"


def takes_wgmma(tensor: Tensor, stored: str, columns: int, arch: str) -> bool:
    """Return whether wgmma may multiply arrays of a type with so many columns, where nothing is added."""
    is_exact = tensor.products > 1 or stored in ("f16", "bf16")
    return "wgmma" in generation(arch).features and is_exact and columns == 1


@dataclass(frozen=True)
class MmaLayout:
    """Properties of a call's arrays: bytes of a copy, neighbours of a store, a y, whether rows of x follow each other.

    ``run_width``: neighbours of a store of all axes behind the first.
    """

    copy: int
    out_width: int
    added: bool
    is_dense: bool = False
    run_width: int = 0


@dataclass(frozen=True)
class TensorPlan(ABC):
    """A pass over arrays of the type ``stored``; factors of ``shapes`` are multiplied out to those of the pass."""

    run: Pass
    shapes: tuple[tuple[int, int], ...]
    stored: str
    tensor: Tensor
    arch: str
    layout: MmaLayout

    @property
    def factors(self) -> int:
        """Factors of the caller."""
        return len(self.shapes)

    def members(self, part: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return the number of the first factor of a part of the pass, and the shapes of those multiplied out to it."""
        first = sum(map(len, self.run.parts[:part]))
        return first, self.shapes[first : first + len(self.run.parts[part])]

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    @abstractmethod
    def shared(self) -> int:
        """Bytes of shared memory."""

    @property
    @abstractmethod
    def tile_name(self) -> str:
        """Its differences from other plans of the pass."""

    def __str__(self) -> str:
        return f"{self.run} {self.stored}, {self.tensor}, {self.tile_name}"
