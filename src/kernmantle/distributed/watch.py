"""While a library waits on a GPU for other processes: signs of life, and an end where one of them is gone."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

BEAT = 2.0
"""Seconds between signs of life."""


def _end(what: str, rank: int, seconds: float) -> None:
    sys.stderr.write(
        f"kernmantle: {what}: process {rank} of the group died, failed or did not answer for {seconds:g} s, the "
        f"group's timeout; see its own output. Nothing ends the wait of a GPU for it, so that this process ends, too\n"
    )
    sys.stderr.flush()
    os._exit(1)


class Watch:
    """Counts signs of life in a store; calls ``gone`` if those of another process stay away for so many seconds."""

    def __init__(
        self, what: str, store: Any, rank: int, size: int, seconds: float,
        gone: Callable[[str, int, float], None] = _end,
    ) -> None:  # fmt: skip
        self._what, self._store, self._seconds, self._gone = what, store, seconds, gone
        self._own, self._others = rank, [other for other in range(size) if other != rank]
        self._done = threading.Event()

    def __enter__(self) -> Watch:
        if self._others:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def _count(self, rank: int, more: int) -> int:
        """Signs of a process; -1 where the store is gone with the process that keeps it."""
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
                    self._gone(self._what, other, self._seconds)
                    return


def watch(what: str, device: torch.device) -> Watch:
    """For all processes, as long as the timeout of their group is."""
    world: Any = dist.group.WORLD
    store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    options = getattr(world._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout)
    return Watch(what, store, dist.get_rank(), dist.get_world_size(), timeout.total_seconds())
