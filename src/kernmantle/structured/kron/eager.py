"""Which passes of a Kronecker product an eager call on a GPU takes: others where it would wait for the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import cost
from .cuda_plan import CudaKronPlan, host_seconds


def eager_plan(chosen: CudaKronPlan, another: Callable[[float], CudaKronPlan]) -> CudaKronPlan:
    """Return a plan with the passes of eager calls: others where these take the host longer than the device.

    ``another`` returns the plan in which a launch counts so many times as much.
    """

    def seconds(own: CudaKronPlan) -> float:
        host = cost.HOST_CALL + cost.HOST_WHOLE * sum(map(host_seconds, own.passes))
        return max(own.seconds, host)

    if seconds(chosen) <= chosen.seconds:
        return chosen
    other = another(cost.HOST_WHOLE)
    return replace(chosen, eager=other.passes) if seconds(other) < seconds(chosen) else chosen
