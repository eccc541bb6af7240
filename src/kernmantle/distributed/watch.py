"""While a library waits on a GPU for other processes: signs of life, and an error where one of them is gone."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from ..config import current
from ..errors import WorkerError

BEAT = 2.0
"""Seconds between signs of life."""
RELEASE = 60.0
"""Seconds in which a GPU is released once communicators are aborted; where it is not, the process ends."""


def _message(what: str, rank: int, seconds: float) -> str:
    return (
        f"{what}: process {rank} of the group died, failed or did not answer for {seconds:g} s, the group's timeout; "
        f"see its own output"
    )


def _end(why: str, because: str) -> None:
    sys.stderr.write(f"kernmantle: {why}. This process ends, too: {because}\n")
    sys.stderr.flush()
    os._exit(1)


@contextmanager
def _released(why: str) -> Iterator[None]:
    """End this process if the block takes longer than ``RELEASE``.

    A library may wait on communicators of its own, which nobody can abort; the error would never be raised.
    """
    timer = threading.Timer(RELEASE, _end, (why, f"its GPU was not released in {RELEASE:g} s"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def give_up(why: str, end: bool) -> None:
    """End this process, as ``exit_on_lost_process`` asks, or abort the communicators of the group.

    That ends the wait of a GPU for a process that is gone.
    """
    if end:
        _end(why, "exit_on_lost_process")
    abort = dist.distributed_c10d._abort_process_group  # pyright: ignore[reportPrivateUsage]
    with _released(why), suppress(RuntimeError, ValueError, dist.DistError):
        abort()


def timeout_of(group: Any, device: torch.device) -> float:
    """Return seconds that processes of a group on this device wait for each other."""
    own: Any = group or dist.group.WORLD
    options = getattr(own._get_backend(device), "options", None)
    return getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout).total_seconds()


class Watch:
    """Counts signs of life in a store; calls ``gone`` if those of another process stay away for so many seconds.

    The block then raises ``WorkerError`` at its end.
    """

    def __init__(
        self, what: str, store: Any, rank: int, size: int, seconds: float,
        gone: Callable[[str, int, float], None] | None = None,
    ) -> None:  # fmt: skip
        self._what, self._store, self._seconds = what, store, seconds
        end = current().exit_on_lost_process
        self._gone = gone or (lambda what, rank, seconds: give_up(_message(what, rank, seconds), end))
        self._lost: int | None = None
        self._own, self._others = rank, [other for other in range(size) if other != rank]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        if self._others:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._others:  # a thread that comes back from a store while the interpreter ends aborts the process
            self._thread.join(RELEASE)
        if self._lost is not None:
            raise WorkerError(_message(self._what, self._lost, self._seconds)) from error

    def _count(self, rank: int, more: int) -> int:
        """Return signs of a process; -1 where the store is gone with the process that keeps it."""
        try:
            return self._store.add(f"kernmantle/alive/{rank}", more)
        except (RuntimeError, dist.DistError):
            return -1

    def _watch(self) -> None:
        seen = {other: (-1, time.monotonic()) for other in self._others}
        while not self._done.wait(min(BEAT, self._seconds / 4)):
            self._count(self._own, 1)
            for other, (count, since) in seen.items():
                found = self._count(other, 0)
                if found != count:
                    seen[other] = found, time.monotonic()
                elif time.monotonic() - since > self._seconds and not self._done.is_set():
                    self._lost = other
                    with _released(_message(self._what, other, self._seconds)):
                        self._gone(self._what, other, self._seconds)
                        self._done.wait()
                    return


def watch(what: str, device: torch.device) -> Watch:
    """Watch all processes, as long as the timeout of their group is."""
    store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    return Watch(what, store, dist.get_rank(), dist.get_world_size(), timeout_of(None, device))
