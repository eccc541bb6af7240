"""Orthonormal columns by matrix products alone."""

from __future__ import annotations

import torch

PASSES = 3


def orthonormal(
    w: torch.Tensor, against: torch.Tensor | None = None, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Orthonormal columns that span those of w, all but what lies in the orthonormal columns of ``against``.

    Cholesky factors of the Gram matrix, three times with projections between, the first with a shift so that it
    cannot fail (Fukaya et al., Shifted Cholesky QR, 2020). Directions that w lacks are filled with what rounding
    left, and columns of zeros with random numbers; nothing waits for the device.
    """
    limit = torch.finfo(w.dtype)
    width = w.shape[1]
    if not width:
        return w
    for turn in range(PASSES):
        if against is not None and against.shape[1]:
            w = w - against @ (against.mT @ w)
        lengths = torch.linalg.vector_norm(w, dim=0)
        if turn == 0:
            noise = torch.empty_like(w).normal_(generator=generator)
            w = torch.where(lengths > limit.tiny**0.5, w / lengths, noise)
            lengths = torch.linalg.vector_norm(w, dim=0)
        w = w / lengths
        gram = w.mT @ w
        gram.diagonal().add_(limit.eps * (10 * width if turn == 0 else 1))
        factor, _ = torch.linalg.cholesky_ex(gram)
        w = torch.linalg.solve_triangular(factor.mT, w, upper=True, left=False)
    return w
