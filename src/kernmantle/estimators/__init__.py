"""scikit-learn estimators on the kernels and solvers of this library.

They take numpy arrays, whatever numpy takes, and tensors on any device, and give back what they were given.
"""

from __future__ import annotations

from difflib import get_close_matches as _closest
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING

from ..errors import BackendError as _BackendError

if _find_spec("sklearn") is None:
    raise _BackendError("km.estimators needs scikit-learn: pip install scikit-learn")

if _TYPE_CHECKING:
    from .classifier import KernelClassifier as KernelClassifier
    from .dbscan import DBSCAN as DBSCAN
    from .features import KernelPCA as KernelPCA
    from .features import Nystroem as Nystroem
    from .gaussian_process import GaussianProcessRegressor as GaussianProcessRegressor
    from .hdbscan import HDBSCAN as HDBSCAN
    from .kernel_kmeans import KernelKMeans as KernelKMeans
    from .kmeans import KMeans as KMeans
    from .kmedoids import KMedoids as KMedoids
    from .neighbor_queries import NearestNeighbors as NearestNeighbors
    from .neighbors import KNeighborsClassifier as KNeighborsClassifier
    from .neighbors import KNeighborsRegressor as KNeighborsRegressor
    from .radius_neighbors import RadiusNeighborsClassifier as RadiusNeighborsClassifier
    from .radius_neighbors import RadiusNeighborsRegressor as RadiusNeighborsRegressor
    from .recursive import RecursiveFeatureMachine as RecursiveFeatureMachine
    from .recursive import RecursiveFeatureMachineClassifier as RecursiveFeatureMachineClassifier
    from .ridge import KernelRidge as KernelRidge
    from .spectral import SpectralClustering as SpectralClustering

_HOMES = {
    "KernelRidge": "ridge",
    "KernelClassifier": "classifier",
    "Nystroem": "features",
    "KernelPCA": "features",
    "KNeighborsClassifier": "neighbors",
    "KNeighborsRegressor": "neighbors",
    "NearestNeighbors": "neighbor_queries",
    "RadiusNeighborsClassifier": "radius_neighbors",
    "RadiusNeighborsRegressor": "radius_neighbors",
    "RecursiveFeatureMachine": "recursive",
    "RecursiveFeatureMachineClassifier": "recursive",
    "GaussianProcessRegressor": "gaussian_process",
    "KMeans": "kmeans",
    "KMedoids": "kmedoids",
    "KernelKMeans": "kernel_kmeans",
    "SpectralClustering": "spectral",
    "DBSCAN": "dbscan",
    "HDBSCAN": "hdbscan",
}

_OF_KERNELS = "scikit-learn's takes the matrix of any kernel, as km.Gaussian(2.0)(X): {}(kernel='precomputed')"
_OF_DISTANCES = "scikit-learn's takes any distances, as km.cdist(X, metric='canberra'): {}(metric='precomputed')"
_INSTEAD = {
    **dict.fromkeys(("SVC", "SVR", "NuSVC", "NuSVR", "OneClassSVM"), _OF_KERNELS),
    **dict.fromkeys(("AgglomerativeClustering", "Isomap", "LocalOutlierFactor", "OPTICS"), _OF_DISTANCES),
    "TSNE": _OF_DISTANCES.replace("'precomputed'", "'precomputed', init='random'"),
    "GaussianProcessClassifier": "KernelClassifier has probabilities",
    "MiniBatchKMeans": "KMeans stores no distances",
    "KNeighborsTransformer": "NearestNeighbors(k).fit(X).kneighbors_graph(mode='distance') is its matrix",
    "RadiusNeighborsTransformer": "NearestNeighbors(radius=r).fit(X).radius_neighbors_graph(mode='distance') is it",
    "RBFSampler": "Nystroem has features of any kernel",
    "KernelDensity": "km.Gaussian(h).matmul(x, X, weights) sums a kernel over the rows of X",
}
"""Replacements for estimators of scikit-learn that this library does not have."""

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(_import_module(f".{_HOMES[name]}", __name__), name)
    suggested = _closest(name, _HOMES, 1)
    hint = _INSTEAD[name].format(name) if name in _INSTEAD else f"did you mean {suggested[0]!r}?" if suggested else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + f"; {hint}" * bool(hint))


def __dir__() -> list[str]:
    return sorted(__all__)
