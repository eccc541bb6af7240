"""``pykeops`` on the row reductions of this library: ``kernmantle.compat.install("pykeops")``.

``pykeops.torch`` and ``pykeops.numpy`` have ``LazyTensor``, ``Vi``, ``Vj``, ``Pm``, ``Genred``, ``KernelSolve`` and the
functions ``generic_sum``, ``generic_logsumexp``, ``generic_argmin`` and ``generic_argkmin``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
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


def _test_bindings(kind: str, made: Callable[[Any], Any]) -> None:
    """Compare a product of KeOps' own documentation with its numbers, and print that it is right."""
    x, y, b = ([[0.0, 0.0], [1.0, 2.0]], [[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], [[1.0], [2.0], [-1.0]])
    genred = importlib.import_module(f"{__name__}.{kind}").Genred
    product = genred("SqDist(x, y) * b", ["x = Vi(2)", "y = Vj(2)", "b = Vj(1)"], axis=1)
    found = product(*map(made, (x, y, b))).tolist()
    if found != [[-1.0], [1.0]]:
        raise RuntimeError(f"a product of pykeops.{kind} is {found}, [[-1.0], [1.0]] is right")
    print(f"pyKeOps with {kind} bindings is working!")  # noqa: T201


def test_numpy_bindings() -> None:
    """Print that ``pykeops.numpy`` works, after a product that was checked."""
    _test_bindings("numpy", importlib.import_module("numpy").array)


def test_torch_bindings() -> None:
    """Print that ``pykeops.torch`` works, after a product that was checked."""
    _test_bindings("torch", importlib.import_module("torch").tensor)


def check_health(*_: Any, **__: Any) -> None:
    """Do nothing: ``python -m kernmantle info`` checks the installation."""
