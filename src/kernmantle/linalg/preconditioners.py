"""Approximate inverses of regularised kernel matrices from few of their columns or products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..arrays import to_tensor
from ..checks import integer, positive
from ..errors import ParameterError
from ..torch_ops.outside import outside
from .arguments import random_source
from .operators import Product, product_of
from .spectrum import pairs


def _itself(value: torch.Tensor) -> torch.Tensor:
    return value


@dataclass(frozen=True)
class LowRank:
    """``(F Fᵀ + D)⁻¹`` for a diagonal D: a preconditioner, called with columns.

    With ``D^-½ F = U S Vᵀ`` it is ``D^-½ (I - U S² (1 + S²)⁻¹ Uᵀ) D^-½``.

    Attributes
    ----------
    basis : tensor, shape (n, rank)
        U.
    values : tensor, shape (rank,)
        S².
    scale : tensor, shape (n, 1) or (1, 1)
        D^-½.
    """

    name: str
    basis: torch.Tensor
    values: torch.Tensor
    scale: torch.Tensor
    total: Callable[[torch.Tensor], torch.Tensor] = _itself

    @staticmethod
    def of(name: str, factor: torch.Tensor, ridge: torch.Tensor) -> LowRank:
        """Return the preconditioner from F (n, r) and the diagonal, one number or n."""
        scale = ridge.rsqrt().reshape(-1, 1)
        basis, small = torch.linalg.qr(factor * scale)
        wide = small.double()
        values, rotation = pairs(wide @ wide.mT)
        return LowRank(name, basis @ rotation.to(basis.dtype), values.clamp_min(0).to(basis.dtype), scale)

    def __call__(self, v: torch.Tensor) -> torch.Tensor:  # noqa: D102
        scaled = self.scale * v
        return self.scale * self._bent(scaled, -self.values / (1 + self.values))

    def root(self, v: torch.Tensor) -> torch.Tensor:
        """Return R v for a matrix R with ``Rᵀ R`` the inverse."""
        return self._bent(self.scale * v, (1 + self.values).rsqrt() - 1)

    def root_transposed(self, v: torch.Tensor) -> torch.Tensor:
        """Return Rᵀ v."""
        return self.scale * self._bent(v, (1 + self.values).rsqrt() - 1)

    def log_determinant(self) -> torch.Tensor:
        """Return the logarithm of the determinant of ``F Fᵀ + D``."""
        diagonal = -2 * self.scale.log().expand(self.basis.shape[0], 1).sum()
        return diagonal + self.values.log1p().sum()

    def _bent(self, v: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
        return v + self.basis @ (change[:, None] * self.total(self.basis.mT @ v))

    def __repr__(self) -> str:
        return f"{self.name} of rank {self.basis.shape[1]}"


def _check_ridge(ridge: Any, operator: Product) -> torch.Tensor:
    if not isinstance(ridge, torch.Tensor) and not np.ndim(ridge):
        diagonal = torch.full((), positive(ridge, "ridge"), dtype=operator.dtype, device=operator.device)
    else:
        diagonal = to_tensor(ridge, "ridge").to(operator.device, operator.dtype)
    if diagonal.dim() > 1 or (diagonal.dim() == 1 and diagonal.shape[0] != operator.size):
        raise ParameterError(f"ridge must be a number or one for each of {operator.size} rows")
    if not diagonal.is_cuda and not bool((diagonal > 0).all()):
        raise ParameterError("ridge must be positive")
    return diagonal


@outside
def nystrom(a: Any, rank: int, ridge: Any, *, generator: torch.Generator | None = None) -> LowRank:
    """Return the preconditioner of ``a + ridge I`` by the Nyström approximation of a.

    Of an operator with ``columns(indices)``, as kernels' operators have, so many random columns are taken, which
    costs n · rank kernel values; of any other so many products with random vectors.

    Parameters
    ----------
    a : array, shape (n, n), or operator
        Symmetric positive semidefinite, without the ridge.
    rank : int
        Columns; the preconditioner keeps n · rank numbers.
    ridge : number or tensor, shape (n,)
        Positive: what is added to the diagonal of a.
    generator : torch.Generator, optional
        Source of the choice; by default it is the same every time.

    Returns
    -------
    LowRank
        Callable with columns.

    Raises
    ------
    ShapeError, ParameterError
        For an operator that is not square, and a rank or a ridge that is not positive.

    Notes
    -----
    Source: Frangella, Tropp and Udell, Randomized Nyström preconditioning, 2023.

    Cost in addition to the columns: n · rank² operations. No gradient: it changes how many iterations a solution
    takes, not the solution.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x, k = torch.rand(300, 3), km.Gaussian(1.0)
    >>> approximate = km.linalg.nystrom(k.operator(x), 50, ridge=0.1)
    >>> km.linalg.cg(k.operator(x, diagonal=0.1), torch.ones(300), preconditioner=approximate).iterations < 20
    True
    """
    operator = product_of(a)
    diagonal = _check_ridge(ridge, operator)
    count = min(integer(rank, "rank"), operator.size)
    source = random_source(generator, operator.device, operator.size)
    with torch.no_grad():
        if hasattr(operator.source, "columns"):
            chosen = torch.rand(operator.size, generator=source, device=operator.device).topk(count).indices
            sketch = operator.source.columns(chosen)
            core = sketch[chosen]
        else:
            noise = torch.empty(operator.size, count, dtype=operator.dtype, device=operator.device)
            noise = torch.linalg.qr(noise.normal_(generator=source)).Q
            sketch = operator.apply(noise)
            core = noise.mT @ sketch
        return LowRank.of("a Nyström approximation", over_root(sketch, core), diagonal)


def over_root(sketch: torch.Tensor, core: torch.Tensor) -> torch.Tensor:
    """Return F with ``F Fᵀ = sketch core⁻¹ sketchᵀ``, over the part of the core that is not lost in rounding."""
    values, rotation = pairs((core + core.mT) / 2)
    least = values[-1] * core.shape[0] * torch.finfo(core.dtype).eps
    roots = values.clamp_min(least).rsqrt().masked_fill(values <= least, 0)
    return sketch @ (rotation * roots @ rotation.mT)


@outside
def pivoted_cholesky(a: Any, rank: int, ridge: Any) -> LowRank:
    """Return the preconditioner of ``a + ridge I`` by a Cholesky factorisation of a that is stopped early.

    Each step takes the column with the largest remaining diagonal entry: better than :func:`nystrom` of the same rank
    where the rows are unevenly spread, slower to make.

    Parameters
    ----------
    a : array, shape (n, n), or operator with ``columns(indices)`` and ``diagonal()``
        Symmetric positive semidefinite, without the ridge.
    rank, ridge
        As of :func:`nystrom`.

    Returns
    -------
    LowRank
        Callable with columns.

    Raises
    ------
    ShapeError, ParameterError
        As of :func:`nystrom`.

    Notes
    -----
    Source: Harbrecht, Peters and Schneider, On the low-rank approximation by the pivoted Cholesky decomposition, 2012.

    Cost: rank columns, taken one after another, and n · rank² operations. No gradient, as :func:`nystrom`.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x, k = torch.rand(300, 3), km.Gaussian(1.0)
    >>> approximate = km.linalg.pivoted_cholesky(k.operator(x), 30, ridge=0.1)
    >>> km.linalg.cg(k.operator(x, diagonal=0.1), torch.ones(300), preconditioner=approximate).iterations < 20
    True
    """
    operator = product_of(a)
    diagonal = _check_ridge(ridge, operator)
    count = min(integer(rank, "rank"), operator.size)
    if isinstance(operator.source, torch.Tensor):
        dense = operator.source
        rest, column = dense.diagonal().clone(), lambda pivot: dense.index_select(1, pivot)
    elif hasattr(operator.source, "columns") and hasattr(operator.source, "diagonal"):
        rest, column = operator.source.diagonal().clone(), operator.source.columns
    else:
        raise ParameterError("pivoted_cholesky needs a matrix or an operator with columns(indices) and diagonal()")
    factor = torch.zeros(count, operator.size, dtype=operator.dtype, device=operator.device).mT
    least = torch.finfo(operator.dtype).eps * rest.amax()
    with torch.no_grad():
        for step in range(count):
            pivot = rest.argmax().reshape(1)
            left = rest[pivot]
            made = factor[:, :step]
            new = column(pivot)[:, 0] - made @ made.index_select(0, pivot)[0]
            new = (new * left.clamp_min(least).rsqrt()).masked_fill(left <= least, 0)
            factor[:, step] = new
            rest = (rest - new.square()).clamp_min(0).index_fill(0, pivot, 0)
    return LowRank.of("a pivoted Cholesky factor", factor, diagonal)
