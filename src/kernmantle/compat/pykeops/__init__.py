"""``pykeops`` on the row reductions of this library: ``kernmantle.compat.install("pykeops")``.

``pykeops.torch`` and ``pykeops.numpy`` have ``LazyTensor``, ``Vi``, ``Vj``, ``Pm``, ``Genred``, ``KernelSolve`` and the
functions ``generic_sum``, ``generic_logsumexp``, ``generic_argmin`` and ``generic_argkmin``.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch as _torch

__version__ = "2.3"
verbose = False
default_device_id = 0
config = SimpleNamespace(
    gpu_available=_torch.cuda.is_available(), torch_found=True, numpy_found=True, use_cuda=_torch.cuda.is_available()
)
_INSIDE = ("generic", "generic.generic_red", "generic.generic_ops", "lazytensor", "lazytensor.LazyTensor", "operations")
RENAMED = {f"{kind}.{part}": kind for kind in ("torch", "numpy") for part in _INSIDE}
"""Modules of KeOps whose names are all in the one on the right."""


def __getattr__(name: str) -> Any:
    """``torch`` and ``numpy``, imported when they are asked for."""
    if name not in ("torch", "numpy"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def set_verbose(val: bool) -> None:
    """Do nothing: no message is printed. ``km.config(verbose=True)`` shows compilations."""


def clean_pykeops(recompile_jit_binaries: bool = True) -> None:
    """Do nothing: compiled kernels are keyed by what they were made of. ``python -m kernmantle cache`` clears them."""


def check_health(*_: Any, **__: Any) -> None:
    """Do nothing: ``python -m kernmantle info`` checks the installation."""
