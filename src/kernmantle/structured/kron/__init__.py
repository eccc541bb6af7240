"""Kronecker products: multiplication, operator algebra, approximation."""

from .linear import kron_linear
from .matmul import kron_matmul
from .nearest import nearest_kron
from .product import KroneckerProduct
from .sums import SumOfProducts
from .workspace import KronWorkspace, kron_workspace

__all__ = [
    "KronWorkspace", "KroneckerProduct", "SumOfProducts", "kron_linear", "kron_matmul", "kron_workspace",
    "nearest_kron",
]  # fmt: skip
