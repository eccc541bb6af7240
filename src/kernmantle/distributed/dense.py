"""Dense systems and spectra of one matrix whose rows are spread over processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..errors import ParameterError, ShapeError
from ..linalg import cholesky, cusolvermp, lu, spectrum
from ..linalg.arguments import check_dtype, enough_memory
from ..linalg.cusolvermp import Agree, Grid
from ..linalg.eigh import MEANING, Spectrum
from ..linalg.kernel import ROWS
from ..linalg.kernel import solve_kernel as kernel_system
from ..linalg.solution import Solution, nan_where_failed, raise_for
from ..linalg.worker import communicator
from ..pairwise import Kernel
from .alone import by_all, in_one, scattered
from .exchange import dealt, everyones, largest
from .redistribute import Cyclic
from .rows import Rows, check_together, rows
from .watch import watch

_GRIDS: WeakKeyDictionary[Any, Grid] = WeakKeyDictionary()


def _square(a: Any, group: Any) -> Rows:
    given = rows(a, "a", group)
    check_dtype(given.local, "a")
    if given.local.dim() != 2 or given.local.shape[1] != given.total:
        raise ShapeError(
            f"a must be square: its rows here have {given.local.shape[-1]} columns, all processes {given.total} rows"
        )
    return given


def _system(a: Any, b: Any, group: Any) -> tuple[Rows, Rows]:
    given = _square(a, group)
    side = rows(b, "b", given.group)
    check_together(given, "a", side, "b")
    return given, side


@contextmanager
def _grid(given: Rows) -> Iterator[Grid]:
    """One for a process group, since making it takes a second; another one for another stream and after an error."""
    world: Any = dist.group.WORLD
    if given.group is not None and given.group is not world:
        raise ShapeError("over GPUs matrices are solved by all processes; pass group=None")
    device = given.local.device
    grid = _GRIDS.pop(world, None)
    if grid is None or not grid.serves(device):
        grid = Grid(communicator(device), given.rank, given.size, device)
    with watch(f"one matrix on {given.size} GPUs", device):
        yield grid
    _GRIDS[world] = grid


def _columns(side: Rows) -> torch.Tensor:
    return side.local.unsqueeze(-1) if side.local.dim() == 1 else side.local


def _solved(given: Rows, side: Rows, kind: str, check_errors: bool, meaning: str) -> Solution:
    b = _columns(side)
    if by_all(given, kind):
        x, info = _on_gpus(given, b, kind)
        return _solution(side, x, info, f"cuSOLVERMp {kind} on {given.size} GPUs", check_errors, meaning)
    routine = {"potrf": cholesky.solve_cholesky, "getrf": lu.solve_lu}[kind]

    def solve(a: torch.Tensor, right: torch.Tensor) -> list[torch.Tensor]:
        found = routine(a, right, overwrite_a=True, check_errors=False)
        return [found.x, found.info]

    return _spread(given, side, in_one(given, solve, b), check_errors, meaning)


def _spread(given: Rows, side: Rows, results: list[Any], check_errors: bool, meaning: str) -> Solution:
    """The solution and the info of the first process, to each process its rows."""
    b = _columns(side)
    x = scattered(results[0] if results else b.new_empty(0, b.shape[1]), given)
    state = int(results[1]) if results else 0
    info = torch.tensor(largest(state, x.device, given.group), dtype=torch.int32, device=x.device)
    return _solution(side, x, info, _gathered_on(given), check_errors, meaning)


def _gathered_on(given: Rows) -> str:
    return f"gathered on one {'GPU' if given.local.is_cuda else 'process'}"


def _solution(side: Rows, x: torch.Tensor, info: torch.Tensor, ran: str, check_errors: bool, meaning: str) -> Solution:
    if check_errors:
        raise_for(info, meaning)
    x = nan_where_failed(x, info)
    return Solution(side.like(x.squeeze(-1) if side.local.dim() == 1 else x), info, ran)


def _on_gpus(given: Rows, b: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    n, width = given.total, b.shape[1]
    block = cusolvermp.block_of(kind, n, given.size)
    cyclic, sides = Cyclic(given, n, block), Cyclic(given, width, block)
    with _grid(given) as grid, _room({"potrf": "cholesky", "getrf": "lu"}[kind], given):
        columns = cyclic.of_symmetric(given.local) if kind == "potrf" else cyclic.columns(given.local)
        right = sides.columns(b)
        solve = grid.solve_cholesky if kind == "potrf" else grid.solve_lu
        state = solve(columns, n, right, width, _agreement(given))
    return sides.rows(right), torch.tensor(state, dtype=torch.int32, device=b.device)


def _room(routine: str, given: Rows, beyond: str = "as much again") -> AbstractContextManager[None]:
    """Say what is needed where the memory of a GPU runs out."""
    return enough_memory(routine, given.local.new_empty(1).expand(given.total, given.total), beyond, given.size)


def _agreement(given: Rows) -> Agree:
    """What makes one info of those of all processes."""
    return lambda info: largest(int(info), info.device, given.group)


def solve_cholesky(a: Any, b: Any, *, group: Any = None, check_errors: bool = False) -> Solution:
    """Solve ``a x = b`` for one symmetric positive definite matrix by all processes.

    Parameters
    ----------
    a : tensor of this process's rows, or DTensor, shape (n, n)
        float32 or float64; both triangles are read.
    b : tensor of this process's rows, or DTensor, shape (n,) or (n, c)
        Spread as a.
    group : ProcessGroup, optional
        All processes on GPUs.
    check_errors : bool
        Raise, on every process, if the info is not 0.

    Returns
    -------
    Solution
        ``x`` spread as b, NaN where ``info`` is not 0.

    Raises
    ------
    OutOfMemoryError
        On CPUs, if the matrix does not fit into one process.
    BackendError
        On GPUs, if cuSOLVERMp is missing or does not go with NCCL.
    WorkerError
        If a process is gone or does not answer within the group's timeout; a and b are as they were.
    GradientError
        For a tensor that requires a gradient.

    Notes
    -----
    On GPUs by cuSOLVERMp on torch's NCCL communicator, the rows redistributed to cyclic blocks of columns: a copy of
    the part of each process. On CPUs the matrix is gathered and solved in the first process, on GPUs where one is
    quicker than all: up to order 20 000 in :func:`solve_lu` and :func:`eigh`, if it holds the matrix four times.

    Cost: n³ / 3 operations, divided among the GPUs. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> a, b = torch.tensor([[4.0, 2.0], [2.0, 5.0]]), torch.tensor([8.0, 12.0])
    >>> km.distributed.solve_cholesky(a, b).x
    tensor([1., 2.])
    >>> dist.destroy_process_group()
    """
    given, side = _system(a, b, group)
    return _solved(given, side, "potrf", check_errors, cholesky.MEANING)


def solve_lu(a: Any, b: Any, *, group: Any = None, check_errors: bool = False) -> Solution:
    """Solve ``a x = b`` for one square matrix by all processes; as :func:`solve_cholesky`.

    Parameters
    ----------
    a, b, group, check_errors
        As of :func:`solve_cholesky`; a need not be symmetric.

    Returns
    -------
    Solution
        ``x`` spread as b, NaN where ``info`` is not 0.

    Raises
    ------
    OutOfMemoryError, BackendError, WorkerError, GradientError
        As of :func:`solve_cholesky`.

    Notes
    -----
    Cost: 2 n³ / 3 operations, and memory as of :func:`solve_cholesky`. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> a, b = torch.tensor([[4.0, 2.0], [2.0, 5.0]]), torch.tensor([8.0, 12.0])
    >>> km.distributed.solve_lu(a, b).x
    tensor([1., 2.])
    >>> dist.destroy_process_group()
    """
    given, side = _system(a, b, group)
    return _solved(given, side, "getrf", check_errors, lu.MEANING)


def solve_kernel(
    kernel: Kernel, x: Any, y: Any, ridge: float, *, group: Any = None, check_errors: bool = False
) -> Solution:
    """Solve ``(k(x, x) + ridge I) c = y`` by the Cholesky factor of a matrix that all processes hold together.

    Parameters
    ----------
    kernel : Kernel
        Symmetric and positive definite.
    x : tensor of this process's rows, or DTensor, shape (n, k)
        float32 or float64.
    y : tensor of this process's rows, or DTensor, shape (n,) or (n, c)
        Spread as x.
    ridge : number
        Positive.
    group : ProcessGroup, optional
        All processes on GPUs.
    check_errors : bool
        Raise, on every process, if the info is not 0.

    Returns
    -------
    Solution
        ``x`` are the coefficients, spread as y, NaN where ``info`` is not 0.

    Raises
    ------
    OutOfMemoryError, BackendError, WorkerError
        As of :func:`solve_cholesky`.

    Notes
    -----
    On GPUs each process writes its blocks of columns straight into the memory of the factor, n² / processes numbers
    and all rows of x: twice to thrice the matrix that :func:`solve_cholesky` takes. :func:`cg` stores no matrix.

    There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.ones(2)
    >>> km.distributed.solve_kernel(km.Linear(), x, y, ridge=1.0).x
    tensor([1.0000, 0.5000])
    >>> dist.destroy_process_group()
    """
    given = rows(x, "x", group)
    check_dtype(given.local, "x")
    side = rows(y, "y", given.group)
    check_together(given, "x", side, "y")
    if not 0 < float(ridge) < float("inf"):
        raise ParameterError(f"ridge must be positive, not {ridge!r}")
    if not by_all(given, "potrf"):

        def solve(points: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
            found = kernel_system(kernel, points, targets, ridge, method="cholesky", check_errors=False)
            assert found.factor is not None
            return [found.x, found.factor.info]

        results = in_one(given, solve, _columns(side), copies=1)
        return _spread(given, side, results, check_errors, cholesky.MEANING)
    b, n = _columns(side), given.total
    sides = Cyclic(given, b.shape[1], cusolvermp.block_of("potrf", n, given.size))
    with _grid(given) as grid, torch.no_grad(), _room("cholesky", given, "km.distributed.cg forms none"):
        matrix = _kernel_columns(kernel, given, float(ridge))
        right = sides.columns(b)
        state = grid.solve_cholesky(matrix, n, right, b.shape[1], _agreement(given))
    info = torch.tensor(state, dtype=torch.int32, device=b.device)
    ran = f"cuSOLVERMp potrf on {given.size} GPUs"
    return _solution(side, sides.rows(right), info, ran, check_errors, cholesky.MEANING)


def _kernel_columns(kernel: Kernel, given: Rows, ridge: float) -> torch.Tensor:
    """Columns here, as rows, of the regularised matrix."""
    points = everyones(given.local, given.counts, given.group)
    here = Cyclic(given, given.total, cusolvermp.block_of("potrf", given.total, given.size)).here.to(points.device)
    matrix = points.new_empty(len(here), given.total)
    for top in range(0, len(here), ROWS):
        kernel(points[here[top : top + ROWS]], points, out=matrix[top : top + ROWS])
    matrix[torch.arange(len(here), device=points.device), here] += ridge
    return matrix


def eigh(a: Any, *, eigvals_only: bool = False, group: Any = None, check_errors: bool = False) -> Any:
    """Eigenvalues in ascending order and vectors of one symmetric matrix, ``a v = w v``, by all processes.

    Parameters
    ----------
    a : tensor of this process's rows, or DTensor, shape (n, n)
        float32 or float64; both triangles are read.
    eigvals_only : bool
        Return w alone.
    group : ProcessGroup, optional
        All processes on GPUs.
    check_errors : bool
        Raise, on every process, if the info is not 0.

    Returns
    -------
    Spectrum or tensor
        ``w`` whole on every process; ``v`` (n, columns here), of which each process has as many columns as it has
        rows of a, in order; a DTensor over its second axis if a is a DTensor.

    Raises
    ------
    OutOfMemoryError, BackendError, WorkerError
        As of :func:`solve_cholesky`.

    Notes
    -----
    Cost: 4 n³ / 3 operations for w and about as many again for v, divided among the GPUs. On CPUs in the first
    process. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> km.distributed.eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).w
    tensor([1., 3.])
    >>> dist.destroy_process_group()
    """
    given = _square(a, group)
    if by_all(given, "syevd"):
        cyclic = Cyclic(given, given.total, cusolvermp.block_of("syevd", given.total, given.size))
        with _grid(given) as grid, _room("eigh", given, "and half as much again"):
            found = grid.eigh(cyclic.of_symmetric(given.local), given.total, not eigvals_only)
            v = None if found.v is None else cyclic.in_order(found.v).mT
        w, ran = found.w, f"cuSOLVERMp syevd on {given.size} GPUs"
        state = largest(int(found.info), w.device, given.group)
    else:
        w, v, state = _eigh_in_one(given, not eigvals_only)
        ran = _gathered_on(given)
    info = torch.tensor(state, dtype=torch.int32, device=w.device)
    if check_errors:
        raise_for(info, MEANING)
    w = nan_where_failed(w, info)
    if v is None:
        return w
    return Spectrum(w, given.like(nan_where_failed(v, info), 1), info, None, ran)


def _eigh_in_one(given: Rows, vectors: bool) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    def solve(a: torch.Tensor) -> list[torch.Tensor]:
        found = spectrum.direct(a, True, True, vectors, None, None)
        return [found.w, found.info, *([] if found.v is None else [found.v])]

    results = in_one(given, solve)
    n = given.total
    w = dealt(
        (results[0] if results else given.local.new_empty(0)).repeat(given.size),
        [n if results else 0] * given.size, [n if i == 0 else 0 for i in range(given.size)], given.group,
    )  # fmt: skip
    state = largest(int(results[1]) if results else 0, w.device, given.group)
    if not vectors:
        return w, None, state
    columns = results[2].mT if results else given.local.new_empty(0, n)
    return w, scattered(columns, given).mT, state
