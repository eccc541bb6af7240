"""scikit-learn estimators on the kernels and solvers of this library.

They take numpy arrays, whatever numpy takes, and tensors on any device, and give back what they were given.
"""

from __future__ import annotations

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

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(_import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
