"""The largest singular values and their vectors, by products with a matrix and its transpose."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from ..arrays import Wrap, unwrap
from ..checks import integer, one_of, positive
from ..errors import (
    DtypeError,
    GradientError,
    KernmantleWarning,
    LinearAlgebraError,
    ParameterError,
    ShapeError,
    instead_of,
)
from ..torch_ops.outside import outside
from .arguments import check_dtype, check_reverse
from .krylov import Sizes, default_tolerance, extreme_pairs
from .operators import is_array
from .orthogonal import orthonormal
from .randomised import Apply, error_bound, normal
from .solution import described

Method = Literal["auto", "direct", "krylov", "randomised"]
SHARE, FEWEST = 0.1, 500
"""Share of the singular values up to which, and order from which on, "auto" takes products instead of all of them."""
NOT_REACHED, NOT_FINITE = 1, 2


class SVD(tuple[Any, Any, Any]):
    """Singular triples in descending order: unpacks to ``u, s, vh``.

    Attributes
    ----------
    u, s, vh : array, shapes (m, k), (k,) and (k, n)
    residual : array, shape (k,)
        ``max(‖a v - s u‖, ‖aᵀ u - s v‖) / s[0]`` of each triple, of fresh products: some singular value of a is within
        ``residual * s[0]`` of each s.
    error : array, shape ()
        Estimated bound of ``‖a - u s vh‖``, in the spectral norm: too small with a probability of 1e-6.
    info : int
        0; 1: a residual is above the tolerance; 2: NaN or infinities.
    ran : str
        What was used.
    """

    residual: Any
    error: Any
    info: int
    ran: str

    def __new__(cls, u: Any, s: Any, vh: Any, residual: Any, error: Any, info: int, ran: str) -> SVD:  # noqa: D102
        self = super().__new__(cls, (u, s, vh))
        self.residual, self.error, self.info, self.ran = residual, error, info, ran
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (*self, self.residual, self.error, self.info, self.ran)

    @property
    def u(self) -> Any:
        """Left vectors."""
        return self[0]

    @property
    def s(self) -> Any:
        """Singular values."""
        return self[1]

    @property
    def vh(self) -> Any:
        """Right vectors, as rows."""
        return self[2]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={described(t)}" for name, t in zip(("u", "s", "vh"), self, strict=True))
        return f"SVD({shapes}, info={self.info}, ran={self.ran!r})"


@dataclass(frozen=True)
class _Matrix:
    """Products with a matrix (m, n) and with its transpose."""

    apply: Apply
    adjoint: Apply
    shape: tuple[int, int]
    like: torch.Tensor
    wrap: Wrap
    dense: torch.Tensor | None = None

    @staticmethod
    def of(a: Any) -> _Matrix:
        """Checked: an array of two axes, or an operator with ``shape``, ``dtype``, ``@`` and ``T``."""
        if is_array(a):
            (t,), wrap = unwrap(a, names=["a"])
            if t.dim() != 2:
                raise ShapeError(f"a must be one matrix, (m, n), it has shape {tuple(t.shape)}; loop over a batch")
            if not t.numel():
                raise ShapeError(f"a has shape {tuple(t.shape)}: without entries it has no singular values")
            check_dtype(t, "a")
            check_reverse(t, "a")
            t = t.resolve_neg()
            return _Matrix(lambda v: t @ v, lambda v: t.mT @ v, (t.shape[0], t.shape[1]), t, wrap, t)
        shape, other = tuple(getattr(a, "shape", ())), getattr(a, "T", None)
        if len(shape) != 2 or not hasattr(a, "__matmul__") or other is None:
            raise ShapeError(f"a must be a matrix, or an operator with .shape, @ and .T, not {type(a).__name__}")
        if not isinstance(getattr(a, "dtype", None), torch.dtype):
            raise DtypeError(f"a has dtype {getattr(a, 'dtype', None)!r}; svd takes operators on tensors, and arrays")
        like = torch.empty(0, dtype=a.dtype, device=getattr(a, "device", "cpu"))
        check_dtype(like, "a")
        return _Matrix(lambda v: a @ v, lambda v: other @ v, (shape[0], shape[1]), like, lambda found: found)


@outside
@instead_of(
    full_matrices="the k largest singular values and their vectors are computed; torch.linalg.svd has all",
    compute_uv="singular values come with their vectors", n_components="how many there are is k",
)  # fmt: skip
def svd(
    a: Any,
    k: int,
    *,
    method: Method = "auto",
    tolerance: float | None = None,
    oversample: int = 10,
    power: int = 2,
    generator: torch.Generator | None = None,
    check_errors: bool = False,
) -> SVD:
    """Compute the k largest singular values of a matrix and their vectors.

    Parameters
    ----------
    a : array, shape (m, n), or operator
        float32 or float64. An operator has ``shape``, ``dtype``, ``@`` on tensors and ``T``, its transpose.
    k : int
        At most min(m, n).
    method : {"auto", "direct", "krylov", "randomised"}
        Direct: all of them, by LAPACK or cuSOLVER through torch. Krylov: a block Krylov iteration for the smaller of
        ``aᵀ a`` and ``a aᵀ``, then a Rayleigh-Ritz projection of a itself; every triple has a residual of at most the
        tolerance, or ``info`` says so. Randomised: a few products with random columns, as accurate as ``residual`` and
        ``error`` say. "auto" takes Krylov for operators, and for up to a tenth of the values of matrices of order 500
        and more that need no gradient.
    tolerance : float, optional
        Of the residuals; by default Krylov aims at max(20, √n) times the unit of the type and is content with four
        times that, and randomised has none.
    oversample, power : int
        Of the randomised method: additional random columns, and products with ``a aᵀ`` that damp what is small.
    generator : torch.Generator, optional
        Source of its random columns; by default they are the same every time.
    check_errors : bool
        Raise where ``info`` is not 0, instead of warning.

    Returns
    -------
    SVD

    Raises
    ------
    LinearAlgebraError
        With ``check_errors``.
    ShapeError, DtypeError, ParameterError, GradientError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    The product with the transpose squares the condition, so that Krylov finds singular values down to about the square
    root of the unit times the largest; residuals are measured with a itself, so that ``info`` tells where that matters.
    Gradients exist for the direct method alone. Cost: about 6 k + 400 columns of products for Krylov, and
    (2 + 2 power) (k + oversample) + 2 k + 10 for randomised. Sources: Halko, Martinsson and Tropp, 2011, with its
    bound by random probes, lemma 4.1.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> a = torch.diag(torch.tensor([5.0, 3.0, 1.0]))
    >>> u, s, vh = km.linalg.svd(a, 2)
    >>> s
    tensor([5., 3.])
    """
    operator = _Matrix.of(a)
    least = min(operator.shape)
    one_of(method, "method", get_args(Method))
    k = integer(k, "k", 1, least, f" for a matrix of shape {operator.shape}")
    if tolerance is not None:
        positive(tolerance, "tolerance")
    oversample, power = integer(oversample, "oversample", 0), integer(power, "power", 0)
    differentiable = operator.dense is not None and operator.dense.requires_grad and torch.is_grad_enabled()
    if method == "auto":
        part = operator.dense is None or (k <= SHARE * least and least >= FEWEST and not differentiable)
        method = "krylov" if part else "direct"
    if method == "direct":
        return _direct(operator, k, check_errors)
    if differentiable:
        raise GradientError(f"a requires a gradient, which method={method!r} has none of: pass method='direct'")
    with torch.no_grad():
        source = generator or torch.Generator(operator.like.device).manual_seed(k)
        if method == "krylov":
            own = default_tolerance(max(operator.shape), operator.like.dtype)
            # Rounding of the products themselves leaves up to twice the default, by the vendor's order of summation.
            aim, limit = (own, 4 * own) if tolerance is None else (float(tolerance),) * 2
            u, s, v, ran = _krylov(operator, k, aim)
        else:
            limit = math.inf if tolerance is None else float(tolerance)
            u, s, v, ran = _randomised(operator, k, min(least, k + oversample), power, source)
        return _judged(operator, (u, s, v), limit, ran, source, check_errors)


def _direct(operator: _Matrix, k: int, check_errors: bool) -> SVD:
    if operator.dense is None:
        raise ParameterError("of an operator a part of the singular values is found: method='krylov' or 'randomised'")
    u, s, vh = _small(operator.dense)
    beyond = s[k].detach().clone() if k < len(s) else s.detach()[0] * torch.finfo(s.dtype).eps
    # Copies, so that a few vectors do not keep all.
    some = (u[:, :k].clone(), s[:k].clone(), vh[:k].clone())
    with torch.no_grad():
        residual = _residuals(operator, some[0], some[1], some[2].mT)
    info = 0 if math.isfinite(float(residual.amax())) else NOT_FINITE
    _tell(info, 0.0, 0.0, check_errors)
    return _wrapped(operator, some, residual, beyond, info, "torch.linalg.svd")


def _residuals(operator: _Matrix, u: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the residual of each triple, by fresh products, relative to the largest singular value."""
    gaps = (operator.apply(v) - u * s).norm(dim=0), (operator.adjoint(u) - v * s).norm(dim=0)
    return torch.maximum(*gaps) / s[0].clamp_min(torch.finfo(s.dtype).tiny)


