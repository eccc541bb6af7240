"""Arrays whose rows are spread over the processes of a group: process i holds those before process i + 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ..errors import BackendError, DeviceError, DtypeError, GradientError, ParameterError, ShapeError, WorkerError
from .exchange import gathered


@dataclass(frozen=True)
class Rows:
    """The rows of this process, how many each has, and where they came from."""

    local: torch.Tensor
    counts: tuple[int, ...]
    group: Any
    mesh: DeviceMesh | None

    @property
    def rank(self) -> int:
        """Index of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def size(self) -> int:
        """Processes in the group."""
        return len(self.counts)

    @property
    def start(self) -> int:
        """Index of the first row here."""
        return sum(self.counts[: self.rank])

    @property
    def total(self) -> int:
        """Rows of all processes."""
        return sum(self.counts)

    def like(self, local: torch.Tensor, axis: int = 0, extent: int | None = None) -> Any:
        """Return a result spread in the same way: a DTensor where the input was one.

        ``extent`` is that of the whole result along the axis, by default that of the input.
        """
        if self.mesh is None:
            return local
        shape = list(local.shape)
        shape[axis] = self.total if extent is None else extent
        return DTensor.from_local(
            local, self.mesh, [Shard(axis)], run_check=False, shape=torch.Size(shape), stride=_strides(shape)
        )


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def _of_mesh(value: DTensor, name: str) -> tuple[torch.Tensor, Any, DeviceMesh]:
    mesh = value.device_mesh
    if mesh.ndim != 1:
        raise ParameterError(f"{name} lies on a mesh of {mesh.ndim} axes; pass it on one axis: mesh['name']")
    if not isinstance(value.placements[0], Shard) or value.placements[0].dim != 0:
        value = value.redistribute(mesh, [Shard(0)])
    return value.to_local(), mesh.get_group(), mesh


def rows(value: Any, name: str, group: Any = None) -> Rows:
    """Return a DTensor, or the tensor of this process, as rows that are spread; waits for all processes."""
    if not dist.is_available() or not dist.is_initialized():
        raise BackendError(
            "no process group is initialised: start with torchrun and call torch.distributed.init_process_group"
        )
    mesh: DeviceMesh | None = None
    local: Any = value
    if isinstance(value, DTensor):
        local, group, mesh = _of_mesh(value, name)
    problem = _problem(local, name, group)
    described = _described(local, name, problem)
    device = local.device if isinstance(local, torch.Tensor) and not isinstance(problem, DeviceError) else None
    found = gathered(described, device or _device_of(group), group)
    if problem is not None:
        raise problem
    _check_alike(described, found, name)
    return Rows(local, tuple(numbers[0] for numbers in found), group, mesh)


DTYPES = sorted({str(d) for d in vars(torch).values() if isinstance(d, torch.dtype)})


def _problem(local: Any, name: str, group: Any) -> Exception | None:
    """Return what is wrong with the tensor of this process, which the others must hear of before it is raised."""
    if not isinstance(local, torch.Tensor):
        return DtypeError(f"{name} must be a tensor or a DTensor, not {type(local).__name__}")
    if local.dim() not in (1, 2):
        return ShapeError(f"{name} must have one or two axes, it has shape {tuple(local.shape)}")
    if torch.is_grad_enabled() and local.requires_grad:
        return GradientError(f"{name} requires a gradient; distributed functions have none: use torch.no_grad()")
    backends = str(dist.get_backend(group))
    if local.is_cuda != ("nccl" in backends) and "gloo" not in backends:
        return DeviceError(f"{name} is on {local.device}, the process group uses {backends}")
    return None


def _device_of(group: Any) -> torch.device:
    """Return a device that the group can exchange numbers on."""
    return torch.device("cuda" if str(dist.get_backend(group)) == "nccl" else "cpu")


def _described(local: Any, name: str, problem: Exception | None) -> tuple[int, ...]:
    """Rows, columns (-1 of a vector), dtype, the argument, and whether it is refused, as numbers to compare."""
    if problem is not None:
        return (0, 0, 0, crc32(name.encode()), 1)
    columns = local.shape[1] if local.dim() == 2 else -1
    return (local.shape[0], columns, DTYPES.index(str(local.dtype)), crc32(name.encode()), 0)


