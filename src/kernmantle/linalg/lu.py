"""LU factors of square matrices, and what is solved with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..arrays import common_shape, unwrap
from ..errors import ParameterError
from ..torch_ops.outside import outside
from . import cusolver, small, transformed
from .arguments import (
    Work,
    check_constant,
    check_overwrite,
    check_reverse,
    check_values,
    columns_of,
    compact,
    enough_memory,
    matrix,
    paired,
    placed_columns,
    raises,
    system,
)
from .refine import Refined
from .solution import Described, Solution, delivered, nan_where_failed, raise_for, solution

SMALL = 512
"""Order up to which batches take torch's batched routine, which cannot be captured in a graph."""
MEANING = "U[{info}, {info}], counted from 1, is exactly zero: the matrix is singular"


@dataclass(frozen=True, repr=False)
class LUFactor(Described):
    """Factors ``P L U`` of matrices or, where ``transposed``, of their transposes.

    Attributes
    ----------
    factors : array, shape (..., n, n)
        U with its diagonal, and L below it, whose diagonal is 1; of the transpose they are stored transposed.
    pivots : array of int, shape (..., n)
        Row that row i was exchanged with, counted from 1.
    info : array of int32, shape (...)
        As of :class:`Solution`.
    transposed : bool
        Row-major matrices are factored as their transposes, in place.
    ran : str
        The routine that was used.
    """

    factors: Any
    pivots: Any
    info: Any
    transposed: bool
    ran: str


@dataclass(frozen=True)
class Factors:
    """LU factors as a solver; ``memory`` is column-major."""

    memory: torch.Tensor
    pivots: torch.Tensor
    transpose: bool
    symmetric: bool = False

    def solve(self, b: torch.Tensor, overwrite: bool = False) -> torch.Tensor:
        """Return the solution for columns (..., n, r), whose batch axes broadcast with those of the factors."""
        batch = common_shape(self.memory.shape[:-2], b.shape[:-2])
        shape = (*batch, *b.shape[-2:])
        if 0 in shape:
            return b.new_empty(shape)
        if small.takes(self.memory) and self.pivots.dtype == torch.int32:
            return small.solve(self.memory, self.pivots, b, shape, self.transpose, overwrite)
        memory = self.memory.expand(*batch, *self.memory.shape[-2:])
        pivots = self.pivots.expand(*batch, self.pivots.shape[-1])
        library = cusolver.library(b)
        if library is None or self.pivots.dtype == torch.int32:
            return torch.linalg.lu_solve(memory, pivots, b.expand(shape), adjoint=self.transpose)
        x = placed_columns(b, shape, overwrite)
        library.getrs(memory, pivots, x, self.transpose)
        return x

    def adjoint(self) -> Factors:
        """Return the factors of the transposed matrix."""
        return Factors(self.memory, self.pivots, not self.transpose)


def _factorise(a: torch.Tensor, overwrite: bool) -> tuple[Work, torch.Tensor, torch.Tensor, str]:
    """Return the matrix with its factors, pivots, infos, and what ran; pivots are int32 where torch ran."""
    if small.takes(a):
        factors, pivots, info = small.factor(a, True, overwrite)
        assert pivots is not None
        return Work(factors, factors, False, None), pivots, info, small.RAN
    work = Work.on(a, overwrite)
    library = cusolver.library(a)
    batched = cusolver.is_small(a.shape[:-1], SMALL) and not cusolver.capturing(a)
    if library is None or batched or a.numel() == 0 or (a.is_cuda and not overwrite and cusolver.is_one(a)):
        pivots = torch.empty(a.shape[:-1], dtype=torch.int32, device=a.device)
        info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
        if a.numel():
            torch.linalg.lu_factor_ex(work.memory, out=(work.memory, pivots, info))
        ran = cusolver.instead(a, "torch.linalg.lu_factor_ex")
    else:
        pivots, info = library.getrf(work.memory)
        ran = "cuSOLVER Xgetrf"
    work.finish()
    return work, pivots, info, ran


