"""kernel_tools.kernels' functions: matrices of a few kernels, each in one fused pass."""

from __future__ import annotations

import torch

from ...pairwise import CONSTRUCTORS, cdist


def euclidean(samples: torch.Tensor, centers: torch.Tensor, squared: bool = True) -> torch.Tensor:
    """Return the distances of all pairs, squared by default."""
    return cdist(samples, centers, p=2, root=not squared)


def gaussian(samples: torch.Tensor, centers: torch.Tensor, bandwidth: float) -> torch.Tensor:
    """``exp(-d² / (2 bandwidth²))``."""
    assert bandwidth > 0
    return CONSTRUCTORS["Gaussian"](bandwidth)(samples, centers)


def laplacian(samples: torch.Tensor, centers: torch.Tensor, bandwidth: float) -> torch.Tensor:
    """``exp(-d / bandwidth)``."""
    assert bandwidth > 0
    return CONSTRUCTORS["Laplace"](bandwidth, p=2)(samples, centers)


def dispersal(samples: torch.Tensor, centers: torch.Tensor, bandwidth: float, gamma: float) -> torch.Tensor:
    """``exp(-d^gamma / bandwidth)``."""
    assert bandwidth > 0
    return CONSTRUCTORS["Dispersal"](bandwidth, gamma=gamma)(samples, centers)


def ntk_relu(X: torch.Tensor, Z: torch.Tensor | None, depth: int = 1, bias: float = 0) -> torch.Tensor:
    """Return the neural tangent kernel of a network of ``depth`` layers with ReLU; Z None is X."""
    return CONSTRUCTORS["NTK"](depth=depth, bias=bias)(X, Z)


def ntk_relu_unit_sphere(X: torch.Tensor, Z: torch.Tensor | None, depth: int = 1, bias: float = 0) -> torch.Tensor:
    """Return the same for rows of unit length; others are brought to it."""
    return CONSTRUCTORS["SphereNTK"](depth=depth, bias=bias)(X, Z)
