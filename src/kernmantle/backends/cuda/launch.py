"""Machine code to running kernels: loading, and launches on a given stream without a sync or a copy.

The caller makes the device of the stream current (torch's device guard does). A kernel takes plain Python
integers (pointers and 64-bit integers) and floats (float64), in the order of its parameters: 8 bytes each, which are
handed to the driver in one piece.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from ...errors import LaunchError
from ...runtime.lru import LRUCache
from .device import core, is_from_cuda
from .launch_program import Record

_FREE_SHARED = 40 << 10  # of the 48 KiB that static and dynamic shared memory have without asking
_GRIDS = 256  # launch configurations that a kernel keeps
_MOST = 4096  # bytes of arguments that every architecture takes
# Libraries by the digest of their binary and the shared memory they are allowed. They stay loaded until the process
# ends: a launch may still be queued, and a captured graph replays its kernels at any later time, unknown to this.
_LIBRARIES: dict[tuple[bytes, int], Any] = {}
_LOADING = threading.Lock()


class Queue(NamedTuple):
    """Where launches go: the current device, the current stream of a device, and what makes a device current.

    ``enter`` gives a thread that has launched nothing yet the context of its device.
    """

    device_of: Callable[[], int]
    stream_of: Callable[[int], int]
    on_device: Callable[[int], AbstractContextManager[Any]]
    enter: Callable[[], None]


class _Arguments:
    """Memory from which the driver copies the arguments of the launches of one thread.

    ``is_entered``: the thread has the context of its device, see :class:`Queue`.
    """

    __slots__ = ("_extra", "address", "is_entered", "memory", "size", "values")

    def __init__(self) -> None:
        self.values = ctypes.create_string_buffer(_MOST)
        self.memory = memoryview(self.values).cast("B")
        self.size = ctypes.c_size_t(0)
        # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE and CU_LAUNCH_PARAM_END
        self._extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(self.values), 2, ctypes.addressof(self.size), 0)
        self.address = ctypes.addressof(self._extra)
        self.is_entered = False

    def enter(self, queue: Queue) -> None:
        """Give the thread the context of its device, once."""
        queue.enter()
        self.is_entered = True


class _Threads(threading.local):
    """Each thread's memory for arguments: one look-up for a launch, since those of a thread's own take long."""

    def __init__(self) -> None:
        self.arguments = _Arguments()


THREADS = _Threads()


def _driver() -> Any:
    return import_module("cuda.bindings.driver")


@lru_cache(maxsize=1)
def launch_function() -> int:
    """Return the address of the driver's function that launches a kernel."""
    return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx, ctypes.c_void_p).value or 0


