"""Compile many kernels at once, before they are needed."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from inspect import signature
from typing import Any

from tqdm import tqdm

from ..config import current
from ..errors import KernmantleWarning, ParameterError
from .cache import Built, current_cache
from .kernel_store import Job, collected
from .lru import clear_all


def _build(job: Job) -> Built:
    return job.build()


def precompile(calls: Iterable[Callable[[], Any]], *, workers: int | None = None) -> int:
    """Compile every kernel that some calls would need, several at a time.

    Each call is made once with kernels switched off: nothing is computed, and the kernels that it needs are collected,
    those of backward passes included. Kernels that the disk cache has are not compiled again.

    Parameters
    ----------
    calls : iterable of callables without arguments
        For example ``lambda: km.cdist(x, y, p=1.3)``. Shapes matter little on the CPU; on GPUs they choose tiles.
    workers : int, optional
        Processes; by default one per core. More than one needs the usual ``if __name__ == "__main__"`` guard.

    Returns
    -------
    int
        Number of kernels compiled now.

    Raises
    ------
    CompileError
        If a kernel does not compile; those compiled before it stay in the cache.
    ParameterError
        For ``workers`` below 1, and for calls that are not callable.

    Notes
    -----
    A worker that dies (out of memory, say) is reported with a warning and its kernels are compiled here.

    Examples
    --------
    >>> import kernmantle as km, torch
    >>> x = torch.zeros(4, 3)
    >>> compiled = km.precompile([lambda: km.contract("mk,nk->mn", lambda a, b: abs(a - b), x, x)], workers=1)
    """
    if workers is not None and workers < 1:
        raise ParameterError(f"workers must be at least 1, got {workers}")
    listed: list[Any] = list(calls) if hasattr(calls, "__iter__") else [None]
    if not all(map(_takes_nothing, listed)):
        raise ParameterError("calls must be a list of functions without arguments, as [lambda: km.cdist(x, y)]")
    with collected() as jobs:
        for call in listed:
            call()
    missing = [job for job in jobs.values() if current_cache().find(job.key) is None]
    count = min(workers or os.cpu_count() or 1, len(missing))
    bar = tqdm(total=len(missing), desc="compiling kernels", disable=not current().progress or count < 2, leave=False)
    with bar:
        left = missing if count < 2 else _in_processes(missing, count, bar)
        for job in left:
            current_cache().fetch(job.key, job.build)
            bar.update()
    return len(missing)


def _takes_nothing(call: Any) -> bool:
    """Return whether a call without arguments fits; what has no signature, as some functions of C, may take it."""
    try:
        signature(call).bind()
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _in_processes(jobs: Sequence[Job], count: int, bar: Any) -> list[Job]:
    """Compile in worker processes, and return the jobs that were lost with a worker."""
    lost: list[Job] = []
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
    try:
        futures = {pool.submit(_build, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures[future]
            try:
                built = future.result()
            except BrokenProcessPool:
                lost.append(job)
                continue
            current_cache().fetch_built(job.key, lambda built=built: built)
            bar.update()
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt waits for no kernel that is not begun
    if lost:
        warnings.warn(
            f"a compiling process died; {len(lost)} kernels are compiled here", KernmantleWarning, stacklevel=4
        )
    return lost


def clear_cache() -> int:
    """Remove every compiled kernel from the disk cache and from memory, and every plan of a call.

    Returns
    -------
    int
        Bytes freed on disk.

    Notes
    -----
    Machine code of the CPU is unloaded once no thread runs it. Kernels of a GPU stay loaded until the process ends, as
    captured CUDA graphs may replay them.

    Examples
    --------
    >>> import kernmantle as km
    >>> with km.config(cache_dir="some-empty-directory"):
    ...     km.clear_cache()
    0
    """
    clear_all()
    return current_cache().clear()
