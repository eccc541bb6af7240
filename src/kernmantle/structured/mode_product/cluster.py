"""Two factors of a Kronecker-sparse chain in one launch on NVIDIA GPUs, or two that fit together, for small batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import torch

from ...backends.cuda.launch import BoundLaunch
from ...torch_ops.cuda import Entry, bind_launch, index_of, limits, load_kernel
from ...torch_ops.dtypes import NAMES
from ...torch_ops.launch_sequence import LaunchSequence
from . import cuda_emit
from .bound_products import no_launch
from .cluster_plan import ClusterPlan, quickest_plans

Maybe = torch.Tensor | None
_OPERANDS, _IS_MADE = 5, 8  # positions of arguments
_OF_FIRST, _OF_SECOND = itemgetter(0, 1, 2, 3, 6, 5), itemgetter(6, 1, 2, 3, 4, 5)  # of a table of both launches


class BoundCluster(NamedTuple):
    """A launch on the addresses of x, both weights, the bias and the result; it does nothing where it was collected.

    The last number is 1 if no launch that may still run writes the weights, so that they are read before it ends. Two
    launches take behind it the address of as many numbers as lie ``between`` them.
    """

    route: str
    launch: Callable[[list[int]], None]
    between: int = 0


def plan_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: Maybe, activation: str, precision: str, out: torch.Tensor,
    of_host: float = 0.0,
) -> tuple[ClusterPlan, ...] | None:  # fmt: skip
    """Return the plan for x (1, N, features) and weights (a, b, c, d) of one type, or those of two launches.

    None for what they do not take. ``of_host``: see :func:`quickest_plans`.
    """
    if len(weights) != 2 or precision or NAMES.get(x.dtype) is None or not (x.stride(2) == 1 == out.stride(2)):
        return None
    first, second = ((a, b, c, d) for a, b, c, d in (weight.shape for weight in weights))
    whole = all(weight.is_contiguous() and weight.dtype == x.dtype for weight in weights)
    access = math.gcd(16, *(own.data_ptr() for own in (x, *weights)), x.stride(1) * x.element_size())
    if not whole or access < 16:
        return None
    own = limits(index_of(x.device))
    return quickest_plans(first, second, x.shape[1], NAMES[x.dtype], bias is not None, activation, own, of_host)


def bind_cluster(plans: Sequence[ClusterPlan], x: torch.Tensor, out: torch.Tensor) -> BoundCluster:
    """Return the launch of a plan, or both of two plans, for tensors of one layout."""
    found = [_bind(plan, x, out) for plan in plans]
    launches = [launch for launch in found if launch is not None]
    if len(launches) < len(plans):
        return BoundCluster(str(plans[0]), no_launch)
    if len(plans) == 1:
        return BoundCluster(str(plans[0]), launches[0])
    a, b, _, d = plans[0].first
    sequence = LaunchSequence([(launches[0], _OF_FIRST), (launches[1], _OF_SECOND)])
    return BoundCluster(f"{plans[0]} and the second", sequence, x.shape[1] * a * b * d)


def _bind(plan: ClusterPlan, x: torch.Tensor, out: torch.Tensor) -> BoundLaunch | None:
    """Return the launch of a plan; None where its kernel was only collected."""
    index = index_of(x.device)
    entry = Entry(cuda_emit.ENTRY, plan.threads, plan.taken or plan.shared, waits=True)
    kernel = load_kernel(plan, cuda_emit.emit_cluster, entry)
    if kernel is None:
        return None
    rest = x.shape[1], x.stride(1), out.stride(1)
    changing = (*range(_OPERANDS), _IS_MADE)
    return bind_launch(kernel, (*_OPERANDS * (0,), *rest, 0), changing, index, plan.blocks)
