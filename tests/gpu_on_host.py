"""A GPU that CPU tensors seem to lie on: the host code of its plans runs as it is, and its kernels are interpreted.

What a launch hands to the driver, addresses and numbers, and the plan of its kernel are all that an interpreter sees.
It reads and writes memory through strided views, which must lie in the storage that an address belongs to and that is
still there; it adds in float64 and rounds what it writes. Memory that nobody wrote holds NaN.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from kernmantle import structured, torch_ops
from kernmantle.backends.cuda import device, launch
from kernmantle.backends.cuda.launch import THREADS, Kernel
from kernmantle.runtime.lru import clear_all
from kernmantle.torch_ops import cuda, execute
from kernmantle.torch_ops.blas_handles import HANDLES

from .gpu_kernels import INTERPRETERS, Memory

_PROPERTIES = SimpleNamespace(
    multiprocessor_count=132, max_shared_memory_per_block_optin=232448, max_shared_memory_per_multiprocessor=233472,
    max_registers_per_multiprocessor=65536, max_threads_per_multiprocessor=2048,
)  # fmt: skip
_H200 = SimpleNamespace(
    name="H200", arch="90", compute_capability=(9, 0), properties=_PROPERTIES, set_current=lambda: None
)
_BYTES = 141 << 30
# All that calls load with the first one of a kind, so that none of it keeps what is replaced here.
_MODULES = [
    import_module(own.name)
    for package in (structured, torch_ops)
    for own in walk_packages(package.__path__, f"{package.__name__}.")
]
_CUDA = torch.device("cuda", 0)


class _Configuration(NamedTuple):
    """The blocks of a launch; for an address it has their number."""

    blocks: int

    def getPtr(self) -> int:
        return self.blocks


class InterpretedKernel(Kernel):
    """A kernel whose launches are interpreted; for a binary it has its plan."""

    def __init__(
        self, host: Host, plan: Any, entry: str, threads: int, shared: int = 0, title: str = "",
        overlapped: bool = False,
    ) -> None:  # fmt: skip
        self.title, self.threads, self.shared, self.overlapped = title, threads, shared, overlapped
        self._last, self._pack, self._size, self._packed = (-1, -1, -1, None), None, 0, struct.Struct("")
        self._host, self._plan, self._entry = host, plan, entry
        host.kernels.append(self)
        self.handle, self.launch = len(host.kernels), host.launch
        self._kernel: Any = SimpleNamespace(handle=self.handle)

    def packing(self, arguments: Sequence[Any]) -> struct.Struct:
        self._packed = super().packing(arguments)
        return self._packed

    def configure(self, device: int, stream: int, blocks: int) -> _Configuration:
        return _Configuration(blocks)

    def occupancy(self, device: int) -> int:
        return 1

    def clusters(self, device: int, size: int) -> int:
        return _PROPERTIES.multiprocessor_count // size

    def interpret(self, blocks: int, arguments: bytes) -> None:
        """Do what a launch on so many blocks would do."""
        memory = self._host.memory
        memory.launches[type(self._plan).__name__] += 1
        with torch.no_grad():
            INTERPRETERS[self._entry](memory, self._plan, blocks, *self._packed.unpack(arguments))


class Host:
    """What launches on this GPU do: their kernels, memory, and the first error, which native code cannot raise.

    ``captured``: a graph seems to be captured.
    """

    def __init__(self) -> None:
        self.memory, self.kernels, self.error, self.captured = Memory(), list[InterpretedKernel](), "", False
        self._native = ctypes.CFUNCTYPE(ctypes.c_int32, *4 * [ctypes.c_int64])(self._launched)
        self.address = ctypes.cast(self._native, ctypes.c_void_p).value

    def launch(self, configuration: _Configuration, handle: int, parameters: int, extra: int) -> tuple[int]:
        """Launch as the driver's function does that takes objects."""
        self._interpret(configuration.blocks, handle, extra)
        return (0,)

    def _launched(self, blocks: int, handle: int, parameters: int, extra: int) -> int:
        """Launch as the driver's function does."""
        try:
            self._interpret(blocks, handle, extra)
        except Exception as error:  # noqa: BLE001 (native code cannot raise it)
            self.error = self.error or str(error)
            return 1
        return 0

    def _interpret(self, blocks: int, handle: int, extra: int) -> None:
        begin, at, buffer_size, size, end = (ctypes.c_void_p * 5).from_address(extra)
        assert (begin, buffer_size, end) == (1, 2, None)
        kernel = self.kernels[handle - 1]
        try:
            kernel.interpret(blocks, ctypes.string_at(at, ctypes.c_size_t.from_address(size).value))
        except Exception as error:
            raise AssertionError(f"{kernel.title}: {error}") from error


