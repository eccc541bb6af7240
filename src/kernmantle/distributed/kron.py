"""Kronecker products of matrices that are spread over a grid of processes, by rows and by columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..errors import BackendError, DtypeError, KernmantleError, ParameterError, ShapeError, WorkerError
from ..structured.kron.factors import described, listed, sizes
from ..structured.kron.matmul import kron_matmul as local_matmul
from .exchange import answering, broadcast_objects, exchanged_rows, gathered, gathered_counts, total
from .rows import DTYPES


def shares(count: int, parts: int) -> tuple[int, ...]:
    """Return how many of ``count`` each of ``parts`` has: as even as can be, the first ones more."""
    return tuple(count // parts + (index < count % parts) for index in range(parts))


def split_position(shapes: Sequence[tuple[int, int]], parts: int) -> int:
    """Return how many leading factors are applied after the exchange: of even splits, the one that moves least.

    Before it the columns are split among the leading axes, after it among the trailing ones.
    """

    def cost(index: int) -> tuple[bool, int]:
        before = math.prod(p for p, _ in shapes[:index])
        between = math.prod(q for _, q in shapes[index:])
        after = math.prod(q for _, q in shapes[:index])
        return any(size % parts for size in (before, between, after)), before * between

    return min(range(1, max(2, len(shapes))), key=cost) if len(shapes) > 1 else 1


class _Transpose(torch.autograd.Function):
    """Exchange from (m, left here, right) to (m, left, right here), or back; each is the other's adjoint."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, lefts: tuple[int, ...], rights: tuple[int, ...], group: Any, back: bool
    ) -> torch.Tensor:
        ctx.sizes = lefts, rights, group, back
        here, m = dist.get_rank(group), x.shape[0]
        sent = x.split(lefts if back else rights, dim=1 if back else 2)
        received = [(m, lefts[here], own) for own in rights] if back else [(m, own, rights[here]) for own in lefts]
        flat, counts = x.new_empty(x.numel()), [part.numel() for part in sent]
        for part, piece in zip(sent, flat.split(counts), strict=True):
            piece.view(part.shape).copy_(part)
        lengths = [math.prod(shape) for shape in received]
        found = exchanged_rows(flat, counts, lengths, group).split(lengths)
        pieces = [piece.view(shape) for piece, shape in zip(found, received, strict=True)]
        return torch.cat(pieces, dim=2 if back else 1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        lefts, rights, group, back = ctx.sizes
        return _Transpose.apply(grads[0], lefts, rights, group, not back), None, None, None, None


class _Total(torch.autograd.Function):
    """The sum over the processes of a mesh, whose derivative is such a sum again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.mesh = mesh
        for axis in range(mesh.ndim):
            x = total(mesh.get_group(axis))(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _Total.apply(grads[0], ctx.mesh), None


class _Shared(torch.autograd.Function):
    """Tensors that all processes have alike: their gradients are the sums of all processes', in one order.

    That they are alike is seen before gradients are exchanged.
    """

    @staticmethod
    def forward(ctx: Any, mesh: DeviceMesh, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.mesh = mesh
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[1:]
        own = [(tuple(grad.shape), grad.dtype) if wanted else None for grad, wanted in zip(grads, needed, strict=True)]
        if len({each for (each,) in _of_mesh([_key(own)], grads[0].device, ctx.mesh)}) > 1:
            raise ShapeError(
                f"the gradients of factors differ among the processes: here they are {own}, None where none is needed; "
                "all must have the same factors and need the gradients of the same ones"
            )
        return None, *(
            _Total.apply(grad, ctx.mesh) if wanted else None for grad, wanted in zip(grads, needed, strict=True)
        )


def _key(value: object) -> int:
    """Return a number by which processes compare what has no order."""
    return crc32(repr(value).encode())


def _of_mesh(numbers: Sequence[int], device: torch.device, mesh: DeviceMesh) -> list[tuple[int, ...]]:
    """Return some numbers of every process of a mesh, as many on each, one row of the mesh after the other."""
    flat = [number for each in gathered(numbers, device, mesh.get_group(1)) for number in each]
    every = [number for row in gathered(flat, device, mesh.get_group(0)) for number in row]
    return [tuple(every[index : index + len(numbers)]) for index in range(0, len(every), len(numbers))]


def _coordinate(mesh: DeviceMesh) -> Sequence[int]:
    if mesh.ndim != 2:
        raise ParameterError(f"mesh has {mesh.ndim} axes; it needs two, of rows and of columns: (processes, 1) say")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise BackendError("this process is not in the mesh")
    return coordinate


def _agreed(x: Any, factors: Sequence[Any], options: Mapping[str, Any], mesh: DeviceMesh) -> _Grid:
    """Return the grid of a product, or raise on every process where one of them could not exchange its blocks."""
    device = x.device if isinstance(x, torch.Tensor) else torch.device(mesh.device_type)
    try:
        grid = _Grid(factors, mesh)
        grid.check(x)
    except KernmantleError:
        if mesh.size(1) > 1:
            _of_mesh((1, 0, 0, 0), device, mesh)  # the others wait to hear of it
        raise
    if grid.parts == 1:
        return grid
    numbers = (0, x.shape[0], DTYPES.index(str(x.dtype)), _key((grid.described, sorted(options.items()))))
    found = _of_mesh(numbers, device, mesh)
    refused = [rank for rank, each in enumerate(found) if each[0]]
    if refused:
        raise WorkerError(f"the product is refused by process {refused[0]} of the mesh: see the error that it raised")
    if any(each[3] != numbers[3] for each in found):
        raise ShapeError(
            f"factors and options must be the same on every process; here they are {described(grid.factors)}, as "
            f"{grid.described}, and {options}"
        )
    if any(each[2] != numbers[2] for each in found):
        dtypes = [DTYPES[each[2]] for each in found]
        raise DtypeError(f"x_local must have one dtype on every process; they have {dtypes}, in order of rank")
    rows = [[each[1] for each in found[start : start + grid.parts]] for start in range(0, len(found), grid.parts)]
    if any(len(set(row)) > 1 for row in rows):
        raise ShapeError(f"x_local must have as many rows on all processes of a row of the mesh; they have {rows}")
    return grid


class _Grid:
    """The coordinates of this process and how columns are split before and after a product."""

    def __init__(self, factors: Sequence[Any], mesh: DeviceMesh) -> None:
        coordinate = _coordinate(mesh)
        self.factors = listed(factors)
        if any(isinstance(factor, torch.Tensor) and factor.dim() != 2 for factor in self.factors):
            raise ShapeError("factors of a distributed product are matrices, not batches of them")
        self.row, self.column = coordinate
        self.rows, self.columns = mesh.get_group(0), mesh.get_group(1)
        self.parts: int = mesh.size(1)
        shapes = [self._shape(index) for index in range(len(self.factors))]
        self.leading = split_position(shapes, self.parts)
        before, after = shapes[: self.leading], shapes[self.leading :]
        self.left, self.right = math.prod(p for p, _ in before), math.prod(p for p, _ in after)
        self.new_left, self.new_right = math.prod(q for _, q in before), math.prod(q for _, q in after)

    def _shape(self, index: int) -> tuple[int, int]:
        return sizes(self.factors)[index]

    @property
    def described(self) -> list[Any]:
        """Shapes and dtypes of the factors, integers as they are."""
        return [(*f.shape, str(f.dtype)) if isinstance(f, torch.Tensor) else f for f in self.factors]

    def check(self, x: Any) -> None:
        """Raise ShapeError for a block that is not that of this process."""
        if not isinstance(x, torch.Tensor):
            raise DtypeError(f"x_local must be a tensor, not {type(x).__name__}")
        if x.dim() != 2 or x.shape[1] != self.input_columns[self.column]:
            raise ShapeError(
                f"x_local has shape {tuple(x.shape)}; for {described(self.factors)} on {self.parts} columns of "
                f"processes this one takes (rows, {self.input_columns[self.column]}), see km.distributed.kron_columns"
            )

    @property
    def input_columns(self) -> tuple[int, ...]:
        """Columns of x on the processes of a row of the mesh."""
        return tuple(own * self.right for own in shares(self.left, self.parts))

    @property
    def made(self) -> tuple[int, ...]:
        """Columns of the result on them."""
        return tuple(own * self.new_right for own in shares(self.new_left, self.parts))


def kron_matmul(x_local: torch.Tensor, factors: Sequence[Any], mesh: DeviceMesh, **options: Any) -> torch.Tensor:
    """``x @ (F_1 ⊗ … ⊗ F_N)`` of a matrix that is spread over a mesh by rows and columns.

    Parameters
    ----------
    x_local : tensor, shape (m, columns here)
        The block of this process: any rows, as many on all processes of a row of the mesh, and the columns that
        :func:`kron_columns` says.
    factors : sequence of tensors and int
        (p_i, q_i), the same on all processes; an integer is an identity.
    mesh : DeviceMesh
        Of two axes: processes that have different rows, and those that have different columns.
    **options
        ``precision`` and ``fuse`` as of :func:`kernmantle.kron_matmul`.

    Returns
    -------
    tensor, shape (m, columns here)
        The block of the result, with the columns that ``kron_columns(..., result=True)`` says.

    Raises
    ------
    ShapeError, DtypeError
        If the block does not have these columns, with what is expected; on every process, where the factors, options,
        dtypes, or rows within a row of the mesh differ, before anything is exchanged.
    ParameterError
        For a mesh that has not two axes.
    WorkerError
        If a process is gone, refuses its own block or does not answer within the group's timeout.

    Notes
    -----
    The trailing factors are applied while columns are split among the leading axes, then the processes of a row
    exchange their blocks once, the leading factors are applied, and a second exchange brings the columns back: two
    exchanges for any number of factors, none where the mesh has one column; before them the processes compare shapes
    and dtypes in a small message, which the host reads, as before gradients of factors are summed. Gradients exist
    for x and the factors, to any order: those of the factors are summed over all processes. Where the factors are
    split is chosen so that blocks are alike and least is sent: of its block (c - 1) / c twice, for c columns of the
    mesh. Meshes of one column are several times as quick as long as there are rows for all.

    Cost: the multiplications of :func:`kernmantle.kron_matmul`, divided among the processes.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> mesh, f = init_device_mesh("cpu", (1, 1)), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> km.distributed.kron_matmul(torch.ones(1, 4), [f, f], mesh)
    tensor([[1., 2., 2., 4.]])
    >>> dist.destroy_process_group()
    """
    _coordinate(mesh)
    grid = _agreed(x_local, factors, options, mesh)
    tensors = iter(_Shared.apply(mesh, *(factor for factor in grid.factors if isinstance(factor, torch.Tensor))))
    shared = [next(tensors) if isinstance(factor, torch.Tensor) else factor for factor in grid.factors]
    if grid.parts == 1:
        return local_matmul(x_local, shared, **options)
    m, own = x_local.shape[0], grid.column
    lefts, rights = shares(grid.left, grid.parts), shares(grid.new_right, grid.parts)
    value = x_local
    if grid.leading < len(shared):
        value = local_matmul(value.reshape(m * lefts[own], grid.right), shared[grid.leading :], **options)
    value = _Transpose.apply(value.reshape(m, lefts[own], grid.new_right), lefts, rights, grid.columns, False)
    value = local_matmul(value.reshape(m, grid.left * rights[own]), [*shared[: grid.leading], rights[own]], **options)
    new_lefts = shares(grid.new_left, grid.parts)
    value = _Transpose.apply(value.reshape(m, grid.new_left, rights[own]), new_lefts, rights, grid.columns, True)
    return value.reshape(m, new_lefts[own] * grid.new_right)


def kron_columns(factors: Sequence[Any], mesh: DeviceMesh, *, result: bool = False) -> slice:
    """Return which columns of x, or of the result, this process has.

    Parameters
    ----------
    factors, mesh
        As of :func:`kron_matmul`.
    result : bool
        Whether of the result.

    Returns
    -------
    slice
        Neighbouring columns; the same number on all processes where the sizes allow it.

    Raises
    ------
    ShapeError, ParameterError, WorkerError
        As of :func:`kron_matmul`.

    Notes
    -----
    No message is sent.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> mesh, f = init_device_mesh("cpu", (1, 1)), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> km.distributed.kron_columns([f, f], mesh)
    slice(0, 4, None)
    >>> dist.destroy_process_group()
    """
    grid = _Grid(factors, mesh)
    counts = grid.made if result else grid.input_columns
    stop = list(accumulate(counts))[grid.column]
    return slice(stop - counts[grid.column], stop)


def kron_scatter(x: torch.Tensor | None, factors: Sequence[Any], mesh: DeviceMesh) -> torch.Tensor:
    """Return the blocks of a matrix that the first process of a mesh has, as :func:`kron_matmul` takes them.

    Parameters
    ----------
    x : tensor, shape (m, ∏p), or None
        None on all other processes.
    factors, mesh
        As of :func:`kron_matmul`.

    Returns
    -------
    tensor, shape (rows here, columns here)

    Raises
    ------
    ShapeError, ParameterError, WorkerError
        As of :func:`kron_matmul`.

    Notes
    -----
    The whole matrix passes through the first process: for tests and small matrices. No gradient.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> mesh, f = init_device_mesh("cpu", (1, 1)), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> km.distributed.kron_scatter(torch.ones(3, 4), [f, f], mesh).shape
    torch.Size([3, 4])
    >>> dist.destroy_process_group()
    """
    grid = _Grid(factors, mesh)
    first = grid.row == 0 and grid.column == 0
    if first and (x is None or x.dim() != 2 or x.shape[1] != sum(grid.input_columns)):
        shape_of_x = None if x is None else tuple(x.shape)
        raise ShapeError(
            f"x has shape {shape_of_x} on the first process; the factors take (m, {sum(grid.input_columns)})"
        )
    value = x
    if grid.column == 0:
        count, kind = broadcast_objects([None, None] if value is None else [value.shape[0], value.dtype], grid.rows)
        parts = shares(count, dist.get_world_size(grid.rows))
        columns_here = _empty((0, sum(grid.input_columns)), kind, factors) if value is None or not first else value
        sent = parts if first else (0,) * len(parts)
        value = exchanged_rows(columns_here, sent, [parts[grid.row], *(0,) * (len(parts) - 1)], grid.rows)
    count, kind = broadcast_objects([None, None] if value is None else [value.shape[0], value.dtype], grid.columns)
    columns_here = _empty((0, count), kind, factors) if value is None or grid.column else value.T
    sent = grid.input_columns if grid.column == 0 else (0,) * grid.parts
    return exchanged_rows(
        columns_here, sent, [grid.input_columns[grid.column], *(0,) * (grid.parts - 1)], grid.columns
    ).T.contiguous()


def kron_gather(local: torch.Tensor, factors: Sequence[Any], mesh: DeviceMesh) -> torch.Tensor | None:
    """The whole result on the first process of a mesh, None on the others; what :func:`kron_scatter` does, undone.

    Parameters
    ----------
    local : tensor, shape (rows here, columns here)
        As :func:`kron_matmul` returns it.
    factors, mesh
        As of :func:`kron_matmul`.

    Returns
    -------
    tensor, shape (m, ∏q), or None

    Raises
    ------
    ShapeError, ParameterError, WorkerError
        As of :func:`kron_matmul`.

    Notes
    -----
    The whole matrix passes through the first process: for tests and small matrices. No gradient.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> mesh, f = init_device_mesh("cpu", (1, 1)), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    >>> km.distributed.kron_gather(torch.ones(3, 4), [f, f], mesh).shape
    torch.Size([3, 4])
    >>> dist.destroy_process_group()
    """
    grid = _Grid(factors, mesh)
    value = local.T
    received = grid.made if grid.column == 0 else (0,) * grid.parts
    value = exchanged_rows(value, [value.shape[0], *(0,) * (grid.parts - 1)], received, grid.columns)
    if grid.column:
        return None
    value = value.T
    counts = gathered_counts(value.shape[0], value.device, grid.rows)
    received = counts if grid.row == 0 else (0,) * len(counts)
    with answering("gathering"):
        whole = exchanged_rows(value, [value.shape[0], *(0,) * (len(counts) - 1)], received, grid.rows)
    return whole if grid.row == 0 else None


def _empty(shape: tuple[int, ...], dtype: torch.dtype, factors: Sequence[Any]) -> torch.Tensor:
    """Return an empty tensor where the factors are."""
    device = next((factor.device for factor in factors if isinstance(factor, torch.Tensor)), None)
    return torch.empty(shape, dtype=dtype, device=device)
