"""Names and shapes of other libraries on the contractions of this one."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType

from ..errors import ParameterError

# What a program imports, and the module here that stands in for it.
MODULES = {
    "kermac": "kermac",
    "kernel_tools": "kernel_tools",
    "mm_kermac": "mm_kermac",
    "pyfastkron": "pyfastkron",
    "pykeops": "pykeops",
    "ksmm_py": "ksmm",
    "scipy.spatial.distance": "scipy",
}


def __getattr__(name: str) -> ModuleType:
    """The stand-in of that name, imported when it is asked for."""
    if name not in MODULES.values():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def install(name: str) -> ModuleType:
    """Have ``import <name>``, and imports of its submodules, give the modules of that name here.

    Existing programs then run unmodified in this process.

    Parameters
    ----------
    name : str
        The library to stand in for, as programs import it: a key of ``km.compat.MODULES``.

    Returns
    -------
    module
        What the import gives from now on.

    Raises
    ------
    ParameterError
        If no module of that name is imitated.

    Examples
    --------
    >>> import kernmantle.compat
    >>> kernmantle.compat.install("kermac").__name__
    'kernmantle.compat.kermac'
    """
    if name not in MODULES:
        raise ParameterError(f"no stand-in for {name!r} is available; available are {', '.join(MODULES)}")
    module = importlib.import_module(f"{__name__}.{MODULES[name]}")
    sys.modules[name] = module
    for part in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
        sys.modules[name + part.name.removeprefix(module.__name__)] = importlib.import_module(part.name)
    for part, own in getattr(module, "RENAMED", {}).items():
        sys.modules[f"{name}.{part}"] = importlib.import_module(f"{module.__name__}.{own}")
        setattr(module, part, sys.modules[f"{name}.{part}"])
    for part in getattr(module, "SUBMODULES", ()):
        sys.modules[f"{name}.{part}"] = module
        if not hasattr(module, part.rpartition(".")[2]):  # a function may be named as the file that it is from
            setattr(module, part.rpartition(".")[2], module)
    return module
