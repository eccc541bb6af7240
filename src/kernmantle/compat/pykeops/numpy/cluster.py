"""``pykeops.numpy.cluster``: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch

from .. import clusters


def _exchanged(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return convert(value)
    return type(value)(_exchanged(v, kind, convert) for v in value) if isinstance(value, tuple | list) else value


def _of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        own = _exchanged(args, np.ndarray, lambda array: torch.from_numpy(np.array(array)))
        named = {name: _exchanged(value, np.ndarray, torch.from_numpy) for name, value in options.items()}
        return _exchanged(function(*own, **named), torch.Tensor, torch.Tensor.numpy)

    return call


cluster_centroids = _of_arrays(clusters.cluster_centroids)
cluster_ranges = _of_arrays(clusters.cluster_ranges)
cluster_ranges_centroids = _of_arrays(clusters.cluster_ranges_centroids)
from_matrix = _of_arrays(clusters.from_matrix)
grid_cluster = _of_arrays(clusters.grid_cluster)
sort_clusters = _of_arrays(clusters.sort_clusters)
swap_axes = _of_arrays(clusters.swap_axes)
