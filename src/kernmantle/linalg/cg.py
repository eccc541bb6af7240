"""Conjugate gradients for many right-hand sides at once, for matrices and operators that are only multiplied with."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

from ..arrays import check_same_device, check_same_dtype, unwrap
from ..config import current
from ..errors import KernmantleWarning, LinearAlgebraError, ParameterError, ShapeError
from .arguments import check_reverse
from .implicit import attached
from .operators import Product, product_of
from .solution import Described

Columns = Callable[[torch.Tensor], torch.Tensor]
AHEAD = 4
"""Iterations that the host may be ahead of a GPU, and that may so be run after convergence."""


@dataclass(frozen=True, repr=False)
class Iterations(Described):
    """What :func:`cg` found.

    Attributes
    ----------
    x : array, shape (n,) or (n, c)
        The solution.
    residual : array, shape () or (c,)
        ``‖b - a x‖ / ‖b‖`` of each column, from a product of its own after the last iteration.
    history : array, shape (iterations + 1,) or (iterations + 1, c)
        The same before each iteration and at the end, as the recursion has it.
    iterations : int
        How many were run.
    converged : array of bool
        Whether the history ended within the tolerance, on the device.
    ran : str
        What was used.
    """

    x: Any
    residual: Any
    history: Any
    iterations: int
    converged: Any
    ran: str


class _Watch:
    """Reads the residuals of a few iterations ago, so that the device always has work."""

    def __init__(self, device: torch.device, limit: int, dtype: torch.dtype) -> None:
        self._cuda = device.type == "cuda"
        self._blind = self._cuda and torch.cuda.is_current_stream_capturing()
        self._kept = torch.empty(limit + 1, dtype=dtype, pin_memory=self._cuda and not self._blind)
        self._events: list[torch.cuda.Event] = []
        self._count = 0

    def worst(self, residual: torch.Tensor) -> float:
        """Largest residual that is known, infinite before any is."""
        if self._blind:
            return float("inf")
        top = residual.amax() if residual.numel() else residual.new_zeros(())
        self._kept[self._count].copy_(top, non_blocking=True)
        self._count += 1
        if self._cuda:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(residual.device))
            self._events.append(event)
        return self._read(self._count - 1 - (AHEAD if self._cuda else 0))

    def last(self) -> float:
        """The residual of the newest iteration; waits for it."""
        return float("nan") if self._blind else self._read(self._count - 1)

    def _read(self, place: int) -> float:
        if place < 0:
            return float("inf")
        if self._cuda:
            self._events[place].synchronize()
        return float(self._kept[place])


def _gram(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of columns in float64, since small systems of them have the square of the condition."""
    return left.double().mT @ right.double()


def _factor(gram: torch.Tensor, unit: float) -> torch.Tensor:
    """Lower Cholesky factor of a Gram matrix that may be singular, to the digits of each of its columns.

    One that rounding has made indefinite counts as a bound of it on the diagonal: short steps, none of them wrong.
    """
    lengths = gram.diagonal().sqrt()
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    even = gram / lengths / lengths[:, None]
    even.diagonal().add_(unit * (10 + gram.shape[-1]))
    found, failed = torch.linalg.cholesky_ex(even)
    apart = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device) * gram.shape[0] ** 0.5
    return lengths[:, None] * torch.where(failed == 0, found, apart)


