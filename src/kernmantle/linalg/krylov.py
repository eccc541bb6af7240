"""One end of the spectrum of a symmetric operator by a block Krylov iteration with Rayleigh-Ritz projections.

The basis is kept orthonormal, together with its products; when it is full, it is cut to the best Ritz vectors (thick
restart: Wu and Simon, 2000). Results are verified with fresh products, and a random block beside them is iterated
to see that no pair was passed over. Everything is matrix products but for small dense problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from . import spectrum
from .orthogonal import orthonormal
from .scaling import exponent, shifted

Multiply = Callable[[torch.Tensor], torch.Tensor]
PROBES, PROBE_STEPS = 8, 6  # vectors, and products of each


@dataclass(frozen=True)
class Sizes:
    """Columns of a block, of the basis, and of all products that may be spent."""

    block: int
    basis: int
    products: int

    @staticmethod
    def of(n: int, count: int) -> Sizes:
        """Return the sizes for so many pairs of a matrix of order n."""
        block = min(n, max(16, min(128, count // 16)))
        basis = min(n, max(3 * count, count + 12 * block))
        return Sizes(block, basis, max(3 * basis, 2 * n))


@dataclass(frozen=True)
class Pairs:
    """Eigenvalues in ascending order with their vectors, ``‖a v - w v‖ / ‖a‖`` of each, and the products spent."""

    w: torch.Tensor
    v: torch.Tensor
    residual: torch.Tensor
    products: int
    converged: bool


def default_tolerance(n: int, dtype: torch.dtype) -> float:
    """Return the residual, relative to the norm of the matrix, that a direct method has in this arithmetic."""
    return max(20.0, n**0.5) * torch.finfo(dtype).eps


def _small_pairs(projected: torch.Tensor, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all values and vectors, best first; NaN where that fails."""
    found = spectrum.direct((projected + projected.mT) / 2, True, True, True, None, None)
    assert found.v is not None
    return (found.w.flip(0), found.v.flip(1)) if largest else (found.w, found.v)


