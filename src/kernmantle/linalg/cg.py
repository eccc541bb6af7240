"""Conjugate gradients for many right-hand sides at once, for matrices and operators that are only multiplied with.

The recursion's residuals drift away from ``b - a x`` as rounding adds up. What is claimed comes from products with the
result, in float64 where the operator can be had in it; where they say that the tolerance is not reached, the iteration
starts again from there, as long as that helps (iterative refinement).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..arrays import check_same_device, check_same_dtype, unwrap
from ..checks import function, integer, positive
from ..errors import DtypeError, KernmantleWarning, LinearAlgebraError, ParameterError, ShapeError, instead_of
from ..torch_ops.outside import outside
from .arguments import check_reverse
from .block_cg import INDEFINITE, NOT_FINITE, Columns, iterate, read
from .implicit import attached
from .operators import Product, product_of
from .scaling import exponent, shifted
from .solution import Described

LIMIT, STAGNATED = 1, 2
"""Infos: why the tolerance was not reached."""
_WHY = {
    LIMIT: "the iterations were spent",
    STAGNATED: "rounding allows no less",
    INDEFINITE: "directions p with pᵀ a p <= 0 were met, so a, or the preconditioner, is not positive definite, or not "
    "to the digits of this type",
    NOT_FINITE: "a, b, the preconditioner or the solution has NaN, infinities or numbers out of range",
}


@dataclass(frozen=True, repr=False)
class Iterations(Described):
    """Solutions that :func:`cg` found.

    Attributes
    ----------
    x : array, shape (n,) or (n, c)
        The solution.
    residual : array, shape () or (c,)
        ``‖b - a x‖ / ‖b‖`` of each column, from a product with x after the last iteration.
    history : array, shape (iterations + 1,) or (iterations + 1, c)
        What the recursion estimates it to be before each iteration and at the end; rounding makes that too small.
    iterations : int
        How many were run.
    converged : array of bool, shape () or (c,)
        Whether ``residual`` is within the tolerance, on the device.
    ran : str
        What was used.
    info : array of int32, shape () or (c,)
        0 for columns that converged; else 1: ``max_iterations`` were run; 2: rounding allows no smaller residual;
        3: ``pᵀ a p < 0`` for some p, so that a, or the preconditioner, is not positive definite; 4: NaN, infinities or
        numbers out of range.
    error : array or None
        Standard error of ``residual``, where it is an estimate.
    """

    x: Any
    residual: Any
    history: Any
    iterations: int
    converged: Any
    ran: str
    info: Any = None
    error: Any = None


@outside
@instead_of(
    tol="the largest relative residual is tolerance=", rtol="the largest relative residual is tolerance=",
    atol="the largest relative residual is tolerance=", maxiter="products that may be spent are max_iterations=",
    M="an approximate inverse is preconditioner=",
)  # fmt: skip
def cg(
    a: Any,
    b: Any,
    *,
    preconditioner: Columns | None = None,
    x0: Any = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    reduce: Columns | None = None,
    refine: bool = False,
    callback: Callable[[Any], None] | None = None,
    check_errors: bool = False,
) -> Iterations:
    """Solve ``a x = b`` for a symmetric positive definite operator by block conjugate gradients.

    Parameters
    ----------
    a : array, shape (n, n), or operator
        float32 or float64. An operator has ``shape``, ``dtype`` and ``@``, as ``k.operator(x, diagonal=ridge)`` has,
        or scipy's LinearOperator.
    b : array, shape (n,) or (n, c)
        Right-hand sides as columns. They share one Krylov space: several take fewer iterations than one.
    preconditioner : callable, optional
        Columns to columns, an approximate inverse, symmetric and positive definite: :func:`nystrom`,
        :func:`pivoted_cholesky`, or your own.
    x0 : array, optional
        Where to start, of the shape of b.
    tolerance : float, optional
        Largest ``‖b - a x‖ / ‖b‖`` of a column to stop at; 1e-5 for float32, 1e-8 for float64.
    max_iterations : int
        Products that may be spent.
    reduce : callable, optional
        For rows that are spread over processes: sums a small tensor over them.
    refine : bool
        For float64: multiply in float32, with recurrences in float64, and replace residuals by those of products in
        float64 wherever they have fallen to a tenth. For matrices, and operators with ``float()``, as kernels'
        have. Where products in float32 get no further, those in float64 go on.
    callback : callable, optional
        Called with the solution so far, of the type and shape of b, after every iteration: to store it, or to raise an
        exception that ends the iteration.
    check_errors : bool
        Raise where the tolerance was not reached, instead of warning.

    Returns
    -------
    Iterations
        Where the tolerance was not reached, x is the best that was found.

    Raises
    ------
    LinearAlgebraError
        With ``check_errors``.
    ShapeError, DtypeError, ParameterError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    What counts is ``b - a x`` of the x that is returned, rounded as it is: by a fresh product in float64 for matrices
    and for operators with ``double()``, as kernels' operators have. Where it is not within the tolerance, the iteration
    starts again from this residual, until it is or stops falling to half (``info`` 2): in float32 near the unit of
    float32 times ``‖a‖ ‖x‖ / ‖b‖``, where float64, also with ``refine``, goes on. Each column of b is scaled by a power
    of two, so that its size does not matter.

    On CUDA the host looks at residuals of four iterations ago, so that no iteration waits for it; up to four are run
    after convergence, which do no harm; for the final residual it waits once. In a CUDA graph all ``max_iterations``
    run, once. Memory: five blocks of the shape of b, on CUDA nine.

    The first-order gradient exists by b and by whatever a depends on; it takes one more solve. Source of the method:
    Dubrulle, Retooling the method of block conjugate gradients, 2001.

    Cost: one product with a an iteration, and ten vector operations a column.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> a = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
    >>> found = km.linalg.cg(a, torch.ones(3))
    >>> found.x, found.iterations
    (tensor([1.0000, 0.5000, 0.2500]), 3)
    """
    operator = product_of(a)
    (rhs, *start), wrap = unwrap(b, *([] if x0 is None else [x0]), names=["b", "x0"])
    like = torch.empty(0, dtype=operator.dtype, device=operator.device)
    check_same_device([like, rhs, *start], ["a", "b", "x0"][: 2 + len(start)])
    check_same_dtype([like, rhs, *start], ["a", "b", "x0"][: 2 + len(start)])
    if rhs.dim() not in (1, 2) or rhs.shape[0] != operator.size or any(s.shape != rhs.shape for s in start):
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(("b", "x0"), (rhs, *start), strict=False))
        raise ShapeError(f"a has {operator.size} rows, which b, (n,) or (n, c), and x0 must have: {shapes}")
    for name, value in zip(("b", "x0"), (rhs, *start), strict=False):
        check_reverse(value, name)
    limit = _tolerance(tolerance, operator.dtype)
    max_iterations = integer(max_iterations, "max_iterations", 0)
    for name, value in (("preconditioner", preconditioner), ("reduce", reduce), ("callback", callback)):
        function(value, name)
    columns, first = ((t.unsqueeze(-1) if rhs.dim() == 1 else t) for t in (rhs, start[0] if start else rhs))
    _check_refine(refine, operator)
    pick = (lambda t: t.squeeze(-1)) if rhs.dim() == 1 else (lambda t: t)
    report = None if callback is None else lambda x: callback(wrap(pick(x)))
    settings = _Settings(preconditioner, reduce, limit, max_iterations, check_errors, refine, report)
    found = _solve(operator, columns, first if start else None, settings)
    results = [wrap(pick(t)) for t in (found.x, found.residual, found.history, found.converged, found.info)]
    x, residual, history, converged, info = results
    ran = "block conjugate gradients" + (f", preconditioned by {preconditioner!r}" if preconditioner else "")
    ran += ", products in float32 refined in float64" if refine else ""
    return Iterations(x, residual, history, found.history.shape[0] - 1, converged, ran, info)


def _check_refine(refine: Any, operator: Product) -> None:
    if not isinstance(refine, bool):
        raise ParameterError(f"refine must be True or False, not {refine!r}")
    if refine and operator.dtype != torch.float64:
        raise DtypeError(f"refine multiplies in float32 what is float64; a is {operator.dtype}: pass it in float64")
    if refine and operator.narrow is None:
        raise ParameterError(f"refine needs an operator with float(), which {type(operator.source).__name__} lacks")


def _tolerance(value: float | None, dtype: torch.dtype) -> float:
    if value is None:
        return 1e-5 if dtype == torch.float32 else 1e-8
    return positive(value, "tolerance")


@dataclass(frozen=True)
class _Settings:
    preconditioner: Columns | None
    reduce: Columns | None
    tolerance: float
    limit: int
    check_errors: bool
    refine: bool = False
    report: Callable[[torch.Tensor], None] | None = None

    def precondition(self, v: torch.Tensor) -> torch.Tensor:
        return self.preconditioner(v) if self.preconditioner else v

    def total(self, t: torch.Tensor) -> torch.Tensor:
        return self.reduce(t) if self.reduce else t


@dataclass
class _Found:
    x: torch.Tensor
    residual: torch.Tensor
    history: torch.Tensor
    converged: torch.Tensor
    info: torch.Tensor


@dataclass(frozen=True)
class _Scaled:
    """Right-hand sides times powers of two, of the order of one; those with NaN or infinities are zero here."""

    b: torch.Tensor
    lengths: torch.Tensor
    exponents: torch.Tensor
    zero: torch.Tensor
    bad: torch.Tensor

    @staticmethod
    def of(b: torch.Tensor, settings: _Settings) -> _Scaled:
        size = b.abs().amax(0) if b.shape[0] else b.new_zeros(b.shape[1])
        # A sum over processes is as good: within their number of the largest.
        size = settings.total(size)
        bad, exponents = ~torch.isfinite(size), exponent(size)
        scaled = shifted(b, -exponents).masked_fill(bad, 0)
        lengths = settings.total(scaled.double().square().sum(0)).sqrt()
        zero = lengths == 0
        return _Scaled(scaled, lengths.masked_fill(zero, 1), exponents, zero, bad)

    def down(self, x: torch.Tensor) -> torch.Tensor:
        """Return columns on the scale of these."""
        return shifted(x, -self.exponents)

    def up(self, x: torch.Tensor) -> torch.Tensor:
        """Return columns on the scale of b."""
        return shifted(x, self.exponents)


class _Best:
    """The best columns so far, and the residuals of products with them."""

    def __init__(self, operator: Product, side: _Scaled, settings: _Settings) -> None:
        self._operator, self._side, self._settings = operator, side, settings
        self.x, self.gap = torch.zeros_like(side.b), side.b.double()
        self.rest = torch.ones_like(side.lengths).masked_fill(side.zero, 0)

    def offer(self, x: torch.Tensor) -> tuple[float, bool]:
        """Take the columns that are better; return the largest residual, and whether what was offered was finite."""
        x = self._side.down(self._side.up(x))
        gap = self._operator.gap(self._side.b, x)
        check_reverse(gap, "what a depends on")
        rest = self._settings.total(gap.square().sum(0)).sqrt() / self._side.lengths
        better = rest < self.rest
        self.x, self.gap = torch.where(better, x, self.x), torch.where(better, gap, self.gap)
        self.rest = torch.where(better, rest, self.rest)
        if not rest.numel():
            return 0.0, True
        worst, finite = read(torch.stack([self.rest.amax(), torch.isfinite(rest).all().double()]))
        return worst, finite != 0


def _refined(
    operator: Product, side: _Scaled, start: torch.Tensor | None, settings: _Settings
) -> tuple[_Best, list[torch.Tensor], int]:
    """Return the best columns, the residuals of all recursions, and what ended them."""
    best, history, worst, target = _Best(operator, side, settings), [], 1.0, settings.tolerance
    if start is not None:
        worst, _ = best.offer(side.down(start).masked_fill(side.zero, 0))
    lengths, narrow = side.lengths.to(side.b.dtype), settings.refine
    while True:
        right = best.gap.masked_fill(best.rest <= settings.tolerance, 0).to(side.b.dtype)
        left = settings.limit - max(0, len(history) - 1)
        multiply, gap = (_narrowed(operator), partial(operator.gap, right)) if narrow else (operator.apply, None)
        report = None if settings.report is None else partial(_reported, settings.report, side, best.x)
        run = iterate(multiply, settings.precondition, settings.total, right, lengths, target, left, gap, report)
        history += run.history[1:] if history else run.history
        before, (worst, finite) = worst, best.offer(best.x + run.x)
        if worst <= settings.tolerance or worst != worst:
            return best, history, 0
        if (not finite or run.info == NOT_FINITE) and not narrow:
            return best, history, NOT_FINITE
        if len(history) > settings.limit:
            return best, history, LIMIT
        if not worst <= before / 2:
            if not narrow:
                return best, history, run.info or STAGNATED
            narrow = False
        target = settings.tolerance / 4


def _reported(report: Callable[[torch.Tensor], None], side: _Scaled, x: torch.Tensor, change: torch.Tensor) -> None:
    report(side.up(x + change))


def _narrowed(operator: Product) -> Columns:
    """Return the products in float32 of columns in float64."""
    assert operator.narrow is not None
    narrow = operator.narrow
    return lambda v: narrow(v.float()).double()


def _solve(operator: Product, b: torch.Tensor, start: torch.Tensor | None, settings: _Settings) -> _Found:
    found = _columns(operator, b.detach(), None if start is None else start.detach(), settings)
    if torch.is_grad_enabled() and (b.requires_grad or operator.requires_grad):
        # Tracks whatever the operator depends on.
        gap = b - operator.apply(found.x)
        check_reverse(gap, "what a depends on")
        found.x = attached(found.x, gap, lambda g: _columns(operator, g, None, replace(settings, report=None)).x)
    return found


def _columns(operator: Product, b: torch.Tensor, start: torch.Tensor | None, settings: _Settings) -> _Found:
    with torch.no_grad():
        side = _Scaled.of(b, settings)
        best, history, why = _refined(operator, side, start, settings)
        converged = (best.rest <= settings.tolerance) & ~side.bad
        spoilt = side.bad if why != NOT_FINITE else ~converged
        info = torch.where(converged, 0, why or LIMIT).masked_fill(spoilt, NOT_FINITE).to(torch.int32)
        x = side.up(best.x).masked_fill(spoilt, float("nan"))
        residual = best.rest.to(b.dtype).masked_fill(spoilt, float("nan"))
        found = _Found(x, residual, torch.stack(history), converged, info)
    _judge(found, settings)
    return found


def _judge(found: _Found, settings: _Settings) -> None:
    """Warn, or raise, unless all columns converged; says nothing in a CUDA graph, where infos cannot be read."""
    if not found.info.numel():
        return
    (why,) = read(found.info.amax().double())
    if why != why or why == 0:
        return
    (worst,) = read(found.residual.amax().double())
    advice = "raise max_iterations, the tolerance or the diagonal, or pass a preconditioner"
    if found.x.dtype == torch.float32 and why == STAGNATED:
        advice = "use float64, raise the tolerance or the diagonal, or pass a preconditioner"
    message = (
        f"conjugate gradients stopped after {found.history.shape[0] - 1} of {settings.limit} iterations at a residual "
        f"of {worst:.2g}, where {settings.tolerance:.2g} was asked: {_WHY[int(why)]}; {advice}"
    )
    if settings.check_errors:
        raise LinearAlgebraError(message)
    warnings.warn(message, KernmantleWarning, stacklevel=6)
