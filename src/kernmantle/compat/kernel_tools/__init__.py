"""kernel_tools' names: ``kernel_tools.linalg`` and ``kernel_tools.kernels``, on CPU tensors too."""

from . import kernels, linalg

__all__ = ["kernels", "linalg"]
