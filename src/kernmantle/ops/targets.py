"""The machines that kernels can be built for, chosen by where the tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from ..config import current
from ..contraction.nest import Nest
from ..errors import BackendError, DeviceError
from . import cpu

Launch = Callable[[Sequence[int], Sequence[float]], None]


class Target(Protocol):
    """Something that compiles a nest and launches it on given extents and strides."""

    name: str

    @property
    def parallel(self) -> int:
        """How many independent pieces of work keep it busy."""
        ...

    def prepare(self, nest: Nest, integers: np.ndarray, device: torch.device) -> Launch:
        """Compile (or find) the kernel; the result takes pointers and numbers."""
        ...


_BY_DEVICE: dict[str, Target] = {"cpu": cpu.CpuTarget()}


def target_for(device: torch.device) -> Target | None:
    """Target of a device; None means the reference evaluator, which must have been asked for."""
    backend = current().backend
    if backend == "reference":
        return None
    target = _BY_DEVICE.get(device.type)
    if target is None:
        raise DeviceError(
            f"no kernels for tensors on {device}: install kernmantle[cuda13] (or [cuda12]) on a machine with an "
            'NVIDIA GPU, move the tensors to the CPU, or use km.config(backend="reference")'
        )
    if backend not in ("auto", target.name):
        raise BackendError(f"backend={backend!r} cannot run on {device}; it runs on {target.name!r} there")
    return target
