"""Regularised systems of kernel matrices: built into their factor's memory, or never built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from ..arrays import Wrap
from ..errors import ParameterError, ShapeError
from ..pairwise import Kernel
from ..pairwise.kernel_inputs import Call
from .arguments import check_dtype, check_reverse, enough_memory, raises
from .cg import Iterations, cg
from .cholesky import MEANING, CholeskyFactor, Triangle, check_jitter, factorise
from .implicit import attached
from .outside import outside
from .preconditioners import LowRank, nystrom, pivoted_cholesky
from .solution import Described, nan_where_failed, raise_for

Method = Literal["auto", "cholesky", "cg"]
Preconditioner = Literal["nystrom", "pivoted_cholesky"]
ROWS = 2048
LARGE = {"cpu": 20_000, "cuda": 60_000}
"""Rows from which on "auto" iterates."""


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
        """Whether a gradient is recorded of products with it."""
        return self._kernel.prepared(self._x, None)[0].is_tracked or (
            isinstance(self._ridge, torch.Tensor) and self._ridge.requires_grad
        )

    def double(self) -> _Regularised:
        """The same of rows in float64."""
        ridge = self._ridge.double() if isinstance(self._ridge, torch.Tensor) else self._ridge
        return _Regularised(self._kernel, self._x.double(), ridge)


def kernel_matrix(kernel: Kernel, x: torch.Tensor, ridge: Any) -> torch.Tensor:
    """The upper triangle of ``k(x, x)`` with the ridge on its diagonal; what is below it is not meant.

    Row-major, it is the lower one to column-major libraries, which factor that one faster.
    """
    n = x.shape[0]
    matrix = torch.empty(n, n, dtype=x.dtype, device=x.device)
    for top in range(0, n, ROWS):
        stop = min(top + ROWS, n)
        kernel(x[top:stop], x[top:], out=matrix[top:stop, top:])
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
    method : {"auto", "cholesky", "cg"}
        "cholesky" writes tiles of the matrix straight into the memory of its factor, n² numbers in all. "cg" never
        forms it: n · rank numbers and a few vectors. "auto" iterates from 20 000 rows on the CPU and 60 000 on CUDA.
    preconditioner : {"nystrom", "pivoted_cholesky"}, callable or None
        Of the iteration.
    rank : int, optional
        Of the preconditioner; by default about twice the square root of n, from 50 to 1000.
    tolerance, max_iterations
        As of :func:`cg`; the default tolerance is 1e-4 for float32 and 1e-6 for float64.
    jitter
        As of :func:`cholesky_factor`.
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
    if method not in get_args(Method):
        raise ParameterError(f"method must be one of {', '.join(map(repr, get_args(Method)))}, not {method!r}")
    call, (targets,) = kernel.prepared(x, None, None, **{"the targets y": y})
    ridge = _checked(call, targets, ridge)
    for name, value in (("x", call.x), ("y", targets), ("ridge", ridge), *(("the kernel", t) for t in call.shared)):
        if isinstance(value, torch.Tensor):
            check_reverse(value, name)
    kernel, rows, vector = kernel.of_transformed(), call.x, targets.dim() == 1
    columns = targets.unsqueeze(-1) if vector else targets
    large = rows.shape[0] >= LARGE.get(rows.device.type, 0)
    if method == "cg" or (method == "auto" and large):
        limit = tolerance or (1e-4 if rows.dtype == torch.float32 else 1e-6)
        approximate = _preconditioner(kernel, rows, ridge, preconditioner, rank)
        found = cg(
            _Regularised(kernel, rows, ridge), columns, preconditioner=approximate, tolerance=limit,
            max_iterations=max_iterations, check_errors=bool(check_errors),
        )  # fmt: skip
        result = found.x.squeeze(-1) if vector else found.x
        return KernelSolution(call.wrap(result), found.ran, iterations=found)
    solution, factor = _factored(kernel, rows, columns, ridge, jitter, check_errors, call.wrap)
    return KernelSolution(call.wrap(solution.squeeze(-1) if vector else solution), factor.ran, factor=factor)


def _factored(
    kernel: Kernel,
    rows: torch.Tensor,
    columns: torch.Tensor,
    ridge: Any,
    jitter: Any,
    check_errors: bool | None,
    wrap: Wrap,
) -> tuple[torch.Tensor, CholeskyFactor]:
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
    if isinstance(ridge, (int, float)) and not isinstance(ridge, bool):
        if not 0 < ridge < float("inf"):
            raise ParameterError(f"ridge must be positive, not {ridge!r}")
        return float(ridge)
    given = torch.as_tensor(ridge, device=call.x.device).to(call.x.dtype)
    if given.dim() > 1 or (given.dim() == 1 and given.shape[0] != n):
        raise ShapeError(f"ridge must be a number or have shape ({n},), it has {tuple(given.shape)}")
    return given


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
