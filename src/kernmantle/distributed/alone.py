"""One matrix gathered and solved in the first process: on CPUs, and where one GPU is quicker than all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..errors import KernmantleError, OutOfMemoryError, WorkerError
from ..linalg.cusolvermp import QUICKER, SOLVING, room
from .exchange import dealt, largest, told
from .rows import Rows


def by_all(given: Rows, routine: str) -> bool:
    """Whether all GPUs take part in a routine of cuSOLVERMp: not on CPUs, nor where one is quicker and holds it all."""
    if not given.local.is_cuda:
        return False
    if given.total > QUICKER[routine]:
        return True
    full = given.rank == 0 and _needed(given, SOLVING) > available(given.local.device)
    return bool(largest(int(full), given.local.device, given.group))


def available(device: torch.device) -> int:
    """Bytes of memory that can still be taken there."""
    if device.type == "cuda":
        return room(device)
    listing = Path("/proc/meminfo")
    if listing.is_file():
        for line in listing.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


def _needed(given: Rows, copies: int) -> int:
    return copies * given.total**2 * given.local.element_size()


def in_one(
    given: Rows, solve: Callable[..., list[torch.Tensor]], *others: torch.Tensor, copies: int = SOLVING
) -> list[Any]:
    """Gather the rows on the first process, solve there, and tell all what went wrong; ``[]`` on the others."""
    outcome: list[Any] = ["", []]
    if given.rank == 0:
        needed, free = _needed(given, copies), available(given.local.device)
        if needed > free:
            outcome[0] = (
                f"the matrix is gathered on one process, which takes about {needed} bytes; {free} are free there. "
                f"Use GPUs (NCCL and cuSOLVERMp), or km.distributed.cg, which never forms it"
            )
    (why,) = told(outcome[:1], given.group, given.local.device)
    if why:
        raise OutOfMemoryError(why)
    gathered = [_gathered(tensor, given) for tensor in (given.local, *others)]
    results: list[torch.Tensor] = []
    if given.rank == 0:
        try:
            results = solve(*gathered)
        except (KernmantleError, RuntimeError) as error:
            outcome[0] = f"{type(error).__name__}: {error}"
    (why,) = told(outcome[:1], given.group, given.local.device)
    if why:
        raise WorkerError(f"the first process failed: {why}")
    return results


def _gathered(local: torch.Tensor, given: Rows) -> torch.Tensor:
    sent = [local.shape[0] if i == 0 else 0 for i in range(given.size)]
    return dealt(local, sent, given.counts if given.rank == 0 else [0] * given.size, given.group)


def scattered(whole: torch.Tensor, given: Rows) -> torch.Tensor:
    """Rows of a tensor of the first process, to each its own; the others pass an empty one of its other axes."""
    sent = given.counts if given.rank == 0 else [0] * given.size
    received = [given.local.shape[0] if i == 0 else 0 for i in range(given.size)]
    return dealt(whole, sent, received, given.group)
