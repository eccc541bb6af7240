"""Machine code to running kernels: loading, and launches on a given stream without a sync or a copy.

The caller makes the device of the stream current (torch's device guard does). A kernel takes plain Python
integers (pointers and 64-bit integers) and floats (float64), in the order of its parameters.
"""

from __future__ import annotations

import threading
from hashlib import sha256
from importlib import import_module
from typing import Any

from ...errors import LaunchError
from ...runtime.lru import LRUCache
from .device import core, is_from_cuda

_FREE_SHARED = 40 << 10  # of the 48 KiB that static and dynamic shared memory have without asking
_STREAMS: LRUCache[tuple[int, int], Any] = LRUCache(1024)
_GRIDS = 256
# Libraries by the digest of their binary and the shared memory they are allowed. They stay loaded until the process
# ends: a launch may still be queued, and a captured graph replays its kernels at any later time, unknown to this.
_LIBRARIES: dict[tuple[bytes, int], Any] = {}
_LOADING = threading.Lock()
_EARLY = "programmatic_stream_serialization"  # which cuda-core 1.0 does not know


def _stream(handle: int, device: int) -> Any:
    return _STREAMS.setdefault((handle, device), core().Stream.from_handle(handle))


def _library(binary: bytes, shared: int, title: str) -> Any:
    """Return the loaded library of a binary, the same one for kernels that use as much shared memory."""
    key = sha256(binary).digest(), shared
    with _LOADING:
        if key not in _LIBRARIES:
            _LIBRARIES[key] = core().ObjectCode.from_cubin(binary, name=title)
        return _LIBRARIES[key]


class Kernel:
    """A kernel of a loaded binary, good for every device of its architecture.

    Parameters
    ----------
    binary : bytes
        Machine code.
    entry : str
        Name of the kernel in it.
    threads : int
        Threads of a block.
    shared : int
        Bytes of dynamic shared memory of a block.
    title : str
        What messages call it.
    early : bool
        Whether it may start before the kernel that it is launched behind has ended, for which it waits by itself.
    """

    def __init__(
        self, binary: bytes, entry: str, threads: int, shared: int = 0, title: str = "", early: bool = False
    ) -> None:
        self.title = title or entry
        self.threads, self.shared, self.early = threads, shared, early
        self._ready: set[int] = set()
        self._configs: LRUCache[int, Any] = LRUCache(_GRIDS)
        self._last: tuple[Any, ...] = (-1, -1, -1, None, None)
        self._lock = threading.Lock()
        self._launch = core().launch
        try:
            self._kernel = _library(binary, shared, self.title).get_kernel(entry)
        except Exception as error:
            if not is_from_cuda(error):
                raise
            raise LaunchError(f"kernel {self.title!r} could not be loaded: {error}") from error

    def _prepare(self, device: int) -> None:
        """Allow the kernel its shared memory on a device, once."""
        with self._lock:
            if device in self._ready:
                return
            if self.shared > _FREE_SHARED:
                driver = import_module("cuda.bindings.driver")
                name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                handle = driver.CUkernel(int(self._kernel.handle))
                (status,) = driver.cuKernelSetAttribute(name, self.shared, handle, driver.CUdevice(device))
                if int(status) != 0:
                    raise LaunchError(
                        f"kernel {self.title!r} cannot have {self.shared} bytes of shared memory: {status}"
                    )
            self._ready.add(device)

    def _config(self, blocks: int) -> Any:
        config = core().LaunchConfig(
            grid=blocks, block=self.threads, shmem_size=self.shared,
            **({_EARLY: True} if self.early and hasattr(core().LaunchConfig, _EARLY) else {}),
        )  # fmt: skip
        return self._configs.setdefault(blocks, config)

    def occupancy(self, device: int) -> int:
        """Return how many blocks share a multiprocessor of a device, which must be current."""
        self._prepare(device)  # a kernel that may not have its shared memory yet has no room for a single block
        return int(self._kernel.occupancy.max_active_blocks_per_multiprocessor(self.threads, self.shared))

    def __call__(self, device: int, stream: int, blocks: int, arguments: tuple[Any, ...]) -> None:
        """Launch on the stream of that handle, which belongs to the device that is current."""
        # Most launches are as the one before: comparing takes 0.1 us, looking up 0.3 us.
        last = self._last
        if last[0] != blocks or last[1] != stream or last[2] != device:
            if device not in self._ready:
                self._prepare(device)
            config = self._configs.get(blocks) or self._config(blocks)
            queue = _STREAMS.get((stream, device)) or _stream(stream, device)
            last = self._last = (blocks, stream, device, config, queue)
        try:
            self._launch(last[4], last[3], self._kernel, *arguments)
        except Exception as error:
            if not is_from_cuda(error):
                raise
            raise LaunchError(
                f"kernel {self.title!r} did not start with {blocks} blocks of {self.threads} threads: {error}"
            ) from error