@contextmanager
def relaxed_capture() -> Generator[None]:
    """Let this thread query events and load kernels while a graph is captured, which other modes forbid."""
    driver = _driver()
    _, before = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def zeroed_counter(stream: int) -> int:
    """Return the address of a number of 4 bytes on the current device, for good: 0 where the stream comes to it.

    It is none of torch's memory, which belongs to a graph while one is warmed up.
    """
    driver = _driver()
    with relaxed_capture():
        status, found = driver.cuMemAlloc(4)
        if not status:
            (status,) = driver.cuMemsetD32Async(found, 0, 1, driver.CUstream(stream))
    if status:
        raise LaunchError(f"there is no memory for a counter of blocks: {status.name}")
    return int(found)


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
    overlapped : bool
        Whether it may start before the kernel that it is launched behind has ended, for which it waits by itself.
    """

    def __init__(
        self, binary: bytes, entry: str, threads: int, shared: int = 0, title: str = "", overlapped: bool = False
    ) -> None:
        self.title = title or entry
        self.threads, self.shared, self.overlapped = threads, shared, overlapped
        self._ready: set[int] = set()
        self._configs: LRUCache[tuple[int, int], Any] = LRUCache(_GRIDS)
        self._last: tuple[Any, ...] = (-1, -1, -1, None)
        self._pack: Callable[..., None] | None = None
        self._size = 0
        self._lock = threading.Lock()
        # On arguments that lie ready a launch of 30 takes the host 6.2 us, by cuda.core's own function 8.5 (0030).
        self.launch: Callable[..., Any] = _driver().cuLaunchKernelEx
        try:
            with relaxed_capture():
                self._kernel = _library(binary, shared, self.title).get_kernel(entry)
                self.handle = _driver().CUfunction(int(self._kernel.handle))
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
                driver = _driver()
                name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                handle = driver.CUkernel(int(self._kernel.handle))
                (status,) = driver.cuKernelSetAttribute(name, self.shared, handle, driver.CUdevice(device))
                if int(status) != 0:
                    raise LaunchError(
                        f"kernel {self.title!r} cannot have {self.shared} bytes of shared memory: {status}"
                    )
            self._ready.add(device)

    def configure(self, device: int, stream: int, blocks: int) -> Any:
        """Return the configuration of launches of so many blocks on a stream of a device, the current one."""
        if device not in self._ready:
            self._prepare(device)
        found = self._configs.get((blocks, stream))
        if found is not None:
            return found
        driver = _driver()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        config.sharedMemBytes, config.hStream = self.shared, driver.CUstream(stream)
        if self.overlapped:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return self._configs.setdefault((blocks, stream), config)

    def packing(self, arguments: Sequence[Any]) -> struct.Struct:
        """Return what writes arguments of these types, which are the same at every launch."""
        packed = struct.Struct("=" + "".join("d" if isinstance(value, float) else "q" for value in arguments))
        if packed.size > _MOST:
            raise LaunchError(f"kernel {self.title!r} has {packed.size} bytes of arguments; a launch takes {_MOST}")
        return packed

    def occupancy(self, device: int) -> int:
        """Return how many blocks share a multiprocessor of a device, which must be current."""
        self._prepare(device)  # a kernel that may not have its shared memory yet has no room for a single block
        return int(self._kernel.occupancy.max_active_blocks_per_multiprocessor(self.threads, self.shared))

    def clusters(self, device: int, size: int) -> int:
        """Return how many clusters of so many blocks a device runs at once, which must be current."""
        driver = _driver()
        self._prepare(device)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = size, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        config.sharedMemBytes = self.shared
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = size, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
        status, count = driver.cuOccupancyMaxActiveClusters(self.handle, config)
        if int(status) != 0:
            raise LaunchError(f"kernel {self.title!r} cannot start in clusters of {size} blocks: {status}")
        return int(count)

    def __call__(self, device: int, stream: int, blocks: int, arguments: Sequence[Any]) -> None:
        """Launch on the stream of that handle, which belongs to the device that is current."""
        # Most launches are as the one before: comparing takes 0.1 us, looking up 0.3 us.
        last = self._last
        if last[0] != blocks or last[1] != stream or last[2] != device:
            last = self._last = (blocks, stream, device, self.configure(device, stream, blocks))
        own = THREADS.arguments
        if self._pack is None:
            packed = self.packing(arguments)
            self._size, self._pack = packed.size, packed.pack_into
        self._pack(own.values, 0, *arguments)
        own.size.value = self._size
        (status,) = self.launch(last[3], self.handle, 0, own.address)
        if status:
            self.refuse(status, blocks)

    def refuse(self, status: Any, blocks: int) -> NoReturn:
        """Say that the driver did not start the kernel."""
        raise LaunchError(
            f"kernel {self.title!r} did not start with {blocks} blocks of {self.threads} threads: {status.name}"
        )


class BoundLaunch:
    """Launches of a kernel on so many blocks of a device, whose arguments but for some addresses never change.

    A call takes the addresses alone and launches on the current stream.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    arguments : sequence of numbers
        Its arguments, with any integers where the addresses go.
    positions : sequence of int
        The positions of the addresses among the arguments, in the order in which calls give them.
    device, blocks : int
        The device, which need not be current, and the blocks.
    queue : Queue
        What says where launches go.
    of_stream : callable, optional
        Returns the last argument of launches on a stream of the device, an integer.
    """

    def __init__(
        self, kernel: Kernel, arguments: Sequence[Any], positions: Sequence[int], device: int, blocks: int,
        queue: Queue, of_stream: Callable[[int, int], int] | None = None,
    ) -> None:  # fmt: skip
        packed = kernel.packing(arguments)
        self._kernel, self._ready, self._size = kernel, packed.pack(*arguments), packed.size
        self._runs, self._positions = tuple(_runs(positions)), tuple(positions)
        self._device, self._blocks, self._queue = device, blocks, queue
        self._stream_of, self._device_of, self._of_stream = queue.stream_of, queue.device_of, of_stream
        self._last: tuple[int, Any, bytes] = (-1, None, b"")

    def __call__(self, addresses: Sequence[int]) -> None:
        """Launch on the current stream of the device."""
        own, device = THREADS.arguments, self._device
        if self._device_of() != device or not own.is_entered:
            return self._launch_elsewhere(own, addresses)
        stream, (before, config, ready) = self._stream_of(device), self._last
        if stream != before:
            _, config, ready = self._last = self._on(stream)
        values, kernel = own.values, self._kernel
        own.memory[: self._size] = ready
        for pack, offset, run in self._runs:
            pack(values, offset, *addresses[run])
        own.size.value = self._size
        (status,) = kernel.launch(config, kernel.handle, 0, own.address)
        if status:
            kernel.refuse(status, self._blocks)
        return None

    @property
    def device(self) -> int:
        """The device, by its index."""
        return self._device

    def record(self, stream: int, operands: Sequence[int], home: int | None = None) -> Record:
        """Return a launch on a stream of the device, the current one, whose addresses are at positions of a table.

        The last position is that of a workspace, which it does not need. What is captured on a stream is launched on
        another one, ``home``, whose blocks it counts.
        """
        _, config, ready = self._on(stream, home)
        memory = ctypes.create_string_buffer(ready, len(ready))
        size, begin = ctypes.c_size_t(self._size), ctypes.addressof(memory)
        extra = (ctypes.c_void_p * 5)(1, begin, 2, ctypes.addressof(size), 0)
        words = [begin + 8 * position for position in self._positions]
        arguments = int(config.getPtr()), int(self._kernel.handle), 0, ctypes.addressof(extra)
        patches = list(zip(words, operands[:-1], strict=True))
        return Record(launch_function(), arguments, patches, owned=(memory, size, extra, config, self))

    def _on(self, stream: int, home: int | None = None) -> tuple[int, Any, bytes]:
        """Return a stream of the device, the configuration of launches there and their arguments."""
        config, ready = self._kernel.configure(self._device, stream, self._blocks), self._ready
        if self._of_stream is not None:
            ready = ready[:-8] + struct.pack("=q", self._of_stream(self._device, stream if home is None else home))
        return stream, config, ready

    def _launch_elsewhere(self, own: _Arguments, addresses: Sequence[int]) -> None:
        """Launch from a thread that has no context yet, or on a device that is not the current one."""
        if not own.is_entered:
            own.enter(self._queue)
        if self._device_of() == self._device:
            return self(addresses)
        with self._queue.on_device(self._device):
            return self(addresses)


class NumberedLaunch:
    """Launches of a kernel on addresses and numbers, bound to the numbers of the first call, which most calls have.

    Of some 40 arguments only addresses are packed for them.

    Parameters
    ----------
    bind : callable
        Returns the bound launch for addresses and numbers like these.
    once : callable
        Launches on addresses and any numbers.
    signed : bool
        Whether 0.0 and -0.0, which are equal, give different results: numbers with a zero are then not bound.
    """

    def __init__(
        self, bind: Callable[[Sequence[int], tuple[float, ...]], BoundLaunch],
        once: Callable[[Sequence[int], tuple[float, ...]], None], signed: bool,
    ) -> None:  # fmt: skip
        self._bind, self._once, self._signed = bind, once, signed
        self._bound: tuple[tuple[float, ...], BoundLaunch] | None = None

    def __call__(self, addresses: Sequence[int], numbers: tuple[float, ...]) -> None:
        """Launch on the current stream of the device."""
        bound = self._bound
        if bound is not None and bound[0] == numbers:
            bound[1](addresses)
            return
        if bound is None and not (self._signed and 0.0 in numbers):
            self._bound = numbers, self._bind(addresses, numbers)
        self._once(addresses, numbers)

    def bound(self, numbers: tuple[float, ...], count: int) -> BoundLaunch:
        """Return launches on so many addresses, bound to these numbers."""
        return self._bind((0,) * count, numbers)


def _runs(positions: Sequence[int]) -> Iterator[tuple[Callable[..., None], int, slice]]:
    """Yield what writes addresses whose positions follow one another, the byte where they begin, and which they are."""
    begin = 0
    for end in range(1, len(positions) + 1):
        if end == len(positions) or positions[end] != positions[end - 1] + 1:
            yield struct.Struct(f"={end - begin}q").pack_into, 8 * positions[begin], slice(begin, end)
            begin = end
