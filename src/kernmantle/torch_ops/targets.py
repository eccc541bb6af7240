"""The targets that kernels are compiled for, chosen by the device of the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from ..backend import REFERENCE, Backend, backend_of, backends
from ..compiler.gradient_patterns import Vjp
from ..compiler.nest import Nest
from ..config import current
from ..errors import BackendError, DeviceError
from ..ir.program import Program
from ..runtime.launcher import Launcher


@runtime_checkable
class Target(Protocol):
    """The protocol of a target: it compiles a nest for given extents and strides."""

    name: str

    def parallel(self, device: torch.device) -> int:
        """Return how many independent pieces of work occupy the device."""
        ...

    def takes_vjp(self, found: Vjp, program: Program, sizes: Mapping[str, int], compute: str) -> bool:
        """Return whether it runs a VJP of these extents as one."""
        ...

    def prepare(self, nest: Nest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it; ``alignment`` is that of each buffer's pointer, in bytes.

        ``integers`` are the extents and strides of ``compiler/nest.py``. The launcher takes the addresses of the
        nest's buffers and the values of its numbers. A nest may be ``partial`` whatever ``parallel`` returns.
        """
        ...


@lru_cache(maxsize=8)
def _target(backend: Backend) -> Target:
    return backend.module(backend.contractions).TARGET()


def backend_for(device: torch.device) -> Backend | None:
    """Return the backend of a device; None means the reference evaluator, which must have been asked for."""
    asked = current().backend
    if asked == REFERENCE:
        return None
    found = backend_of(device.type, asked)
    if found is not None:
        return found
    there = [row.name for row in backends().values() if row.device == device.type]
    if there:
        raise BackendError(f"backend={asked!r} cannot run on {device}; {' or '.join(map(repr, there))} runs there")
    raise DeviceError(
        f"no kernels for tensors on {device}: move them to the CPU or to an NVIDIA GPU, "
        'or use km.config(backend="reference")'
    )


def target_for(device: torch.device) -> Target | None:
    """Return what compiles contractions for a device; None means the reference evaluator."""
    backend = backend_for(device)
    return None if backend is None else _target(backend)
