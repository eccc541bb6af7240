"""Launches that follow one another as a CUDA graph, which the driver starts in one call, however many they are."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any
from weakref import finalize

from .launch import relaxed_capture
from .launch_program import Record


class LaunchGraph:
    """Launches of a function on a stream that it is given, captured, so that any stream of the device may have them.

    The function returns the status of its launches. ``is_whole`` says that these were captured: a driver may refuse to.
    """

    def __init__(self, start: Callable[[int], int]) -> None:
        driver = _driver()
        self._executable = 0
        with relaxed_capture():
            status, stream = driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
            if status:
                return
            (status,) = driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
            if not status:
                refused = start(int(stream))
                status, graph = driver.cuStreamEndCapture(stream)
                if not (status or refused):
                    status, found = driver.cuGraphInstantiate(graph, 0)
                    if not status:
                        self._executable = int(found)
                        finalize(self, driver.cuGraphExecDestroy, found).atexit = False
                if graph is not None and int(graph):
                    driver.cuGraphDestroy(graph)
            driver.cuStreamDestroy(stream)

    @property
    def is_whole(self) -> bool:
        """Return whether there is a graph of all launches."""
        return self._executable != 0

    def record(self, stream: int) -> Record:
        """Return its launch on a stream of the device, the current one."""
        return Record(_launch_function(), (self._executable, stream, 0, 0), (), owned=(self,))


@lru_cache(maxsize=1)
def _launch_function() -> int:
    """Return the address of the driver's function that launches a graph."""
    return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuGraphLaunch, ctypes.c_void_p).value or 0


def _driver() -> Any:
    return import_module("cuda.bindings.driver")
