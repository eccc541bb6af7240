"""Names and shapes of other libraries on the contractions of this one."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from ..errors import ParameterError

MODULES = ("kermac",)


def install(name: str) -> ModuleType:
    """Have ``import <name>`` give the module of that name here, so that existing programs run unmodified.

    Parameters
    ----------
    name : {"kermac"}
        The library to stand in for.

    Returns
    -------
    module
        What the import gives from now on in this process.

    Examples
    --------
    >>> import kernmantle.compat
    >>> kernmantle.compat.install("kermac").__name__
    'kernmantle.compat.kermac'
    """
    if name not in MODULES:
        raise ParameterError(f"there is no stand-in for {name!r}; there are {', '.join(MODULES)}")
    module = importlib.import_module(f"{__name__}.{name}")
    sys.modules[name] = module
    return module
