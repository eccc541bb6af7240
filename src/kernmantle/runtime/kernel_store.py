"""Compiled kernels: jobs that compile them through the disk cache, and the one store of loaded kernels.

Inside ``collected`` nothing is compiled or loaded: the jobs that calls would need are collected, to be compiled later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from .cache import Built, Key, current_cache
from .lru import LRUCache

T = TypeVar("T")
Plan = TypeVar("Plan", bound=Hashable)
_COLLECTED: ContextVar[dict[str, Job] | None] = ContextVar("kernmantle_collected", default=None)
collected_jobs = _COLLECTED.get
"""Return the jobs that are being collected; None where kernels run."""
KERNELS: LRUCache[Hashable, Any] = LRUCache(8192)
"""Loaded kernels by their plan. CPU machine code is unloaded when its entry is evicted and no bound call has it."""


@dataclass(frozen=True)
class Job:
    """One kernel to compile: ``function(*arguments)`` builds what ``key`` names; both can be pickled."""

    key: Key
    function: Callable[..., Built]
    arguments: tuple[Any, ...]

    def build(self) -> Built:
        """Compile."""
        return self.function(*self.arguments)


def compile_only() -> bool:
    """Return whether jobs are only collected: then nothing is launched, and no cache of plans is read or written."""
    return _COLLECTED.get() is not None


@contextmanager
def collected() -> Generator[dict[str, Job]]:
    """Collect the jobs that calls inside would need, by the digest of their key, instead of compiling them."""
    jobs: dict[str, Job] = {}
    token = _COLLECTED.set(jobs)
    try:
        yield jobs
    finally:
        _COLLECTED.reset(token)


def fetch(job: Job) -> bytes | None:
    """Return the binary of a job, from the cache or compiled now; None if it was only collected."""
    jobs = _COLLECTED.get()
    if jobs is not None:
        jobs[job.key.digest] = job
        return None
    return current_cache().fetch(job.key, job.build)


def fetch_all(jobs: Sequence[Job]) -> list[bytes | None]:
    """Return the binaries of jobs; those that the cache lacks are compiled in parallel threads, which NVRTC allows."""
    if compile_only() or len(jobs) < 2:
        return [fetch(job) for job in jobs]
    cache = current_cache()
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [each.result() for each in [pool.submit(cache.fetch, job.key, job.build) for job in jobs]]


def loaded(plan: Hashable, jobs: Callable[[], Sequence[Job]], load: Callable[..., T]) -> T | None:
    """Return the loaded kernels of a plan, compiled on a miss; None if its jobs were only collected.

    Equal plans have equal machine code. ``load`` makes the kernels from the binaries of the jobs, an argument each.
    """
    found = None if compile_only() else KERNELS.get(plan)
    if found is None:
        binaries = fetch_all(jobs())
        if any(binary is None for binary in binaries):
            return None
        found = KERNELS.setdefault(plan, load(*binaries))
    return found


def loaded_each(plans: Sequence[Plan], job: Callable[[Plan], Job], load: Callable[[Plan, bytes], T]) -> list[T | None]:
    """Return the loaded kernels of several plans with one job each; missing ones are compiled in parallel."""
    found: dict[Plan, T | None] = {plan: None if compile_only() else KERNELS.get(plan) for plan in plans}
    missing = [plan for plan, kernel in found.items() if kernel is None]
    for plan, binary in zip(missing, fetch_all([job(each) for each in missing]), strict=True):
        if binary is not None:
            found[plan] = KERNELS.setdefault(plan, load(plan, binary))
    return [found[plan] for plan in plans]
