"""The table of kernels: a row here is all there is to a kernel; tests, documentation and benchmarks read it."""

from __future__ import annotations

import math
from typing import Any

from ..ir.functions import FUNCTIONS
from .kernel_row import COLUMNS, Hyper, Option, Row

acos, exp, maximum, sin, sqrt, tanh, where = (
    FUNCTIONS[name] for name in ("acos", "exp", "maximum", "sin", "sqrt", "tanh", "where")
)

PI = math.pi
_SERIES_ENDS = 0.0625  # haversine h up to which the series is taken
_ARCSINE = tuple(math.comb(2 * n, n) / (4**n * (2 * n + 1)) for n in range(13))
"""Coefficients of asin(√h) / √h, enough for float64 below ``_SERIES_ENDS``."""


def matern(s: Any, bandwidth: Any, nu: float) -> Any:
    """Return Matérn's kernel from the sum of squares."""
    r = sqrt(s) * (math.sqrt(2 * nu) / bandwidth)
    if nu == 0.5:
        return exp(-r)
    if nu == 1.5:
        return (1 + r) * exp(-r)
    return (1 + r + r * r / 3) * exp(-r)


def wendland(s: Any, bandwidth: Any, dimension: Any, smoothness: int) -> Any:
    """Return Wendland's function of the distance, 0 beyond the bandwidth."""
    r = sqrt(s) / bandwidth
    inside = maximum(1 - r, 0)
    j = (dimension / 2).floor() + smoothness + 1
    if smoothness == 0:
        polynomial: Any = 1
    elif smoothness == 1:
        polynomial = (j + 1) * r + 1
    elif smoothness == 2:
        polynomial = 1 + (j + 2) * r + (j * j + 4 * j + 3) / 3 * r * r
    else:
        cubic = (j * j * j + 9 * j * j + 23 * j + 15) / 15
        polynomial = 1 + (j + 3) * r + (2 * j * j + 12 * j + 15) / 5 * r * r + cubic * r * r * r
    return inside ** (j + smoothness) * polynomial


def _half_chord(s: Any, length: Any, gap: Any) -> Any:
    """sin²(θ/2) of the angle between two rows, exact where it is small.

    ``length`` is the product of their lengths, ``gap`` the difference; zero rows are at right angles to all.
    """
    chord = (s - gap * gap) / (4 * length)
    chord = where(chord > 1, 1, where(chord < 0, 0, chord))
    return where(length == 0, 0.5, chord)


def _angle(h: Any) -> Any:
    """Return the angle θ of h = sin²(θ/2), with its digits near 0 and near π."""
    small = where(h < 0.5, h, 1 - h)
    series: Any = _ARCSINE[-1]
    for coefficient in reversed(_ARCSINE[:-1]):
        series = series * small + coefficient
    angle = where(small < _SERIES_ENDS, 2 * sqrt(small) * series, acos(1 - 2 * small))
    return where(h < 0.5, angle, PI - angle)


def _network(h: Any, length: Any, depth: int, bias: Any) -> Any:
    """Return the neural tangent kernel of a ReLU network of ``depth`` layers whose biases start at zero.

    Angles are kept as h = sin²(θ/2), so that equal and nearly equal rows keep their digits.
    """
    tangent = length * (1 - 2 * h) + bias * bias
    for _ in range(depth - 1):
        angle = _angle(h)
        sine = 2 * sqrt(h * (1 - h))
        h = h + (angle * (1 - 2 * h) - sine) / (2 * PI)
        h = where(h < 0, 0, h)
        tangent = tangent * (1 - angle / PI) + length * (1 - 2 * h) + bias * bias
    return tangent


def network(s: Any, a: Any, b: Any, bias: Any, depth: int) -> Any:
    """Return the neural tangent kernel from squared distance and squared lengths."""
    left, right = sqrt(a), sqrt(b)
    return _network(_half_chord(s, left * right, left - right), left * right, depth, bias)


def network_on_sphere(s: Any, a: Any, b: Any, bias: Any, depth: int) -> Any:
    """Return the same of the rows divided by their lengths."""
    left, right = sqrt(a), sqrt(b)
    return _network(_half_chord(s, left * right, left - right), 1, depth, bias)


def cosine(s: Any, a: Any, b: Any) -> Any:
    """Return the cosine of the angle between two rows, 0 for rows of zeros."""
    length = sqrt(a) * sqrt(b)
    return where(length == 0, 0, s / length)


