"""One of the processes of :func:`eigh_multi_gpu`: takes its columns of the shared matrix, leaves its vectors there."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..config import config
from . import spectrum
from .cusolvermp import Grid, block_of, columns_of
from .multi_gpu import shared
from .processes import end_with_owner


def communicator(device: torch.device) -> int:
    """Return the address of the NCCL communicator that torch.distributed uses there."""
    group: Any = dist.group.WORLD
    dist.all_reduce(torch.zeros(1, device=device))
    return group._get_backend(device)._comm_ptr()


def _on_gpu(task: dict[str, Any], square: torch.Tensor, w: torch.Tensor, info: torch.Tensor) -> None:
    rank, size, n = task["rank"], task["size"], task["n"]
    device = torch.device("cuda", rank)
    mine = columns_of(n, rank, size, block_of("syevd", n, size))
    grid = Grid(communicator(device), rank, size, device)
    local = square[mine].to(device)
    dist.barrier()
    found = grid.eigh(local, n, task["vectors"])
    if found.v is not None:
        square[mine] = found.v.cpu()
    if rank == 0:
        w.copy_(found.w)
        info.copy_(found.info)
    grid.close()


def _on_host(task: dict[str, Any], square: torch.Tensor, w: torch.Tensor, info: torch.Tensor) -> None:
    if task["rank"] == 0:
        found = spectrum.direct(square.clone(), True, True, task["vectors"], None, None)
        w.copy_(found.w)
        info.fill_(found.info)
        if found.v is not None:
            square.copy_(found.v.mT)


def main(arguments: list[str]) -> None:
    """Join the group, solve, leave."""
    end_with_owner()
    task = json.loads(arguments[0])
    folder, dtype, n = Path(task["folder"]), getattr(torch, task["dtype"]), task["n"]
    if task["backend"] == "nccl":
        torch.cuda.set_device(task["rank"])
    dist.init_process_group(
        task["backend"], init_method=f"file://{folder / 'store'}", rank=task["rank"], world_size=task["size"],
        timeout=timedelta(seconds=task["timeout"] or 3600),
    )  # fmt: skip
    square, w = shared(folder / "matrix", (n, n), dtype), shared(folder / "values", (n,), dtype)
    info = shared(folder / "info", (1,), torch.int32)
    with config(exit_on_lost_process=True):  # this process is the library's own
        (_on_gpu if task["backend"] == "nccl" else _on_host)(task, square, w, info)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
