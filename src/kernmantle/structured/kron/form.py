"""Conversion of the arrays of a Kronecker product between the caller's form and the kernels' form."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Maybe = torch.Tensor | None


@dataclass(frozen=True)
class Form:
    """The caller's form of a product on (…, k, c).

    ``kind``: x was a "row" matrix, a "column" matrix or a "vector"; ``transposed``: factors are (p, q), not (q, p).
    """

    kind: str = "column"
    transposed: bool = False

    def x(self, x: torch.Tensor) -> torch.Tensor:
        """Return x, or a result, as (…, k, c)."""
        return x if self.kind == "column" else x.unsqueeze(-1)

    def factor(self, factor: torch.Tensor) -> torch.Tensor:
        """Return a factor as (…, q, p), its batch axes aligned with those of x."""
        own = factor.mT if self.transposed else factor
        return own.unsqueeze(-3) if self.kind == "row" and own.dim() > 2 else own

    def y(self, y: Maybe) -> Maybe:
        """Return y in a shape that broadcasts to the result (…, k', c)."""
        if y is None:
            return None
        rank = 2 if self.kind == "column" else 1
        deep = y.reshape((1,) * (rank - y.dim()) + y.shape) if y.dim() < rank else y
        return self.x(deep)

    def result(self, result: torch.Tensor) -> torch.Tensor:
        """Return a result in the caller's form."""
        return result if self.kind == "column" else result.squeeze(-1)

    def of_factor(self, gradient: Maybe) -> Maybe:
        """Return the gradient of a factor (…, q, p) in the form of the caller's factor."""
        if gradient is None:
            return None
        own = gradient.squeeze(-3) if self.kind == "row" and gradient.dim() > 2 else gradient
        return own.mT if self.transposed else own
