"""Kronecker-sparse matrices: patterns, products, trainable layers, projections, surgery."""

from .chains import Chain, block_diagonal, butterfly, dct, dft, hadamard, low_rank_like, monarch
from .linear import KSLinear, LayerNormBatchLast, LinearBatchLast
from .matmul import kron_sparse_matmul
from .pattern import KSPattern, fuse_weights
from .projection import Projection, project

__all__ = [
    "Chain",
    "KSLinear",
    "KSPattern",
    "LayerNormBatchLast",
    "LinearBatchLast",
    "Projection",
    "block_diagonal",
    "butterfly",
    "dct",
    "dft",
    "fuse_weights",
    "hadamard",
    "kron_sparse_matmul",
    "low_rank_like",
    "monarch",
    "project",
]
