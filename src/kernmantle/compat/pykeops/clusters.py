"""Clusters of points for block-sparse reductions, on tensors."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import ShapeError
from .sparsity import swap_axes

__all__ = [
    "cluster_centroids", "cluster_ranges", "cluster_ranges_centroids", "from_matrix", "grid_cluster", "sort_clusters",
    "swap_axes",
]  # fmt: skip


def grid_cluster(x: torch.Tensor, size: Any) -> torch.Tensor:
    """Return for every point (M, D) the number of its cubic cell, in the order of cells: (M,) int32."""
    if x.dim() != 2:
        raise ShapeError(f"x is (M, D); got shape {tuple(x.shape)}")
    with torch.no_grad():
        cells = ((x - x.amin(0)) / size).floor().long()
        return torch.unique(cells, dim=0, return_inverse=True)[1].int()


def sort_clusters(x: Any, lab: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Return one or several arrays of points in the order of their labels, and the labels in order."""
    labels, order = torch.sort(lab.reshape(-1), stable=True)
    if isinstance(x, tuple | list):
        return type(x)(part[order] for part in x), labels
    return x[order], labels


def cluster_ranges(lab: torch.Tensor, Nlab: torch.Tensor | None = None) -> torch.Tensor:
    """Return the first position of every cluster and the one behind its last, (C, 2), once points are sorted."""
    counts = torch.bincount(lab.long()) if Nlab is None else Nlab
    ends = counts.long().cumsum(0)
    return torch.stack([ends - counts.long(), ends], 1)


def cluster_centroids(
    x: torch.Tensor, lab: torch.Tensor, Nlab: Any = None, weights: Any = None, weights_c: Any = None
) -> torch.Tensor:
    """Return the weighted means of clusters, (C, D)."""
    lab = lab.long()
    count = int(lab.max()) + 1 if Nlab is None else len(Nlab)
    own = torch.ones_like(x[:, 0]) if weights is None else weights.reshape(-1)
    total = x.new_zeros(count).index_add(0, lab, own) if weights is None or weights_c is None else weights_c
    return x.new_zeros(count, x.shape[1]).index_add(0, lab, x * own[:, None]) / total.reshape(-1, 1)


def cluster_ranges_centroids(
    x: torch.Tensor, lab: torch.Tensor, weights: Any = None, min_weight: float = 1e-9
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ranges, centroids and weights of clusters; weights below ``min_weight`` count as that."""
    lab = lab.long()
    counts = torch.bincount(lab)
    if weights is None:
        totals = counts.to(x.dtype)
        return cluster_ranges(lab, counts), cluster_centroids(x, lab, counts), totals
    weights_c = x.new_zeros(len(counts)).index_add(0, lab, weights.reshape(-1)).clamp(min=min_weight)
    return cluster_ranges(lab, counts), cluster_centroids(x, lab, counts, weights, weights_c), weights_c


def from_matrix(ranges_i: torch.Tensor, ranges_j: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the ranges argument of reductions that keep the blocks of a boolean matrix, (C_i, C_j).

    Six arrays: ranges of rows, ends of their slices, ranges of columns; and the same for the transposed matrix.
    """
    keep = keep.bool()
    if keep.shape != (len(ranges_i), len(ranges_j)):
        raise ShapeError(
            f"keep is ({len(ranges_i)}, {len(ranges_j)}), one for every two ranges; got {tuple(keep.shape)}"
        )
    columns = keep.nonzero()[:, 1]
    rows = keep.T.nonzero()[:, 1]
    ends_i, ends_j = keep.sum(1).cumsum(0), keep.sum(0).cumsum(0)
    return ranges_i, ends_i, ranges_j[columns], ranges_j, ends_j, ranges_i[rows]
