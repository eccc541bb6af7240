"""Fused contractions for kernel machines and structured layers. By convention ``import kernmantle as km``."""

from importlib import import_module as _import_module

from . import errors
from ._version import __version__
from .config import config
from .contraction.definition import Fold, Semiring
from .distances import cdist, pdist
from .expr.functions import FUNCTIONS as _FUNCTIONS
from .ops.contract import Contraction, contract
from .ops.precompile import clear_cache, precompile

_OF_KERNELS = (
    "Cauchy", "Cosine", "Dispersal", "ExponentialPower", "Gaussian", "Kernel", "Laplace", "Linear", "Matern", "NTK",
    "Periodic", "Polynomial", "ProductLaplace", "RationalQuadratic", "Sigmoid", "SphereNTK", "SumPowerLaplace",
    "Wendland", "argkmin", "median_bandwidth", "standardise",
)  # fmt: skip
_OF_KRON = ("kron_matmul",)
_OF_KRONSPARSE = (
    "KSLinear", "KSPattern", "LayerNormBatchLast", "LinearBatchLast", "choose_patterns", "kron_sparse_matmul",
    "replace_linears",
)  # fmt: skip

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
]
__all__ += [*_FUNCTIONS, *_OF_KERNELS, *_OF_KRON, *_OF_KRONSPARSE]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if name in _OF_KERNELS:
        return getattr(_import_module(".kernels", __name__), name)
    if name in _OF_KRON:
        return getattr(_import_module(".kron", __name__), name)
    if name in _OF_KRONSPARSE:
        return getattr(_import_module(".kronsparse", __name__), name)
    if name == "kronsparse":
        return _import_module(".kronsparse", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