def _square(d: Any) -> Any:
    return d * d


def _product(x: Any, y: Any) -> Any:
    return x * y


def _bandwidth(meaning: str = "length over which the kernel falls") -> Hyper:
    return Hyper("bandwidth", 1.0, "positive", meaning)


def _power(default: float, meaning: str = "power of the norm, up to infinity") -> Hyper:
    return Hyper("p", default, "positive", meaning, exponent=True)


_SMOOTHNESS = Option(
    "smoothness", 1, "0, 1, 2 or 3", lambda k: k in range(4), "half the number of continuous derivatives"
)
_DEPTH = Option("depth", 2, "an integer from 1 to 8", lambda n: n in range(1, 9), "layers of weights")
_BIAS = Hyper("bias", 0.0, "real", "scale of the biases, which start at zero")
_GAMMA = Hyper("gamma", 1.0, "real", "factor of the inner product")
_COEF0 = Hyper("coef0", 1.0, "real", "added to the inner product")
_RASMUSSEN = "Rasmussen and Williams, Gaussian processes for machine learning, 2006, section 4.2"
_TANGENT = (
    "Jacot, Gabriel and Hongler, Neural tangent kernel, 2018; Cho and Saul, Kernel methods for deep learning, 2009"
)

_ROWS = (
    Row(
        "Laplace", "exp(−‖x − y‖ₚ / bandwidth)", lambda r, bandwidth: exp(-(r / bandwidth)),
        hyper=(_bandwidth(), _power(1.0)), summary="exponential of a norm",
    ),
    Row(
        "Gaussian", "exp(−‖x − y‖² / (2 bandwidth²))",
        lambda s, bandwidth: exp(-(s / (2 * (bandwidth * bandwidth)))), _square,
        hyper=(_bandwidth("standard deviation"),), summary="squared exponential, RBF",
    ),
    Row(
        "ExponentialPower", "exp(−‖x − y‖ₚ^q / bandwidth^q)",
        lambda r, bandwidth, q: exp(-((r / bandwidth) ** q)),
        hyper=(
            _bandwidth(), _power(2.0),
            Hyper("q", 1.0, "positive", "power of the distance; positive definite for q ≤ p ≤ 2", exponent=True),
        ),
        summary="between Laplace (q = 1) and Gaussian (p = q = 2)",
    ),
    Row(
        "ProductLaplace", "exp(−Σ |x − y|ᵖ / bandwidthᵖ)",
        lambda s, bandwidth, p: exp(-(s / bandwidth**p)), lambda d, p: abs(d) ** p,
        hyper=(_bandwidth(), Hyper("p", 1.0, "positive", "power of each difference", exponent=True)),
        summary="product over the columns of one-dimensional kernels",
    ),
    Row(
        "SumPowerLaplace", "(c0 + Σ exp(−|x − y|ᵖ / bandwidthᵖ))^q",
        lambda s, c0, q: (c0 + s) ** q, lambda d, bandwidth, p: exp(-((abs(d) / bandwidth) ** p)),
        hyper=(
            _bandwidth(), Hyper("p", 1.0, "positive", "power of each difference", exponent=True),
            Hyper("q", 1.0, "positive", "power of the sum", exponent=True),
            Hyper("c0", 0.0, "not negative", "added to the sum"),
        ),
        diagonal="(c0 + columns) ** q", summary="additive over the columns",
    ),
    Row(
        "Matern", "2^(1−nu) / Γ(nu) (√(2nu) r)^nu K_nu(√(2nu) r), r = ‖x − y‖ / bandwidth", matern, _square,
        hyper=(_bandwidth(),),
        options=(Option("nu", 1.5, "0.5, 1.5 or 2.5", lambda nu: nu in (0.5, 1.5, 2.5), "smoothness"),),
        summary="exp(−r) for nu = 1/2; as often differentiable as nu is above 1/2", source=_RASMUSSEN,
    ),
    Row(
        "RationalQuadratic", "(1 + ‖x − y‖² / (2 alpha bandwidth²))^−alpha",
        lambda s, bandwidth, alpha: (1 + s / (2 * alpha * (bandwidth * bandwidth))) ** (-alpha), _square,
        hyper=(_bandwidth(), Hyper("alpha", 1.0, "positive", "mixture of scales; Gaussian at infinity")),
        summary="mixture of Gaussians of many bandwidths", source=_RASMUSSEN,
    ),
    Row(
        "Cauchy", "1 / (1 + ‖x − y‖² / bandwidth²)", lambda s, bandwidth: 1 / (1 + s / (bandwidth * bandwidth)),
        _square, hyper=(_bandwidth(),), summary="heavy tails",
    ),
    Row(
        "Dispersal", "exp(−‖x − y‖^gamma / bandwidth)",
        lambda s, bandwidth, gamma: exp(-(s ** (gamma / 2) / bandwidth)), _square,
        hyper=(
            _bandwidth("in units of the distance to the power gamma"),
            Hyper("gamma", 1.0, "positive", "power of the distance", exponent=True),
        ),
        summary="exponential of a power of the Euclidean distance",
    ),
    Row(
        "Periodic", "exp(−2 Σ sin²(π (x − y) / period) / bandwidth²)",
        lambda s, bandwidth: exp(-(2 * s / (bandwidth * bandwidth))),
        lambda d, period: _square(sin(d * (PI / period))),
        hyper=(_bandwidth("in units of the sine"), Hyper("period", 1.0, "positive", "length of the period")),
        summary="periodic in every column", source="MacKay, Introduction to Gaussian processes, 1998",
    ),
    Row(
        "Wendland",
        "max(1 − r, 0)^(j + q) p_q(r), r = ‖x − y‖ / bandwidth, q = smoothness, j = ⌊dimension / 2⌋ + q + 1", wendland,
        _square,
        hyper=(
            _bandwidth("distance from which on the kernel is 0"),
            Hyper(
                "dimension", COLUMNS, "positive", "number of columns for which it is positive definite", rounded=True
            ),
        ),
        options=(_SMOOTHNESS,),
        summary="compact support; p_0 = 1, p_1 = (j + 1) r + 1, p_q of degree q",
        source="Wendland, Piecewise polynomial, positive definite and compactly supported radial functions of minimal\n"
        "degree, 1995",
    ),
    Row(
        "Linear", "x·y + offset", lambda s, offset: s + offset, _product,
        hyper=(Hyper("offset", 0.0, "real", "added to the inner product"),), stationary=False,
        diagonal="a + offset", summary="inner product",
    ),
    Row(
        "Polynomial", "(gamma x·y + coef0)^degree", lambda s, gamma, coef0, degree: (gamma * s + coef0) ** degree,
        _product, hyper=(Hyper("degree", 3.0, "positive", "power", exponent=True), _GAMMA, _COEF0), stationary=False,
        diagonal="(gamma * a + coef0) ** degree", summary="power of the inner product",
    ),
    Row(
        "Sigmoid", "tanh(gamma x·y + coef0)", lambda s, gamma, coef0: tanh(gamma * s + coef0), _product,
        hyper=(_GAMMA, _COEF0), stationary=False, diagonal="tanh(gamma * a + coef0)",
        summary="hyperbolic tangent of the inner product; not positive definite",
    ),
    Row(
        "Cosine", "x·y / (‖x‖ ‖y‖)", cosine, _product, stationary=False,
        summary="cosine of the angle; 0 for rows of zeros; of float32 rows of lengths from 1e-15 to 1e18",
    ),
    Row(
        "NTK", "neural tangent kernel of a ReLU network", network, lambda x, y: _square(x - y),
        hyper=(_BIAS,), options=(_DEPTH,), stationary=False, diagonal="depth * (a + bias ** 2)",
        summary="Θ ← Θ κ₀(u) + ‖x‖ ‖y‖ κ₁(u) + bias² and u ← κ₁(u) a layer, from Θ = x·y + bias² and the cosine u of "
        "the angle at depth 1; κ₀(u) = 1 − arccos(u) / π, κ₁(u) = u κ₀(u) + √(1 − u²) / π",
        source=_TANGENT,
    ),
    Row(
        "SphereNTK", "neural tangent kernel of x / ‖x‖ and y / ‖y‖", network_on_sphere, lambda x, y: _square(x - y),
        hyper=(_BIAS,), options=(_DEPTH,), stationary=False, diagonal="depth * (1 + bias ** 2)",
        summary="`NTK` on the unit sphere", source=_TANGENT,
    ),
)  # fmt: skip

KERNELS: dict[str, Row] = {row.name: row for row in _ROWS}
