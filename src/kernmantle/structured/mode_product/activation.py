"""Activations and their slopes on NVIDIA GPUs, launched on addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...torch_ops.cuda import Entry, bind_launch, index_of, limits, load_kernels
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .activation_plan import BYTES, ActivationPlan
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
    loaded = load_kernels(
        plan, plan.arch, lambda: cuda_emit.emit_activation(plan), Entry(cuda_emit.ENTRY, plan.threads, 0)
    )
    if loaded is None:
        return None
    vectors, operands = size // BYTES, 3 if slope else 2
    return bind_launch(loaded[0], (*operands * (0,), vectors), range(operands), index, plan.blocks(vectors))
