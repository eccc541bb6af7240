"""One matrix gathered and solved in the first process: on CPUs, and where one GPU is quicker than all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import KernmantleError, OutOfMemoryError, WorkerError
from ..linalg.cusolvermp import QUICKER, SOLVING
from ..linalg.row_source import available
from .exchange import broadcast_objects, exchanged_rows, largest
from .rows import Rows


def by_all(own_rows: Rows, routine: str) -> bool:
    """Return whether all GPUs take part in a routine of cuSOLVERMp: not where one is quicker and holds it all."""
    if not own_rows.local.is_cuda:
        return False
    if own_rows.total > QUICKER[routine]:
        return True
    full = own_rows.rank == 0 and _needed(own_rows, SOLVING) > available(own_rows.local.device)
    return bool(largest(int(full), own_rows.local.device, own_rows.group))


def _needed(own_rows: Rows, copies: int) -> int:
    return copies * own_rows.total**2 * own_rows.local.element_size()


def in_one(
    own_rows: Rows, solve: Callable[..., list[torch.Tensor]], *others: torch.Tensor, copies: int = SOLVING
) -> list[Any]:
    """Gather the rows on the first process, solve there, and tell all what went wrong; ``[]`` on the others."""
    outcome: list[Any] = ["", []]
    if own_rows.rank == 0:
        needed, free = _needed(own_rows, copies), available(own_rows.local.device)
        if needed > free:
            outcome[0] = (
                f"the matrix is gathered on one process, which takes about {needed} bytes; {free} are free there. "
                f"Use GPUs (NCCL and cuSOLVERMp), or km.distributed.cg, which never forms it"
            )
    (why,) = broadcast_objects(outcome[:1], own_rows.group, own_rows.local.device)
    if why:
        raise OutOfMemoryError(why)
    gathered = [_gathered(tensor, own_rows) for tensor in (own_rows.local, *others)]
    results: list[torch.Tensor] = []
    if own_rows.rank == 0:
        try:
            results = solve(*gathered)
        except (KernmantleError, RuntimeError) as error:
            outcome[0] = f"{type(error).__name__}: {error}"
    (why,) = broadcast_objects(outcome[:1], own_rows.group, own_rows.local.device)
    if why:
        raise WorkerError(f"the first process failed: {why}")
    return results


def _gathered(local: torch.Tensor, own_rows: Rows) -> torch.Tensor:
    sent = [local.shape[0] if i == 0 else 0 for i in range(own_rows.size)]
    return exchanged_rows(local, sent, own_rows.counts if own_rows.rank == 0 else [0] * own_rows.size, own_rows.group)


def scattered(whole: torch.Tensor, own_rows: Rows) -> torch.Tensor:
    """Rows of a tensor of the first process, to each its own; the others pass an empty one of its other axes."""
    sent = own_rows.counts if own_rows.rank == 0 else [0] * own_rows.size
    received = [own_rows.local.shape[0] if i == 0 else 0 for i in range(own_rows.size)]
    return exchanged_rows(whole, sent, received, own_rows.group)
