"""Regularised systems of kernel matrices: built into their factor's memory, or never built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from ..arrays import Wrap, to_tensor
from ..checks import integer, one_of, positive
from ..errors import DtypeError, ParameterError, ShapeError
from ..pairwise import Kernel
from ..pairwise.kernel import check_kernel
from ..pairwise.kernel_inputs import Call
from ..torch_ops.outside import outside
from ..torch_ops.torch_private import is_transformed
from .arguments import check_dtype, check_reverse, enough_memory, raises
from .cg import Iterations, cg
from .cholesky import MEANING, CholeskyFactor, Triangle, check_jitter, factorise
from .implicit import attached
from .preconditioners import LowRank, nystrom, pivoted_cholesky
from .sketch_and_project import sketch_and_project
from .solution import Described, nan_where_failed, raise_for

Method = Literal["auto", "cholesky", "cg", "sketch_and_project"]
Preconditioner = Literal["nystrom", "pivoted_cholesky"]
ROWS = 2048  # of the kernel matrix that are written at a time
LARGE = {"cpu": 20_000, "cuda": 60_000}
"""Rows from which on "auto" iterates."""
ENDLESS = {"cpu": 200_000, "cuda": 1_000_000}
"""Rows from which on "auto" takes blocks of rows: products with all take 40 s on two cores, 0.9 s on an H100."""


@dataclass(frozen=True, repr=False)
class KernelSolution(Described):
    """Coefficients ``x`` of a kernel's regularised system.

    Attributes
    ----------
    x : array, shape (n,) or (n, c)
    ran : str
        What was used.
    factor : CholeskyFactor or None
        Of the regularised matrix, where it was factored.
    iterations : Iterations or None
        Residuals and their history, where it was not.
    """

    x: Any
    ran: str
    factor: CholeskyFactor | None = None
    iterations: Iterations | None = None


class _Regularised:
    """``k(x, x) + diag(ridge)`` as an operator."""

    def __init__(self, kernel: Kernel, x: torch.Tensor, ridge: Any) -> None:
        self._kernel, self._x, self._ridge = kernel, x, ridge
        self.shape = (x.shape[0], x.shape[0])
        self.dtype, self.device = x.dtype, x.device

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        if isinstance(self._ridge, torch.Tensor) and self._ridge.dim():
            return self._kernel.matmul(self._x, None, v) + self._ridge[:, None] * v
        return self._kernel.matmul(self._x, None, v, diagonal=self._ridge)

    @property
    def requires_grad(self) -> bool:
        """Return whether a gradient is recorded of products with it."""
        return self._kernel.prepared(self._x, None)[0].is_tracked or (
            isinstance(self._ridge, torch.Tensor) and self._ridge.requires_grad
        )

    def double(self) -> _Regularised:
        """Return the same of rows in float64."""
        return self._of(torch.float64)

    def float(self) -> _Regularised:
        """Return the same of rows in float32."""
        return self._of(torch.float32)

    def _of(self, dtype: torch.dtype) -> _Regularised:
        ridge = self._ridge.to(dtype) if isinstance(self._ridge, torch.Tensor) else self._ridge
        return _Regularised(self._kernel, self._x.to(dtype), ridge)


def kernel_matrix(kernel: Kernel, x: torch.Tensor, ridge: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the upper triangle of ``k(x, x)`` with the ridge on its diagonal; what is below it is not meant.

    Row-major, it is the lower one to column-major libraries, which factor that one faster. Of another ``dtype`` than
    x it is rounded tile by tile.
    """
    n = x.shape[0]
    matrix = torch.empty(n, n, dtype=dtype or x.dtype, device=x.device)
    for top in range(0, n, ROWS):
        stop = min(top + ROWS, n)
        if matrix.dtype == x.dtype and not is_transformed():
            kernel(x[top:stop], x[top:], out=matrix[top:stop, top:])
        else:
            matrix[top:stop, top:] = kernel(x[top:stop], x[top:])
    matrix.diagonal().add_(ridge)
    return matrix


