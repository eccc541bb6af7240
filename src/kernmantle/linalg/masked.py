"""Gaussian processes on a grid with missing cells: a Kronecker product between a choice of cells and its transpose."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import DtypeError, ParameterError, ShapeError
from .cg import Iterations, cg

BLOCK = 16
"""Samples that are corrected at a time: more columns than that share no more of a Krylov space than they cost."""


class MaskedKronecker:
    """``P (K1 ⊗ K2 ⊗ ...) Pᵀ + noise I`` for the cells of a grid that a mask chooses: latent Kronecker structure.

    It is an operator for :func:`cg`, :func:`logdet` and :func:`trace`, whose products cost those of the whole grid.

    Parameters
    ----------
    covariance : KroneckerProduct
        Of symmetric positive semidefinite matrices as tensors, one for each axis, as ``km.KroneckerProduct([k(axis1),
        k(axis2)])``.
    mask : array of bool, shape (n1, n2, ...)
        True for the cells with values.
    noise : number
        Added to the diagonal.

    Attributes
    ----------
    shape : tuple of int
        Cells with values, twice.
    dtype : torch.dtype
    device : torch.device

    Raises
    ------
    ShapeError, DtypeError, ParameterError
        For products and masks that do not fit.

    Notes
    -----
    There are no gradients. Cost of a product: n (n1 + n2 + ...) multiplications for n cells of the grid. Source: Lin,
    Ament, Balandat and Bakshy, Scaling Gaussian processes for learning curve prediction, 2024.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> axis, k = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None], km.Gaussian(0.3)
    >>> image, mask = torch.sin(4 * axis + 3 * axis.T), torch.rand(20, 20) < 0.7
    >>> a = km.linalg.MaskedKronecker(km.KroneckerProduct([k(axis), k(axis)]), mask, noise=1e-4)
    >>> bool((a.mean(image[mask], tolerance=1e-6) - image).abs().max() < 0.05)
    True
    """

    def __init__(self, covariance: Any, mask: Any, noise: float) -> None:
        factors = getattr(covariance, "factors", None)
        if factors is None or any(not isinstance(factor, torch.Tensor) or factor.dim() != 2 for factor in factors):
            raise DtypeError(f"covariance must be a KroneckerProduct of tensors (n, n), not {covariance!r}")
        uneven = next((factor for factor in factors if factor.shape[0] != factor.shape[1]), None)
        if uneven is not None:
            raise ShapeError(f"covariance has a factor that is not square, of shape {tuple(uneven.shape)}")
        self._product, self._factors = covariance, [factor.detach() for factor in factors]
        self._mask = torch.as_tensor(mask, device=covariance.device)
        grid = tuple(factor.shape[0] for factor in factors)
        if self._mask.dtype != torch.bool or tuple(self._mask.shape) != grid:
            raise ShapeError(
                f"mask must be of bool and have shape {grid}, an axis for each factor; it is {self._mask.dtype} of "
                f"shape {tuple(self._mask.shape)}"
            )
        if not float(noise) > 0:
            raise ParameterError(f"noise must be positive, not {noise!r}")
        self._noise = float(noise)
        self._cells = self._mask.reshape(-1).nonzero()[:, 0]
        self.shape = (len(self._cells), len(self._cells))
        self.dtype, self.device = covariance.dtype, covariance.device
        self.requires_grad = False

    def _spread(self, v: torch.Tensor) -> torch.Tensor:
        """Return the values of the cells (m, c) on the whole grid (n, c), zero elsewhere."""
        return v.new_zeros(self._mask.numel(), v.shape[1]).index_copy_(0, self._cells, v)

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        columns = v if v.dim() == 2 else v[:, None]
        found = (self._product @ self._spread(columns))[self._cells] + self._noise * columns
        return found if v.dim() == 2 else found[:, 0]

    def double(self) -> MaskedKronecker:
        """Return the same in float64."""
        return self._of([factor.double() for factor in self._factors])

    def float(self) -> MaskedKronecker:
        """Return the same in float32."""
        return self._of([factor.float() for factor in self._factors])

    def _of(self, factors: list[torch.Tensor]) -> MaskedKronecker:
        return MaskedKronecker(type(self._product)(factors, self._product.scale), self._mask, self._noise)

    def solve(self, y: torch.Tensor, **options: Any) -> Iterations:
        """Return the solution of ``self @ x = y`` by conjugate gradients.

        Parameters
        ----------
        y : tensor, shape (m,) or (m, c)
            Values of the m cells of the mask in row-major order, of the dtype of the factors.
        **options
            Of :func:`cg`: ``tolerance``, ``max_iterations``, ``preconditioner`` and so on.

        Returns
        -------
        Iterations
            ``x`` has the shape of y; ``residual`` and ``iterations`` say how it was found.

        Raises
        ------
        ShapeError, DtypeError, GradientError, LinearAlgebraError
            As of :func:`cg`.
        """
        return cg(self, y, **options)

    def mean(self, y: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return the posterior mean on the whole grid, given values of the cells of the mask.

        Parameters
        ----------
        y : tensor, shape (m,)
            Values of the cells in row-major order, as ``image[mask]``.
        **options
            Of :func:`cg`.

        Returns
        -------
        tensor, shape (n1, n2, ...)

        Raises
        ------
        ShapeError, DtypeError, GradientError, LinearAlgebraError
            As of :func:`cg`.

        Notes
        -----
        There are no gradients. Cost: one solution, and a product with the covariance of the grid.
        """
        found = self.solve(y, **options).x
        return (self._product @ self._spread(found[:, None])).reshape(self._mask.shape)

    def samples(
        self, y: torch.Tensor, count: int, *, generator: torch.Generator | None = None, **options: Any
    ) -> torch.Tensor:
        """Draws of the posterior on the whole grid (n1, n2, ..., count): ones of the prior, corrected by solutions."""
        source = generator or torch.Generator(self.device).manual_seed(0)

        def normal(rows: int) -> torch.Tensor:
            return torch.randn(rows, count, generator=source, dtype=self.dtype, device=self.device)

        root = type(self._product)([_root(factor) for factor in self._factors])
        prior = self._product.scale**0.5 * (root @ normal(self._mask.numel()))
        gap = y[:, None] - prior[self._cells] - self._noise**0.5 * normal(self.shape[0])
        found = torch.cat([self.solve(part, **options).x for part in gap.split(BLOCK, 1)], 1)
        return (prior + self._product @ self._spread(found)).reshape(*self._mask.shape, count)

    def __repr__(self) -> str:
        grid = " x ".join(map(str, self._mask.shape))
        return f"<{self.shape[0]} cells of a {grid} Kronecker product, with noise {self._noise:g}>"


def _root(factor: torch.Tensor) -> torch.Tensor:
    """Return a matrix R with ``R Rᵀ`` the factor, which may be singular."""
    values, vectors = torch.linalg.eigh(factor)
    return vectors * values.clamp_min(0).sqrt()
