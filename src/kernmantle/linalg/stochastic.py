"""Traces and log-determinants from products with random vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..checks import integer
from ..errors import ParameterError
from ..torch_ops.outside import outside
from .arguments import random_source
from .implicit import with_gradient_of
from .operators import Product, product_of
from .orthogonal import orthonormal
from .preconditioners import LowRank
from .scaling import exponent, shifted
from .solution import Described
from .spectrum import pairs

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, repr=False)
class Estimate(Described):
    """An estimate and how far off it may be.

    Attributes
    ----------
    value : tensor or float
        The mean over the random vectors.
    error : tensor or float
        For :func:`trace` the standard error over the random vectors. For :func:`logdet` this and an estimate of what
        the recursions miss.
    """

    value: Any
    error: Any


@dataclass(frozen=True)
class _Tridiagonal:
    """Lanczos vectors (steps, n, p) from p unit vectors, and the coefficients (p, steps)."""

    vectors: torch.Tensor
    diagonal: torch.Tensor
    off_diagonal: torch.Tensor

    def pairs(self, steps: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Ritz values (p, steps) and vectors of the small matrices, of the first steps or of all."""
        count = self.diagonal.shape[-1] if steps is None else steps
        off_diagonal = self.off_diagonal[:, : count - 1]
        small = torch.diag_embed(self.diagonal[:, :count])
        return pairs(small + torch.diag_embed(off_diagonal, 1) + torch.diag_embed(off_diagonal, -1))

    def logarithms(self, steps: int | None = None) -> torch.Tensor:
        """Return quadratures ``zᵀ log(a) z`` (p,) for the unit vectors z that the recursions began with."""
        values, vectors = self.pairs(steps)
        return (vectors[:, 0].square() * values.log()).sum(-1)

    def missed(self, n: int) -> torch.Tensor:
        """Estimate, of the mean of the logarithms, what more steps would change, and what rounding has.

        Quadratures of half, three quarters and all of the steps fall towards the limit by differences that shrink at
        least as slowly as from the first to the second; the geometric series of these, twice, was found to cover
        what is left where the differences shrink ever more slowly too. Rounding of products moves eigenvalues by
        the unit of the type times the largest.
        """
        steps = self.diagonal.shape[-1]
        values, vectors = self.pairs()
        weights = vectors[:, 0].square()
        unit = torch.finfo(values.dtype).eps
        rounding = unit * (weights * (values[:, -1:] / values).abs()).sum(-1).mean()
        if steps >= n:
            return rounding
        if steps < _ORDERS:
            return rounding + float("inf")
        half, most, whole = (self.logarithms(count).mean() for count in (steps // 2, 3 * steps // 4, steps))
        last, before = (most - whole).abs(), (half - most).abs()
        ratio = (last / before.clamp_min(torch.finfo(last.dtype).tiny)).clamp_max(_SLOWEST)
        return 2 * last * ratio / (1 - ratio) + rounding


_ORDERS = 8
"""Steps from which on three orders of quadrature say how fast they converge."""
_SLOWEST = 0.98  # ratio of two errors, above which no convergence is assumed


def lanczos(multiply: Function, start: torch.Tensor, steps: int) -> _Tridiagonal:
    """Lanczos recursions of several unit vectors (n, p) side by side, with full orthogonalisation.

    One whose space is exhausted goes on as an identity apart, which adds nothing.
    """
    vectors = [start]
    diagonal: list[torch.Tensor] = []
    off_diagonal: list[torch.Tensor] = []
    least = torch.finfo(start.dtype).eps
    for step in range(steps):
        now = vectors[-1]
        new = multiply(now)
        alpha = (now * new).sum(0)
        alive = now.square().sum(0) > 0
        diagonal.append(alpha.masked_fill(~alive, 1))
        if step == steps - 1:
            break
        size = torch.linalg.vector_norm(new, dim=0)
        previous = torch.stack(vectors)
        for _ in range(2):
            new = new - torch.einsum("snp,sp->np", previous, torch.einsum("snp,np->sp", previous, new))
        beta = torch.linalg.vector_norm(new, dim=0)
        going = beta > least * start.shape[0] ** 0.5 * size
        off_diagonal.append(beta.masked_fill(~going, 0))
        vectors.append((new / beta.masked_fill(~going, 1)).masked_fill(~going, 0))
    between = torch.stack(off_diagonal, -1) if off_diagonal else start.new_empty(start.shape[1], 0)
    return _Tridiagonal(torch.stack(vectors), torch.stack(diagonal, -1), between)


def _signs(operator: Product, count: int, generator: torch.Generator | None) -> torch.Tensor:
    source = random_source(generator, operator.device, operator.size + count)
    draw = torch.rand(operator.size, count, dtype=operator.dtype, device=operator.device, generator=source)
    return (draw - 0.5).sign().masked_fill(draw == 0.5, 1)


def _estimate(samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = samples.shape[0]
    error = samples.std() / count**0.5 if count > 1 else samples.new_full((), float("nan"))
    return samples.mean(), error


@outside
def logdet(
    a: Any,
    *,
    probes: int = 16,
    steps: int = 40,
    preconditioner: LowRank | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate the logarithm of the determinant of a symmetric positive definite operator.

    The mean over random signs z of ``zᵀ log(a) z``, each by a Lanczos recursion (stochastic Lanczos quadrature).

    Parameters
    ----------
    a : array, shape (n, n), or operator
        As of :func:`cg`.
    probes : int
        Random vectors; the standard error falls with their square root.
    steps : int
        Products of each recursion; about twice the square root of the condition number, less with a preconditioner.
        From 8 on ``error`` can say what they miss.
    preconditioner : LowRank, optional
        Of :func:`nystrom` or :func:`pivoted_cholesky`: its determinant is exact, and what is left to estimate
        varies less.
    generator : torch.Generator, optional
        Source of the signs; by default they are the same every time.

    Returns
    -------
    Estimate
        ``value``, with the first-order gradient by whatever a depends on, from the same recursions, and ``error``: the
        standard error over the random vectors, and an estimate of what the recursions miss, which is most of it where
        the steps are few for the condition number. It is infinite for fewer than 8 steps. NaN where a is not positive
        definite.

    Raises
    ------
    ShapeError, DtypeError, ParameterError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    Memory: n · probes · steps numbers. Source: Ubaru, Chen and Saad, 2017; Gardner et al., 2018.

    Cost: probes · steps products with the operator, all probes at once.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> a = torch.diag(torch.linspace(1, 3, 200))
    >>> found = km.linalg.logdet(a)
    >>> abs(found.value - a.diagonal().log().sum()) < 0.01
    tensor(True)
    """
    operator = product_of(a)
    signs = _signs(operator, integer(probes, "probes"), generator)
    apply, n = operator.apply, operator.size
    if preconditioner is not None and not hasattr(preconditioner, "root_transposed"):
        raise ParameterError(f"preconditioner must be what nystrom or pivoted_cholesky returns, not {preconditioner!r}")
    if n == 0:
        value = (signs * apply(signs)).sum()
        return Estimate(operator.wrap(value), operator.wrap(torch.zeros_like(value.detach())))
    left: Function = preconditioner.root if preconditioner else lambda v: v
    right: Function = preconditioner.root_transposed if preconditioner else lambda v: v
    with torch.no_grad():
        count, start = min(integer(steps, "steps"), n), signs / n**0.5
        # Norms of the products of the recursion must not leave the range of the type.
        size = exponent(left(apply(right(start[:, :1]))).abs().amax())
        found = lanczos(lambda v: shifted(left(apply(right(v))), -size), start, count)
        values, vectors = found.pairs()
        first = vectors[:, 0, :]
        samples = n * (first.square() * values.log()).sum(-1)
        missed = n * found.missed(n)
        inverse = torch.einsum("snp,psk,pk->np", found.vectors, vectors, first / values) * n**0.5
        solved = right(shifted(inverse, -size))
        value, error = _estimate(samples)
        value = value + n * math.log(2) * size.to(value.dtype)
        error = error + missed
        if preconditioner is not None:
            value = value + preconditioner.log_determinant()
    scaled = right(signs)
    surrogate = (solved * apply(scaled)).sum() / probes
    return Estimate(operator.wrap(with_gradient_of(value, surrogate)), operator.wrap(error))


@outside
def trace(a: Any, *, probes: int = 32, generator: torch.Generator | None = None) -> Estimate:
    """Estimate the trace of a symmetric operator from products (Hutch++).

    A third of the products finds where most of it lies, where it is exact; the rest is estimated beside that.

    Parameters
    ----------
    a : array, shape (n, n), or operator
        As of :func:`cg`.
    probes : int
        Products that are spent.
    generator : torch.Generator, optional
        Source of the signs; by default they are the same every time.

    Returns
    -------
    Estimate
        ``value``, with the first-order gradient by whatever a depends on, and ``error``.

    Raises
    ------
    ShapeError, DtypeError, ParameterError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    Source: Meyer, Musco, Musco and Woodruff, Hutch++, 2021.

    Cost: ``probes`` products with the operator; memory: as many vectors.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> km.linalg.trace(torch.diag(torch.tensor([5.0, 1.0, 1.0]))).value
    tensor(7.)
    """
    operator = product_of(a)
    count = integer(probes, "probes")
    n, third = operator.size, max(1, count // 3)
    if count >= n:
        eye = torch.eye(n, dtype=operator.dtype, device=operator.device)
        whole = (eye * operator.apply(eye)).sum()
        return Estimate(operator.wrap(whole), operator.wrap(torch.zeros_like(whole.detach())))
    signs = _signs(operator, max(3, count) - third, generator)
    with torch.no_grad():
        basis = orthonormal(operator.apply(signs[:, :third]), None, torch.Generator(operator.device).manual_seed(n))
        complement = signs[:, third:] - basis @ (basis.mT @ signs[:, third:])
    exact = (basis * operator.apply(basis)).sum()
    samples = (complement * operator.apply(complement)).sum(0)
    mean, error = _estimate(samples)
    return Estimate(operator.wrap(exact + mean), operator.wrap(error.detach()))
