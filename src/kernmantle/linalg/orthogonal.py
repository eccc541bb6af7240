"""Orthonormal columns by matrix products alone."""

from __future__ import annotations

import torch

PASSES = 4  # rounds of Cholesky QR


def orthonormal(
    w: torch.Tensor, against: torch.Tensor | None = None, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return orthonormal columns that span those of w, all but what lies in the orthonormal columns of ``against``.

    Cholesky factors of the Gram matrix with projections between, all but the last with a shift so that they do not
    fail (Fukaya et al., Shifted Cholesky QR, 2020). Columns of zeros, and those that still depend on others when two
    factors have drawn them apart, become random; nothing waits for the device.
    """
    limit = torch.finfo(w.dtype)
    width = w.shape[1]
    if not width:
        return w
    noise = torch.empty_like(w).normal_(generator=generator)
    shift = 10 * width * limit.eps
    for sweep in range(PASSES):
        if against is not None and against.shape[1]:
            w = w - against @ (against.mT @ w)
        lengths = torch.linalg.vector_norm(w, dim=0)
        w = torch.where(lengths > limit.tiny**0.5, w / lengths, noise)
        w = w / torch.linalg.vector_norm(w, dim=0)
        gram = w.mT @ w
        gram.diagonal().add_(limit.eps if sweep == PASSES - 1 else shift)
        factor, _ = torch.linalg.cholesky_ex(gram)
        w = torch.linalg.solve_triangular(factor.mT, w, upper=True, left=False)
        if sweep == 1:
            w = torch.where(factor.diagonal().square() > 4 * shift, w, noise)
    return w