class _Basis:
    """Orthonormal columns v, their products and the projected matrix."""

    def __init__(self, multiply: Multiply, n: int, capacity: int, like: torch.Tensor) -> None:
        self._multiply = multiply
        self._columns = like.new_empty(capacity, n).mT
        self._products = like.new_empty(capacity, n).mT
        self._projected = like.new_zeros(capacity, capacity)
        self.capacity, self.size = capacity, 0

    @property
    def columns(self) -> torch.Tensor:
        """Columns of the basis that are in use."""
        return self._columns[:, : self.size]

    def append(self, block: torch.Tensor) -> torch.Tensor:
        """Add orthonormal columns, and return their products."""
        start, self.size = self.size, self.size + block.shape[1]
        self._columns[:, start : self.size] = block
        found = self._multiply(block)
        self._products[:, start : self.size] = found
        part = self.columns.mT @ found
        self._projected[: self.size, start : self.size] = part
        self._projected[start : self.size, : self.size] = part.mT
        return found

    def ritz(self, count: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return best values, vectors and products of vectors, best first; and the largest absolute value."""
        values, rotation = _small_pairs(self._projected[: self.size, : self.size], largest)
        top = torch.maximum(values[0].abs(), values[-1].abs())
        rotation = rotation[:, :count].contiguous()
        return values[:count], self.columns @ rotation, self._products[:, : self.size] @ rotation, top

    def restart(self, values: torch.Tensor, vectors: torch.Tensor, products: torch.Tensor) -> None:
        """Go on from Ritz pairs."""
        self.size = vectors.shape[1]
        self._columns[:, : self.size] = vectors
        self._products[:, : self.size] = products
        self._projected.zero_()
        self._projected.diagonal()[: self.size] = values


def _verified(
    multiply: Multiply, vectors: torch.Tensor, largest: bool, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the values, vectors, products and residual norms from fresh products of re-orthonormalised vectors."""
    basis = orthonormal(vectors, generator=generator)
    products = multiply(basis)
    values, rotation = _small_pairs(basis.mT @ products, largest)
    vectors, products = basis @ rotation, products @ rotation
    return values, vectors, products, torch.linalg.vector_norm(products - vectors * values, dim=0)


def _passed_over(
    multiply: Multiply, vectors: torch.Tensor, largest: bool, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best Ritz values and vectors of a few steps from a random block beside some eigenvectors."""
    n = vectors.shape[0]
    width = min(PROBES, n - vectors.shape[1])
    probe = _Basis(multiply, n, width * PROBE_STEPS, vectors)
    noise = torch.empty(n, width, dtype=vectors.dtype, device=vectors.device).normal_(generator=generator)
    block = orthonormal(noise, vectors, generator)
    while probe.size < probe.capacity and vectors.shape[1] + probe.size + width <= n:
        found = probe.append(block)
        block = orthonormal(found, torch.cat([vectors, probe.columns], 1), generator)
    values, found, _, _ = probe.ritz(width, largest)
    return values, found


def extreme_pairs(
    multiply: Multiply, n: int, count: int, largest: bool, like: torch.Tensor, tolerance: float, sizes: Sizes
) -> Pairs:
    """Return the largest or smallest ``count`` pairs; the host waits once for each filling of the basis.

    Products are scaled by the power of two that brings those of the first block to the order of one, so that no norm
    of them leaves the range of the type.
    """
    generator = torch.Generator(like.device).manual_seed(n)
    block = orthonormal(like.new_empty(n, sizes.block).normal_(generator=generator), None, generator)
    size = exponent(multiply(block).abs().amax())
    found = _extreme(lambda v: shifted(multiply(v), -size), block, count, largest, tolerance, sizes, generator)
    return replace(found, w=shifted(found.w, size), products=found.products + sizes.block)


def _extreme(
    multiply: Multiply, block: torch.Tensor, count: int, largest: bool, tolerance: float, sizes: Sizes,
    generator: torch.Generator,
) -> Pairs:  # fmt: skip
    n, spent = block.shape[0], 0
    keep = min(count + sizes.block, n)
    basis = _Basis(multiply, n, min(n, sizes.basis), block)
    while True:
        while block.shape[1] and basis.size + block.shape[1] <= basis.capacity:
            spent += block.shape[1]
            found = basis.append(block)
            block = orthonormal(found[:, : n - basis.size], basis.columns, generator)
        values, vectors, products, top = basis.ritz(keep, largest)
        gaps = torch.linalg.vector_norm(products[:, :count] - vectors[:, :count] * values[:count], dim=0)
        worst = float((gaps / top.clamp_min(torch.finfo(top.dtype).tiny)).max())
        last = spent >= sizes.products or basis.size == n or not math.isfinite(worst)
        if worst <= tolerance or last:
            spent += count
            values, vectors, products, gaps = _verified(multiply, vectors[:, :count], largest, generator)
            residual = gaps / top.clamp_min(torch.finfo(top.dtype).tiny)
            converged = bool((residual <= tolerance).all())
            if converged and n - count >= PROBES and basis.size < n:
                spent += PROBES * PROBE_STEPS
                best, missed = _passed_over(multiply, vectors, largest, generator)
                ahead = best[0] - values[-1] if largest else values[-1] - best[0]
                if bool(ahead > tolerance * top):
                    converged, block = False, missed[:, : sizes.block]
            if converged or last:
                return _ascending(values, vectors, residual, largest, spent, converged)
        basis.restart(values, vectors, products)
        block = orthonormal(block, basis.columns, generator)


def _ascending(
    values: torch.Tensor, vectors: torch.Tensor, residual: torch.Tensor, largest: bool, spent: int, converged: bool
) -> Pairs:
    if largest:
        values, vectors, residual = values.flip(0), vectors.flip(1), residual.flip(0)
    return Pairs(values, vectors, residual, spent, converged)
