"""A program of a user, which pyright must find nothing wrong with."""

from __future__ import annotations

import numpy as np
import torch

import kernmantle as km
from kernmantle.estimators import KernelRidge
from kernmantle.kronsparse import monarch


def kernels(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compose kernels and multiply."""
    k: km.Kernel = 0.5 * km.Gaussian(3.0) + km.Matern(bandwidth=2.0, nu=2.5)
    return k.matmul(x, y, v)


def distances(x: np.ndarray) -> np.ndarray:
    """Arrays in, arrays out."""
    return km.cdist(x, p=1.3, metric="minkowski") + km.pairwise_distances(x, metric="l1")


def own(x: torch.Tensor) -> torch.Tensor:
    """A contraction of one's own."""
    shape = km.Contraction("mk,nk->mn", lambda a, b, p: abs(a - b) ** p, epilogue=lambda s, p: s ** (1 / p))
    hat = km.contract("mk->m", lambda a: km.maximum(1 - km.exp(a), 0), x, reduce=km.Semiring(km.maximum, float("-inf")))
    return shape(x, x, p=1.3) + hat


def layers(x: torch.Tensor) -> torch.Tensor:
    """Structured matrices and solvers."""
    layer = km.KSLinear(64, 64, patterns=monarch((64, 64), 8, 8))
    product = km.KroneckerProduct([torch.eye(8), torch.eye(8)])
    with km.config(threads=1):
        solution = km.linalg.solve_cholesky(product.to_dense(), layer(x).mT)
    return solution.x


def fitted(x: np.ndarray, y: np.ndarray) -> float:
    """An estimator."""
    return KernelRidge(0.1, kernel="laplace").fit(x, y).score(x, y)


def caught() -> int:
    """Errors are typed."""
    try:
        km.precompile([lambda: km.pdist(np.zeros((3, 2)))])
    except km.errors.KernmantleError as error:
        return len(str(error))
    return km.clear_cache()
