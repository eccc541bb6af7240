"""Fused contractions for kernel machines and structured layers. By convention ``import kernmantle as km``."""

from . import errors
from ._version import __version__
from .config import config
from .contraction.definition import Fold, Semiring
from .distances import cdist, pdist
from .expr.functions import FUNCTIONS as _FUNCTIONS
from .ops.contract import Contraction, contract
from .ops.precompile import clear_cache, precompile

__all__ = [
    "Contraction",
    "Fold",
    "Semiring",
    "__version__",
    "cdist",
    "clear_cache",
    "config",
    "contract",
    "errors",
    "pdist",
    "precompile",
    *_FUNCTIONS,
]


def __getattr__(name: str) -> object:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
