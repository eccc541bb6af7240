"""GPyTorch kernels whose matrices are never stored: products with them are fused, in training and prediction.

``gpytorch.kernels.RBFKernel()`` becomes ``km.integrations.gpytorch.RBFKernel()``; the rest of a model stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gpytorch
import torch
from linear_operator.operators import KernelLinearOperator

from .. import pairwise as own
from ..errors import ParameterError
from ..pairwise import Kernel
from ..pairwise.constructors import LENGTHS, exponents, is_positive, replaced
from ..pairwise.value_gradients import blocks, check_twice_differentiable, interleaved

_PREFIX = "value_"


def _bound(kernel: Kernel, values: Mapping[str, torch.Tensor]) -> Kernel:
    """Return the kernel with the values that an operator carries."""
    return replaced(kernel, {name.removeprefix(_PREFIX): value for name, value in values.items()}) if values else kernel


def _dense(x1: torch.Tensor, x2: torch.Tensor, kernel: Kernel, **values: torch.Tensor) -> torch.Tensor:
    return _bound(kernel, values)(x1, x2)


class FusedKernelOperator(KernelLinearOperator):
    """``k(x1, x2)``; products with it, and their derivatives, do not form it."""

    def _matmul(self, rhs: torch.Tensor) -> torch.Tensor:
        kernel = _bound(self.nontensor_params["kernel"], self.tensor_params)
        return kernel.matmul(self.x1, self.x2, rhs.contiguous())


class FusedKernel(gpytorch.kernels.Kernel):
    """A kernel of this library over rows divided by a length scale that GPyTorch learns.

    Weights, bandwidths and the other hyperparameters of the kernel are parameters of the module:

    * a number, as ``raw_<name>`` with a constraint where it must be positive, of shape ``batch_shape``;
    * an ``nn.Parameter``, as it is under its own name, without a constraint;
    * a tensor that requires no gradient, as a buffer, which is not trained.

    A number that is an exponent (``p``, ``q``, ``degree``) is part of the compiled expression and stays, as does the
    bandwidth of a kernel that has only this one length, in whose place the length scale is learned.

    Parameters
    ----------
    kernel : km.Kernel
        Kernels composed with ``+`` and ``*`` are one kernel. Its hyperparameters are where training begins.
    ard_num_dims, batch_shape, active_dims, lengthscale_prior, lengthscale_constraint
        As of :class:`gpytorch.kernels.Kernel`.

    Attributes
    ----------
    hyperparameters : dict
        Names and present values of the hyperparameters of the kernel, constraints applied.

    Raises
    ------
    ParameterError
        If ``kernel`` is not a km.Kernel, or has a tensor that requires a gradient and is not an ``nn.Parameter``, or a
        transform that requires one: GPyTorch could not train them.

    Notes
    -----
    Gradients exist for the rows, the length scales, the hyperparameters and what surrounds the kernel. Where bandwidths
    and the length scale are learned together, their common factor is learned twice;
    ``kernel.raw_lengthscale.requires_grad_(False)`` fixes it. Below GPyTorch's ``settings.max_cholesky_size`` rows the
    matrix is made and factored, as always there.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> from kernmantle.integrations.gpytorch import FusedKernel
    >>> kernel = FusedKernel(0.5 * km.Gaussian(1.0) + km.Laplace(2.0))
    >>> kernel(torch.randn(5, 3)).shape
    torch.Size([5, 5])
    >>> sorted(name for name, _ in kernel.named_parameters())
    ['raw_bandwidth', 'raw_bandwidth_2', 'raw_lengthscale', 'raw_scale']
    """

    has_lengthscale = True

    def __init__(self, kernel: Kernel, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(kernel, Kernel):
            raise ParameterError(f"kernel must be a km.Kernel, not {type(kernel).__name__}")
        self.kernel = kernel
        self._attributes: dict[str, str] = {}
        fixed = exponents(kernel) | _only_length(kernel)
        for name, value in kernel.hyperparameters.items():
            if isinstance(value, torch.Tensor):
                self._register_tensor(name, value)
            elif name not in fixed and not isinstance(value, str):
                self._register_number(name, float(value))

    def _register_tensor(self, name: str, value: torch.Tensor) -> None:
        if name == "transform":
            if value.requires_grad:
                raise ParameterError("a transform is not trained here: multiply the rows by it in a module before")
            return
        self._attributes[name] = attribute = f"kernel_{name}" if hasattr(self, name) else name
        if isinstance(value, torch.nn.Parameter):
            self.register_parameter(attribute, value)
        elif value.requires_grad:
            raise ParameterError(
                f"hyperparameter {name!r} requires a gradient and is not an nn.Parameter, so GPyTorch would not "
                "train it: pass torch.nn.Parameter(value), or a number, which becomes one"
            )
        else:
            self.register_buffer(attribute, value)

    def _register_number(self, name: str, value: float) -> None:
        self._attributes[name] = attribute = f"raw_{name}"
        raw = torch.full(self.batch_shape, value, dtype=torch.float64)
        constraint = gpytorch.constraints.Positive() if value > 0 and is_positive(_base(name)) else None
        if constraint is not None:
            raw = constraint.inverse_transform(raw)
        self.register_parameter(attribute, torch.nn.Parameter(raw))
        if constraint is not None:
            self.register_constraint(attribute, constraint)

    @property
    def hyperparameters(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Present values of the hyperparameters of the kernel by name."""
        found = dict(self.kernel.hyperparameters)
        for name, attribute in self._attributes.items():
            raw = getattr(self, attribute)
            constraint = self._constraints.get(f"{attribute}_constraint")
            found[name] = raw if constraint is None else constraint.transform(raw)
        return found

    @property
    def is_stationary(self) -> bool:
        """Whether the kernel depends on differences alone."""
        return self.kernel.is_stationary

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Any:
        """Return the operator of two sets of rows, or the values of their pairs."""
        if last_dim_is_batch:
            raise ParameterError("last_dim_is_batch is not taken: give the columns a batch axis of their own")
        left, right = x1 / self.lengthscale, x2 / self.lengthscale
        present = self.hyperparameters
        values = {name: present[name].to(left.dtype) for name in self._attributes}
        own = {name: int(_base(name) == LENGTHS) for name in values}  # axes of each beside its batch
        if diag:
            values = {name: value.unsqueeze(-1 - own[name]) for name, value in values.items()}
            return replaced(self.kernel, values)(left.unsqueeze(-2), right.unsqueeze(-2))[..., 0, 0]
        return FusedKernelOperator(
            left, right, covar_func=_dense, kernel=self.kernel,
            num_nonbatch_dimensions={_PREFIX + name: axes for name, axes in own.items()},
            **{_PREFIX + name: value for name, value in values.items()},
        )  # fmt: skip


