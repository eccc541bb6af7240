"""Gradients of Kronecker factors on the GPU: one kernel, and the sum of what its blocks found."""

from __future__ import annotations

import torch

from ..codegen import kron_gram
from ..contraction.kron_gram import GramPlan, gram
from ..runtime.launch import Kernel
from ..runtime.lru import LRUCache
from .dtypes import NAMES
from .gpu import index_of, job_for, limits, start
from .kron_gpu import resident
from .launcher import collecting, fetch

_LOADED: LRUCache[GramPlan, Kernel] = LRUCache(1024)


def summed(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor | None:
    """Sum of v[l, q, r] u[l, p, r] over l and r of tensors in one piece; None where there is no kernel for it."""
    index, (count, columns, right) = index_of(u.device), u.shape
    if not (u.is_contiguous() and v.is_contiguous()) or u.dtype not in NAMES:
        return None
    aligned = (u.data_ptr() | v.data_ptr()) % 16 == 0
    own = limits(index)
    chosen = gram(v.shape[1], columns, right, NAMES[u.dtype], aligned, own.arch)
    if chosen is None:
        return None
    found = None if collecting() else _LOADED.get(chosen)
    if found is None:
        binary = fetch(job_for(kron_gram.emit(chosen), chosen.arch, str(chosen)))
        if binary is None:
            return u.new_zeros(v.shape[1], columns)
        found = _LOADED[chosen] = Kernel(binary, kron_gram.ENTRY, chosen.threads, chosen.shared, title=str(chosen))
    shares = chosen.shares(count * right, resident(found, index) * own.sm_count)
    parts = torch.empty((shares, v.shape[1], columns), dtype=torch.float32, device=u.device)
    pointers = (v.data_ptr(), u.data_ptr(), parts.data_ptr())
    start(found, index, shares * chosen.tiles, (*pointers, count, right))
    return parts.sum(0).to(u.dtype)
