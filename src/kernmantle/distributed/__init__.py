"""Kernel matrices, products and solvers over the processes of torch.distributed: gloo on CPUs, NCCL on GPUs."""

from .dense import eigh, solve_cholesky, solve_kernel, solve_lu
from .iterative import Operator, cg, nystrom, operator
from .kron import kron_columns, kron_gather, kron_matmul, kron_scatter
from .products import agop, gram, matmul
from .rows import from_local, to_local

__all__ = [
    "Operator", "agop", "cg", "eigh", "from_local", "gram", "kron_columns", "kron_gather", "kron_matmul",
    "kron_scatter", "matmul", "nystrom", "operator", "solve_cholesky", "solve_kernel", "solve_lu", "to_local",
]  # fmt: skip
