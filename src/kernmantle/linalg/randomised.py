"""Approximations by products with random columns, and how far off they are, by products with others.

Halko, Martinsson and Tropp, Finding structure with randomness, 2011; the bound is their lemma 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..checks import integer
from .operators import Product
from .orthogonal import orthonormal
from .spectrum import Found, pairs

Apply = Callable[[torch.Tensor], torch.Tensor]
PROBES = 10  # random vectors
ALPHA = 4.0
"""``‖e‖ <= ALPHA sqrt(2 / pi) max ‖e z‖`` over PROBES random z, but with a probability of ALPHA ** -PROBES = 1e-6."""


def normal(rows: int, columns: int, like: torch.Tensor, source: torch.Generator) -> torch.Tensor:
    """Return random columns of the type and device of a tensor."""
    return torch.empty(rows, columns, dtype=like.dtype, device=like.device).normal_(generator=source)


def error_bound(
    exact: Apply, approximate: Apply, columns: int, like: torch.Tensor, source: torch.Generator
) -> torch.Tensor:
    """Return an estimated bound of the spectral norm of the difference of two operators."""
    probes = normal(columns, PROBES, like, source)
    return ALPHA * (2 / math.pi) ** 0.5 * (exact(probes) - approximate(probes)).norm(dim=0).amax()


@dataclass(frozen=True)
class Randomised:
    """Additional random columns, products that damp what is small, and the source of the columns."""

    oversample: int
    power: int
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        integer(self.oversample, "oversample", 0)
        integer(self.power, "power", 0)

    def pairs(self, operator: Product, count: int) -> tuple[Found, torch.Tensor, torch.Tensor]:
        """Return the largest eigenvalues of a symmetric operator, their residuals, and the error of what they make up.

        A Rayleigh-Ritz projection to the range of products with random columns. Residuals are of fresh products,
        relative to the largest absolute value.
        """
        n, apply = operator.size, operator.apply
        width = min(n, count + self.oversample)
        like = torch.empty(0, dtype=operator.dtype, device=operator.device)
        source = self.generator or torch.Generator(operator.device).manual_seed(count)
        basis = orthonormal(apply(normal(n, width, like, source)), generator=source)
        for _ in range(self.power):
            basis = orthonormal(apply(basis), generator=source)
        small = (basis.mT @ apply(basis)).double()
        finite = torch.isfinite(small).all()
        values, inner = pairs(torch.where(finite, (small + small.mT) / 2, torch.zeros_like(small)))
        w = values[-count:].to(like.dtype)
        v = basis @ inner[:, -count:].to(like.dtype)
        size = values.abs().amax().clamp_min(torch.finfo(like.dtype).tiny).to(like.dtype)
        residual = (apply(v) - v * w).norm(dim=0) / size
        error = error_bound(apply, lambda z: (v * w) @ (v.mT @ z), n, like, source)
        info = torch.where(finite, 0, n).to(torch.int32)
        return Found(w, v, info, f"randomised, {width} columns, {self.power} powers"), residual, error
