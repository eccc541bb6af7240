"""Messages between processes; a process that is gone is an error in all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..config import current
from ..errors import WorkerError
from ..torch_ops.torch_private import is_out_of_memory
from .watch import give_up, timeout_of

SHARE = 0.9
"""Share of the timeout of a group that the host waits for a message; torch's watchdog ends the process at its end."""
PAUSE = 1e-3
"""Seconds between looks at a message that takes longer than that."""


@contextmanager
def answering(what: str) -> Iterator[None]:
    """Turn the errors of torch.distributed into one that says what to look for."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if isinstance(error, WorkerError) or is_out_of_memory(error):
            raise
        raise WorkerError(
            f"{what}: a process of the group died, failed or did not answer within the group's timeout, see its own "
            f"output ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from error


def _waits(device: torch.device) -> bool:
    """Return whether the host waits for messages to this device, as ``wait_on_host`` asks; a stream does otherwise."""
    return device.type == "cuda" and current().wait_on_host


def _arrive(works: Sequence[Any], device: torch.device, group: Any, begun: float) -> None:
    """Wait on the host until messages to a GPU have arrived: the error of one that does not is one of Python."""
    arrived, stream = torch.cuda.Event(), torch.cuda.current_stream(device)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        for work in works:
            work.wait()
        arrived.record(side)
    allowed = SHARE * timeout_of(group, device)
    while not arrived.query():
        spent = time.monotonic() - begun
        if spent > allowed:
            why = f"no message from the other processes for {spent:.1f} s"
            give_up(why, current().exit_on_lost_process)
            raise dist.DistError(why)
        time.sleep(PAUSE if spent > PAUSE else 0)
    stream.wait_event(arrived)


def _exchange(send: Callable[..., Any], device: torch.device, group: Any) -> None:
    """Send, and wait for what is sent to this process."""
    if _waits(device):
        begun = time.monotonic()
        _arrive([send(group=group, async_op=True)], device, group, begun)
    else:
        send(group=group)


def gathered(numbers: Sequence[int], device: torch.device, group: Any) -> list[tuple[int, ...]]:
    """Return some numbers of every process, as many on each."""
    with answering("comparing shapes"):
        own = torch.tensor(numbers, dtype=torch.int64, device=device)
        found = own.new_empty(dist.get_world_size(group), len(numbers))
        _exchange(partial(dist.all_gather, list(found.unbind(0)), own), device, group)
        return [tuple(each) for each in found.tolist()]


def gathered_counts(count: int, device: torch.device, group: Any) -> tuple[int, ...]:
    """Return one number of every process."""
    return tuple(each for (each,) in gathered([count], device, group))


def total(group: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that sums a tensor over the processes."""

    def summed(value: torch.Tensor) -> torch.Tensor:
        with answering("summing over the processes"):
            result = value.contiguous().clone()
            _exchange(partial(dist.all_reduce, result), result.device, group)
            return result

    return summed


def largest(value: int, device: torch.device, group: Any) -> int:
    """Return the largest of a number over the processes."""
    with answering("comparing numbers"):
        result = torch.tensor([value], dtype=torch.int64, device=device)
        _exchange(partial(dist.all_reduce, result, dist.ReduceOp.MAX), device, group)
        return int(result)


def of_first(value: torch.Tensor, group: Any) -> torch.Tensor:
    """Return a tensor of the first process, on all of them."""
    with answering("waiting for the first process"):
        _exchange(partial(dist.broadcast, value, _peer(group, 0)), value.device, group)
        return value


def _peer(group: Any, rank: int) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)


def ring(
    tensors: Sequence[torch.Tensor], counts: Sequence[int], group: Any
) -> Iterator[tuple[int, Sequence[torch.Tensor]]]:
    """Yield the rows of every process in turn, with whose they are; the next are under way while these are used."""
    rank, size = dist.get_rank(group), len(counts)
    moving = [tensor.contiguous() for tensor in tensors]
    after, before = _peer(group, (rank + 1) % size), _peer(group, (rank - 1) % size)
    for step in range(size):
        owner = (rank - step) % size
        coming: list[torch.Tensor] = []
        begun = time.monotonic()
        works: Sequence[Any] = []
        if step < size - 1:
            count = counts[(owner - 1) % size]
            coming = [tensor.new_empty(count, *tensor.shape[1:]) for tensor in moving]
            sends = [dist.P2POp(dist.isend, t, after, group) for t in moving if counts[owner] and t.numel()]
            receipts = [dist.P2POp(dist.irecv, t, before, group) for t in coming if count and t.numel()]
            with answering("passing rows on"):
                works = dist.batch_isend_irecv([*sends, *receipts]) if sends or receipts else []
        yield owner, moving
        with answering("passing rows on"):
            if works and _waits(tensors[0].device):
                _arrive(works, tensors[0].device, group, begun)
            else:
                for work in works:
                    work.wait()
        moving = coming


def exchanged_rows(tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any) -> torch.Tensor:
    """Send so many consecutive rows to each process and return those received, in the order of the senders."""
    result = tensor.new_empty(sum(received), *tensor.shape[1:])
    with answering("redistributing rows"):
        send = partial(dist.all_to_all_single, result, tensor.contiguous(), list(received), list(sent))
        _exchange(send, result.device, group)
    return result


def all_gathered(tensor: torch.Tensor, counts: Sequence[int], group: Any) -> torch.Tensor:
    """Return the rows of every process, on all of them."""
    size = len(counts)
    return exchanged_rows(tensor.repeat(size, *(1 for _ in tensor.shape[1:])), [tensor.shape[0]] * size, counts, group)


def broadcast_objects(values: Sequence[Any], group: Any, device: torch.device | None = None) -> list[Any]:
    """Small Python values of the first process, on all of them."""
    found = list(values)
    if current().wait_on_host and "nccl" in str(dist.get_backend(group)):
        largest(0, torch.device("cuda", torch.cuda.current_device()), group)  # torch's own wait has no error
    with answering("waiting for the first process"):
        dist.broadcast_object_list(found, _peer(group, 0), group=group, device=device)
    return found