def _solved(factor: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    half = torch.linalg.solve_triangular(factor, columns, upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True)


def _over(columns: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve_triangular(factor.mT.to(columns.dtype), columns, upper=True, left=False)


def _normal(
    residual: torch.Tensor, turned: torch.Tensor, total: Columns
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A block, and what the preconditioner makes of it, orthonormal in its inner product; and what they were times.

    Twice, since products of columns know only half the digits of how these depend on each other.
    """
    weights = torch.eye(residual.shape[1], dtype=torch.float64, device=residual.device)
    for _ in range(2):
        factor = _factor(total(_gram(residual, turned)), torch.finfo(residual.dtype).eps)
        residual, turned, weights = _over(residual, factor), _over(turned, factor), factor.mT @ weights
    return residual, turned, weights


@dataclass
class _State:
    """Block conjugate gradients with orthonormalised residuals (Dubrulle 2001): ``b - a x = unit @ weights``.

    The residual blocks are orthonormal in the inner product of the preconditioner, which keeps the small systems
    well posed where columns converge at different times. Where columns depend on each other they cannot be quite
    so: steps and directions are therefore made of the products that say how far x can go and what is conjugate, and
    not of what these would be for orthonormal blocks.
    """

    multiply: Columns
    precondition: Columns
    total: Columns
    x: torch.Tensor
    unit: torch.Tensor
    weights: torch.Tensor
    direction: torch.Tensor

    @staticmethod
    def start(
        multiply: Columns, precondition: Columns, total: Columns, b: torch.Tensor, lengths: torch.Tensor
    ) -> _State:
        """At x = 0."""
        safe = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        residual = b / safe
        unit, turned, weights = _normal(residual, precondition(residual), total)
        return _State(multiply, precondition, total, torch.zeros_like(b), unit, weights * safe, turned)

    def step(self) -> None:
        """One iteration: one product."""
        product = self.multiply(self.direction)
        dtype = product.dtype
        sums = [_gram(self.direction, product), _gram(self.direction, self.unit)]
        curvature, slope = self.total(torch.stack(sums)).unbind()
        small = _factor(curvature, torch.finfo(dtype).eps)
        length = _solved(small, slope)
        self.x = self.x + self.direction @ (length @ self.weights).to(dtype)
        residual = self.unit - product @ length.to(dtype)
        self.unit, turned, weights = _normal(residual, self.precondition(residual), self.total)
        back = _solved(small, self.total(_gram(product, turned)))
        self.direction = turned - self.direction @ back.to(dtype)
        self.weights = weights @ self.weights

    def lengths(self) -> torch.Tensor:
        """Norms of the columns of ``b - a x``."""
        return self.total((self.unit @ self.weights.to(self.unit.dtype)).square().sum(0)).sqrt()


@contextmanager
def _bar(limit: int) -> Iterator[Any]:
    with tqdm(total=limit, unit="iteration", delay=1, disable=not current().progress or not sys.stderr.isatty()) as bar:
        yield bar


@dataclass
class _Run:
    x: torch.Tensor
    history: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    worst: float = float("inf")


def _iterate(
    multiply: Columns, precondition: Columns, total: Columns, right: torch.Tensor, b: torch.Tensor, tolerance: float,
    limit: int,
) -> _Run:  # fmt: skip
    """Solve for a right-hand side, with residuals relative to b."""
    lengths = total(right.square().sum(0)).sqrt()
    whole = total(b.square().sum(0)).sqrt()
    safe = torch.where(whole > 0, whole, torch.ones_like(whole))
    state = _State.start(multiply, precondition, total, right, lengths)
    watch = _Watch(right.device, limit, right.dtype)
    run = _Run(state.x, [lengths / safe])
    known = watch.worst(run.history[0])
    with _bar(limit) as bar:
        while len(run.history) <= limit and (known > tolerance):
            state.step()
            run.history.append(state.lengths() / safe)
            known = watch.worst(run.history[-1])
            bar.set_postfix_str(f"residual {known:.2g}", refresh=False)
            bar.update()
    run.x, run.worst = state.x, known if known <= tolerance else watch.last()
    return run


def cg(
    a: Any,
    b: Any,
    *,
    preconditioner: Columns | None = None,
    x0: Any = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    reduce: Columns | None = None,
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
        :func:`pivoted_cholesky`, or one's own.
    x0 : array, optional
        Where to start, of the shape of b.
    tolerance : float, optional
        Largest ``‖b - a x‖ / ‖b‖`` of a column to stop at; 1e-5 for float32, 1e-8 for float64.
    max_iterations : int
        Products that may be spent.
    reduce : callable, optional
        For rows that are spread over processes: sums a small tensor over them.
    check_errors : bool
        Raise where the tolerance was not reached, instead of warning.

    Returns
    -------
    Iterations

    Raises
    ------
    LinearAlgebraError
        With ``check_errors``.
    ShapeError, DtypeError, ParameterError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    On CUDA the host looks at residuals of four iterations ago, so that no iteration waits for it; up to four are run
    after convergence, which do no harm. In a CUDA graph all ``max_iterations`` run. Memory: five blocks of the shape
    of b. Residuals of float32 products end near the unit of float32 times the condition number, which ``residual``
    shows where the recursion does not.

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
    (given, *start), wrap = unwrap(b, *([] if x0 is None else [x0]), names=["b", "x0"])
    like = torch.empty(0, dtype=operator.dtype, device=operator.device)
    check_same_device([like, given, *start], ["a", "b", "x0"][: 2 + len(start)])
    check_same_dtype([like, given, *start], ["a", "b", "x0"][: 2 + len(start)])
    if given.dim() not in (1, 2) or given.shape[0] != operator.size or any(s.shape != given.shape for s in start):
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(("b", "x0"), (given, *start), strict=False))
        raise ShapeError(f"a has {operator.size} rows, which b, (n,) or (n, c), and x0 must have: {shapes}")
    for name, value in zip(("b", "x0"), (given, *start), strict=False):
        check_reverse(value, name)
    limit = _tolerance(tolerance, operator.dtype)
    if isinstance(max_iterations, bool) or not isinstance(max_iterations, int) or max_iterations < 0:
        raise ParameterError(f"max_iterations must be a number, 0 or more, not {max_iterations!r}")
    columns, first = ((t.unsqueeze(-1) if given.dim() == 1 else t) for t in (given, start[0] if start else given))
    found = _solve(operator, columns, first if start else None, preconditioner, reduce, limit, max_iterations)
    _judge(found, limit, max_iterations, check_errors)
    pick = (lambda t: t.squeeze(-1)) if given.dim() == 1 else (lambda t: t)
    return Iterations(
        wrap(pick(found.x)), wrap(pick(found.residual)), wrap(pick(found.history)), found.iterations,
        wrap(pick(found.converged)), found.ran,
    )  # fmt: skip


def _tolerance(given: float | None, dtype: torch.dtype) -> float:
    if given is None:
        return 1e-5 if dtype == torch.float32 else 1e-8
    if not float(given) > 0:
        raise ParameterError(f"tolerance must be positive, not {given!r}")
    return float(given)


def _solve(
    operator: Product, b: torch.Tensor, start: torch.Tensor | None, preconditioner: Columns | None,
    reduce: Columns | None, tolerance: float, limit: int,
) -> _Found:  # fmt: skip
    precondition = preconditioner or (lambda v: v)
    total = reduce or (lambda t: t)

    def solve(side: torch.Tensor, whole: torch.Tensor) -> _Run:
        with torch.no_grad():
            return _iterate(operator.apply, precondition, total, side, whole, tolerance, limit)

    with torch.no_grad():
        right = b.detach() if start is None else b.detach() - operator.apply(start.detach())
        run = solve(right, b.detach())
        x = run.x if start is None else run.x + start.detach()
    # Tracks whatever the operator depends on.
    gap = b - operator.apply(x)
    check_reverse(gap, "what a depends on")
    lengths, rest = (total(t.detach().square().sum(0)).sqrt() for t in (b, gap))
    history = torch.stack(run.history)
    x = attached(x, gap, lambda g: solve(g, g).x)
    ran = "block conjugate gradients" + (f", preconditioned by {preconditioner!r}" if preconditioner else "")
    residual = rest / torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    return _Found(x, residual, history, len(run.history) - 1, history[-1] <= tolerance, ran, run.worst)


@dataclass
class _Found:
    x: torch.Tensor
    residual: torch.Tensor
    history: torch.Tensor
    iterations: int
    converged: torch.Tensor
    ran: str
    worst: float


def _judge(found: _Found, tolerance: float, limit: int, check_errors: bool) -> None:
    if found.worst <= tolerance or (found.worst != found.worst and found.x.is_cuda and not check_errors):
        return
    why = (
        "NaN: a, b or the preconditioner has NaN, or is not positive definite"
        if found.worst != found.worst
        else f"{found.worst:.2g}"
    )
    message = (
        f"conjugate gradients stopped after {found.iterations} of {limit} iterations at a residual of {why}, where "
        f"{tolerance:.2g} was asked; raise max_iterations, the tolerance or the diagonal, or pass a preconditioner"
    )
    if check_errors:
        raise LinearAlgebraError(message)
    warnings.warn(message, KernmantleWarning, stacklevel=3)
