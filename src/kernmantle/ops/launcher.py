"""From a kernel's source to something that can be started, through the cache; or only noted, to compile later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..runtime.cache import Built, Key, current_cache

_COLLECTED: ContextVar[dict[str, Job] | None] = ContextVar("kernmantle_collected", default=None)


@dataclass(frozen=True)
class Job:
    """One kernel to compile: ``function(*arguments)`` builds what ``key`` names; both can be pickled."""

    key: Key
    function: Callable[..., Built]
    arguments: tuple[Any, ...]

    def build(self) -> Built:
        """Compile."""
        return self.function(*self.arguments)


@dataclass(frozen=True)
class Launcher:
    """``run(pointers, numbers)`` starts the kernel; ``description`` says what was planned."""

    run: Callable[[Sequence[int], Sequence[float]], None]
    description: str


def collecting() -> bool:
    """Whether kernels are only being noted."""
    return _COLLECTED.get() is not None


@contextmanager
def collected() -> Iterator[dict[str, Job]]:
    """Inside, nothing is compiled or run: the jobs that calls would need gather here."""
    jobs: dict[str, Job] = {}
    token = _COLLECTED.set(jobs)
    try:
        yield jobs
    finally:
        _COLLECTED.reset(token)


def fetch(job: Job) -> bytes | None:
    """Binary of a job, from the cache or compiled now; None if it was only noted."""
    jobs = _COLLECTED.get()
    if jobs is not None:
        jobs[job.key.digest] = job
        return None
    return current_cache().fetch(job.key, job.build)


def fetch_all(jobs: Sequence[Job]) -> list[bytes | None]:
    """Binaries of jobs, those that the cache lacks compiled side by side: NVRTC works in several threads at once."""
    if collecting() or len(jobs) < 2:
        return [fetch(job) for job in jobs]
    cache = current_cache()
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [*pool.map(lambda job: cache.fetch(job.key, job.build), jobs)]


def nothing(pointers: Sequence[int], numbers: Sequence[float]) -> None:
    """What a noted kernel runs as."""