def _to_other_types(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a product of torch's, whose result is of another type on GPUs alone."""

    def run(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, **others: Any) -> torch.Tensor:
        return multiply(a, b, **others) if out_dtype is None else multiply(a.to(out_dtype), b.to(out_dtype), **others)

    return run


def _on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return what makes tensors, of which those on the GPU are on the CPU."""

    def run(*sizes: Any, device: Any = None, **others: Any) -> torch.Tensor:
        return make(*sizes, device=None if device == _CUDA else device, **others)

    return run


class _Stream:
    """A stream: all runs at once."""

    device = _CUDA

    def wait_stream(self, other: _Stream) -> None: ...


@contextlib.contextmanager
def gpu_on_host() -> Iterator[Host]:
    """Inside, tensors seem to lie on an H200."""
    host = Host()

    def address(tensor: torch.Tensor) -> int:
        return host.memory.address(tensor)

    instead: dict[Any, dict[str, Any]] = {
        torch.Tensor: {
            "is_cuda": True, "is_cpu": False, "device": property(lambda tensor: _CUDA), "get_device": lambda tensor: 0,
            "data_ptr": address,
        },
        torch: {name: _to_other_types(getattr(torch, name)) for name in ("mm", "bmm")}
        | {name: _on_cpu(getattr(torch, name)) for name in ("empty", "zeros", "full", "arange")},
        torch.cuda: {
            "current_device": lambda: 0, "device": lambda index: contextlib.nullcontext(),
            "get_device_properties": lambda index: SimpleNamespace(total_memory=_BYTES),
            "is_current_stream_capturing": lambda: host.captured, "current_blas_handle": lambda: 0,
            "Stream": lambda device: _Stream(), "current_stream": lambda index: _Stream(),
            "stream": lambda stream: contextlib.nullcontext(),
        },
        torch._C: {"_cuda_getDevice": lambda: 0, "_cuda_getCurrentRawStream": lambda index: 0},
        cuda: {
            "Kernel": partial(InterpretedKernel, host), "loaded": lambda key, jobs, load: load(key[0]),
            "_counter": lambda index, stream: 0,
        },
        launch: {"launch_function": lambda: host.address},
        execute: {"target_for": lambda device: None},  # contractions of another room are evaluated
        THREADS.arguments: {"is_entered": True},
        HANDLES: {"devices": frozenset()},
    }  # fmt: skip
    # Modules have these of their own; memory is torch's.
    copied = {"_address": address, "is_capturing": lambda: host.captured, "current_gpu": lambda: -1}
    for module in _MODULES:
        instead[module] = {**instead.get(module, {}), **{name: copied[name] for name in copied.keys() & vars(module)}}
    with pytest.MonkeyPatch.context() as patch:
        for owner, names in instead.items():
            for name, value in names.items():
                patch.setattr(owner, name, value, raising=False)
        patch.setitem(sys.modules, "cuda.core", SimpleNamespace(Device=lambda index: _H200))
        _forget()
        torch.use_deterministic_algorithms(True)  # which has memory that is taken hold NaN
        try:
            yield host
        finally:
            torch.use_deterministic_algorithms(False)
            _forget()


def _forget() -> None:
    """Empty what is kept of a device and of calls on it."""
    for forget in (clear_all, cuda.limits.cache_clear, device.gpu.cache_clear, cuda._queue.cache_clear):
        forget()
