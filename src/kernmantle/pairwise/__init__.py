"""All pairs of rows: distances and kernels by name, products with kernel matrices, gradients, neighbours.

Each name loads the module that it is from: distances need nothing of kernels.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from .attend import attention
    from .bandwidth import median_bandwidth, standardise
    from .condensed import pdist
    from .constructors import CONSTRUCTORS
    from .distances import cdist
    from .kernel import Kernel
    from .kernel_row import Hyper, Option, Row
    from .kernels import KERNELS
    from .metric import Form, Metric
    from .metrics import METRICS
    from .neighbour_search import argkmin
    from .operator import Operator
    from .spectral_mixture import SpectralMixture
    from .value_gradients import with_gradients

_HOMES = {
    "CONSTRUCTORS": "constructors", "KERNELS": "kernels", "METRICS": "metrics", "Form": "metric", "Hyper": "kernel_row",
    "Kernel": "kernel", "Metric": "metric", "Operator": "operator", "Option": "kernel_row", "Row": "kernel_row",
    "SpectralMixture": "spectral_mixture", "argkmin": "neighbour_search", "attention": "attend", "cdist": "distances",
    "median_bandwidth": "bandwidth", "pdist": "condensed", "standardise": "bandwidth",
    "with_gradients": "value_gradients",
}  # fmt: skip

__all__ = [
    "CONSTRUCTORS", "KERNELS", "METRICS", "Form", "Hyper", "Kernel", "Metric", "Operator", "Option", "Row",
    "SpectralMixture", "argkmin", "attention", "cdist", "median_bandwidth", "pdist", "standardise", "with_gradients",
]  # fmt: skip


def _module(name: str) -> _Any:
    try:
        return _import_module(f".{name}", __name__)
    except AttributeError as error:  # which an import statement takes for a name that is not there
        raise ImportError(f"{__name__}.{name} cannot be imported: {error}") from error


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return globals().setdefault(name, getattr(_module(_HOMES[name]), name))
    if name[:1].isupper():  # a kernel of the table
        constructors = _module("constructors").CONSTRUCTORS
        if name in constructors:
            return constructors[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