def _wrapped(
    operator: _Matrix, triples: tuple[torch.Tensor, torch.Tensor, torch.Tensor], residual: torch.Tensor,
    error: torch.Tensor, info: int, ran: str,
) -> SVD:  # fmt: skip
    """Return arrays of the kind of the operator."""
    u, s, vh = triples
    wrap = operator.wrap
    return SVD(wrap(u), wrap(s), wrap(vh), wrap(residual), wrap(error), info, ran)


def _from_right(operator: _Matrix, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return triples of a in the span of orthonormal right vectors."""
    basis, rest = torch.linalg.qr(operator.apply(v))
    inner, s, vh = _small(rest)
    return basis @ inner, s, v @ vh.mT


def _small(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return all triples of a matrix that is there; NaN for NaN and infinities, on which LAPACK raises."""
    finite = torch.isfinite(a).all()
    u, s, vh = torch.linalg.svd(torch.where(finite, a, torch.eye(*a.shape, dtype=a.dtype, device=a.device)), False)
    return u, torch.where(finite, s, float("nan")), vh


def _transposed(operator: _Matrix) -> _Matrix:
    """Return the transpose."""
    return _Matrix(
        operator.adjoint, operator.apply, (operator.shape[1], operator.shape[0]), operator.like, operator.wrap
    )


def _krylov(operator: _Matrix, k: int, limit: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str]:
    wide = operator.shape[0] < operator.shape[1]
    tall = _transposed(operator) if wide else operator
    n = tall.shape[1]
    like = torch.empty(0, dtype=operator.like.dtype, device=operator.like.device)
    # The residual of aᵀ a, relative to its norm, is that of a times s over the norm of a.
    found = extreme_pairs(lambda x: tall.adjoint(tall.apply(x)), n, k, True, like, limit / 4, Sizes.of(n, k))
    u, s, v = _from_right(tall, orthonormal(found.v))
    ran = f"block Krylov iteration, {found.products} columns of products with a and its transpose"
    return (v, s, u, ran) if wide else (u, s, v, ran)


def _randomised(
    operator: _Matrix, k: int, width: int, power: int, source: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str]:
    random = normal(operator.shape[1], width, operator.like, source)
    left = orthonormal(operator.apply(random), generator=source)
    for _ in range(power):
        left = orthonormal(operator.apply(orthonormal(operator.adjoint(left), generator=source)), generator=source)
    v, s, u = _from_right(_transposed(operator), left)
    ran = f"randomised, {width} columns, {power} powers"
    return u[:, :k].contiguous(), s[:k].clone(), v[:, :k].contiguous(), ran


def _judged(
    operator: _Matrix, triples: tuple[torch.Tensor, torch.Tensor, torch.Tensor], limit: float, ran: str,
    source: torch.Generator, check_errors: bool,
) -> SVD:  # fmt: skip
    """Return the residuals of fresh products, the error of the approximation by random columns, and what follows."""
    u, s, v = triples
    residual = _residuals(operator, u, s, v)
    error = error_bound(operator.apply, lambda z: (u * s) @ (v.mT @ z), operator.shape[1], s, source)
    worst = float(residual.amax())
    info = NOT_FINITE if not math.isfinite(worst) else NOT_REACHED if worst > limit else 0
    _tell(info, worst, limit, check_errors)
    return _wrapped(operator, (u, s, v.mT), residual, error, info, ran)


def _tell(info: int, worst: float, limit: float, check_errors: bool) -> None:
    """Raise, or warn, unless info is 0."""
    if not info:
        return
    why = "a, or products with it, have NaN or infinities"
    if info == NOT_REACHED:
        why = f"a residual of {worst:.2g} is left where {limit:.2g} was asked"
        why += ": take fewer values, a larger tolerance or method='direct'"
    if check_errors:
        raise LinearAlgebraError(f"singular values: {why} (info {info})")
    warnings.warn(f"singular values: {why}", KernmantleWarning, stacklevel=5)