def _base(name: str) -> str:
    """Return the name of a hyperparameter in the table, without the number of the part that it is of."""
    base, _, number = name.rpartition("_")
    return base if number.isdigit() else name


def _only_length(kernel: Kernel) -> set[str]:
    """Return the bandwidth, where it is the only length of the kernel and a number."""
    lengths = [name for name in kernel.hyperparameters if _base(name) in ("bandwidth", LENGTHS)]
    return set(lengths) if lengths == ["bandwidth"] else set()


class FusedKernelGrad(FusedKernel):
    """The kernel of values and gradients of a process with a kernel of this library, as ``RBFKernelGrad`` is of one.

    Rows and columns of ``k(x, y)``, of shape (..., n (1 + d), m (1 + d)), are the value and the d partial derivatives
    at the first row, then those at the next.

    Parameters
    ----------
    kernel, ard_num_dims, batch_shape, active_dims, lengthscale_prior, lengthscale_constraint
        As of :class:`FusedKernel`; the kernel as :func:`kernmantle.with_gradients` takes it.

    Raises
    ------
    ParameterError
        As FusedKernel, and for a kernel without second derivatives between equal rows, such as Laplace.

    Notes
    -----
    The matrix is stored. Gradients exist for length scales, hyperparameters and rows.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> from kernmantle.integrations.gpytorch import FusedKernelGrad
    >>> FusedKernelGrad(km.RationalQuadratic(1.0))(torch.randn(5, 3)).shape
    torch.Size([20, 20])
    """

    def __init__(self, kernel: Kernel, **options: Any) -> None:
        super().__init__(kernel, **options)
        check_twice_differentiable(kernel)

    def num_outputs_per_input(self, x1: torch.Tensor, x2: torch.Tensor) -> int:  # noqa: ARG002
        """The value and each derivative."""
        return x1.shape[-1] + 1

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Any:
        """The matrix of two sets of rows, or its diagonal."""
        if last_dim_is_batch:
            raise ParameterError("last_dim_is_batch is not taken: give the columns a batch axis of their own")
        present = self.hyperparameters
        values = {name: present[name].to(x1.dtype) for name in self._attributes}
        length = self.lengthscale
        if diag:
            own = {name: int(_base(name) == LENGTHS) for name in values}
            values = {name: value.unsqueeze(-1 - own[name]) for name, value in values.items()}
            length, x1, x2 = length.unsqueeze(-2), x1.unsqueeze(-2), x2.unsqueeze(-2)
        kernel = replaced(self.kernel, values)
        found = blocks(kernel, x1, x2, length)
        return found[..., 0, 0, :, :].diagonal(dim1=-2, dim2=-1).flatten(-2) if diag else interleaved(found)


