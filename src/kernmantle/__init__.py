"""Fused contractions for kernel machines and structured layers. By convention ``import kernmantle as km``."""

from difflib import get_close_matches as _near
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import errors
from ._version import __version__
from .config import config, get_config, set_config
from .contraction.definition import Fold, Semiring
from .expr.functions import FUNCTIONS as _FUNCTIONS
from .ops.contract import Contraction, contract

if _TYPE_CHECKING:
    from .distances import cdist, pdist
    from .integrations.sklearn import pairwise_distances as pairwise_distances
    from .integrations.sklearn import pairwise_kernels as pairwise_kernels
    from .kernels import Kernel as Kernel
    from .kernels import argkmin as argkmin
    from .kernels import median_bandwidth as median_bandwidth
    from .kernels import standardise as standardise
    from .kron import KroneckerProduct as KroneckerProduct
    from .kron import kron_linear as kron_linear
    from .kron import kron_matmul as kron_matmul
    from .kron import kron_workspace as kron_workspace
    from .kron import nearest_kron as nearest_kron
    from .kronsparse import KSLinear as KSLinear
    from .kronsparse import KSPattern as KSPattern
    from .kronsparse import LayerNormBatchLast as LayerNormBatchLast
    from .kronsparse import LinearBatchLast as LinearBatchLast
    from .kronsparse import choose_patterns as choose_patterns
    from .kronsparse import kron_sparse_matmul as kron_sparse_matmul
    from .kronsparse import replace_linears as replace_linears
    from .ops.precompile import clear_cache, precompile
    from .ops.tune import tune

    def _constructor(*args: _Any, **hyperparameters: _Any) -> Kernel: ...

    Cauchy = Cosine = Dispersal = ExponentialPower = Gaussian = Laplace = Linear = Matern = NTK = _constructor
    Periodic = Polynomial = ProductLaplace = RationalQuadratic = Sigmoid = SphereNTK = SumPowerLaplace = _constructor
    Wendland = _constructor

_OF_KERNELS = (
    "Cauchy", "Cosine", "Dispersal", "ExponentialPower", "Gaussian", "Kernel", "Laplace", "Linear", "Matern", "NTK",
    "Periodic", "Polynomial", "ProductLaplace", "RationalQuadratic", "Sigmoid", "SphereNTK", "SumPowerLaplace",
    "Wendland", "argkmin", "median_bandwidth", "standardise",
)  # fmt: skip
_OF_KRON = ("KroneckerProduct", "kron_linear", "kron_matmul", "kron_workspace", "nearest_kron")
_OF_KRONSPARSE = (
    "KSLinear", "KSPattern", "LayerNormBatchLast", "LinearBatchLast", "choose_patterns", "kron_sparse_matmul",
    "replace_linears",
)  # fmt: skip
_OF_SKLEARN = ("pairwise_distances", "pairwise_kernels")
_ROOMS = ("compat", "distributed", "estimators", "integrations", "kronsparse", "linalg", "testing")
_KNOWN_AS = {
    "rbf": "Gaussian", "laplacian": "Laplace", "einsum": "contract", "knn": "argkmin",
    "kernelridge": "estimators.KernelRidge", "gaussianprocessregressor": "estimators.GaussianProcessRegressor",
}  # fmt: skip
_LATER = {
    "cdist": ".distances", "pdist": ".distances", "clear_cache": ".ops.precompile", "precompile": ".ops.precompile",
    "tune": ".ops.tune",
    **dict.fromkeys(_OF_KERNELS, ".kernels"), **dict.fromkeys(_OF_KRON, ".kron"),
    **dict.fromkeys(_OF_KRONSPARSE, ".kronsparse"), **dict.fromkeys(_OF_SKLEARN, ".integrations.sklearn"),
}  # fmt: skip

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
    "get_config",
    "pdist",
    "precompile",
    "set_config",
    "tune",
]
__all__ += [*_FUNCTIONS, *_OF_KERNELS, *_OF_KRON, *_OF_KRONSPARSE, *_OF_SKLEARN]  # noqa: PLE0604


def __getattr__(name: str) -> _Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if name in _LATER:
        return globals().setdefault(name, getattr(_import_module(_LATER[name], __name__), name))
    if name in _ROOMS:
        return _import_module(f".{name}", __name__)
    names = {known.lower(): known for known in (*__all__, *_ROOMS)} | _KNOWN_AS
    near = _near(name.lower(), names, 1)
    hint = f"; did you mean {names[near[0]]!r}?" if near and not name.startswith("_") else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
