"""Kronecker-sparse matrices: patterns, products, trainable layers, projections, surgery."""

from .attend import attention
from .batch_last import LayerNormBatchLast, LinearBatchLast
from .chains import block_diagonal, butterfly, low_rank_like, monarch
from .choose import Choice, choose_patterns
from .feed_forward import mlp
from .groups import apply_each, group
from .linear import KSLinear
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
    "apply_each",
    "attention",
    "block_diagonal",
    "butterfly",
    "choose_patterns",
    "dct",
    "dft",
    "fuse_weights",
    "group",
    "hadamard",
    "kron_sparse_matmul",
    "load_structured",
    "low_rank_like",
    "mlp",
    "monarch",
    "project",
    "replace_linears",
]
