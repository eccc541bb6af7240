"""Activations and their slopes on NVIDIA GPUs, launched on addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...torch_ops.cuda import Entry, index_of, limits, load_kernel
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .activation_plan import BYTES, ActivationPlan
from .bound_products import bind_ready
from .grouped_plan import DTYPES


def bind_activation(
    value: torch.Tensor, activation: str, slope: bool = False
) -> Callable[[Sequence[int]], None] | None:
    """Return the launch on addresses of values and a result, with ``slope`` of values, a gradient and a result.

    All are like ``value``, in one piece and aligned to vectors. None for arrays that are not whole vectors.
    """
    size, dtype = value.numel() * value.element_size(), NAMES.get(value.dtype)
    if not value.is_cuda or dtype not in DTYPES or not size or size % BYTES or not value.is_contiguous():
        return None
    index = index_of(value.device)
    plan = ActivationPlan(limits(index).arch, dtype, activation, slope)
    kernel, vectors = load_kernel(plan, cuda_emit.emit_activation, Entry(cuda_emit.ENTRY, plan.threads)), size // BYTES
    return None if kernel is None else bind_ready(kernel, 3 if slope else 2, (vectors,), index, plan.blocks(vectors))
