"""Kronecker-sparse matrices: patterns, products, trainable layers, projections, surgery."""

from .chains import block_diagonal, butterfly, low_rank_like, monarch
from .choose import Choice, choose_patterns
from .linear import KSLinear, LayerNormBatchLast, LinearBatchLast
from .matmul import kron_sparse_matmul
from .packed import PackedKSLinear
from .pattern import KSPattern, fuse_weights
from .projection import Projection, project
from .state import load_structured
from .surgery import Replaced, Report, replace_linears
from .transforms import Chain, dct, dft, hadamard

__all__ = [
    "Chain",
    "Choice",
    "KSLinear",
    "KSPattern",
    "LayerNormBatchLast",
    "LinearBatchLast",
    "PackedKSLinear",
    "Projection",
    "Replaced",
    "Report",
    "block_diagonal",
    "butterfly",
    "choose_patterns",
    "dct",
    "dft",
    "fuse_weights",
    "hadamard",
    "kron_sparse_matmul",
    "load_structured",
    "low_rank_like",
    "monarch",
    "project",
    "replace_linears",
]
