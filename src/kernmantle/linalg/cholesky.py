"""Cholesky factors of symmetric positive definite matrices, and what is solved with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..arrays import common_shape, unwrap
from ..checks import positive
from ..errors import ParameterError
from ..torch_ops.outside import outside
from ..torch_ops.torch_private import no_transform
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
    items,
    matrix,
    paired,
    placed_columns,
    raises,
    system,
)
from .refine import Refined
from .solution import Described, Solution, delivered, nan_where_failed, raise_for, solution
from .triangles import clear_triangle, copy_triangle

SMALL = 512  # rows of matrices that are factored as a batch
LARGE = 256
"""Order from which on GPUs turn over what is the upper triangle in column-major memory, which takes twice as long."""
BY_TORCH = "torch.linalg.cholesky_ex"
MEANING = "the leading minor of order {info} is NaN or not positive definite; add to the diagonal, or pass jitter=1e-6"


@dataclass(frozen=True, repr=False)
class CholeskyFactor(Described):
    """A triangle whose product with its transpose is the matrix.

    Attributes
    ----------
    factor : array, shape (..., n, n)
        ``factor @ factor.mT`` is the matrix for ``lower``, else ``factor.mT @ factor``.
    info : array of int32, shape (...)
        As of :class:`Solution`.
    lower : bool
        Which triangle it is; the other is zero.
    ran : str
        The routine that was used.
    jitter : array or None
        What was added to the diagonal, per item.
    """

    factor: Any
    info: Any
    lower: bool
    ran: str
    jitter: Any = None


@dataclass(frozen=True)
class Triangle:
    """A factor as a solver; entries outside of the triangle are not read."""

    factor: torch.Tensor
    lower: bool
    symmetric: bool = True

    def solve(self, b: torch.Tensor, overwrite: bool = False) -> torch.Tensor:
        """Return the solution for columns (..., n, r), whose batch axes broadcast with those of the factor."""
        batch = common_shape(self.factor.shape[:-2], b.shape[:-2])
        shape = (*batch, *b.shape[-2:])
        view = columns_of(self.factor)
        if 0 in shape:
            return b.new_empty(shape)
        if small.takes(self.factor) and no_transform():
            return small.solve(self.factor if self.lower else self.factor.mT, None, b, shape, False, overwrite)
        library = cusolver.library(b)
        if library is None or view is None or cusolver.is_small(shape[:-1], SMALL) or not no_transform():
            return self._by_torch(b, shape, view)
        return self._by_cusolver(library, b, shape, *view, overwrite)

    def _by_cusolver(
        self, library: cusolver.Library, b: torch.Tensor, shape: Sequence[int], memory: torch.Tensor, flipped: bool,
        overwrite: bool,
    ) -> torch.Tensor:  # fmt: skip
        x = placed_columns(b, shape, overwrite)
        library.potrs(memory.expand(*shape[:-2], *memory.shape[-2:]), x, upper=self.lower == flipped)
        return x

    def _by_torch(self, b: torch.Tensor, shape: Sequence[int], view: tuple[torch.Tensor, bool] | None) -> torch.Tensor:
        if b.is_cuda and (view is None or items(shape[:-2]) > 1):
            first, second = (self.factor, self.factor.mT) if self.lower else (self.factor.mT, self.factor)
            half = torch.linalg.solve_triangular(first, b.expand(shape), upper=False)
            return torch.linalg.solve_triangular(second, half, upper=True)
        memory, flipped = view or (self.factor, False)
        return torch.cholesky_solve(b.expand(shape), memory, upper=self.lower == flipped)

    def adjoint(self) -> Triangle:
        """Itself."""
        return self

    def log_determinant(self) -> torch.Tensor:
        """Return the logarithm of the determinant."""
        return 2 * self.factor.diagonal(0, -2, -1).log().sum(-1)


def check_jitter(jitter: Any) -> tuple[float, ...]:
    """Return the amounts to try, smallest first."""
    if jitter is None:
        return ()
    amounts = jitter if isinstance(jitter, Sequence) and not isinstance(jitter, str) else (jitter,)
    return tuple(positive(amount, "jitter") for amount in amounts)


@dataclass(frozen=True)
class Factored:
    """A triangle in the matrix it was made of, and how that went."""

    factor: torch.Tensor
    lower: bool
    info: torch.Tensor
    jitter: torch.Tensor | None
    ran: str


def factorise(
    a: torch.Tensor, lower: bool, overwrite: bool, jitter: Sequence[float] = (), clean: bool = True
) -> Factored:
    """Return the factor of one triangle of a, in place where that is allowed; waits for nothing on CUDA.

    With ``clean`` it is that triangle and zeros; otherwise it may be the other, beside what is left over.
    """
    lower = bool(lower)
    if a.numel() == 0:
        info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
        return Factored(a.clone(), lower, info, a.new_zeros(a.shape[:-2]) if jitter else None, "nothing")
    mutates = no_transform() or overwrite or bool(jitter)  # a trace loses what it does not see an operation return
    if small.takes(a) and mutates and not jitter:
        factor, _, info = small.factor(a if lower else a.mT, False, overwrite)
        return Factored(factor if lower else factor.mT, lower, info, None, small.RAN)
    library = cusolver.library(a)
    if not mutates or (a.is_cuda and not (overwrite or jitter) and (library is None or cusolver.is_one(a))):
        factor, info = torch.linalg.cholesky_ex(a if lower else a.mT)
        return Factored(factor if lower else factor.mT, lower, info, None, cusolver.instead(a, BY_TORCH))
    on_gpu = a.is_cuda or library is not None
    batched = on_gpu and cusolver.is_small(a.shape[:-1], SMALL)
    work = Work.on(a, overwrite, by_columns=on_gpu and lower and not jitter)
    transposed = on_gpu and not (jitter or batched) and lower == work.flipped and a.shape[-1] >= LARGE
    if transposed:
        copy_triangle(work.matrix, lower)
        lower = not lower
    if library is None or batched:
        (info, added), ran = _by_torch(work, lower, jitter), cusolver.instead(a, BY_TORCH)
    elif jitter:
        (info, added), ran = _attempts(library, work, lower, jitter), "cuSOLVER Xpotrf"
    else:
        info, added, ran = library.potrf(work.memory, upper=lower == work.flipped), None, "cuSOLVER Xpotrf"
    if transposed and clean:
        copy_triangle(work.matrix, lower)
        lower = not lower
    if clean:
        clear_triangle(work.matrix, lower)
    return Factored(work.finish(), lower, info, added, ran)


def _attempts(
    library: cusolver.Library, work: Work, lower: bool, jitter: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one factorisation for no jitter and for each amount, of which the first that succeeds is kept.

    The other triangle is the scratch: each attempt factors there a copy of what is left to factor.
    """
    a = work.matrix
    diagonal = a.diagonal(0, -2, -1)
    original = diagonal.clone()
    scale = original.abs().mean(-1)
    info = torch.ones(a.shape[:-2], dtype=torch.int32, device=a.device)
    added = torch.zeros_like(scale)
    for amount in (0.0, *jitter):
        copy_triangle(a, lower)
        initial = diagonal.clone()
        diagonal.copy_(original + amount * scale[..., None])
        found = library.potrf(work.memory, upper=lower != work.flipped)
        better = (info != 0) & (found == 0)
        copy_triangle(a, not lower, better)
        diagonal.copy_(torch.where(better[..., None], diagonal, initial))
        added = torch.where(better, amount * scale, added)
        info = torch.where(info == 0, info, found)
    return info, added


