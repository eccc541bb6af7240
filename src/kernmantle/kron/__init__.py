"""Kronecker products: multiplication, operator algebra, approximation."""

from .matmul import kron_matmul

__all__ = ["kron_matmul"]