@outside
def solve_kernel(
    kernel: Kernel,
    x: Any,
    y: Any,
    ridge: Any,
    *,
    method: Method = "auto",
    preconditioner: Preconditioner | Callable[[torch.Tensor], torch.Tensor] | None = "nystrom",
    rank: int | None = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    jitter: Sequence[float] | float | None = None,
    refine: int = 0,
    check_errors: bool | None = None,
) -> KernelSolution:
    """Solve ``(k(x, x) + ridge I) c = y``: kernel ridge regression, or the mean of a Gaussian process.

    Parameters
    ----------
    kernel : Kernel
        Symmetric and positive definite.
    x : array, shape (n, k)
        Rows, float32 or float64.
    y : array, shape (n,) or (n, c)
        Targets, of the dtype of x.
    ridge : number or array, shape (n,)
        Positive, for all rows or for each.
    method : {"auto", "cholesky", "cg", "sketch_and_project"}
        "cholesky" writes tiles of the matrix straight into the memory of its factor, n² numbers in all. "cg" never
        forms it: n · rank numbers and a few vectors. "sketch_and_project" is :func:`sketch_and_project`, without a
        gradient. "auto" iterates from 20 000 rows on the CPU and 60 000 on CUDA, and takes blocks of rows from 200 000
        and 1 000 000 where nothing requires a gradient.
    preconditioner : {"nystrom", "pivoted_cholesky"}, callable or None
        Of the iteration.
    rank : int, optional
        Of the preconditioner; by default about twice the square root of n, from 50 to 1000.
    tolerance, max_iterations
        As of :func:`cg`; the default tolerance is 1e-4 for float32, 1e-6 for float64, 1e-3 for blocks of rows,
        and 1e-10 for a factor that is refined.
    jitter
        As of :func:`cholesky_factor`.
    refine : int
        For float64 rows, work in float32 and refine in float64. "cholesky": the factor is one of float32, with half of
        the memory, and preconditions at most so many iterations with products in float64; ``jitter`` is then found by
        itself. "cg": as ``refine=True`` of :func:`cg`. ``.iterations`` has the residual.
    check_errors : bool, optional
        Wait, and raise where the matrix is not positive definite or the iteration did not converge. By default on the
        CPU for the first; an iteration that does not converge is a warning then, and said in ``.iterations``.

    Returns
    -------
    KernelSolution
        With ``.factor`` or ``.iterations``. ``k.matmul(z, x, c.x)`` predicts.

    Raises
    ------
    LinearAlgebraError
        As ``check_errors`` says.
    ShapeError, DtypeError, ParameterError
        For arrays and options that do not fit, before anything runs.

    Notes
    -----
    The first-order gradient exists by x, y, the ridge and the kernel's hyperparameters, by products alone: memory
    stays what it was.

    Cost: n² kernel values and n³ / 3 operations with Cholesky, n² kernel values an iteration with conjugate
    gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x = torch.linspace(0, 3, 50)[:, None]
    >>> k, y = km.Gaussian(0.5), x[:, 0].sin()
    >>> c = km.linalg.solve_kernel(k, x, y, ridge=1e-3).x
    >>> bool((k.matmul(x, None, c) - y).abs().max() < 1e-2)
    True
    """
    one_of(method, "method", get_args(Method))
    check_kernel(kernel)
    call, (targets,) = kernel.prepared(x, None, None, **{"the targets y": y})
    ridge = _checked(call, targets, ridge)
    for name, value in (("x", call.x), ("y", targets), ("ridge", ridge), *(("the kernel", t) for t in call.shared)):
        if isinstance(value, torch.Tensor):
            check_reverse(value, name)
    kernel, rows, vector = kernel.of_transformed(), call.x, targets.dim() == 1
    columns = targets.unsqueeze(-1) if vector else targets
    large = rows.shape[0] >= LARGE.get(rows.device.type, 0)
    _check_refine(refine, rows)
    endless = rows.shape[0] >= ENDLESS.get(rows.device.type, 0) and not _Regularised(kernel, rows, ridge).requires_grad
    if method == "sketch_and_project" or (method == "auto" and endless and not (refine or targets.requires_grad)):
        found = sketch_and_project(
            kernel, rows, targets, ridge, rank=rank, tolerance=tolerance or 1e-3, device=rows.device,
            check_errors=bool(check_errors),
        )  # fmt: skip
        return KernelSolution(call.wrap(found.x), found.ran, iterations=found)
    if method == "cg" or (method == "auto" and large):
        limit = tolerance or (1e-4 if rows.dtype == torch.float32 else 1e-6)
        approximate = _preconditioner(kernel, rows, ridge, preconditioner, rank)
        found = cg(
            _Regularised(kernel, rows, ridge), columns, preconditioner=approximate, tolerance=limit,
            max_iterations=max_iterations, refine=refine > 0, check_errors=bool(check_errors),
        )  # fmt: skip
        result = found.x.squeeze(-1) if vector else found.x
        return KernelSolution(call.wrap(result), found.ran, iterations=found)
    if refine:
        factor, found = _refined(kernel, rows, columns, ridge, tolerance or 1e-10, refine, check_errors, call.wrap)
        result = found.x.squeeze(-1) if vector else found.x
        return KernelSolution(call.wrap(result), f"{factor.ran} in float32, {found.ran}", factor, found)
    solution, factor = _factored(kernel, rows, columns, ridge, jitter, check_errors, call.wrap)
    return KernelSolution(call.wrap(solution.squeeze(-1) if vector else solution), factor.ran, factor=factor)


PIVOTS = (1e-6, 4e-6, 1.6e-5, 6.4e-5, 1e-3)
"""Jitter, relative to the mean of the diagonal, of a factor that only preconditions: rounding of float32 entries."""


