"""The table of kernels: a row here is all there is to a kernel; tests, documentation and benchmarks read it."""

from __future__ import annotations

from typing import Any

from ..ir.functions import FUNCTIONS
from . import kernel_formulas
from .kernel_row import COLUMNS, Hyper, Option, Row

exp, sin, tanh = (FUNCTIONS[name] for name in ("exp", "sin", "tanh"))


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
        "Matern", "Matérn's function of ‖x − y‖ / bandwidth", kernel_formulas.matern, _square, hyper=(_bandwidth(),),
        options=(Option("nu", 1.5, "0.5, 1.5 or 2.5", lambda nu: nu in (0.5, 1.5, 2.5), "smoothness"),),
        summary="as often differentiable as nu is above 1/2",
    ),
    Row(
        "RationalQuadratic", "(1 + ‖x − y‖² / (2 alpha bandwidth²))^−alpha",
        lambda s, bandwidth, alpha: (1 + s / (2 * alpha * (bandwidth * bandwidth))) ** (-alpha), _square,
        hyper=(_bandwidth(), Hyper("alpha", 1.0, "positive", "mixture of scales; Gaussian at infinity")),
        summary="mixture of Gaussians of many bandwidths",
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
        lambda d, period: _square(sin(d * (kernel_formulas.PI / period))),
        hyper=(_bandwidth("in units of the sine"), Hyper("period", 1.0, "positive", "length of the period")),
        summary="periodic in every column",
    ),
    Row(
        "Wendland", "Wendland's function of ‖x − y‖ / bandwidth", kernel_formulas.wendland, _square,
        hyper=(
            _bandwidth("distance from which on the kernel is 0"),
            Hyper(
                "dimension", COLUMNS, "positive", "number of columns for which it is positive definite", rounded=True
            ),
        ),
        options=(_SMOOTHNESS,),
        summary="compact support",
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
        "Cosine", "x·y / (‖x‖ ‖y‖)", kernel_formulas.cosine, _product, stationary=False,
        summary="cosine of the angle; 0 for rows of zeros; of float32 rows of lengths from 1e-15 to 1e18",
    ),
    Row(
        "NTK", "neural tangent kernel of a ReLU network", kernel_formulas.network, lambda x, y: _square(x - y),
        hyper=(_BIAS,), options=(_DEPTH,), stationary=False, diagonal="depth * (a + bias ** 2)",
        summary="Θ ← Θ κ₀ + ‖x‖ ‖y‖ κ₁ + bias² a layer, from x·y + bias² at depth 1",
    ),
    Row(
        "SphereNTK", "the same of x / ‖x‖ and y / ‖y‖", kernel_formulas.network_on_sphere, lambda x, y: _square(x - y),
        hyper=(_BIAS,), options=(_DEPTH,), stationary=False, diagonal="depth * (1 + bias ** 2)",
        summary="neural tangent kernel on the unit sphere",
    ),
)  # fmt: skip

KERNELS: dict[str, Row] = {row.name: row for row in _ROWS}
