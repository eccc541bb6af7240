"""Spectral mixtures: stationary kernels whose spectral density is a sum of Gaussians."""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from operator import add
from typing import Any

import numpy as np
import torch

from ..arrays import is_numpy_like, unwrap
from ..errors import DtypeError, ParameterError, ShapeError
from ..ir.functions import FUNCTIONS
from ..ir.node import Node, var
from ..ir.reductions import REDUCTIONS
from ..ir.simplify import simplify
from ..ir.traced import Traced
from ..torch_ops.checks import is_number
from .hyperparameters import shown, value_of
from .inputs import FLOATS, readable
from .kernel import Kernel
from .kernel_form import ROWS, WEIGHT, Form

_FREQUENCY = "x3"
_NAMES = "weights", "means", "scales"
_MOST_JOINED = 64
"""Most Gaussians of a product of mixtures, whose map names two operands for each."""


def _gap() -> Traced:
    return Traced(Node("sub", (var(ROWS[0]), var(ROWS[1]))))


def _wave(frequency: str) -> Traced:
    return FUNCTIONS["cos"](_gap() * (2 * math.pi) * Traced(var(frequency)))


def _square(length: str) -> Traced:
    scaled = _gap() * Traced(var(length))
    return scaled * scaled


def _component() -> Form:
    """Return the form of one Gaussian: squares over its length scales are summed, cosines of its periods multiplied."""
    sums, waves = Traced(var("s0")), Traced(var("s1"))
    maps = simplify([_square(WEIGHT).node, _wave(_FREQUENCY).node])
    (output,) = simplify([(Traced(var("scale")) * (FUNCTIONS["exp"](sums / -2) * waves)).node])
    return Form(tuple(maps), (REDUCTIONS["sum"], REDUCTIONS["prod"]), output, ("scale",), (WEIGHT, _FREQUENCY))


@lru_cache(maxsize=16)
def _product(count: int) -> Form:
    """Return the form of the product over the columns of mixtures in each."""
    names = [("scale" if q == 0 else f"scale_{q + 1}", f"x{2 + 2 * q}", f"x{3 + 2 * q}") for q in range(count)]
    terms = [
        Traced(var(scale)) * (FUNCTIONS["exp"](_square(length) / -2) * _wave(frequency))
        for scale, length, frequency in names
    ]
    maps = simplify([reduce(add, terms).node])
    operands = tuple(name for _, *pair in names for name in pair)
    scales = tuple(scale for scale, *_ in names)
    return Form(tuple(maps), (REDUCTIONS["prod"],), var("s0"), scales, operands)


_FORM = _component()


def SpectralMixture(weights: Any, means: Any, scales: Any, *, separable: bool = False) -> Kernel:
    """Return the kernel whose spectral density is a mixture of Gaussians.

    ``k(x, y) = Σ_q weights_q Π_d exp(-2 π² τ_d² scales_qd²) cos(2 π τ_d means_qd)`` with ``τ = x - y``, for one or more
    columns d. With ``separable`` it is ``Π_d Σ_q weights_q exp(-2 π² τ_d² scales_qd²) cos(2 π τ_d means_qd)``, which is
    GPyTorch's. Either is one fused kernel.

    Parameters
    ----------
    weights : array, shape (..., q)
        Weight of each Gaussian.
    means : array, shape (..., q, d)
        Their centres, frequencies in periods per unit of x; (q,) for rows of one column.
    scales : array, shape (..., q, d)
        Their standard deviations, above 0; (q,) for rows of one column.
    separable : bool
        Whether every column has a mixture of its own, of which the product is taken.

    Returns
    -------
    Kernel
        Its hyperparameters are those of its parts: a ``scale``, the ``lengthscales`` 1 / (2 π scales_q) and, as further
        ``lengthscales``, the periods 1 / means_q, of each.

    Raises
    ------
    ShapeError
        For arrays that do not fit each other; when called, for rows with another number of columns.
    ParameterError
        For scales that are not positive, or means that are not finite.

    Notes
    -----
    Gradients exist for rows, weights, means and scales, up to the third order; at a mean of 0 the first. The matrix
    costs one pass with a cosine for each pair of rows, column and Gaussian; ``k.matmul`` does not store it. Source:
    [1]_.

    References
    ----------
    .. [1] A. G. Wilson, R. P. Adams, "Gaussian process kernels for pattern discovery and extrapolation", ICML 2013.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> k = km.SpectralMixture([1.0, 0.5], means=[0.0, 1.0], scales=[0.1, 0.01])
    >>> k(np.array([[0.0], [0.5], [1.0]])).round(2)
    array([[1.5 , 0.45, 1.32],
           [0.45, 1.5 , 0.45],
           [1.32, 0.45, 1.5 ]])
    """
    values = [_array(value, name) for value, name in zip((weights, means, scales), _NAMES, strict=True)]
    weight, mean, scale = values
    if mean.dim() == scale.dim() == weight.dim() == 1:
        mean, scale = mean.unsqueeze(-1), scale.unsqueeze(-1)
    count = weight.shape[-1]
    if not count or mean.shape[-2:] != scale.shape[-2:] or mean.shape[-2:-1] != (count,):
        listing = ", ".join(f"{name} {tuple(value.shape)}" for name, value in zip(_NAMES, values, strict=True))
        raise ShapeError(f"weights have shape (..., q), means and scales (..., q, d); given are {listing}")
    if readable(scale) and not bool(((scale > 0) & scale.isfinite()).all()):
        raise ParameterError("scales of SpectralMixture must be above 0 and finite everywhere")
    if readable(mean) and not bool(mean.isfinite().all()):
        raise ParameterError("means of SpectralMixture must be finite everywhere")
    lengths, periods = (2 * math.pi * scale).reciprocal(), _periods(mean)
    text = f"SpectralMixture({', '.join(f'{name}={shown(value)}' for name, value in zip(_NAMES, values, strict=True))}"
    if separable:
        if count > _MOST_JOINED:
            raise ParameterError(f"separable=True takes at most {_MOST_JOINED} Gaussians, these are {count}")
        form = _product(count)
        own = {name: weight[..., q] for q, name in enumerate(form.parameters)}
        both = [each[..., q, :] for q in range(count) for each in (lengths, periods)]
        return Kernel.made(
            form, own, dict(zip(form.weights, both, strict=True)), f"{text}, separable=True)", named=True
        )
    parts = [
        Kernel.made(
            _FORM, {"scale": weight[..., q]}, {WEIGHT: lengths[..., q, :], _FREQUENCY: periods[..., q, :]}, "",
            named=True,
        )
        for q in range(count)
    ]  # fmt: skip
    form, own, lengthscales, *_ = reduce(add, parts).__reduce__()[1]
    return Kernel.made(form, own, lengthscales, f"{text})", named=True)


def _array(value: Any, name: str) -> torch.Tensor:
    label = f"{name} of SpectralMixture"
    (found,), _ = unwrap(np.asarray(value) if is_number(value) else value, names=[label])
    if is_numpy_like(value):
        found = found.to(torch.float64)
    if found.dtype not in FLOATS:
        raise DtypeError(f"{label} is {found.dtype}; pass floating point")
    if not found.dim():
        raise ShapeError(f"{label} is a number; it has one entry for each Gaussian")
    return value_of(found, name)


def _periods(means: torch.Tensor) -> torch.Tensor:
    """Reciprocals; of 0, at which the kernel is stationary in the mean, infinite without a gradient."""
    is_zero = means == 0
    return torch.where(is_zero, math.inf, torch.where(is_zero, 1, means).reciprocal())
