"""Two factors of a Kronecker-sparse chain in one launch on NVIDIA GPUs, for small batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ...torch_ops.cuda import Entry, bind_launch, index_of, limits, load_kernels
from ...torch_ops.dtypes import NAMES
from . import cuda_emit
from .cluster_plan import ClusterPlan, cluster_plan

Maybe = torch.Tensor | None
_OPERANDS, _IS_MADE = 5, 8  # positions of arguments


class BoundCluster(NamedTuple):
    """A launch on the addresses of x, both weights, the bias and the result; it does nothing where it was collected.

    The last number is 1 if no launch that may still run writes the weights, so that they are read before it ends.
    """

    route: str
    launch: Callable[[tuple[int, ...]], None]


def plan_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, precision: str, out: torch.Tensor
) -> ClusterPlan | None:
    """Return the plan for x (1, N, features) and weights (a, b, c, d) of one type; None for what it does not take."""
    if len(weights) != 2 or precision or NAMES.get(x.dtype) is None or not (x.stride(2) == 1 == out.stride(2)):
        return None
    first, second = ((a, b, c, d) for a, b, c, d in (weight.shape for weight in weights))
    whole = all(weight.is_contiguous() and weight.dtype == x.dtype for weight in weights)
    access = math.gcd(16, *(own.data_ptr() for own in (x, *weights)), x.stride(1) * x.element_size())
    if not whole or access < 16:
        return None
    own = limits(index_of(x.device))
    return cluster_plan(first, second, x.shape[1], NAMES[x.dtype], bias is not None, activation, own)


def bind_cluster(plan: ClusterPlan, x: torch.Tensor, out: torch.Tensor) -> BoundCluster:
    """Return the launch of a plan for tensors of one layout."""
    index = index_of(x.device)
    entry = Entry(cuda_emit.ENTRY, plan.threads, plan.shared, waits=True)
    loaded = load_kernels(plan, plan.arch, lambda: cuda_emit.emit_cluster(plan), entry)
    if loaded is None:
        return BoundCluster(str(plan), _nothing)
    rest = x.shape[1], x.stride(1), out.stride(1)
    changing = (*range(_OPERANDS), _IS_MADE)
    launch = bind_launch(loaded[0], (*_OPERANDS * (0,), *rest, 0), changing, index, plan.blocks)
    return BoundCluster(str(plan), launch)


def _nothing(_: tuple[int, ...]) -> None:
    """Do nothing, for a kernel that was only collected."""
