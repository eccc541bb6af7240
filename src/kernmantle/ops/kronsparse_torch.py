"""Kronecker-sparse products by torch's own operations: what the kernels are compared with, and chosen where faster.

``x`` is (G, N, a c d), ``weight`` (H, a, b, c, d) with H = G or 1, the result (G, N, a b d).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..errors import BackendError


def by_bmm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One matrix product for each (g, i, l), after bringing the strided entries together."""
    groups, count, a, b, c, d = _sizes(x, weight)
    rows = x.reshape(groups, count, a, c, d).permute(0, 2, 4, 1, 3)
    blocks = weight.expand(groups, a, b, c, d).permute(0, 1, 4, 3, 2)
    product = torch.matmul(rows, blocks)
    return product.permute(0, 3, 1, 4, 2).reshape(groups, count, a * b * d)


def by_einsum(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The definition as an equation."""
    groups, count, a, b, c, d = _sizes(x, weight)
    blocks = weight.expand(groups, a, b, c, d)
    product = torch.einsum("gnikl,gijkl->gnijl", x.reshape(groups, count, a, c, d), blocks)
    return product.reshape(groups, count, a * b * d)


def by_dense(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Through the dense matrix."""
    return torch.matmul(x, dense(weight).mT)


def by_sparse(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Through compressed sparse rows."""
    groups, _, a, b, c, d = _sizes(x, weight)
    rows, columns = a * b * d, a * c * d
    first = torch.arange(a, device=x.device).view(a, 1, 1, 1) * (c * d)
    place = first + torch.arange(c, device=x.device) * d + torch.arange(d, device=x.device).view(d, 1)
    places = place.expand(a, b, d, c).reshape(-1)
    counts = torch.arange(rows + 1, device=x.device) * c
    values = weight.expand(groups, a, b, c, d).transpose(3, 4).reshape(groups, -1)
    size = (rows, columns)
    return _each(x, values, lambda own: torch.sparse_csr_tensor(counts, places, own, size, check_invariants=False))


def by_bsr(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Through block-sparse rows, after bringing the strided entries together; torch takes square blocks only."""
    groups, count, a, b, c, d = _sizes(x, weight)
    side = math.gcd(b, c)
    high, wide = b // side, c // side
    rows = x.reshape(groups, count, a, c, d).transpose(3, 4).reshape(groups, count, a * c * d)
    counts = torch.arange(a * d * high + 1, device=x.device) * wide
    first = torch.arange(a * d, device=x.device).view(-1, 1, 1) * wide
    places = (first + torch.arange(wide, device=x.device)).expand(-1, high, -1).reshape(-1)
    blocks = weight.expand(groups, a, b, c, d).reshape(groups, a, high, side, wide, side, d)
    values = blocks.permute(0, 1, 6, 2, 4, 3, 5).reshape(groups, -1, side, side)
    size = (a * b * d, a * c * d)
    product = _each(
        rows, values, lambda own: torch.sparse_bsr_tensor(counts, places, own, size, check_invariants=False)
    )
    return product.reshape(groups, count, a, d, b).transpose(3, 4).reshape(groups, count, a * b * d)


@contextmanager
def quietly() -> Iterator[None]:
    """Without torch's note that compressed tensors are in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        yield


def _each(x: torch.Tensor, values: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """``x[g] @ make(values[g]).T``."""
    try:
        with quietly():
            matrices = [make(own) for own in values]
        return torch.stack([(matrix @ own.mT).mT for matrix, own in zip(matrices, x, strict=True)])
    except RuntimeError as error:
        raise BackendError(
            f"torch has no sparse product of {x.dtype} on {x.device}: {error}; choose another algorithm"
        ) from error


def dense(weight: torch.Tensor) -> torch.Tensor:
    """Matrices (..., a b d, a c d) of weights (..., a, b, c, d)."""
    *lead, a, b, c, d = weight.shape
    if a == d == 1:
        return weight[..., 0, :, :, 0]
    along_d = torch.diag_embed(weight)  # ..., a, b, c, l, l
    both = torch.diag_embed(along_d.movedim(-5, -1))  # ..., b, c, l, l, i, i
    rows = len(lead)
    order = [*range(rows), *(rows + place for place in (4, 0, 2, 5, 1, 3))]
    return both.permute(order).reshape(*lead, a * b * d, a * c * d)


def weight_gradient(x: torch.Tensor, gradient: torch.Tensor, a: int, b: int, c: int, d: int) -> torch.Tensor:
    """``Σ_n gradient[g, n, i, j, l] x[g, n, i, k, l]``, of shape (G, a, b, c, d)."""
    groups, count = x.shape[:2]
    columns = x.reshape(groups, count, a, c, d).permute(0, 2, 4, 1, 3)
    rows = gradient.reshape(groups, count, a, b, d).permute(0, 2, 4, 3, 1)
    return torch.matmul(rows, columns).permute(0, 1, 3, 4, 2)


def _sizes(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    _, a, b, c, d = weight.shape
    return x.shape[0], x.shape[1], a, b, c, d


ALGORITHMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "bmm": by_bmm,
    "einsum": by_einsum,
    "dense": by_dense,
    "sparse": by_sparse,
    "bsr": by_bsr,
}
