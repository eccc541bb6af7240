"""Elapsed times of a stream."""

from __future__ import annotations

import time

import torch


class CudaTimer:
    """Milliseconds between ``start`` and ``stop``, of the current CUDA stream or of the host without one."""

    def __init__(self) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if torch.cuda.is_available() else []
        self._began = 0.0

    def start(self) -> None:
        """Begin."""
        self._began = time.perf_counter()
        if self._events:
            self._events[0].record()

    def stop(self) -> float:
        """Wait for the stream and return the time since ``start``."""
        if not self._events:
            return (time.perf_counter() - self._began) * 1e3
        self._events[1].record()
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1])
