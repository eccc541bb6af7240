"""Kernels by name and of one's own: their matrices, products, predictors' gradients, neighbours and scales."""

from .argk import argkmin
from .bandwidth import median_bandwidth, standardise
from .build import CONSTRUCTORS
from .kernel import Kernel
from .operator import Operator
from .row import Hyper, Option, Row
from .table import KERNELS


def __getattr__(name: str) -> object:
    if name in CONSTRUCTORS:
        return CONSTRUCTORS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CONSTRUCTORS",
    "KERNELS",
    "Hyper",
    "Kernel",
    "Operator",
    "Option",
    "Row",
    "argkmin",
    "median_bandwidth",
    "standardise",
]
