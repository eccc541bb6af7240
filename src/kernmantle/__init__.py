"""Fused contractions for kernel machines and structured layers. By convention ``import kernmantle as km``."""

from . import errors
from ._version import __version__
from .config import config
from .contraction.definition import Fold, Semiring
from .distances import cdist, pdist
from .expr.functions import FUNCTIONS as _FUNCTIONS
from .kernels import CONSTRUCTORS as _KERNELS
from .kernels import Kernel, argkmin, median_bandwidth, standardise
from .ops.contract import Contraction, contract
from .ops.precompile import clear_cache, precompile

__all__ = [
    "Contraction",
    "Fold",
    "Kernel",
    "Semiring",
    "__version__",
    "argkmin",
    "cdist",
    "clear_cache",
    "config",
    "contract",
    "errors",
    "median_bandwidth",
    "pdist",
    "precompile",
    "standardise",
]
__all__ += [*_FUNCTIONS, *_KERNELS]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if name in _KERNELS:
        return _KERNELS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
