"""Fused contractions for kernel machines and structured layers. By convention ``import kernmantle as km``."""

from difflib import get_close_matches as _closest
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import errors
from ._version import __version__
from .config import config, get_config, set_config
from .ir.functions import FUNCTIONS as _FUNCTIONS
from .ir.reducers import Fold, Largest, Semiring, Smallest
from .torch_ops.contract import Contraction, contract
from .torch_ops.scores import Scores

if _TYPE_CHECKING:
    from .integrations.sklearn import pairwise_distances as pairwise_distances
    from .integrations.sklearn import pairwise_kernels as pairwise_kernels
    from .pairwise import Kernel as Kernel
    from .pairwise import SpectralMixture as SpectralMixture
    from .pairwise import argkmin as argkmin
    from .pairwise import attention as attention
    from .pairwise import cdist, pdist
    from .pairwise import median_bandwidth as median_bandwidth
    from .pairwise import standardise as standardise
    from .pairwise import with_gradients as with_gradients
    from .prediction import Estimate as Estimate
    from .prediction import estimate as estimate
    from .runtime.precompile import clear_cache, precompile
    from .structured.kron import KroneckerProduct as KroneckerProduct
    from .structured.kron import KronWorkspace as KronWorkspace
    from .structured.kron import kron_linear as kron_linear
    from .structured.kron import kron_matmul as kron_matmul
    from .structured.kron import kron_workspace as kron_workspace
    from .structured.kron import nearest_kron as nearest_kron
    from .structured.kronsparse import KSLinear as KSLinear
    from .structured.kronsparse import KSPattern as KSPattern
    from .structured.kronsparse import LayerNormBatchLast as LayerNormBatchLast
    from .structured.kronsparse import LinearBatchLast as LinearBatchLast
    from .structured.kronsparse import choose_patterns as choose_patterns
    from .structured.kronsparse import kron_sparse_matmul as kron_sparse_matmul
    from .structured.kronsparse import load_structured as load_structured
    from .structured.kronsparse import replace_linears as replace_linears
    from .torch_ops.tune import tune

    def _constructor(*args: _Any, **hyperparameters: _Any) -> Kernel: ...

    Cauchy = Cosine = Dispersal = ExponentialPower = Gaussian = Laplace = Linear = Matern = NTK = _constructor
    Periodic = Polynomial = ProductLaplace = RationalQuadratic = Sigmoid = SphereNTK = SumPowerLaplace = _constructor
    Wendland = _constructor

_OF_KERNELS = (
    "Cauchy", "Cosine", "Dispersal", "ExponentialPower", "Gaussian", "Kernel", "Laplace", "Linear", "Matern", "NTK",
    "Periodic", "Polynomial", "ProductLaplace", "RationalQuadratic", "Sigmoid", "SpectralMixture", "SphereNTK",
    "SumPowerLaplace",
    "Wendland", "argkmin", "attention", "median_bandwidth", "standardise", "with_gradients",
)  # fmt: skip
_OF_KRON = ("KronWorkspace", "KroneckerProduct", "kron_linear", "kron_matmul", "kron_workspace", "nearest_kron")
_OF_KRONSPARSE = (
    "KSLinear", "KSPattern", "LayerNormBatchLast", "LinearBatchLast", "choose_patterns", "kron_sparse_matmul",
    "load_structured", "replace_linears",
)  # fmt: skip
_OF_PREDICTION = ("Estimate", "estimate")
_OF_SKLEARN = ("pairwise_distances", "pairwise_kernels")
_SUBPACKAGES = (
    "compat", "distributed", "estimators", "integrations", "kronsparse", "linalg", "ot", "plot", "stats", "testing",
)  # fmt: skip
_ALIASES = {
    "rbf": "Gaussian", "laplacian": "Laplace", "einsum": "contract", "knn": "argkmin",
    "kernelridge": "estimators.KernelRidge", "gaussianprocessregressor": "estimators.GaussianProcessRegressor",
    "kmeans": "estimators.KMeans", "dbscan": "estimators.DBSCAN", "nearestneighbors": "estimators.NearestNeighbors",
    "scaled_dot_product_attention": "attention", "distance_matrix": "cdist", "squareform": "compat.scipy.squareform",
    "euclidean_distances": "cdist", "manhattan_distances": "cdist", "cosine_distances": "cdist",
    "pairwise_distances_argmin": "argkmin", "pairwise_distances_argmin_min": "argkmin",
    "rbf_kernel": "Gaussian", "laplacian_kernel": "Laplace", "polynomial_kernel": "Polynomial",
    "linear_kernel": "Linear", "sigmoid_kernel": "Sigmoid", "cosine_similarity": "Cosine",
    "chi2_kernel": "pairwise_kernels", "set_num_threads": "set_config",
}  # fmt: skip
"""Names that other libraries use, in lower case, and ours."""
_LATER = {
    "cdist": ".pairwise", "pdist": ".pairwise", "clear_cache": ".runtime.precompile",
    "precompile": ".runtime.precompile", "tune": ".torch_ops.tune",
    **dict.fromkeys(_OF_KERNELS, ".pairwise"), **dict.fromkeys(_OF_KRON, ".structured.kron"),
    **dict.fromkeys(_OF_KRONSPARSE, ".structured.kronsparse"), **dict.fromkeys(_OF_SKLEARN, ".integrations.sklearn"),
    **dict.fromkeys(_OF_PREDICTION, ".prediction"),
}  # fmt: skip

__all__ = [
    "Contraction", "Fold", "Largest", "Scores", "Semiring", "Smallest", "__version__", "cdist", "clear_cache",
    "config", "contract", "errors", "get_config", "pdist", "precompile", "set_config", "tune",
]  # fmt: skip
__all__ += [*_FUNCTIONS, *_OF_KERNELS, *_OF_KRON, *_OF_KRONSPARSE, *_OF_PREDICTION, *_OF_SKLEARN]  # noqa: PLE0604


def __getattr__(name: str) -> _Any:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    if name in _LATER:
        return globals().setdefault(name, getattr(_import_module(_LATER[name], __name__), name))
    if name in _SUBPACKAGES:
        return _import_module(f".{name}", __name__)
    names = {each.lower(): each for each in (*__all__, *_SUBPACKAGES)} | _ALIASES
    suggested = _closest(name.lower(), names, 1)
    hint = f"; did you mean {names[suggested[0]]!r}?" if suggested and not name.startswith("_") else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
