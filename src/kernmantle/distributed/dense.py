"""Dense systems and spectra of one matrix whose rows are spread over processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..checks import positive
from ..errors import ShapeError
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
from .exchange import all_gathered, exchanged_rows, largest
from .redistribute import Cyclic
from .rows import Rows, check_together, rows
from .watch import watch

_GRIDS: WeakKeyDictionary[Any, Grid] = WeakKeyDictionary()


def _square(a: Any, group: Any) -> Rows:
    own = rows(a, "a", group)
    check_dtype(own.local, "a")
    if own.local.dim() != 2 or own.local.shape[1] != own.total:
        raise ShapeError(
            f"a must be square: its rows here have {own.local.shape[-1]} columns, all processes {own.total} rows"
        )
    return own


def _system(a: Any, b: Any, group: Any) -> tuple[Rows, Rows]:
    own_rows = _square(a, group)
    side = rows(b, "b", own_rows.group)
    check_together(own_rows, "a", side, "b")
    return own_rows, side


@contextmanager
def _grid(own_rows: Rows) -> Iterator[Grid]:
    """One for a process group, since making it takes a second; another one for another stream and after an error."""
    world: Any = dist.group.WORLD
    if own_rows.group is not None and own_rows.group is not world:
        raise ShapeError("over GPUs matrices are solved by all processes; pass group=None")
    device = own_rows.local.device
    grid = _GRIDS.pop(world, None)
    if grid is None or not grid.serves(device):
        grid = Grid(communicator(device), own_rows.rank, own_rows.size, device)
    with watch(f"one matrix on {own_rows.size} GPUs", device):
        yield grid
    _GRIDS[world] = grid


def _columns(side: Rows) -> torch.Tensor:
    return side.local.unsqueeze(-1) if side.local.dim() == 1 else side.local


def _solved(own_rows: Rows, side: Rows, kind: str, check_errors: bool, meaning: str) -> Solution:
    b = _columns(side)
    if by_all(own_rows, kind):
        x, info = _on_gpus(own_rows, b, kind)
        return _solution(side, x, info, f"cuSOLVERMp {kind} on {own_rows.size} GPUs", check_errors, meaning)
    routine = {"potrf": cholesky.solve_cholesky, "getrf": lu.solve_lu}[kind]

    def solve(a: torch.Tensor, right: torch.Tensor) -> list[torch.Tensor]:
        found = routine(a, right, overwrite_a=True, check_errors=False)
        return [found.x, found.info]

    return _spread(own_rows, side, in_one(own_rows, solve, b), check_errors, meaning)


def _spread(own_rows: Rows, side: Rows, results: list[Any], check_errors: bool, meaning: str) -> Solution:
    """Return the solution and the info of the first process, to each process its rows."""
    b = _columns(side)
    x = scattered(results[0] if results else b.new_empty(0, b.shape[1]), own_rows)
    state = int(results[1]) if results else 0
    info = torch.tensor(largest(state, x.device, own_rows.group), dtype=torch.int32, device=x.device)
    return _solution(side, x, info, _gathered_on(own_rows), check_errors, meaning)


def _gathered_on(own_rows: Rows) -> str:
    return f"gathered on one {'GPU' if own_rows.local.is_cuda else 'process'}"


def _solution(side: Rows, x: torch.Tensor, info: torch.Tensor, ran: str, check_errors: bool, meaning: str) -> Solution:
    if check_errors:
        raise_for(info, meaning)
    x = nan_where_failed(x, info)
    return Solution(side.like(x.squeeze(-1) if side.local.dim() == 1 else x), info, ran)


def _on_gpus(own_rows: Rows, b: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    n, width = own_rows.total, b.shape[1]
    block = cusolvermp.block_of(kind, n, own_rows.size)
    cyclic, sides = Cyclic(own_rows, n, block), Cyclic(own_rows, width, block)
    with _grid(own_rows) as grid, _enough_memory({"potrf": "cholesky", "getrf": "lu"}[kind], own_rows):
        columns = cyclic.of_symmetric(own_rows.local) if kind == "potrf" else cyclic.columns(own_rows.local)
        right = sides.columns(b)
        solve = grid.solve_cholesky if kind == "potrf" else grid.solve_lu
        state = solve(columns, n, right, width, _agreement(own_rows))
    return sides.rows(right), torch.tensor(state, dtype=torch.int32, device=b.device)


def _enough_memory(routine: str, own_rows: Rows, beyond: str = "as much again") -> AbstractContextManager[None]:
    """Say what is needed where the memory of a GPU runs out."""
    return enough_memory(
        routine, own_rows.local.new_empty(1).expand(own_rows.total, own_rows.total), beyond, own_rows.size
    )


def _agreement(own_rows: Rows) -> Agree:
    """Return what makes one info of those of all processes."""
    return lambda info: largest(int(info), info.device, own_rows.group)


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
    own_rows, side = _system(a, b, group)
    return _solved(own_rows, side, "potrf", check_errors, cholesky.MEANING)


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
    own_rows, side = _system(a, b, group)
    return _solved(own_rows, side, "getrf", check_errors, lu.MEANING)


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
    own_rows = rows(x, "x", group)
    check_dtype(own_rows.local, "x")
    side = rows(y, "y", own_rows.group)
    check_together(own_rows, "x", side, "y")
    ridge = positive(ridge, "ridge")
    if not by_all(own_rows, "potrf"):

        def solve(points: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
            found = kernel_system(kernel, points, targets, ridge, method="cholesky", check_errors=False)
            assert found.factor is not None
            return [found.x, found.factor.info]

        results = in_one(own_rows, solve, _columns(side), copies=1)
        return _spread(own_rows, side, results, check_errors, cholesky.MEANING)
    b, n = _columns(side), own_rows.total
    sides = Cyclic(own_rows, b.shape[1], cusolvermp.block_of("potrf", n, own_rows.size))
    with _grid(own_rows) as grid, torch.no_grad(), _enough_memory("cholesky", own_rows, "km.distributed.cg forms none"):
        matrix = _kernel_columns(kernel, own_rows, float(ridge))
        right = sides.columns(b)
        state = grid.solve_cholesky(matrix, n, right, b.shape[1], _agreement(own_rows))
    info = torch.tensor(state, dtype=torch.int32, device=b.device)
    ran = f"cuSOLVERMp potrf on {own_rows.size} GPUs"
    return _solution(side, sides.rows(right), info, ran, check_errors, cholesky.MEANING)


def _kernel_columns(kernel: Kernel, own_rows: Rows, ridge: float) -> torch.Tensor:
    """Return the columns here, as rows, of the regularised matrix."""
    points = all_gathered(own_rows.local, own_rows.counts, own_rows.group)
    here = Cyclic(own_rows, own_rows.total, cusolvermp.block_of("potrf", own_rows.total, own_rows.size)).here.to(
        points.device
    )
    matrix = points.new_empty(len(here), own_rows.total)
    for top in range(0, len(here), ROWS):
        kernel(points[here[top : top + ROWS]], points, out=matrix[top : top + ROWS])
    matrix[torch.arange(len(here), device=points.device), here] += ridge
    return matrix


def eigh(a: Any, *, eigvals_only: bool = False, group: Any = None, check_errors: bool = False) -> Any:
    """Return the eigenvalues in ascending order and vectors of one symmetric matrix, ``a v = w v``, by all processes.

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
    own_rows = _square(a, group)
    if by_all(own_rows, "syevd"):
        cyclic = Cyclic(own_rows, own_rows.total, cusolvermp.block_of("syevd", own_rows.total, own_rows.size))
        with _grid(own_rows) as grid, _enough_memory("eigh", own_rows, "and half as much again"):
            found = grid.eigh(cyclic.of_symmetric(own_rows.local), own_rows.total, not eigvals_only)
            v = None if found.v is None else cyclic.in_order(found.v).mT
        w, ran = found.w, f"cuSOLVERMp syevd on {own_rows.size} GPUs"
        state = largest(int(found.info), w.device, own_rows.group)
    else:
        w, v, state = _eigh_in_one(own_rows, not eigvals_only)
        ran = _gathered_on(own_rows)
    info = torch.tensor(state, dtype=torch.int32, device=w.device)
    if check_errors:
        raise_for(info, MEANING)
    w = nan_where_failed(w, info)
    if v is None:
        return w
    return Spectrum(w, own_rows.like(nan_where_failed(v, info), 1), info, None, ran)


def _eigh_in_one(own_rows: Rows, vectors: bool) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    def solve(a: torch.Tensor) -> list[torch.Tensor]:
        found = spectrum.direct(a, True, True, vectors, None, None)
        return [found.w, found.info, *([] if found.v is None else [found.v])]

    results = in_one(own_rows, solve)
    n = own_rows.total
    w = exchanged_rows(
        (results[0] if results else own_rows.local.new_empty(0)).repeat(own_rows.size),
        [n if results else 0] * own_rows.size, [n if i == 0 else 0 for i in range(own_rows.size)], own_rows.group,
    )  # fmt: skip
    state = largest(int(results[1]) if results else 0, w.device, own_rows.group)
    if not vectors:
        return w, None, state
    columns = results[2].mT if results else own_rows.local.new_empty(0, n)
    return w, scattered(columns, own_rows).mT, state
