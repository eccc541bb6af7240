"""``pykeops`` on the row reductions of this library: ``kernmantle.compat.install("pykeops")``.

``pykeops.torch`` and ``pykeops.numpy`` have ``LazyTensor``, ``Vi``, ``Vj``, ``Pm``, ``Genred``, ``KernelSolve`` and the
functions ``generic_sum``, ``generic_logsumexp``, ``generic_argmin`` and ``generic_argkmin``.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "2.3"
verbose = False
default_device_id = 0
_INSIDE = ("generic", "generic.generic_red", "generic.generic_ops", "lazytensor", "lazytensor.LazyTensor", "operations")
RENAMED = {f"{kind}.{part}": kind for kind in ("torch", "numpy") for part in _INSIDE}
"""Modules of KeOps whose names are all in the one on the right."""


def __getattr__(name: str) -> Any:
    """``config``, ``numpy`` and ``torch``, imported when they are asked for."""
    if name not in ("config", "numpy", "torch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def set_verbose(val: bool) -> None:
    """Do nothing: no message is printed. ``km.config(verbose=True)`` shows compilations."""


def clean_pykeops(recompile_jit_binaries: bool = True) -> None:
    """Do nothing: compiled kernels are keyed by what they were made of. ``python -m kernmantle cache`` clears them."""


def check_health(*_: Any, **__: Any) -> None:
    """Do nothing: ``python -m kernmantle info`` checks the installation."""
