"""Kernel matrices and products with them, for rows that are spread over processes: shards go round in a ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..pairwise import Kernel
from .exchange import largest, ring, total
from .rows import Rows, check_columns, check_one_dtype, check_together, rows

CHUNK_BYTES = 64 << 20  # of points at a time


def gram(kernel: Kernel, x: Any, y: Any = None, *, diagonal: float | None = None, group: Any = None) -> Any:
    """Return all pairs of rows: each process has the rows of the matrix that belong to its rows of x.

    Parameters
    ----------
    kernel : Kernel
    x, y : tensor of this process's rows, or DTensor, shapes (m, k) and (n, k)
        y by default x.
    diagonal : number, optional
        Added where row and column have the same index.
    group : ProcessGroup, optional
        By default all processes; that of the mesh for DTensors.

    Returns
    -------
    tensor, shape (rows here, n), or DTensor

    Raises
    ------
    ShapeError, DtypeError
        On every process, where the columns or dtypes of two of them differ; before anything is exchanged.
    WorkerError
        If a process is gone, refuses its own tensors or does not answer within the group's timeout.
    GradientError
        For a tensor that requires a gradient.

    Notes
    -----
    A process keeps its part of the matrix and two shards of y, of which one is under way.

    One pass over the pairs in all, every process doing its rows. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x = torch.arange(3.0)[:, None]
    >>> km.distributed.gram(km.Gaussian(1.0), x).shape
    torch.Size([3, 3])
    >>> dist.destroy_process_group()
    """
    mine = rows(x, "x", group)
    other = mine if y is None else rows(y, "y", mine.group)
    check_columns(mine, "x", other, "y")
    check_one_dtype(x=mine, y=other)
    starts = _starts(other)
    out = mine.local.new_empty(mine.local.shape[0], other.total)
    for owner, (shard,) in ring([other.local], other.counts, mine.group):
        part = out[:, starts[owner] : starts[owner] + other.counts[owner]]
        if part.numel():
            offsets = (mine.start, starts[owner])
            kernel(mine.local, shard, out=part, diagonal=diagonal, offsets=offsets)
    return mine.like(out)


def _starts(shared_rows: Rows) -> list[int]:
    return [sum(shared_rows.counts[:i]) for i in range(shared_rows.size)]


def matmul(kernel: Kernel, x: Any, y: Any, v: Any, *, diagonal: float | None = None, group: Any = None) -> Any:
    """``k(x, y) @ v`` without the matrix, all of them spread by rows.

    Parameters
    ----------
    kernel : Kernel
    x, y, v : tensor of this process's rows, or DTensor, shapes (m, k), (n, k) and (n,) or (n, c)
        y None is x.
    diagonal : number, optional
        ``diagonal * v`` is added.
    group : ProcessGroup, optional

    Returns
    -------
    tensor, shape (rows here,) or (rows here, c), or DTensor

    Raises
    ------
    ShapeError, DtypeError
        On every process, where the columns or dtypes of two of them differ; before anything is exchanged.
    WorkerError
        If a process is gone, refuses its own tensors or does not answer within the group's timeout.
    GradientError
        For a tensor that requires a gradient.

    Notes
    -----
    Cost: n² kernel values, divided among the processes. A process does its rows of the product while the next shard
    of y and v is under way; it keeps two shards and its part of the result. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x, v = torch.tensor([[0.0], [1.0]]), torch.ones(2)
    >>> km.distributed.matmul(km.Linear(), x, None, v)
    tensor([0., 1.])
    >>> dist.destroy_process_group()
    """
    mine = rows(x, "x", group)
    other = mine if y is None else rows(y, "y", mine.group)
    factor = rows(v, "v", mine.group)
    check_columns(mine, "x", other, "y")
    check_one_dtype(x=mine, y=other, v=factor)
    check_together(other, "x" if y is None else "y", factor, "v")
    if diagonal is not None:
        check_together(mine, "x", factor, "v")
    return mine.like(product(kernel, mine, other, factor.local, diagonal))


def product(kernel: Kernel, mine: Rows, other: Rows, v: torch.Tensor, diagonal: Any = None) -> torch.Tensor:
    """Return the rows here of a product whose shards go round."""
    result = v.new_zeros(mine.local.shape[0], *v.shape[1:])
    for owner, (shard, part) in ring([other.local, v], other.counts, mine.group):
        if other.counts[owner] and result.numel():
            result += kernel.matmul(mine.local, shard, part)
    return result if diagonal is None else result + diagonal * v


def agop(
    kernel: Kernel, z: Any, x: Any, coef: Any, *, average: bool = False, diagonal: bool = False, group: Any = None
) -> torch.Tensor:
    """Return the sum over outputs and points of the outer products of the predictor's gradients, on every process.

    Parameters
    ----------
    kernel : Kernel
    z, x, coef : tensor of this process's rows, or DTensor, shapes (m, k), (n, k) and (n,) or (n, o)
        Points, and rows and coefficients of the predictor, as of ``kernel.agop``; x None is z.
    average : bool
        Divide by the number of points.
    diagonal : bool
        Only the diagonal, (k,).
    group : ProcessGroup, optional

    Returns
    -------
    tensor, shape (k, k)

    Raises
    ------
    ShapeError, DtypeError
        On every process, where the columns or dtypes of two of them differ; before anything is exchanged.
    WorkerError
        If a process is gone, refuses its own tensors or does not answer within the group's timeout.
    GradientError
        For a tensor that requires a gradient.

    Notes
    -----
    Gradients are made in chunks of points of at most 64 MB, each after one round of the shards.

    Cost: m n k operations for the gradients and m k² for their products, divided among the processes. There are no
    gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> x, c = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.ones(2)
    >>> km.distributed.agop(km.Linear(), x, None, c)
    tensor([[2., 4.],
            [4., 8.]])
    >>> dist.destroy_process_group()
    """
    points = rows(z, "z", group)
    other = points if x is None else rows(x, "x", points.group)
    weights = rows(coef, "coef", points.group)
    check_columns(points, "z", other, "x")
    check_one_dtype(z=points, x=other, coef=weights)
    check_together(other, "z" if x is None else "x", weights, "coef")
    outputs = weights.local if weights.local.dim() == 2 else weights.local.unsqueeze(-1)
    columns = points.local.shape[1]
    result = points.local.new_zeros((columns,) if diagonal else (columns, columns))
    for chunk in _chunks(points, outputs.shape[1]):
        found = chunk.new_zeros(outputs.shape[1], *chunk.shape)
        for owner, (shard, part) in ring([other.local, outputs], other.counts, points.group):
            if other.counts[owner] and found.numel():
                found += kernel.gradient(chunk, shard, part)
        flat = found.flatten(0, 1)
        result += flat.square().sum(0) if diagonal else flat.mT @ flat
    result = total(points.group)(result)
    return result / max(1, points.total) if average else result


def _chunks(points: Rows, outputs: int) -> Iterator[torch.Tensor]:
    """Yield as many chunks on every process, the last ones empty where there are fewer points."""
    size = max(1, outputs * points.local.shape[1] * points.local.element_size())
    height = max(1, CHUNK_BYTES // size)
    count = -(-points.local.shape[0] // height)
    for number in range(largest(count, points.local.device, points.group)):
        yield points.local[number * height : (number + 1) * height]
