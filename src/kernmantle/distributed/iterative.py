"""Conjugate gradients for kernel matrices whose rows are spread over processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..checks import integer, positive
from ..errors import CheckpointError, ParameterError, ShapeError
from ..linalg.cg import Iterations
from ..linalg.cg import cg as plain_cg
from ..linalg.checkpoint import Checkpoint
from ..linalg.preconditioners import LowRank, over_root
from ..pairwise import Kernel
from .exchange import gathered, of_first, total
from .products import product
from .rows import Rows, check_together, rows

_FILES = 2  # generations of a checkpoint that are kept


class Generations:
    """The two newest states of each process, in files of its own, which are written in turn.

    A process writes state g + 1 only after a message that all sent after they wrote state g, as every iteration of a
    solver has. So all have g, or all have g - 1, and the newest that is common to all is no older than that.
    """

    def __init__(self, path: Any, problem: dict[str, Any], every: int, rows: Rows) -> None:
        self._rows, self._every, self._calls, self._next = rows, every, 0, 0
        self._path, self._problem = Path(path), problem
        self._files: list[Checkpoint] = []

    def load(self) -> dict[str, Any] | None:
        """Return the newest state that all processes have; None where none has one.

        CheckpointError on every process where one of them refuses its files or has lost them, ParameterError on every
        one where they do not agree on when to write: they would have no state in common.
        """
        states: dict[int, dict[str, Any]] = {}
        refused: CheckpointError | None = None
        try:
            for number in range(_FILES):
                name = f"{self._path.name}.{self._rows.rank}.{number}"
                self._files.append(Checkpoint(self._path.with_name(name), self._problem, 0.0))
                state = self._files[-1].load()
                if state is not None:
                    states[state["generation"]] = state
        except CheckpointError as error:
            refused = error
        valid = isinstance(self._every, int) and not isinstance(self._every, bool) and self._every >= 1
        numbers = [self._every if valid else 0, int(refused is not None), *sorted(states)]
        numbers += [-1] * (2 + _FILES - len(numbers))
        each, *found = zip(*gathered(numbers, self._rows.local.device, self._rows.group), strict=True)
        if not valid:
            raise ParameterError(f"every must be a positive number of iterations, not {self._every!r}")
        if len(set(each)) > 1:
            shown = ", ".join(f"{value or 'none'} on {rank}" for rank, value in enumerate(each))
            raise ParameterError(f"every must be the same number of iterations on every process; it is {shown}")
        found = list(zip(*found, strict=True))
        if refused is not None:
            raise refused
        for rank, (failed, *_) in enumerate(found):
            if failed:
                raise CheckpointError(f"checkpoint {self._path} is refused by process {rank}: see the error it raised")
        common = set.intersection(*({g for g in own if g >= 0} for _, *own in found))
        if not common and any(max(own) > 0 for _, *own in found):
            lost = [rank for rank, (_, *own) in enumerate(found) if max(own) < 0]
            raise CheckpointError(
                f"the files of checkpoint {self._path} have no state in common; processes {lost} have none: restore "
                f"their files, or remove all to begin anew"
            )
        self._next = max(common) + 1 if common else 0
        return states[max(common)] if common else None

    def offer(self, state: dict[str, Any]) -> None:
        """Write a state if it is due: every so many calls."""
        self._calls += 1
        if self._calls % self._every == 0:
            self.save(state)

    def save(self, state: dict[str, Any]) -> None:
        """Replace the older file."""
        self._files[self._next % _FILES].save({**state, "generation": self._next})
        self._next += 1


class Operator:
    """``k(x, x)``, with ``diagonal`` added, on columns of which each process has its rows; of :func:`operator`.

    Attributes
    ----------
    shape : tuple of int
        Rows of this process, twice.
    dtype : torch.dtype
    device : torch.device
    """

    def __init__(self, kernel: Kernel, x: Rows, diagonal: float | None) -> None:
        self.rows, self._kernel, self._diagonal = x, kernel, diagonal
        self.shape = (x.local.shape[0], x.local.shape[0])
        self.dtype, self.device = x.local.dtype, x.local.device

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        return product(self._kernel, self.rows, self.rows, v, self._diagonal)

    def double(self) -> Operator:
        """Return the same of rows in float64."""
        return Operator(self._kernel, replace(self.rows, local=self.rows.local.double()), self._diagonal)

    def float(self) -> Operator:
        """Return the same of rows in float32."""
        return Operator(self._kernel, replace(self.rows, local=self.rows.local.float()), self._diagonal)

    def __repr__(self) -> str:
        return f"<operator of {self._kernel!r} on {self.rows.total} rows of {self.rows.size} processes>"


def operator(kernel: Kernel, x: Any, *, diagonal: float | None = None, group: Any = None) -> Operator:
    """Return the matrix of a kernel, of rows that are spread, as a linear operator for :func:`cg`.

    Parameters
    ----------
    kernel : Kernel
        Symmetric.
    x : tensor of this process's rows, or DTensor, shape (n, k)
    diagonal : number, optional
        Added to the diagonal.
    group : ProcessGroup, optional

    Returns
    -------
    Operator

    Raises
    ------
    GradientError
        For a tensor that requires a gradient.

    Notes
    -----
    Nothing is computed before a product is taken, which costs what :func:`matmul` costs. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x = torch.tensor([[0.0], [1.0]])
    >>> km.distributed.operator(km.Linear(), x, diagonal=2.0) @ torch.ones(2)
    tensor([2., 3.])
    >>> dist.destroy_process_group()
    """
    return Operator(kernel, rows(x, "x", group), diagonal)


def nystrom(kernel: Kernel, x: Any, rank: int, ridge: float, *, group: Any = None) -> LowRank:
    """Preconditioner of ``k(x, x) + ridge I`` from random rows of all processes, as :func:`kernmantle.linalg.nystrom`.

    Parameters
    ----------
    kernel : Kernel
    x : tensor of this process's rows, or DTensor, shape (n, k)
    rank : int
        Rows taken; each process keeps its rows of an (n, rank) matrix.
    ridge : number
    group : ProcessGroup, optional

    Returns
    -------
    LowRank
        Callable with the rows here of columns.

    Raises
    ------
    GradientError
        For a tensor that requires a gradient.
    WorkerError
        If a process is gone or does not answer within the group's timeout.

    Notes
    -----
    Cost: n · rank kernel values and n · rank² operations, divided among the processes. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x, k = torch.rand(50, 2), km.Gaussian(1.0)
    >>> approximate = km.distributed.nystrom(k, x, 20, ridge=0.1)
    >>> approximate(torch.ones(50, 1)).shape
    torch.Size([50, 1])
    >>> dist.destroy_process_group()
    """
    mine = rows(x, "x", group)
    rank, ridge = integer(rank, "rank"), positive(ridge, "ridge")
    add = total(mine.group)
    with torch.no_grad():
        chosen = _chosen(mine, min(rank, mine.total), add)
        factor = over_root(kernel(mine.local, chosen), kernel(chosen))
        return _low_rank(factor, float(ridge), add, mine.group)


def _chosen(mine: Rows, count: int, add: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return the same random rows on every process."""
    source = torch.Generator().manual_seed(mine.total)
    drawn = torch.randperm(mine.total, generator=source)[:count].to(mine.local.device)
    here = (drawn >= mine.start) & (drawn < mine.start + mine.local.shape[0])
    found = mine.local.new_zeros(count, mine.local.shape[1])
    if mine.local.shape[0]:
        own = (drawn - mine.start).clamp(0, mine.local.shape[0] - 1)
        found = torch.where(here[:, None], mine.local[own], 0)
    return add(found)


