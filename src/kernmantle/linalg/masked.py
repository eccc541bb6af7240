"""Gaussian processes on a grid with missing cells: a Kronecker product between a choice of cells and its transpose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..arrays import to_tensor
from ..checks import integer
from ..errors import DtypeError, ParameterError, ShapeError
from .arguments import random_source
from .cg import Iterations, cg
from .sketch_problem import check_no_gradient

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
    noise : number or tensor, shape ()
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
    Products, solutions, means and :func:`logdet` have first-order gradients by the factors, their scale, the noise and
    the values, for the marginal likelihood. Cost of a product: n (n1 + n2 + ...) multiplications for n cells of the
    grid. Source: Lin, Ament, Balandat and Bakshy, Scaling Gaussian processes for learning curve prediction, 2024.

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
        if len(covariance.shape) > 2:
            raise ShapeError(f"covariance has the batch axes {covariance.shape[:-2]} of its scale; make one of each")
        uneven = next((factor for factor in factors if factor.shape[0] != factor.shape[1]), None)
        if uneven is not None:
            raise ShapeError(f"covariance has a factor that is not square, of shape {tuple(uneven.shape)}")
        self._product, self._factors = covariance, list(factors)
        self._mask = to_tensor(mask, "mask").to(covariance.device)
        grid = tuple(factor.shape[0] for factor in factors)
        if self._mask.dtype != torch.bool or tuple(self._mask.shape) != grid:
            raise ShapeError(
                f"mask must be of bool and have shape {grid}, an axis for each factor; it is {self._mask.dtype} of "
                f"shape {tuple(self._mask.shape)}"
            )
        if not _is_number(noise) or not 0 < _number(noise) < math.inf:
            raise ParameterError(f"noise must be positive, not {noise!r}")
        self._noise = noise
        self._cells = self._mask.reshape(-1).nonzero()[:, 0]
        self.shape = (len(self._cells), len(self._cells))
        self.dtype, self.device = covariance.dtype, covariance.device

    @property
    def requires_grad(self) -> bool:
        """Return whether the factors, their scale or the noise require a gradient."""
        return any(getattr(value, "requires_grad", False) for value in self._parameters)

    @property
    def _parameters(self) -> tuple[Any, ...]:
        return (*self._factors, self._product.scale, self._noise)

    def _spread(self, v: torch.Tensor) -> torch.Tensor:
        """Return the values of the cells (m, c) on the whole grid (n, c), zero elsewhere."""
        return v.new_zeros(self._mask.numel(), v.shape[1]).index_copy_(0, self._cells, v)

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        if not isinstance(v, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DtypeError(f"the operator multiplies torch tensors, not {type(v).__name__}")
        if v.dim() not in (1, 2) or len(v) != self.shape[1]:
            n = self.shape[1]
            raise ShapeError(f"the operator multiplies ({n},) or ({n}, c), not {tuple(v.shape)}")
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

    def _checked(self, name: str, y: torch.Tensor) -> None:
        if not isinstance(y, torch.Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DtypeError(f"{name} takes values as a torch tensor, not {type(y).__name__}")
        if tuple(y.shape) != self.shape[:1]:
            shape = tuple(y.shape)
            raise ShapeError(f"{name} takes a value for each cell of the mask, shape {self.shape[:1]}, not {shape}")

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
        Cost: one solution, and a product with the covariance of the grid. The gradient takes one solution more.
        """
        self._checked("mean", y)
        found = self.solve(y, **options).x
        return (self._product @ self._spread(found[:, None])).reshape(self._mask.shape)

    def samples(
        self, y: torch.Tensor, count: int, *, generator: torch.Generator | None = None, **options: Any
    ) -> torch.Tensor:
        """Return draws of the posterior on the whole grid: ones of the prior, corrected by solutions.

        Parameters
        ----------
        y : tensor, shape (m,)
            Values of the cells in row-major order.
        count : int
            Functions to draw.
        generator : torch.Generator, optional
            Source of the draws, on the device; by default they are the same every time.
        **options
            Of :func:`cg`.

        Returns
        -------
        tensor, shape (n1, n2, ..., count)

        Raises
        ------
        ShapeError, DtypeError, LinearAlgebraError
            As of :func:`cg`.
        GradientError
            Where the factors, the noise or y require a gradient: use ``torch.no_grad()``.

        Notes
        -----
        There are no gradients. Cost: solutions for count columns, 16 at a time, and eigenvectors of each factor.
        Source: Wilson et al., Pathwise conditioning of Gaussian processes, 2021.
        """
        self._checked("samples", y)
        check_no_gradient("MaskedKronecker.samples", y, *self._parameters)
        with torch.no_grad():
            return self._drawn(y, count, generator, options)

    def variance(self, count: int = 64, *, generator: torch.Generator | None = None, **options: Any) -> torch.Tensor:
        """Return the posterior variance of the function on the whole grid, estimated from samples.

        Parameters
        ----------
        count : int
            Functions to draw.
        generator : torch.Generator, optional
            Source of the draws, on the device; by default they are the same every time.
        **options
            Of :func:`cg`.

        Returns
        -------
        tensor, shape (n1, n2, ...)

        Raises
        ------
        LinearAlgebraError
            As of :func:`cg`.
        GradientError
            Where the factors or the noise require a gradient: use ``torch.no_grad()``.

        Notes
        -----
        Its relative standard error is √(2 / count). It does not depend on the values. There are no gradients. Cost:
        that of :meth:`samples`.
        """
        check_no_gradient("MaskedKronecker.variance", *self._parameters)
        with torch.no_grad():
            zero = torch.zeros(self.shape[0], dtype=self.dtype, device=self.device)
            return self._drawn(zero, count, generator, options).square().mean(-1)

    def _drawn(
        self, y: torch.Tensor, count: int, generator: torch.Generator | None, options: dict[str, Any]
    ) -> torch.Tensor:
        count = integer(count, "count")
        source = random_source(generator, self.device, 0)

        def normal(rows: int) -> torch.Tensor:
            return torch.randn(rows, count, generator=source, dtype=self.dtype, device=self.device)

        root = type(self._product)([_root(factor) for factor in self._factors])
        prior = self._product.scale**0.5 * (root @ normal(self._mask.numel()))
        gap = y[:, None] - prior[self._cells] - self._noise**0.5 * normal(self.shape[0])
        found = torch.cat([self.solve(part, **options).x for part in gap.split(BLOCK, 1)], 1)
        return (prior + self._product @ self._spread(found)).reshape(*self._mask.shape, count)

    def __repr__(self) -> str:
        grid = " x ".join(map(str, self._mask.shape))
        return f"<{self.shape[0]} cells of a {grid} Kronecker product, with noise {_number(self._noise):g}>"


def _is_number(value: Any) -> bool:
    """Return whether a value is a number or a tensor of one."""
    kinds = int, float, np.number
    return value.numel() == 1 if isinstance(value, torch.Tensor) else isinstance(value, kinds)


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _root(factor: torch.Tensor) -> torch.Tensor:
    """Return a matrix R with ``R Rᵀ`` the factor, which may be singular."""
    values, vectors = torch.linalg.eigh(factor)
    return vectors * values.clamp_min(0).sqrt()