def _by_torch(work: Work, lower: bool, jitter: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor | None]:
    upper = lower == work.flipped
    if not jitter:
        info = torch.empty(work.matrix.shape[:-2], dtype=torch.int32, device=work.matrix.device)
        torch.linalg.cholesky_ex(work.memory, upper=upper, out=(work.memory, info))
        return info, None
    original = work.memory.clone()
    scale = original.diagonal(0, -2, -1).abs().mean(-1)
    info = torch.ones(scale.shape, dtype=torch.int32, device=original.device)
    added = torch.zeros_like(scale)
    for amount in (0.0, *jitter):
        raised = original + torch.diag_embed((amount * scale)[..., None].expand(original.shape[:-1]))
        factor, found = torch.linalg.cholesky_ex(raised, upper=upper)
        better = (info != 0) & (found == 0)
        work.memory.copy_(torch.where(better[..., None, None], factor, work.memory))
        added = torch.where(better, amount * scale, added)
        info = torch.where(info == 0, info, found)
        if not info.is_cuda and not info.any():
            break
    return info, added


def _check(a: torch.Tensor, overwrite_a: bool, check: bool) -> None:
    if overwrite_a:
        check_overwrite(a, "a")
    if check:
        check_values(a, symmetric=True)


def at_once(a: torch.Tensor, b: torch.Tensor, lower: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the solution and infos, in one go."""
    with torch.no_grad():
        found = factorise(compact(a), lower, False, clean=False)
        x = Triangle(found.factor, found.lower).solve(b)
        info = found.info.expand(a.shape[:-2])
        return nan_where_failed(x, info[(None,) * (x.dim() - a.dim())]), info


@outside
def cholesky_factor(
    a: Any,
    *,
    lower: bool = True,
    overwrite_a: bool = False,
    jitter: Sequence[float] | float | None = None,
    check: bool = False,
    check_errors: bool | None = None,
) -> CholeskyFactor:
    """Return the Cholesky factor of symmetric positive definite matrices, for :func:`cholesky_solve`.

    ``a = L Lᵀ``, of which one triangle is read. Cost: n³/3 operations a matrix, in place with ``overwrite_a``.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32 or float64, any strides.
    lower : bool
        Which triangle is read and returned.
    overwrite_a : bool
        Let the factor take the place of a, which then needs no second matrix where a is row- or column-major.
    jitter : float or sequence of float, optional
        Amounts, relative to the mean of the diagonal, to try in turn where a is not positive definite. On CUDA all
        are tried, since nothing waits to know: each costs one more factorisation.
    check : bool
        Wait to see that a is finite and symmetric.
    check_errors : bool, optional
        Wait for the infos and raise for the first that is not 0. By default on the CPU, where nothing has to be waited
        for, but not under the transforms of torch.func.

    Returns
    -------
    CholeskyFactor
        It has no gradient, and a must need none; :func:`solve_cholesky`, :func:`logdet_spd`, :func:`inverse_spd` have.

    Raises
    ------
    LinearAlgebraError
        Where the matrix is not positive definite, naming the item and the order of the minor; on CUDA with
        ``check_errors``.
    ShapeError, DtypeError, GradientError
        If a is not a square matrix of float32 or float64, or needs a gradient.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> found = km.linalg.cholesky_factor(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    >>> found.factor
    tensor([[2., 0.],
            [1., 2.]])
    >>> km.linalg.cholesky_solve(found, torch.tensor([8.0, 12.0])).x
    tensor([1., 2.])
    """
    tensor, wrap = matrix(a)
    check_constant(tensor)
    amounts = check_jitter(jitter)
    with torch.no_grad(), enough_memory("cholesky", tensor):
        _check(tensor, overwrite_a, check)
        found = factorise(tensor.detach() if overwrite_a else compact(tensor.detach()), lower, overwrite_a, amounts)
    if raises(check_errors, tensor):
        raise_for(found.info, MEANING)
    batch = tensor.shape[:-2]
    added = None if found.jitter is None else wrap(found.jitter.expand(batch))
    factor, info = wrap(found.factor.expand(tensor.shape)), wrap(found.info.expand(batch))
    return CholeskyFactor(factor, info, found.lower, found.ran, added)


@outside
def cholesky_solve(factor: CholeskyFactor, b: Any, *, overwrite_b: bool = False) -> Solution:
    """Solve ``a x = b`` with a factor of :func:`cholesky_factor`.

    Parameters
    ----------
    factor : CholeskyFactor
        Its batch axes broadcast with those of b.
    b : array, shape (n,) or (..., n, r)
        Right-hand sides as columns.
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
    >>> found = km.linalg.cholesky_factor(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
    >>> km.linalg.cholesky_solve(found, torch.tensor([8.0, 12.0])).x
    tensor([1., 2.])
    """
    if not isinstance(factor, CholeskyFactor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParameterError(f"factor must be what cholesky_factor returns, not {factor!r:.80}")
    (triangle, info, rhs), wrap = unwrap(factor.factor, factor.info, b, names=["factor", "info", "b"])
    for name, value in (("the factor", triangle), ("b", rhs)):
        check_reverse(value, name)
    pair = paired(triangle, rhs, wrap, "the factor")
    x = solution(triangle.detach(), pair.b, Triangle(compact(triangle.detach()), factor.lower), pair.shape, overwrite_b)
    x = delivered(x, rhs, overwrite_b, info)
    return Solution(pair.finished(x), factor.info, factor.ran, factor.jitter)


@outside
def solve_cholesky(
    a: Any,
    b: Any,
    *,
    lower: bool = True,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    jitter: Sequence[float] | float | None = None,
    refine: int = 0,
    check: bool = False,
    check_errors: bool | None = None,
) -> Solution:
    """Solve ``a x = b`` for symmetric positive definite matrices by Cholesky factors.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32 or float64, any strides; one triangle is read.
    b : array, shape (n,), (..., n) with the batch of a, or (..., n, r)
        Right-hand sides as columns; batch axes broadcast as in ``torch.linalg.solve``.
    lower, overwrite_a, jitter, check, check_errors
        As of :func:`cholesky_factor`. With ``overwrite_a`` the whole of a is lost, its factor not returned.
    overwrite_b : bool
        Write the solution to b.
    refine : int
        For float64: factor in float32, which takes half the memory and time, and refine the solution so many
        times with residuals in float64, for which both triangles are read; each step gains the digits that
        float32 has left after the condition number. Where a step gained none and digits are lacking, ``info`` is -1 and
        x the best of all steps.

    Returns
    -------
    Solution
        ``x``, and ``info`` on the device; on CUDA nothing waits for it unless asked.

    Raises
    ------
    LinearAlgebraError
        Where the matrix is not positive definite, naming the item and the order of the minor; on CUDA with
        ``check_errors``.
    ShapeError, DtypeError, DeviceError
        For arrays that do not fit together, before anything runs.

    Notes
    -----
    On CUDA one matrix is factored by ``torch.linalg.cholesky_ex``; in place and in graphs by cuSOLVER's Xpotrf, where
    nvmath-python is installed, and so are large matrices of a batch, on eight streams. Batches up to order 512 go to
    torch's batched routines, up to order 32 to one kernel. ``ran`` tells which. On the CPU it is LAPACK.
    Gradients of every order exist by a, as a symmetric matrix, and b, under torch.func too, whose transforms factor
    once for each derivative.

    Cost: n³ / 3 operations a matrix and 2 n² a column; one copy of a unless it may be overwritten.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> a = torch.tensor([[4.0, 2.0], [2.0, 5.0]])
    >>> km.linalg.solve_cholesky(a, torch.tensor([8.0, 12.0])).x
    tensor([1., 2.])
    >>> km.linalg.solve_cholesky(-a, torch.tensor([8.0, 12.0]), check_errors=False).info
    tensor(1, dtype=torch.int32)
    """
    asked = jitter is not None, overwrite_a, overwrite_b, refine, check, check_errors
    key, bound = small.key_and_plan(("solve_cholesky", bool(lower)), a, b, *asked)
    if bound is not None:
        return bound((a, b))
    pair = system(a, b)
    amounts = check_jitter(jitter)
    under = transformed.solution(
        pair, partial(at_once, lower=lower), True, overwrite_a=overwrite_a, overwrite_b=overwrite_b, jitter=amounts,
        refine=refine, check=check, check_errors=check_errors,
    )  # fmt: skip
    if under is not None:
        return under
    refined = Refined.asked(refine, pair.a, overwrite_a)
    _check(pair.a, overwrite_a, check)
    if not (amounts or refined.steps) and small.at_once(pair):
        meaning = MEANING if check_errors else None
        return small.solution(pair, False, overwrite_b, partial(Triangle, lower=lower), meaning, lower, key)
    with torch.no_grad(), enough_memory("cholesky", pair.a):
        prepared = pair.a.detach() if overwrite_a else compact(pair.a.detach())
        found = factorise(refined.narrowed(prepared), lower, overwrite_a or refined.steps > 0, amounts, clean=False)
    if raises(check_errors, pair.a):
        raise_for(found.info, MEANING)
    added = None if found.jitter is None else pair.wrap(found.jitter.expand(pair.a.shape[:-2]))
    triangle = Triangle(found.factor, found.lower)
    with enough_memory("cholesky", pair.a):
        return refined.solve(pair, prepared, triangle, found.info, found.ran, overwrite_b, check_errors, added)
