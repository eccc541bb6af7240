"""GPyTorch kernels whose matrices are never stored: products with them are fused, in training and prediction.

``gpytorch.kernels.RBFKernel()`` becomes ``km.integrations.gpytorch.RBFKernel()``; the rest of a model stays.
"""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from linear_operator.operators import KernelLinearOperator

from .. import kernels as own
from ..errors import ParameterError
from ..kernels import Kernel


class FusedKernelOperator(KernelLinearOperator):
    """``k(x1, x2)``; products with it, and their derivatives, do not form it."""

    def _matmul(self, rhs: torch.Tensor) -> torch.Tensor:
        return self.nontensor_params["kernel"].matmul(self.x1, self.x2, rhs.contiguous())


def _dense(x1: torch.Tensor, x2: torch.Tensor, kernel: Kernel) -> torch.Tensor:
    return kernel(x1, x2)


class FusedKernel(gpytorch.kernels.Kernel):
    """A kernel of this library over rows divided by a length scale that GPyTorch learns.

    Parameters
    ----------
    kernel : km.Kernel
        Of bandwidth 1 where it has one. Kernels composed with ``+`` and ``*`` are one kernel.
    ard_num_dims, batch_shape, active_dims, lengthscale_prior, lengthscale_constraint
        As of :class:`gpytorch.kernels.Kernel`.

    Notes
    -----
    Gradients exist for the rows, the length scales and what surrounds the kernel. Below GPyTorch's
    ``settings.max_cholesky_size`` rows the matrix is made and factored, as always there.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> from kernmantle.integrations.gpytorch import FusedKernel
    >>> covariance = FusedKernel(0.5 * km.Gaussian(1.0) + km.Laplace(2.0))(torch.randn(5, 3))
    >>> covariance.shape
    torch.Size([5, 5])
    """

    has_lengthscale = True

    def __init__(self, kernel: Kernel, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(kernel, Kernel):
            raise ParameterError(f"kernel must be a km.Kernel, not {type(kernel).__name__}")
        self.kernel = kernel

    @property
    def is_stationary(self) -> bool:
        """Whether the kernel depends on differences alone."""
        return self.kernel.is_stationary

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Any:
        """The operator of two sets of rows, or the values of their pairs."""
        if last_dim_is_batch:
            raise ParameterError("last_dim_is_batch is not taken: give the columns a batch axis of their own")
        left, right = x1 / self.lengthscale, x2 / self.lengthscale
        if diag:
            return self.kernel(left.unsqueeze(-2), right.unsqueeze(-2))[..., 0, 0]
        return FusedKernelOperator(left, right, covar_func=_dense, kernel=self.kernel)


class RBFKernel(FusedKernel):
    """``exp(-‖x - y‖² / (2 lengthscale²))``; arguments as of :class:`gpytorch.kernels.RBFKernel`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(own.CONSTRUCTORS["Gaussian"](1.0), **options)


class MaternKernel(FusedKernel):
    """Matérn kernel of smoothness ``nu``; arguments as of :class:`gpytorch.kernels.MaternKernel`."""

    def __init__(self, nu: float = 2.5, **options: Any) -> None:
        super().__init__(own.CONSTRUCTORS["Matern"](1.0, nu=nu), **options)


class LaplaceKernel(FusedKernel):
    """``exp(-‖x - y‖ₚ / lengthscale)``."""

    def __init__(self, p: float = 1.0, **options: Any) -> None:
        super().__init__(own.CONSTRUCTORS["Laplace"](1.0, p=p), **options)
