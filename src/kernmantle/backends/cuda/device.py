"""The GPUs of the machine: their architecture, and the limits that plans go by."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from ...errors import BackendError, DeviceError

_OLDEST = (8, 0)  # compute capability
_IMPORT = threading.Lock()


@dataclass(frozen=True)
class Gpu:
    """One GPU; sizes in bytes, ``arch`` such as "sm_90"."""

    index: int
    name: str
    arch: str
    sm_count: int
    shared_per_block: int
    shared_per_sm: int
    registers_per_sm: int
    threads_per_sm: int


def core() -> Any:
    """Return the cuda.core package, which must not be imported by two threads at once."""
    try:
        with _IMPORT:
            return import_module("cuda.core")
    except ImportError as error:
        raise BackendError(
            "the CUDA engine needs cuda-core >= 1.0 and NVRTC: install kernmantle[cuda13] or kernmantle[cuda12]"
        ) from error


def is_from_cuda(error: Exception) -> bool:
    """Return whether an exception comes from the driver, the compiler or cuda.core, whose classes are not public.

    Out-of-memory errors, wrong types and other errors of the caller do not count.
    """
    own = type(error).__module__.partition(".")[0] == "cuda"
    return own or isinstance(error, (RuntimeError, OSError, SystemError))


@lru_cache(maxsize=64)
def gpu(index: int) -> Gpu:
    """Return the GPU of that index; raise an error if there is none or it is too old."""
    try:
        device = core().Device(index)
        properties, capability = device.properties, device.compute_capability
    except (RuntimeError, ValueError) as error:
        raise DeviceError(f"there is no CUDA device {index}: {error}") from error
    if tuple(capability) < _OLDEST:
        raise DeviceError(f"{device.name} has compute capability {tuple(capability)}; 8.0 or newer is needed")
    return Gpu(
        index,
        str(device.name),
        f"sm_{device.arch}",
        int(properties.multiprocessor_count),
        int(properties.max_shared_memory_per_block_optin),
        int(properties.max_shared_memory_per_multiprocessor),
        int(properties.max_registers_per_multiprocessor),
        int(properties.max_threads_per_multiprocessor),
    )
