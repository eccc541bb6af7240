"""Launches of a captured CUDA graph that need not wait for one another: a stream that is forked and joined."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class SideStream:
    """A stream beside the current one of a device, under capture, for work that nothing reads before it is joined.

    Until then the work is kept, with the arrays that it reads: torch would give their memory to what follows.
    """

    def __init__(self, index: int) -> None:
        self._current = torch.cuda.current_stream(index)
        self._own = _side_of(self._current)
        self._works: list[Callable[[], Any]] = []

    def __call__(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, whose launches wait for those so far of both streams alone."""
        self._own.wait_stream(self._current)
        self._works.append(work)
        with torch.cuda.stream(self._own):
            return work()

    def join(self) -> None:
        """Have what follows on the current stream wait for all work."""
        if self._works:  # a stream without any is not captured
            self._current.wait_stream(self._own)
        self._works.clear()


@lru_cache(maxsize=64)
def _side_of(current: torch.cuda.Stream) -> torch.cuda.Stream:
    """Return the stream beside one, always the same: torch gives its memory to nothing but what follows on it."""
    return torch.cuda.Stream(current.device)
