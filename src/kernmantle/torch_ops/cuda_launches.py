"""Bound launches of our kernels and of cuBLASLt that follow one another, as one native call a stream."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from ..backends.cpu.jit import LoadedKernel, add_symbol, compile_ir, host, load, version
from ..backends.cuda.cublaslt import WORKSPACE
from ..backends.cuda.launch_graph import LaunchGraph
from ..backends.cuda.launch_program import CALL, CODE, SYMBOLS, LaunchProgram, Runner
from ..errors import LaunchError
from ..runtime.cache import Built, Key, current_cache
from ..runtime.lru import LRUCache
from .blas_handles import HANDLES
from .cuda import enter_thread

_STREAMS = 16  # of which a sequence keeps its programs
# Tables of which a sequence keeps graphs, and how often it is launched on one before: a graph takes the host 280 to 600
# us to make, which is what it spares in so many launches (H200, decision 0132).
_TABLES, _BEFORE = 16, 8
_WORKSPACES = LRUCache[tuple[int, int], torch.Tensor](8 * _STREAMS)


class _Thread(threading.local):
    """Whether a thread has the context of its device."""

    def __init__(self) -> None:
        self.is_entered = False

    def enter(self) -> None:
        """Take the context of the device."""
        enter_thread()
        self.is_entered = True


_THREAD = _Thread()


@lru_cache(maxsize=1)
def runner() -> Runner:
    """Return what runs programs, with which the interpreter's lock is held."""
    for name in SYMBOLS:
        add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)
    run, call = _compiled(CODE), _compiled(CALL)
    return Runner(run.address, call.address, (run, call))


def _compiled(text: str) -> LoadedKernel:
    own = host()
    key = Key(own.triple, version(), text, options=(own.cpu, own.features), name="launches")
    return load(current_cache().fetch(key, lambda: Built(compile_ir(text, own))))


def workspace_of(index: int, stream: int) -> torch.Tensor:
    """Return memory of a stream for products, which follow one another there."""
    found = _WORKSPACES.get((index, stream))
    if found is None:
        made = torch.empty(WORKSPACE, dtype=torch.uint8, device=torch.device("cuda", index))
        found = _WORKSPACES.setdefault((index, stream), made)
    return found


class _Table:
    """How often launches took a table of addresses, and the call of their graph from some time on."""

    __slots__ = ("count", "launch")

    def __init__(self) -> None:
        self.count = 0
        self.launch: Callable[[list[int]], int] | None = None


class NativeLaunches:
    """Launches on one device, whose ``operands`` are positions in tables of ``length`` addresses.

    Several that take the same table again, as in training steps they do, become a CUDA graph of that table.
    """

    def __init__(self, launches: Sequence[Any], operands: Sequence[Sequence[int]], length: int) -> None:
        self._launches, self._operands, self._length = launches, operands, length
        self._index = launches[0].device
        self._bytes = max(getattr(launch, "workspace_bytes", 0) for launch in launches)
        self._programs = LRUCache[int, tuple[LaunchProgram, torch.Tensor | None]](_STREAMS)
        self._tables = LRUCache[tuple[int, ...], _Table](_TABLES)
        self._last: tuple[int, Any, int] = (-1, None, 0)
        private: Any = torch._C  # which has these where torch has CUDA
        self._stream_of, self._device_of = private._cuda_getCurrentRawStream, private._cuda_getDevice

    def start(self, table: list[int]) -> bool:
        """Launch on the current stream, which is not captured; return False if another device is the current one.

        The address of a workspace is added to the table.
        """
        own, index = _THREAD, self._index
        if self._device_of() != index:
            return False
        if not own.is_entered:
            own.enter()
        if index not in HANDLES.devices:  # a captured step may be of another kind, which has products of torch's
            HANDLES.take(index)
        stream, (before, launch, workspace) = self._stream_of(index), self._last
        if stream != before:
            launch, workspace = self._on(stream)
        table.append(workspace)
        if len(self._launches) > 1:
            launch = self._graph(stream, table) or launch
        status = launch(table)
        if status:
            raise LaunchError(f"of {len(self._launches)} launches one did not start: status {status}")
        return True

    def _graph(self, stream: int, table: list[int]) -> Callable[[list[int]], int] | None:
        """Return the call of the graph of a table, whose last address is that of a workspace; None without one."""
        key = stream, *table
        found = self._tables.get(key)
        if found is None:
            found = self._tables.setdefault(key, _Table())
        if found.count == _BEFORE:
            graph = LaunchGraph(lambda own: self._program(own, stream).launch(table))
            if graph.is_whole:
                found.launch = LaunchProgram(runner(), [graph.record(stream)]).launch
        found.count += 1
        return found.launch

    def _program(self, stream: int, home: int) -> LaunchProgram:
        """Return the launches on a stream; see :meth:`BoundLaunch.record`."""
        each = zip(self._launches, self._operands, strict=True)
        return LaunchProgram(runner(), [launch.record(stream, (*own, self._length), home) for launch, own in each])

    def _on(self, stream: int) -> tuple[Callable[[list[int]], int], int]:
        """Return the call for a stream, and the last address of its table: that of a workspace."""
        found = self._programs.get(stream)
        if found is None:
            memory = workspace_of(self._index, stream) if self._bytes else None
            found = self._programs.setdefault(stream, (self._program(stream, stream), memory))
        program, memory = found
        at = 0 if memory is None else memory.data_ptr()
        self._last = stream, program.launch, at
        return program.launch, at
