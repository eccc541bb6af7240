"""What the estimators with a kernel have in common: its choice by name, and the bandwidth that suits the data."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from sklearn.base import BaseEstimator

from ..pairwise import CONSTRUCTORS, Kernel, median_bandwidth

NAMES = {name.lower(): name for name in CONSTRUCTORS}
NAMES |= {"rbf": "Gaussian", "laplacian": "Laplace", "poly": "Polynomial"}


class KernelEstimator(BaseEstimator):
    """An estimator with ``kernel``, ``bandwidth`` and ``kernel_params``."""

    kernel: Any
    bandwidth: float | None
    kernel_params: Mapping[str, Any] | None

    def _make_kernel(self, rows: torch.Tensor) -> Kernel:
        """The kernel, with a bandwidth found from the rows where none is given."""
        name = type(self).__name__
        if isinstance(self.kernel, Kernel):
            if self.bandwidth is not None or self.kernel_params:
                raise ValueError(f"{name} got a kernel and bandwidth or kernel_params: a kernel has its own")
            return self.kernel
        if not isinstance(self.kernel, str) or self.kernel.lower() not in NAMES:
            raise ValueError(f"kernel={self.kernel!r} of {name} is neither a km.Kernel nor one of {', '.join(NAMES)}")
        constructor = CONSTRUCTORS[NAMES[self.kernel.lower()]]
        given = dict(self.kernel_params or {})
        if "bandwidth" in signature(constructor).parameters:
            given["bandwidth"] = _scale(rows) if self.bandwidth is None else self.bandwidth
        elif self.bandwidth is not None:
            raise ValueError(f"kernel {self.kernel!r} has no bandwidth; leave bandwidth=None")
        return constructor(**given)


def _scale(rows: torch.Tensor) -> float:
    """Median distance of rows that differ, so that a repeated row counts as one of a larger weight; 1 of one row."""
    rows = torch.unique(rows, dim=0)
    if rows.shape[0] < 2:
        return 1.0
    found = median_bandwidth(rows, generator=torch.Generator(rows.device).manual_seed(0))
    return float(found)
