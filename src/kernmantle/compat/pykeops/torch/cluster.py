"""``pykeops.torch.cluster``."""

from __future__ import annotations

from ..clusters import (
    cluster_centroids,
    cluster_ranges,
    cluster_ranges_centroids,
    from_matrix,
    grid_cluster,
    sort_clusters,
    swap_axes,
)

__all__ = [
    "cluster_centroids", "cluster_ranges", "cluster_ranges_centroids", "from_matrix", "grid_cluster", "sort_clusters",
    "swap_axes",
]  # fmt: skip
