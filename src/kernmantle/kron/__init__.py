"""Kronecker products: multiplication, operator algebra, approximation."""

from .linear import kron_linear
from .matmul import kron_matmul
from .nearest import nearest_kron
from .product import KroneckerProduct
from .sums import SumOfProducts

__all__ = ["KroneckerProduct", "SumOfProducts", "kron_linear", "kron_matmul", "nearest_kron"]