def _check_refine(refine: Any, rows: torch.Tensor) -> None:
    if integer(refine, "refine", 0) and rows.dtype != torch.float64:
        raise DtypeError(f"refine works in float32 and refines in float64; x is {rows.dtype}: pass x and y in float64")


@dataclass(frozen=True)
class _Narrow:
    """A factor in float32 as the preconditioner of float64 columns."""

    triangle: Triangle

    def __call__(self, v: torch.Tensor) -> torch.Tensor:
        top = v.abs().amax(0)
        size = torch.where(top > 0, top, torch.ones_like(top))
        return self.triangle.solve((v / size).float()).double() * size

    def __repr__(self) -> str:
        return "a Cholesky factor in float32"


def _refined(
    kernel: Kernel, rows: torch.Tensor, columns: torch.Tensor, ridge: Any, tolerance: float, steps: int,
    check_errors: bool | None, wrap: Wrap,
) -> tuple[CholeskyFactor, Iterations]:  # fmt: skip
    """Return a factor in float32, and iterations with products in float64 that it preconditions."""
    plain = ridge.detach().float() if isinstance(ridge, torch.Tensor) else ridge
    whole = rows.detach().new_empty(1, dtype=torch.float32).expand(len(rows), len(rows))
    with torch.no_grad(), enough_memory("cholesky", whole, "method='cg' forms none"):
        amounts: tuple[float, ...] = ()
        while True:
            matrix = kernel_matrix(kernel, rows.detach(), plain, torch.float32)
            made = factorise(matrix, False, True, amounts)
            if amounts or not bool(made.info.any()):
                break
            amounts = PIVOTS
    if raises(True if check_errors is None else check_errors, rows):
        raise_for(made.info, MEANING)
    found = cg(
        _Regularised(kernel, rows, ridge), columns, preconditioner=_Narrow(Triangle(made.factor, made.lower)),
        tolerance=tolerance, max_iterations=steps, check_errors=bool(check_errors),
    )  # fmt: skip
    return CholeskyFactor(wrap(made.factor), wrap(made.info), made.lower, made.ran, wrap(made.jitter)), found


def _factored(
    kernel: Kernel, rows: torch.Tensor, columns: torch.Tensor, ridge: Any, jitter: Any, check_errors: bool | None,
    wrap: Wrap,
) -> tuple[torch.Tensor, CholeskyFactor]:  # fmt: skip
    whole = rows.detach().new_empty(1).expand(len(rows), len(rows))
    with torch.no_grad(), enough_memory("cholesky", whole, "method='cg' forms none"):
        matrix = kernel_matrix(kernel, rows.detach(), ridge.detach() if isinstance(ridge, torch.Tensor) else ridge)
        made = factorise(matrix, False, True, check_jitter(jitter))
    if raises(check_errors, rows):
        raise_for(made.info, MEANING)
    triangle = Triangle(made.factor, made.lower)
    solution = triangle.solve(columns.detach())
    if torch.is_grad_enabled():
        gap = columns - _Regularised(kernel, rows, ridge) @ solution
        solution = attached(solution, gap, triangle.solve)
    solution = nan_where_failed(solution, made.info)
    return solution, CholeskyFactor(wrap(made.factor), wrap(made.info), made.lower, made.ran, wrap(made.jitter))


def _checked(call: Call, targets: torch.Tensor, ridge: Any) -> Any:
    check_dtype(call.x, "x")
    n = call.x.shape[0]
    if call.batch or call.x.dim() != 2:
        raise ShapeError(f"solve_kernel takes one set of rows and one kernel, not a batch {call.batch}; loop over it")
    if targets.dim() not in (1, 2) or targets.shape[0] != n:
        raise ShapeError(f"y must have shape ({n},) or ({n}, c), one for each row of x; it has {tuple(targets.shape)}")
    if not isinstance(ridge, torch.Tensor) and not np.ndim(ridge):
        return positive(ridge, "ridge")
    value = to_tensor(ridge, "ridge").to(call.x)
    if value.dim() > 1 or (value.dim() == 1 and value.shape[0] != n):
        raise ShapeError(f"ridge must be a number or have shape ({n},), it has {tuple(value.shape)}")
    return value


def _preconditioner(kernel: Kernel, rows: torch.Tensor, ridge: Any, choice: Any, rank: int | None) -> Any:
    if choice is None or callable(choice):
        return choice
    makers: dict[str, Callable[..., LowRank]] = {"nystrom": nystrom, "pivoted_cholesky": pivoted_cholesky}
    if choice not in makers:
        raise ParameterError(f"preconditioner must be a callable, None or one of {', '.join(makers)}, not {choice!r}")
    n = rows.shape[0]
    count = min(1000, max(50, int(2 * n**0.5))) if rank is None else rank
    plain = ridge.detach() if isinstance(ridge, torch.Tensor) else ridge
    with torch.no_grad():
        return makers[choice](kernel.operator(rows.detach()), count, plain)
