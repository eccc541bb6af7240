"""The Kronecker product that is nearest to a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import torch

from ...arrays import dtype_name, unwrap
from ...checks import integer
from ...errors import DtypeError, ParameterError, ShapeError
from ...pairwise.inputs import readable
from ..mode_product.torch_products import unit_of
from .factors import DECOMPOSED
from .product import KroneckerProduct
from .sums import SumOfProducts

_SWEEPS = 100  # sweeps over all factors


def nearest_kron(
    a: torch.Tensor, shapes: Sequence[tuple[int, int]], terms: int = 1
) -> tuple[KroneckerProduct | SumOfProducts, torch.Tensor]:
    """Return the sum of ``terms`` Kronecker products of factors of these shapes that is nearest to a matrix.

    It minimises ``||a - Σ_t F_t1 ⊗ … ⊗ F_tN||_F``. The entries of a, arranged so that each factor has one axis, make a
    tensor of which the products are rank-one terms: for two factors the leading singular vectors are the minimum, for
    more it is approached by alternating least squares from the leading singular vectors, which finds a stationary
    point.

    Parameters
    ----------
    a : tensor
        (m, n), floating point or complex.
    shapes : sequence of (int, int)
        Rows and columns of every factor; their products are m and n.
    terms : int
        How many products are added.

    Returns
    -------
    operator : KroneckerProduct or SumOfProducts
        The approximation; a KroneckerProduct for one term.
    error : tensor
        ``||a - operator||_F / ||a||_F``, 0 where a is 0.

    Raises
    ------
    ShapeError
        If the shapes are not pairs, or do not multiply to that of a.
    ParameterError
        If ``terms`` is not positive.

    Notes
    -----
    Two factors cost one singular value decomposition of p_1 q_1 by p_2 q_2 and are differentiable. The method is that
    of [1]_; more factors follow [2]_.

    References
    ----------
    .. [1] C. Van Loan, N. Pitsianis, "Approximation with Kronecker products", 1993.
    .. [2] T. Kolda, B. Bader, "Tensor decompositions and applications", SIAM Review 51, 2009.

    Examples
    --------
    >>> import kernmantle as km, torch
    >>> f, g = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[3.0], [1.0]])
    >>> nearest, error = km.nearest_kron(torch.kron(f, g), [(2, 2), (2, 1)])
    >>> torch.allclose(nearest.to_dense(), torch.kron(f, g), atol=1e-5), bool(error < 1e-5)
    (True, True)
    """
    try:
        sizes = [(index(rows), index(columns)) for rows, columns in shapes]
        if not sizes or min(min(size) for size in sizes) < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise ShapeError(
            f"shapes must be the (rows, columns) of each factor, as [(2, 2), (3, 1)], not {shapes!r}"
        ) from None
    (a,), wrap = unwrap(a, names=["a"])
    if a.dtype not in DECOMPOSED:
        raise DtypeError(f"a is {dtype_name(a.dtype)}; float32, float64 and complex matrices have a decomposition")
    terms = integer(terms, "terms")
    whole = math.prod(rows for rows, _ in sizes), math.prod(columns for _, columns in sizes)
    if a.dim() != 2 or tuple(a.shape) != whole:
        product = " ⊗ ".join(f"{rows}x{columns}" for rows, columns in sizes)
        raise ShapeError(f"a has shape {tuple(a.shape)}, but {product} is {whole[0]}x{whole[1]}")
    if a.numel() == 0:
        raise ShapeError(f"a has shape {tuple(a.shape)}: without entries it has no decomposition")
    if readable(a) and not bool(a.isfinite().all()):
        raise ParameterError("a has entries that are NaN or infinite")
    unit = unit_of(a)
    tensor = _arranged(a / unit, sizes)
    factors = [tensor.unsqueeze(-1)] if len(sizes) == 1 else _rank_terms(tensor, terms)
    if len(sizes) > 2:
        factors = _alternating(tensor, _leading(tensor, terms))
    rest = torch.linalg.vector_norm(tensor - _composed(factors))
    factors = [factor * unit ** (1 / len(sizes)) for factor in factors]
    count = factors[0].shape[-1]
    products = [
        KroneckerProduct([f[:, t].reshape(size) for f, size in zip(factors, sizes, strict=True)]) for t in range(count)
    ]
    size = torch.linalg.vector_norm(tensor)
    error = torch.where(size == 0, torch.zeros_like(rest), rest / torch.where(size == 0, torch.ones_like(size), size))
    return (products[0] if len(products) == 1 else SumOfProducts(products)), wrap(error)


def _arranged(a: torch.Tensor, sizes: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the entries of a with one axis per factor."""
    count = len(sizes)
    wide = a.reshape(*(rows for rows, _ in sizes), *(columns for _, columns in sizes))
    axes = [axis for index in range(count) for axis in (index, count + index)]
    return wide.permute(axes).reshape(*(rows * columns for rows, columns in sizes))


def _composed(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the tensor of factors (size, terms)."""
    total = factors[0]
    for factor in factors[1:]:
        total = total.unsqueeze(-2) * factor.reshape(*(1,) * (total.dim() - 1), *factor.shape)
    return total.sum(-1)


def _rank_terms(tensor: torch.Tensor, terms: int) -> list[torch.Tensor]:
    """Return the leading singular vectors of the first axis against all others, the values shared between them."""
    u, s, vh = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
    root = s[:terms].sqrt()
    return [u[:, :terms] * root, vh[:terms].mT * root]


def _leading(tensor: torch.Tensor, terms: int) -> list[torch.Tensor]:
    """Return the leading left singular vectors of every axis, in turn where an axis has fewer than there are terms."""
    found: list[torch.Tensor] = []
    for axis in range(tensor.dim()):
        u, _, _ = torch.linalg.svd(tensor.movedim(axis, 0).flatten(1), full_matrices=False)
        indices = torch.arange(terms, device=tensor.device)
        found.append(u[:, indices * (axis + 1) % u.shape[1]])
    return found


def _alternating(tensor: torch.Tensor, factors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Alternating least squares: each factor in turn is the best for the others."""
    for _ in range(_SWEEPS):
        for axis in range(len(factors)):
            others = [factor for index, factor in enumerate(factors) if index != axis]
            design = others[0]
            for other in others[1:]:
                design = (design.unsqueeze(-2) * other).flatten(0, -2)
            unfolded = tensor.movedim(axis, 0).flatten(1)
            factors[axis] = (torch.linalg.pinv(design) @ unfolded.mT).mT
        sizes = torch.stack([torch.linalg.vector_norm(factor, dim=0) for factor in factors])
        even = sizes.log().mean(0).exp()
        safe = torch.where(sizes == 0, torch.ones_like(sizes), sizes)
        factors = [factor * even / size for factor, size in zip(factors, safe, strict=True)]
    return factors
