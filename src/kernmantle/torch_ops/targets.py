"""The machines that kernels can be built for, chosen by where the tensors lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Protocol

import numpy as np
import torch

from ..compiler.gradient_patterns import Pullback
from ..compiler.nest import Nest
from ..config import current
from ..errors import BackendError, DeviceError
from ..ir.program import Program
from ..runtime.launcher import Launcher

# Loaded when the first tensor of that device comes: neither compiler is needed on a machine without the other.
_DOORS = {"cpu": (".cpu", "CpuTarget"), "cuda": (".cuda", "CudaTarget")}


class Target(Protocol):
    """Something that compiles a nest for given extents and strides."""

    name: str

    def parallel(self, device: torch.device) -> int:
        """How many independent pieces of work keep it busy."""
        ...

    def pulls(self, found: Pullback, program: Program, sizes: Mapping[str, int], compute: str) -> bool:
        """Whether it runs a pullback of these extents as one."""
        ...

    def prepare(self, nest: Nest, integers: np.ndarray, alignment: Sequence[int], device: torch.device) -> Launcher:
        """Compile the kernel or find it; ``alignment`` is that of each port's pointer, in bytes."""
        ...


@lru_cache(maxsize=8)
def _target(kind: str) -> Target | None:
    if kind not in _DOORS:
        return None
    module, name = _DOORS[kind]
    return getattr(import_module(module, __package__), name)()


def target_for(device: torch.device) -> Target | None:
    """Target of a device; None means the reference evaluator, which must have been asked for."""
    backend = current().backend
    if backend == "reference":
        return None
    target = _target(device.type)
    if target is None:
        raise DeviceError(
            f"no kernels for tensors on {device}: move them to the CPU or to an NVIDIA GPU, "
            'or use km.config(backend="reference")'
        )
    if backend not in ("auto", target.name):
        raise BackendError(f"backend={backend!r} cannot run on {device}; {target.name!r} runs there")
    return target