class _MixtureOperator(KernelLinearOperator):
    """A spectral mixture of two sets of rows; products with it do not form it."""

    def _matmul(self, rhs: torch.Tensor) -> torch.Tensor:
        kernel = own.SpectralMixture(**self.tensor_params, **self.nontensor_params)
        return kernel.matmul(self.x1, self.x2, rhs.contiguous())


def _mixture(x1: torch.Tensor, x2: torch.Tensor, **parameters: Any) -> torch.Tensor:
    return own.SpectralMixture(**parameters)(x1, x2)


class SpectralMixtureKernel(gpytorch.kernels.SpectralMixtureKernel):
    """GPyTorch's spectral mixture, whose matrix and products are one pass; arguments and parameters are GPyTorch's.

    ``Π_d Σ_q w_q exp(-2 π² τ_d² s_qd²) cos(2 π τ_d μ_qd)``; with ``separable=False`` that of Wilson and Adams (2013),
    ``Σ_q w_q Π_d ...``, which is another kernel of more than one column. See :func:`kernmantle.SpectralMixture`.
    """

    def __init__(self, num_mixtures: int | None = None, separable: bool = True, **options: Any) -> None:
        super().__init__(num_mixtures=num_mixtures, **options)
        self.separable = separable

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Any:
        """The operator of two sets of rows, or the values of their pairs."""
        if last_dim_is_batch:
            raise ParameterError("last_dim_is_batch is not taken: give the columns a batch axis of their own")
        if x1.shape[-1] != self.ard_num_dims:
            raise ParameterError(f"ard_num_dims is {self.ard_num_dims}, the rows have {x1.shape[-1]} columns")
        weights, means, scales = self.mixture_weights, self.mixture_means.squeeze(-2), self.mixture_scales.squeeze(-2)
        if diag:
            each = weights.unsqueeze(-2), means.unsqueeze(-3), scales.unsqueeze(-3)
            kernel = own.SpectralMixture(*each, separable=self.separable)
            return kernel(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]
        return _MixtureOperator(
            x1, x2, covar_func=_mixture, weights=weights, means=means, scales=scales, separable=self.separable,
            num_nonbatch_dimensions={"weights": 1, "means": 2, "scales": 2},
        )  # fmt: skip


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
