"""The table of backends: each folder of ``backends`` declares its row, ``BACKEND``, and nothing else lists it.

A row names the modules that compile and launch its kernels, because those know of torch, which a backend's plans and
texts do not. Such a module has a class ``TARGET``, made without arguments when the first tensor of its device comes:
of contractions a ``torch_ops.targets.Target``, of row reductions a ``torch_ops.row_reduce_execute.RowTarget``. A
backend without the second takes blocks of the matrix in their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

_PACKAGE = f"{__package__}.backends"
REFERENCE = "reference"
"""The backend of every device, taken only when it is asked for."""


@dataclass(frozen=True)
class Backend:
    """One backend: its name in ``km.config``, the torch type of its devices, and modules by their dotted names.

    ``kron`` is the module of Kronecker products, with the ``NAME`` and the ``planned`` that ``structured.kron.execute``
    asks for; without one they are torch's matrix products. ``softmax`` is that of softmax-weighted sums in one pass,
    whose ``TARGET`` is a ``torch_ops.softmax.SoftmaxTarget``; without one they are two row reductions. A backend that
    is not ``automatic`` runs only where its name is asked for.
    """

    name: str
    device: str
    contractions: str
    row_reductions: str = ""
    kron: str = ""
    softmax: str = ""
    automatic: bool = True

    def module(self, name: str) -> Any:
        """Load a module of the row: no compiler is needed on a machine without the devices of its backend."""
        return import_module(f"{__package__}.{name}")


@lru_cache(maxsize=1)
def backends() -> dict[str, Backend]:
    """Return the rows of all folders by their names."""
    package = import_module(_PACKAGE)
    folders = [import_module(f"{_PACKAGE}.{each.name}") for each in iter_modules(package.__path__) if each.ispkg]
    rows: list[Backend] = [folder.BACKEND for folder in folders if hasattr(folder, "BACKEND")]
    return {row.name: row for row in rows}


def choices() -> tuple[str, ...]:
    """Return the values of the setting ``backend``."""
    return ("auto", REFERENCE, *backends())


def backend_of(device: str, asked: str) -> Backend | None:
    """Return the backend of devices of a type: the one asked for, or with "auto" the first automatic one."""
    rows = [row for row in backends().values() if row.device == device]
    fits = [row for row in rows if row.name == asked or (asked == "auto" and row.automatic)]
    return fits[0] if fits else None
