"""Arrays whose rows are spread over the processes of a group: process i holds those before process i + 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from ..errors import BackendError, DeviceError, DtypeError, GradientError, ParameterError, ShapeError
from .exchange import gathered_counts


@dataclass(frozen=True)
class Rows:
    """The rows of this process, how many each has, and where they came from."""

    local: torch.Tensor
    counts: tuple[int, ...]
    group: Any
    mesh: DeviceMesh | None

    @property
    def rank(self) -> int:
        """Place of this process in the group."""
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
        """A result spread in the same way: a DTensor where the input was one.

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
    """A DTensor, or the tensor of this process, as rows that are spread; waits for all processes."""
    if not dist.is_available() or not dist.is_initialized():
        raise BackendError(
            "there is no process group: start with torchrun and call torch.distributed.init_process_group"
        )
    mesh: DeviceMesh | None = None
    if isinstance(value, DTensor):
        local, group, mesh = _of_mesh(value, name)
    elif isinstance(value, torch.Tensor):
        local = value
    else:
        raise DtypeError(f"{name} must be a tensor or a DTensor, not {type(value).__name__}")
    if local.dim() not in (1, 2):
        raise ShapeError(f"{name} must have one or two axes, it has shape {tuple(local.shape)}")
    if torch.is_grad_enabled() and local.requires_grad:
        raise GradientError(f"{name} requires a gradient; distributed functions have none: use torch.no_grad()")
    backends = str(dist.get_backend(group))
    if local.is_cuda != ("nccl" in backends) and "gloo" not in backends:
        raise DeviceError(f"{name} is on {local.device}, the process group uses {backends}")
    return Rows(local, gathered_counts(local.shape[0], local.device, group), group, mesh)


def check_together(first: Rows, first_name: str, other: Rows, name: str) -> None:
    """ShapeError unless every process has as many rows of one as of the other."""
    if first.counts != other.counts:
        raise ShapeError(
            f"each process must have as many rows of {name} as of {first_name}; they have {list(other.counts)} and "
            f"{list(first.counts)}"
        )


def from_local(local: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """A DTensor of the rows that each process holds; they may be unevenly many.

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
    ParameterError, WorkerError
        For a mesh that has not one axis; if a process is gone.

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
    counts = gathered_counts(local.shape[0], local.device, mesh.get_group())
    return Rows(local, counts, mesh.get_group(), mesh).like(local)


def to_local(value: Any) -> torch.Tensor:
    """The rows that this process holds of a DTensor; any other tensor itself.

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