def _at_once(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the solution and infos, in one go."""
    with torch.no_grad():
        work, pivots, info, _ = _factorise(compact(a), False)
        x = Factors(work.memory, pivots, work.flipped).solve(b)
        info = info.expand(a.shape[:-2])
        return nan_where_failed(x, info[(None,) * (x.dim() - a.dim())]), info


@outside
def lu_factor(a: Any, *, overwrite_a: bool = False, check: bool = False, check_errors: bool | None = None) -> LUFactor:
    """Return LU factors with row exchanges, ``a = P L U``, for :func:`lu_solve`.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32 or float64, any strides.
    overwrite_a : bool
        Let the factors take the place of a, which then needs no second matrix where a is row- or column-major.
    check : bool
        Wait to see that a is finite.
    check_errors : bool, optional
        Wait for the infos and raise for the first that is not 0. By default on the CPU, where nothing has to be waited
        for, but not under the transforms of torch.func.

    Returns
    -------
    LUFactor
        It has no gradient, and a must need none: :func:`solve_lu` has.

    Raises
    ------
    LinearAlgebraError
        Where a pivot is zero, naming it and the item; on CUDA with ``check_errors``.
    ShapeError, DtypeError, GradientError
        If a is not a square matrix of float32 or float64, or needs a gradient, before anything runs.

    Notes
    -----
    Cost: 2 n³ / 3 operations a matrix, in place with ``overwrite_a``.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> found = km.linalg.lu_factor(torch.tensor([[0.0, 2.0], [1.0, 5.0]]))
    >>> km.linalg.lu_solve(found, torch.tensor([4.0, 11.0])).x
    tensor([1., 2.])
    """
    tensor, wrap = matrix(a)
    check_constant(tensor)
    if overwrite_a:
        check_overwrite(tensor, "a")
    if check:
        check_values(tensor, symmetric=False)
    with torch.no_grad(), enough_memory("lu", tensor):
        work, pivots, info, ran = _factorise(tensor.detach(), overwrite_a)
    if raises(check_errors, tensor):
        raise_for(info, MEANING)
    return LUFactor(wrap(work.matrix), wrap(pivots), wrap(info), work.flipped, ran)


@outside
def lu_solve(factor: LUFactor, b: Any, *, transpose: bool = False, overwrite_b: bool = False) -> Solution:
    """Solve ``a x = b``, or ``aᵀ x = b``, with factors of :func:`lu_factor`.

    Parameters
    ----------
    factor : LUFactor
        Its batch axes broadcast with those of b.
    b : array, shape (n,) or (..., n, r)
        Right-hand sides as columns.
    transpose : bool
        Solve with the transposed matrix.
    overwrite_b : bool
        Write the solution to b.

    Returns
    -------
    Solution
        ``x`` has the shape of b, broadcast. The gradient by b exists.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
        For arrays that do not fit together, before anything runs.

    Notes
    -----
    Cost: 2 n² operations a column.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> found = km.linalg.lu_factor(torch.tensor([[0.0, 2.0], [1.0, 5.0]]))
    >>> km.linalg.lu_solve(found, torch.tensor([1.0, 7.0]), transpose=True).x
    tensor([1., 1.])
    """
    if not isinstance(factor, LUFactor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParameterError(f"factor must be what lu_factor returns, not {factor!r:.80}")
    (factors, pivots, info, rhs), wrap = unwrap(
        factor.factors, factor.pivots, factor.info, b, names=["factors", "pivots", "info", "b"]
    )
    for name, value in (("the factors", factors), ("b", rhs)):
        check_reverse(value, name)
    pair = paired(factors, rhs, wrap, "the factors")
    stored = columns_of(factors.detach() if factor.transposed else factors.detach().mT)
    memory = stored[0] if stored is not None and stored[1] else factors.detach()
    solver = Factors(memory, pivots, factor.transposed != transpose)
    x = solution(factors.detach(), pair.b, solver, pair.shape, overwrite_b)
    return Solution(pair.finished(delivered(x, pair.b, overwrite_b, info)), factor.info, factor.ran)


@outside
def solve_lu(
    a: Any,
    b: Any,
    *,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    refine: int = 0,
    check: bool = False,
    check_errors: bool | None = None,
) -> Solution:
    """Solve ``a x = b`` for square matrices by LU factors with row exchanges.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32 or float64, any strides.
    b : array, shape (n,), (..., n) with the batch of a, or (..., n, r)
        Right-hand sides as columns; batch axes broadcast as in ``torch.linalg.solve``.
    overwrite_a, check, check_errors
        As of :func:`lu_factor`.
    overwrite_b : bool
        Write the solution to b.
    refine : int
        As of :func:`solve_cholesky`.

    Returns
    -------
    Solution
        ``x``, and ``info`` on the device; on CUDA nothing waits for it unless asked.

    Raises
    ------
    LinearAlgebraError
        Where a pivot is zero, naming it and the item; on CUDA with ``check_errors``.
    ShapeError, DtypeError, DeviceError
        For arrays that do not fit together, before anything runs.

    Notes
    -----
    On CUDA one matrix is factored by ``torch.linalg.lu_factor_ex``; in place and in graphs by cuSOLVER's Xgetrf, where
    nvmath-python is installed, and so are large matrices of a batch, on eight streams. Batches of matrices up to order
    512 go to torch's batched routines, and up to order 32 to one kernel that factors and solves. ``ran`` tells which.
    On the CPU it is LAPACK.
    Gradients of every order exist by a and b, under torch.func too, whose transforms factor once for each derivative.

    Cost: 2 n³ / 3 operations a matrix and 2 n² a column; one copy of a unless it may be overwritten.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> km.linalg.solve_lu(torch.tensor([[0.0, 2.0], [1.0, 5.0]]), torch.tensor([4.0, 11.0])).x
    tensor([1., 2.])
    """
    key, bound = small.key_and_plan(("solve_lu", True), a, b, overwrite_a, overwrite_b, refine, check, check_errors)
    if bound is not None:
        return bound((a, b))
    pair = system(a, b)
    under = transformed.solution(
        pair, _at_once, False, overwrite_a=overwrite_a, overwrite_b=overwrite_b, refine=refine, check=check,
        check_errors=check_errors,
    )  # fmt: skip
    if under is not None:
        return under
    refined = Refined.asked(refine, pair.a, overwrite_a)
    if overwrite_a:
        check_overwrite(pair.a, "a")
    if check:
        check_values(pair.a, symmetric=False)
    if not refined.steps and small.at_once(pair):
        meaning = MEANING if check_errors else None
        return small.solution(pair, True, overwrite_b, partial(Factors, transpose=False), meaning, key=key)
    with torch.no_grad(), enough_memory("lu", pair.a):
        source = pair.a.detach() if overwrite_a else compact(pair.a.detach())
        work, pivots, info, ran = _factorise(refined.narrowed(source), overwrite_a or refined.steps > 0)
    if raises(check_errors, pair.a):
        raise_for(info, MEANING)
    factors = Factors(work.memory, pivots, work.flipped)
    with enough_memory("lu", pair.a):
        return refined.solve(pair, source, factors, info, ran, overwrite_b, check_errors)
