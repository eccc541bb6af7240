"""GPyTorch kernels whose matrices are never stored: products with them are fused, in training and prediction.

``gpytorch.kernels.RBFKernel()`` becomes ``km.integrations.gpytorch.RBFKernel()``; the rest of a model stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gpytorch
import torch
from linear_operator.operators import KernelLinearOperator

from .. import pairwise as own
from ..errors import ParameterError
from ..pairwise import Kernel
from ..pairwise.constructors import LENGTHS, exponents, is_positive, replaced
from ..pairwise.kernels import KERNELS
from ..pairwise.value_gradients import blocks, check_twice_differentiable, interleaved

_PREFIX = "value_"
_ROUNDED = 1e-6
"""Relative error of a number that went through the transforms of a constraint in float32."""
_NO_BANDWIDTH = (
    "the bandwidth of this kernel is a number that multiplies its length scale, which is learned: "
    "set kernel.lengthscale, or pass lengthscale_prior= and lengthscale_constraint="
)
_OF_LENGTHS = ("lengthscale_prior", "lengthscale_constraint")


def _refuse_batched_columns(last_dim_is_batch: bool) -> None:
    if last_dim_is_batch:
        raise ParameterError("last_dim_is_batch is not taken: give the columns a batch axis of their own")


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


_OF_PRODUCTS = ("offset", "coef0", "gamma")
"""Hyperparameters of which a negative one makes a kernel of inner products indefinite."""


class FusedKernel(gpytorch.kernels.Kernel):
    """A kernel of this library over rows divided by a length scale that GPyTorch learns.

    Every hyperparameter of the kernel is one of the module, as those of GPyTorch's kernels are: ``kernel.alpha`` is its
    value, which can be set, ``alpha_prior`` and ``alpha_constraint`` are arguments, and
    ``kernel.register_prior("alpha_prior", prior, "alpha")`` gives it a prior later.

    * A number is the parameter ``raw_<name>``, of shape ``batch_shape``, with a constraint where it must be positive.
    * An ``nn.Parameter`` is a parameter under its own name, without a constraint.
    * A tensor that requires no gradient is a buffer, which is not trained.

    The powers ``p``, ``q``, ``gamma`` and ``degree`` are numbers of the compiled expression, and special ones have
    kernels of their own. They are registered without a gradient and stay on the CPU. One whose prior or
    constraint is an argument is trained, as is one of which ``kernel.raw_p.requires_grad_()`` was called; the general
    kernel takes it then.

    Where the kernel has only one length, ``bandwidth``, the length scale is learned in its place. What multiplies an
    inner product or is added to it, ``gamma``, ``offset`` and ``coef0``, stays positive, as covariances need; where it
    is 0, as the offset of ``km.Linear()``, it is trained no more than a power.

    Parameters
    ----------
    kernel : km.Kernel
        Kernels composed with ``+`` and ``*`` are one kernel. Its hyperparameters are where training begins.
    ard_num_dims, batch_shape, active_dims, lengthscale_prior, lengthscale_constraint
        As of :class:`gpytorch.kernels.Kernel`.
    **options
        ``<name>_prior`` and ``<name>_constraint`` of any hyperparameter that was a number.

    Attributes
    ----------
    hyperparameters : dict
        Names and present values of the hyperparameters of the kernel, constraints applied.

    Raises
    ------
    ParameterError
        If ``kernel`` is not a km.Kernel, or has a tensor that requires a gradient and is not an ``nn.Parameter``, or a
        transform that requires one: GPyTorch could not train them. If a prior or constraint is of no hyperparameter
        that was a number.

    Notes
    -----
    Gradients exist for the rows, the length scales, the hyperparameters and what surrounds the kernel. Where bandwidths
    and the length scale are learned together, their common factor is learned twice;
    ``kernel.raw_lengthscale.requires_grad_(False)`` fixes it. Below GPyTorch's ``settings.max_cholesky_size`` rows the
    matrix is made and factored, as always there.

    Examples
    --------
    >>> import gpytorch, torch, kernmantle as km
    >>> from kernmantle.integrations.gpytorch import FusedKernel
    >>> kernel = FusedKernel(0.5 * km.Gaussian(1.0) + km.RationalQuadratic(2.0, alpha=1.5))
    >>> kernel(torch.randn(5, 3)).shape
    torch.Size([5, 5])
    >>> sorted(name for name, _ in kernel.named_parameters())
    ['raw_alpha', 'raw_bandwidth', 'raw_bandwidth_2', 'raw_lengthscale', 'raw_scale']
    >>> kernel.alpha = 0.8
    >>> round(kernel.alpha.item(), 6)
    0.8
    >>> kernel = FusedKernel(km.RationalQuadratic(1.0), alpha_prior=gpytorch.priors.GammaPrior(2.0, 1.0))
    >>> [name for name, *_ in kernel.named_priors()]
    ['alpha_prior']
    """

    has_lengthscale = True

    def __init__(self, kernel: Kernel, **options: Any) -> None:
        if not isinstance(kernel, Kernel):
            hint = "; km.Kernel(lambda a, b: ...) is one of a function" * callable(kernel)
            raise ParameterError(f"kernel must be a km.Kernel, as km.Gaussian(), not {type(kernel).__name__}{hint}")
        numbers = _numbers(kernel)
        own = {name for name in options if name.endswith(("_prior", "_constraint"))} - set(_OF_LENGTHS)
        unknown = [name for name in own if name.rpartition("_")[0] not in numbers]
        if unknown:
            raise ParameterError(
                f"{unknown[0]!r} is of no number of the kernel, which has {', '.join(numbers) or 'none'}"
                + ", and the length scale in place of the bandwidth" * (unknown[0].startswith("bandwidth_"))
            )
        super().__init__(**{name: value for name, value in options.items() if name not in own})
        self.kernel = kernel
        self._attributes: dict[str, str] = {}
        self._powers: dict[str, float] = {}
        for name, value in kernel.hyperparameters.items():
            if isinstance(value, torch.Tensor):
                self._register_tensor(name, value)
            elif name in numbers:
                prior, constraint = (options.get(f"{name}_{kind}") for kind in ("prior", "constraint"))
                self._register_number(name, numbers[name], prior, constraint)

    def _register_tensor(self, name: str, value: torch.Tensor) -> None:
        if name == "transform":
            if value.requires_grad:
                raise ParameterError("a transform is not trained here: multiply the rows by it in a module before")
            return
        attribute = f"kernel_{name}" if hasattr(self, name) else name
        if isinstance(value, torch.nn.Parameter):
            self.register_parameter(attribute, value)
        elif value.requires_grad:
            raise ParameterError(
                f"hyperparameter {name!r} requires a gradient and is not an nn.Parameter, so GPyTorch would not "
                "train it: pass torch.nn.Parameter(value), or a number, which becomes one"
            )
        else:
            self.register_buffer(attribute, value)
        self._attributes[name] = attribute

    def _register_number(self, name: str, value: float, prior: Any, constraint: Any) -> None:
        attribute, own_constraint = f"raw_{name}", constraint is not None
        is_of_product = _base(name) in _OF_PRODUCTS
        if constraint is None and value > 0 and (is_of_product or is_positive(_base(name))):
            constraint = gpytorch.constraints.Positive()
        raw = torch.full(self.batch_shape, value, dtype=torch.float64)
        fixed = name in exponents(self.kernel) and _is_power(name)
        trained = not (fixed or (is_of_product and value == 0)) or prior is not None or own_constraint
        if constraint is not None:
            raw = constraint.inverse_transform(raw)
        self.register_parameter(attribute, torch.nn.Parameter(raw, requires_grad=trained))
        if constraint is not None:
            self.register_constraint(attribute, constraint)
        self._attributes[name] = attribute
        if fixed:
            self._powers[name] = value
        if prior is not None:
            self.register_prior(f"{name}_prior", prior, name)

    def _transformed(self, attribute: str) -> torch.Tensor:
        raw: Any = super().__getattr__(attribute)
        constraint = self._constraints.get(f"{attribute}_constraint")
        return raw if constraint is None else constraint.transform(raw)

    def _attribute_of(self, name: str) -> str | None:
        """Return the parameter that a hyperparameter is stored in, None for a name of another thing."""
        attribute = self.__dict__.get("_attributes", {}).get(name)
        if attribute is None and name == "bandwidth":
            raise AttributeError(_NO_BANDWIDTH)
        return attribute

    def __getattr__(self, name: str) -> Any:
        attribute = self._attribute_of(name)
        return super().__getattr__(name) if attribute in (None, name) else self._transformed(attribute)

    def __setattr__(self, name: str, value: Any) -> None:
        attribute = self._attribute_of(name)
        if attribute in (None, name):
            return super().__setattr__(name, value)
        raw: Any = super().__getattr__(attribute)
        constraint = self._constraints.get(f"{attribute}_constraint")
        value = torch.as_tensor(value, dtype=raw.dtype, device=raw.device)
        if name in self._powers and value.numel() == 1:
            self._powers[name] = value.item()
        self.initialize(**{attribute: value if constraint is None else constraint.inverse_transform(value)})
        return None

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move everything but the powers that are not trained, which are read to compile."""
        super()._apply(fn, recurse)
        for name in self._powers:
            raw: Any = super().__getattr__(self._attributes[name])
            if not raw.requires_grad and raw.device.type != "cpu":
                raw.data = raw.data.cpu()
        return self

    def _fixed(self) -> dict[str, float]:
        """Return the powers that are not trained and the same in the whole batch."""
        found: dict[str, float] = {}
        for name, initial in self._powers.items():
            value = self._transformed(self._attributes[name])
            if value.requires_grad or value.device.type != "cpu" or value.numel() == 0:
                continue
            first, last = value.min().item(), value.max().item()
            if first == last:
                # The transform there and back has rounded the number: the one that was given, or the shortest.
                found[name] = min(
                    initial, float(f"{first:.6g}"), first, key=lambda number: abs(number - first) > _ROUNDED * first
                )
        return found

    @property
    def hyperparameters(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Present values of the hyperparameters of the kernel by name."""
        own = {name: self._transformed(attribute) for name, attribute in self._attributes.items()}
        return dict(self.kernel.hyperparameters) | own | self._fixed()

    def _present(self, like: torch.Tensor) -> tuple[Kernel, dict[str, Any]]:
        """Return the kernel with the numbers of now, and the values of its other hyperparameters."""
        fixed, before = self._fixed(), self.kernel.hyperparameters
        changed = {name: value for name, value in fixed.items() if value != before[name]}
        left = {name: attribute for name, attribute in self._attributes.items() if name not in fixed}
        values = {name: self._transformed(attribute).to(like) for name, attribute in left.items()}
        return replaced(self.kernel, changed) if changed else self.kernel, values

    @property
    def is_stationary(self) -> bool:
        """Return whether the kernel depends on differences alone."""
        return self.kernel.is_stationary

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Any:
        """Return the operator of two sets of rows, or the values of their pairs."""
        _refuse_batched_columns(last_dim_is_batch)
        left, right = x1 / self.lengthscale, x2 / self.lengthscale
        kernel, values = self._present(left)
        own = {name: int(_base(name) == LENGTHS) for name in values}  # axes of each beside its batch
        if diag:
            values = {name: value.unsqueeze(-1 - own[name]) for name, value in values.items()}
            return replaced(kernel, values)(left.unsqueeze(-2), right.unsqueeze(-2))[..., 0, 0]
        return FusedKernelOperator(
            left, right, covar_func=_dense, kernel=kernel,
            num_nonbatch_dimensions={_PREFIX + name: axes for name, axes in own.items()},
            **{_PREFIX + name: value for name, value in values.items()},
        )  # fmt: skip


def _base(name: str) -> str:
    """Return the name of a hyperparameter in the table, without the number of the part that it is of."""
    base, _, number = name.rpartition("_")
    return base if number.isdigit() else name


def _is_power(name: str) -> bool:
    """Return whether a hyperparameter is a power in the table, or in no row of it."""
    found = [hyper for row in KERNELS.values() for hyper in row.hyper if hyper.name == _base(name)]
    return not found or any(hyper.exponent for hyper in found)


def _numbers(kernel: Kernel) -> dict[str, float]:
    """Return the hyperparameters that are numbers and become parameters."""
    values = kernel.hyperparameters.items()
    found = {name: float(value) for name, value in values if not isinstance(value, (torch.Tensor, str))}
    return {name: value for name, value in found.items() if math.isfinite(value) and name not in _only_length(kernel)}


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
        """Return the value and each derivative."""
        return x1.shape[-1] + 1

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Any:
        """Return the matrix of two sets of rows, or its diagonal."""
        _refuse_batched_columns(last_dim_is_batch)
        kernel, values = self._present(x1)
        length = self.lengthscale
        if diag:
            own = {name: int(_base(name) == LENGTHS) for name in values}
            values = {name: value.unsqueeze(-1 - own[name]) for name, value in values.items()}
            length, x1, x2 = length.unsqueeze(-2), x1.unsqueeze(-2), x2.unsqueeze(-2)
        found = blocks(replaced(kernel, values), x1, x2, length)
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
        """Return the operator of two sets of rows, or the values of their pairs."""
        _refuse_batched_columns(last_dim_is_batch)
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
