"""What the estimators with a kernel have in common: its choice by name, and the bandwidth that suits the data."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from sklearn.base import BaseEstimator

from ..pairwise import CONSTRUCTORS, Kernel
from ..pairwise.bandwidth import typical_distance

NAMES = {name.lower(): name for name in CONSTRUCTORS}
NAMES |= {"rbf": "Gaussian", "laplacian": "Laplace", "poly": "Polynomial"}


class KernelEstimator(BaseEstimator):
    """An estimator with ``kernel``, ``bandwidth`` and ``kernel_params``."""

    kernel: Any
    bandwidth: float | None
    kernel_params: Mapping[str, Any] | None

    def _make_kernel(self, rows: torch.Tensor) -> Kernel:
        """The kernel, with a bandwidth found from the rows where none is given."""
        return chosen_kernel(self, "kernel", rows)


def chosen_kernel(estimator: Any, argument: str, rows: torch.Tensor) -> Kernel:
    """The kernel that an argument of an estimator names, with ``bandwidth`` and ``kernel_params`` of its own."""
    name, choice = type(estimator).__name__, getattr(estimator, argument)
    bandwidth, parameters = estimator.bandwidth, estimator.kernel_params
    if isinstance(choice, Kernel):
        if bandwidth is not None or parameters:
            raise ValueError(f"{name} got a kernel and bandwidth or kernel_params: a kernel has its own")
        return choice
    if not isinstance(choice, str) or choice.lower() not in NAMES:
        raise ValueError(f"{argument}={choice!r} of {name} is neither a km.Kernel nor one of {', '.join(NAMES)}")
    constructor = CONSTRUCTORS[NAMES[choice.lower()]]
    own = dict(parameters or {})
    if "bandwidth" in signature(constructor).parameters:
        own["bandwidth"] = typical_distance(rows) if bandwidth is None else bandwidth
    elif bandwidth is not None:
        raise ValueError(f"{argument} {choice!r} has no bandwidth; leave bandwidth=None")
    return constructor(**own)