def _low_rank(factor: torch.Tensor, ridge: float, add: Callable[[torch.Tensor], torch.Tensor], group: Any) -> LowRank:
    """Return the preconditioner of a factor whose rows are spread.

    Its Gram matrix is formed in float64, since it squares the condition.
    """
    scaled = factor.double() / ridge**0.5
    values, rotation = (of_first(part.contiguous(), group) for part in torch.linalg.eigh(add(scaled.mT @ scaled)))
    significant = values > values[-1] * factor.shape[1] * torch.finfo(torch.float64).eps
    lengths = torch.where(significant, values, 1).sqrt()
    basis = (scaled @ (rotation * torch.where(significant, 1 / lengths, 0))).to(factor.dtype)
    scale = factor.new_full((1, 1), ridge**-0.5)
    return LowRank("a Nyström approximation", basis, torch.where(significant, values, 0).to(factor.dtype), scale, add)


def cg(
    a: Operator,
    b: Any,
    *,
    preconditioner: Callable[[torch.Tensor], torch.Tensor] | None = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    refine: bool = False,
    checkpoint: Any = None,
    every: int = 10,
    check_errors: bool = False,
) -> Iterations:
    """Solve ``a x = b`` by block conjugate gradients, every process with its rows.

    Parameters
    ----------
    a : Operator
        Of :func:`operator`, or another with ``rows``, ``shape``, ``dtype`` and ``@``, and ``double()`` where float32
        is to be verified in float64.
    b : tensor of this process's rows, or DTensor, shape (n,) or (n, c)
    preconditioner, tolerance, max_iterations, refine, check_errors
        As of :func:`kernmantle.linalg.cg`; a preconditioner takes the rows here, as that of :func:`nystrom` does.
    checkpoint : path, optional
        Every process writes its rows of the solution to two files of this name, ``.rank.0`` and ``.rank.1``, in turn
        and atomically, on a disk of its own or a shared one. The same call, by as many processes with the same rows,
        starts from the newest solution that all of them have.
    every : int
        Iterations between checkpoints, the same on every process.

    Returns
    -------
    Iterations
        ``x`` is spread as b; the residuals are those of all rows, the same on every process, seen as there.

    Raises
    ------
    WorkerError
        If a process is gone or does not answer within the group's timeout.
    GradientError
        For a tensor that requires a gradient.
    CheckpointError
        On every process, where files of one are of another problem, damaged or lost; before anything is computed.
    LinearAlgebraError
        With ``check_errors``.

    Notes
    -----
    Cost: one product with the operator an iteration, two sums over the processes, and five blocks of the shape of b
    here. There are no gradients. A checkpoint has the solution, not the directions of the recursion, which begins anew
    from there.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> a = km.distributed.operator(km.Linear(), torch.tensor([[0.0], [1.0]]), diagonal=1.0)
    >>> km.distributed.cg(a, torch.ones(2)).x
    tensor([1.0000, 0.5000])
    >>> dist.destroy_process_group()
    """
    if not isinstance(getattr(a, "rows", None), Rows):
        raise ShapeError("a must be an operator of spread rows: km.distributed.operator(kernel, x, diagonal=ridge)")
    side = rows(b, "b", a.rows.group)
    check_together(a.rows, "x", side, "b")
    with torch.no_grad():
        files = None if checkpoint is None else Generations(checkpoint, _fingerprint(a, side), every, a.rows)
        state = None if files is None else files.load()
        found = plain_cg(
            a, side.local, preconditioner=preconditioner, tolerance=tolerance, max_iterations=max_iterations,
            x0=None if state is None else state["x"].to(side.local), reduce=total(a.rows.group), refine=refine,
            callback=None if files is None else lambda x: files.offer({"x": x.cpu()}), check_errors=check_errors,
        )  # fmt: skip
        if files is not None:
            files.save({"x": found.x.cpu()})
    return replace(found, x=side.like(found.x))


def _fingerprint(a: Any, side: Rows) -> dict[str, Any]:
    """Return what identifies a problem: the sizes here and of all, and sums of the data that others would not have."""
    x, b = a.rows.local.double(), side.local.double()
    return {
        "operator": repr(a), "counts": list(a.rows.counts), "rank": a.rows.rank, "dtype": str(a.dtype),
        "columns of b": list(side.local.shape[1:]), "sum of rows": float(x.sum()),
        "sum of squares of b": float(b.square().sum()),
    }  # fmt: skip
