"""Shared by the estimators with a kernel: its choice by name, and the bandwidth that suits the data."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from inspect import signature
from typing import Any

import torch
from sklearn.base import BaseEstimator

from ..errors import KernmantleError, TraceError
from ..pairwise import CONSTRUCTORS, Kernel
from ..pairwise.bandwidth import typical_distance
from ..torch_ops.checks import is_number
from .data import PRECOMPUTED, TakesPrecomputed
from .state import Stored

NAMES = {name.lower(): name for name in CONSTRUCTORS}
NAMES |= {"rbf": "Gaussian", "laplacian": "Laplace", "poly": "Polynomial"}
_BANDWIDTHS = {"Gaussian": lambda gamma: (0.5 / gamma) ** 0.5, "Laplace": lambda gamma: 1 / gamma}
"""Kernels whose bandwidth scikit-learn writes as gamma."""
_GAMMAS = {"scale": lambda rows: 1 / (rows.shape[1] * float(rows.var(correction=0))), "auto": lambda r: 1 / r.shape[1]}
"""Values of ``gamma`` by the names that scikit-learn's support vector machines have for them."""


_CHI2 = "km.Kernel(lambda a, b: km.where(a + b > 0, (a - b) ** 2 / (a + b), 0)"
_INSTEAD = {
    "chi2": f"; that one is {_CHI2}, lambda s, gamma: km.exp(-gamma * s), gamma=1.0)",
    "additive_chi2": f"; that one is {_CHI2}, lambda s: -s)",
}
"""Kernels of scikit-learn that are expressions here."""


class Precomputed:
    """In place of a kernel: rows are rows of the kernel matrix already, (m, n)."""

    def __repr__(self) -> str:
        return PRECOMPUTED

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the matrix, a copy."""
        return rows.clone()

    def matmul(self, rows: torch.Tensor, others: torch.Tensor, v: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return the rows of the matrix times v."""
        return rows @ v


class KernelEstimator(Stored, BaseEstimator):
    """An estimator with ``kernel``, ``bandwidth`` and ``kernel_params``; some have scikit-learn's ``gamma`` too."""

    kernel: Any
    bandwidth: float | None
    kernel_params: Mapping[str, Any] | None

    def _make_kernel(self, rows: torch.Tensor) -> Kernel:
        """Return the kernel, with a bandwidth found from the rows where none is given."""
        return chosen_kernel(self, "kernel", rows)


class TakesMatrices(KernelEstimator, TakesPrecomputed):
    """A kernel estimator that takes ``kernel="precomputed"`` too."""

    _choice = "kernel"

    def _kernel_or_matrix(self, rows: torch.Tensor, some: torch.Tensor | None = None) -> Kernel | Precomputed:
        """The kernel, or what stands for the matrix that the rows are; a bandwidth is found from the rows ``some``."""
        if not self._is_precomputed:
            return self._make_kernel(rows if some is None else rows[some])
        if self.bandwidth is not None or self.kernel_params:
            raise ValueError("kernel='precomputed' takes neither bandwidth nor kernel_params")
        if rows.shape[0] != rows.shape[1]:
            raise ValueError(
                "Precomputed matrix must be square: kernel='precomputed' takes the kernel of all rows, it was given "
                f"{tuple(rows.shape)}"
            )
        return Precomputed()


def chosen_kernel(estimator: Any, argument: str, rows: torch.Tensor) -> Kernel:
    """Return the kernel that an argument of an estimator names, with the hyperparameters that the estimator has."""
    name, choice = type(estimator).__name__, getattr(estimator, argument)
    bandwidth, parameters = estimator.bandwidth, estimator.kernel_params
    if isinstance(choice, Kernel):
        if bandwidth is not None or parameters:
            raise ValueError(f"{name} got a kernel and bandwidth or kernel_params: a kernel has its own")
        return copy(choice)  # what set_params changes is not that of the fit
    if hasattr(choice, "theta"):
        raise ValueError(
            f"{argument}={choice!r} of {name} is one of scikit-learn's kernels; name it instead, as "
            "kernel='gaussian' for RBF: of a Gaussian process the scale and the noise are included"
        )
    if any(choice is each for each in CONSTRUCTORS.values()):
        raise ValueError(f"{argument}=km.{choice.__name__} of {name} makes kernels: call it, as km.{choice.__name__}()")
    if callable(choice):
        return _traced(choice, argument, bandwidth, parameters)
    if not isinstance(choice, str) or choice.lower() not in NAMES:
        raise ValueError(
            f"{argument}={choice!r} of {name} is neither a km.Kernel, nor a function of two entries, nor one of "
            f"{', '.join(NAMES)}{_INSTEAD.get(choice, '') if isinstance(choice, str) else ''}"
        )
    found = NAMES[choice.lower()]
    takes = signature(CONSTRUCTORS[found]).parameters
    if bandwidth is not None and "bandwidth" not in takes:
        raise ValueError(f"{argument} {choice!r} has no bandwidth; leave bandwidth=None")
    own = {option: getattr(estimator, option, None) for option in ("degree", "coef0") if option in takes}
    gamma = _gamma(getattr(estimator, "gamma", None), rows)
    if "gamma" in takes:
        own["gamma"] = 1 / rows.shape[1] if gamma is None else gamma
    elif gamma is not None and "bandwidth" in takes:
        if bandwidth is not None or found not in _BANDWIDTHS:
            other = "give one of the two" if found in _BANDWIDTHS else f"{choice!r} has a bandwidth instead"
            raise ValueError(f"gamma={gamma:g} of {name}: {other}")
        bandwidth = _BANDWIDTHS[found](gamma)
    own = {option: value for option, value in own.items() if value is not None} | dict(parameters or {})
    if "bandwidth" in takes:
        own["bandwidth"] = typical_distance(rows) if bandwidth is None else bandwidth
    return CONSTRUCTORS[found](**own)


def _gamma(value: Any, rows: torch.Tensor) -> float | None:
    if isinstance(value, str) and value in _GAMMAS:
        return _GAMMAS[value](rows)
    if value is not None and (isinstance(value, str) or not (is_number(value) and value > 0)):
        raise ValueError(f"gamma must be a number above 0, 'scale' or 'auto', got {value!r}")
    return None if value is None else float(value)


def _traced(function: Any, argument: str, bandwidth: Any, parameters: Mapping[str, Any] | None) -> Kernel:
    """Return a function of an entry of each row, and of hyperparameters, as a kernel."""
    own = dict(parameters or {}) | ({} if bandwidth is None else {"bandwidth": bandwidth})
    try:
        return Kernel(function, **own)
    except (KernmantleError, TypeError, AttributeError, ValueError) as error:
        kind = type(error) if isinstance(error, KernmantleError) else TraceError
        raise kind(
            f"{argument}= is a function of one entry of each row, whose values are summed over the columns, as "
            f"lambda a, b: km.minimum(a, b); with something made of the sum, km.Kernel(map, epilogue); a function of "
            f"whole rows cannot be compiled, kernel='precomputed' takes its matrix: {error}"
        ) from error