def _check_alike(mine: Sequence[int], all_of_them: Sequence[Sequence[int]], name: str) -> None:
    """Raise on every process where one of them has other columns or another dtype, or refuses its tensor."""
    refused = [rank for rank, numbers in enumerate(all_of_them) if numbers[4]]
    if refused:
        raise WorkerError(f"{name} is refused by process {refused[0]}: see the error that it raised")
    if any(numbers[3] != mine[3] for numbers in all_of_them):
        raise ShapeError(f"the processes call with different arguments: this one is at {name}, others are not")
    if any(numbers[1] != mine[1] for numbers in all_of_them):
        widths = ["a vector" if numbers[1] < 0 else numbers[1] for numbers in all_of_them]
        raise ShapeError(f"{name} must have as many columns on every process; they have {widths}, in order of rank")
    if any(numbers[2] != mine[2] for numbers in all_of_them):
        dtypes = [DTYPES[numbers[2]] for numbers in all_of_them]
        raise DtypeError(f"{name} must have one dtype on every process; they have {dtypes}, in order of rank")


def check_one_dtype(**operands: Rows) -> None:
    """Raise DtypeError unless all have one dtype, before anything is exchanged."""
    (first, one), *others = operands.items()
    for name, other in others:
        if other.local.dtype != one.local.dtype:
            raise DtypeError(f"{first} is {one.local.dtype} but {name} is {other.local.dtype}; convert one of them")


def check_columns(first: Rows, first_name: str, other: Rows, name: str) -> None:
    """Raise ShapeError unless both are matrices with as many columns, before anything is exchanged."""
    shapes = first.local.shape, other.local.shape
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or shapes[0][1] != shapes[1][1]:
        raise ShapeError(
            f"{first_name} and {name} must be matrices with as many columns; here they have shapes {tuple(shapes[0])} "
            f"and {tuple(shapes[1])}"
        )


def check_together(first: Rows, first_name: str, other: Rows, name: str) -> None:
    """Raise ShapeError unless every process has as many rows of one as of the other."""
    if first.counts != other.counts:
        raise ShapeError(
            f"each process must have as many rows of {name} as of {first_name}; they have {list(other.counts)} and "
            f"{list(first.counts)}"
        )


def from_local(local: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """Return a DTensor of the rows that each process holds; they may be unevenly many.

    Parameters
    ----------
    local : tensor, shape (m, ...)
        The rows of this process.
    mesh : DeviceMesh
        Of one axis.

    Returns
    -------
    DTensor
        Spread over its first axis.

    Raises
    ------
    ParameterError, ShapeError, WorkerError
        For a mesh that has not one axis; where processes differ in dtype or the axes after the first; if one is gone.

    Notes
    -----
    The processes tell each other how many rows they have; the rows themselves stay where they are, so that
    it costs one small message. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> spread = km.distributed.from_local(torch.ones(3, 2), init_device_mesh("cpu", (1,)))
    >>> spread.shape
    torch.Size([3, 2])
    >>> dist.destroy_process_group()
    """
    kind = crc32(repr((tuple(local.shape[1:]), local.dtype)).encode())
    found = gathered((local.shape[0], kind), local.device, mesh.get_group())
    if any(other != kind for _, other in found):
        raise ShapeError(
            f"local has shape {tuple(local.shape)} and is {local.dtype} here; other processes have it of another dtype "
            "or of other axes after the first"
        )
    return Rows(local, tuple(count for count, _ in found), mesh.get_group(), mesh).like(local)


def to_local(value: Any) -> torch.Tensor:
    """Return the rows that this process holds of a DTensor; any other tensor itself.

    Parameters
    ----------
    value : tensor or DTensor

    Returns
    -------
    tensor, shape (rows here, ...)

    Raises
    ------
    ParameterError
        For a DTensor that is not spread over its first axis.

    Notes
    -----
    Costs no copy and no message. There are no gradients.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> km.distributed.to_local(torch.ones(3, 2)).shape
    torch.Size([3, 2])
    """
    return _of_mesh(value, "value")[0] if isinstance(value, DTensor) else value
