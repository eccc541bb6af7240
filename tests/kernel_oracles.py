"""Every kernel of the table written out with numpy, or taken from scikit-learn; rows are (m, k) and (n, k)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import kernels as gp
from sklearn.metrics import pairwise

Array = np.ndarray[Any, Any]


def _distance(x: Array, y: Array, p: float = 2.0) -> Array:
    return cdist(x, y, "chebyshev") if p == math.inf else cdist(x, y, "minkowski", p=p)


def _power_sums(x: Array, y: Array, term: Callable[[Array], Array]) -> Array:
    return term(np.abs(x[:, None, :] - y[None, :, :])).sum(-1)


def wendland(x: Array, y: Array, bandwidth: float = 1.0, dimension: int | None = None, smoothness: int = 1) -> Array:
    """GPyTorch's piecewise polynomials, written out."""
    j = (x.shape[1] if dimension is None else dimension) // 2 + smoothness + 1
    r = _distance(x, y) / bandwidth
    polynomials = (
        lambda r: 1,
        lambda r: (j + 1) * r + 1,
        lambda r: 1 + (j + 2) * r + (j**2 + 4 * j + 3) / 3 * r**2,
        lambda r: 1 + (j + 3) * r + (6 * j**2 + 36 * j + 45) / 15 * r**2 + (j**3 + 9 * j**2 + 23 * j + 15) / 15 * r**3,
    )
    return np.maximum(1 - r, 0) ** (j + smoothness) * polynomials[smoothness](r)


def ntk(x: Array, y: Array, bias: float = 0.0, depth: int = 2) -> Array:
    """The recursion over arc-cosine kernels."""
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)[None, :]
    inner = x @ y.T
    tangent = inner + bias**2
    for _ in range(depth - 1):
        u = np.clip(inner / lengths, -1, 1)
        kappa0 = 1 - np.arccos(u) / np.pi
        kappa1 = u * kappa0 + np.sqrt(1 - u**2) / np.pi
        inner = lengths * kappa1
        tangent = tangent * kappa0 + inner + bias**2
    return tangent


def _unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


ORACLES: dict[str, Callable[..., Array]] = {
    "Laplace": lambda x, y, bandwidth=1.0, p=1.0: np.exp(-_distance(x, y, p) / bandwidth),
    "Gaussian": lambda x, y, bandwidth=1.0: pairwise.rbf_kernel(x, y, 1 / (2 * bandwidth**2)),
    "ExponentialPower": lambda x, y, bandwidth=1.0, p=2.0, q=1.0: np.exp(-((_distance(x, y, p) / bandwidth) ** q)),
    "ProductLaplace": lambda x, y, bandwidth=1.0, p=1.0: np.exp(-_power_sums(x, y, lambda d: (d / bandwidth) ** p)),
    "SumPowerLaplace": lambda x, y, bandwidth=1.0, p=1.0, q=1.0, c0=0.0: (
        (c0 + _power_sums(x, y, lambda d: np.exp(-((d / bandwidth) ** p)))) ** q
    ),
    "Matern": lambda x, y, bandwidth=1.0, nu=1.5: gp.Matern(bandwidth, nu=nu)(x, y),
    "RationalQuadratic": lambda x, y, bandwidth=1.0, alpha=1.0: gp.RationalQuadratic(bandwidth, alpha)(x, y),
    "Cauchy": lambda x, y, bandwidth=1.0: 1 / (1 + _distance(x, y) ** 2 / bandwidth**2),
    "Dispersal": lambda x, y, bandwidth=1.0, gamma=1.0: np.exp(-(_distance(x, y) ** gamma) / bandwidth),
    "Periodic": lambda x, y, bandwidth=1.0, period=1.0: np.exp(
        -2 * _power_sums(x, y, lambda d: np.sin(np.pi * d / period) ** 2) / bandwidth**2
    ),
    "Wendland": wendland,
    "Linear": lambda x, y, offset=0.0: pairwise.linear_kernel(x, y) + offset,
    "Polynomial": lambda x, y, degree=3, gamma=1.0, coef0=1.0: pairwise.polynomial_kernel(x, y, degree, gamma, coef0),
    "Sigmoid": lambda x, y, gamma=1.0, coef0=1.0: pairwise.sigmoid_kernel(x, y, gamma, coef0),
    "Cosine": pairwise.cosine_similarity,
    "NTK": ntk,
    "SphereNTK": lambda x, y, bias=0.0, depth=2: ntk(_unit(x), _unit(y), bias, depth),
}

SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "Laplace": ({}, *({"bandwidth": 2.5, "p": p} for p in (0.5, 1.3, 2, 3, math.inf))),
    "Gaussian": ({}, {"bandwidth": 0.7}),
    "ExponentialPower": ({}, {"bandwidth": 2.0, "p": 1.3, "q": 0.9}, {"p": 2, "q": 2}, {"p": 1, "q": 1.7}),
    "ProductLaplace": ({}, {"bandwidth": 2.0, "p": 1.7}, {"p": 2}),
    "SumPowerLaplace": ({}, {"bandwidth": 2.0, "p": 1.4, "q": 2, "c0": 0.3}, {"p": 2, "q": 2.3}),
    "Matern": tuple({"bandwidth": 1.7, "nu": nu} for nu in (0.5, 1.5, 2.5)),
    "RationalQuadratic": ({}, {"bandwidth": 1.5, "alpha": 0.6}),
    "Cauchy": ({}, {"bandwidth": 3.0}),
    "Dispersal": ({}, {"bandwidth": 3.0, "gamma": 1.3}, {"gamma": 2}),
    "Periodic": ({}, {"bandwidth": 1.4, "period": 3.1}),
    "Wendland": (
        *({"bandwidth": 4.0, "smoothness": k} for k in (0, 1, 2, 3)),
        {"bandwidth": 4.0, "dimension": 9, "smoothness": 2},
    ),
    "Linear": ({}, {"offset": 0.7}),
    "Polynomial": ({}, {"degree": 2, "gamma": 0.4, "coef0": 0.2}, {"degree": 5, "gamma": 0.3}),
    "Sigmoid": ({}, {"gamma": 0.3, "coef0": -0.2}),
    "Cosine": ({},),
    "NTK": ({}, {"depth": 1, "bias": 0.5}, {"depth": 4, "bias": 0.3}),
    "SphereNTK": ({}, {"depth": 3, "bias": 0.4}),
}
CASES = [(name, settings) for name, every in SETTINGS.items() for settings in every]
