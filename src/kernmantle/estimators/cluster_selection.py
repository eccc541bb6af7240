"""Which clusters of a condensed hierarchy are taken, and which rows are theirs, as scikit-learn's HDBSCAN does it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .hierarchy import Condensed

NOISE = -1
Array = np.ndarray


@dataclass(frozen=True)
class Selection:
    """How clusters of a hierarchy are selected; the names are those of HDBSCAN's parameters."""

    method: str
    min_cluster_size: int
    epsilon: float
    max_cluster_size: int | None
    allow_single_cluster: bool

    def of(self, found: Condensed) -> tuple[Array, Array]:
        """Return labels of the rows, -1 of noise, and how firmly they belong to their cluster, (n,) each."""
        tree = Clusters(found)
        chosen = tree.best(self) if self.method == "eom" else tree.is_leaf & (tree.parent >= 0)
        if self.epsilon and chosen.any() and not chosen[0]:
            chosen = self._joined(tree, chosen)
        return tree.labels(chosen, self)

    def _joined(self, tree: Clusters, chosen: Array) -> Array:
        """Return the clusters after those that begin below ``epsilon`` gave way to one above that does not."""
        found = np.zeros_like(chosen)
        with np.errstate(divide="ignore"):
            begins = 1 / tree.birth
        for cluster in np.flatnonzero(chosen).tolist():
            if begins[cluster] < self.epsilon:
                while (above := int(tree.parent[cluster])) and begins[above] <= self.epsilon:
                    cluster = above
                cluster = above if above or self.allow_single_cluster else cluster
            found[cluster] = True
        return found


class Clusters:
    """The clusters of a hierarchy, of which sums are made one by one, in the order that scikit-learn has."""

    def __init__(self, found: Condensed) -> None:
        self.parent, self.birth, self.size, self.cluster, self.leaves, order = (
            part.cpu().numpy()
            for part in (found.parent, found.birth, found.size, found.cluster, found.leaves, found.order)
        )
        self.first = np.arange(1, len(self.parent), 2)  # of two children
        self.is_leaf = np.ones(len(self.parent), dtype=bool)
        self.is_leaf[self.parent[1:]] = False
        own = self.cluster[order]
        with np.errstate(invalid="ignore"):
            gains = self.leaves[order] - self.birth[own]
            self.stability = np.bincount(own, gains, len(self.parent))
            for child in (self.first, self.first + 1):
                above = self.parent[child]
                self.stability[above] += (self.birth[child] - self.birth[above]) * self.size[child]

    def best(self, how: Selection) -> Array:
        """Return the clusters of the largest sum of stabilities of which none is part of another."""
        stability, parent = self.stability.tolist(), self.parent.tolist()
        size, count = self.size.tolist(), len(parent)
        size[0] = size[1] + size[2] if count > 1 else 0
        limit = len(self.cluster) + 1 if how.max_cluster_size is None else how.max_cluster_size
        below, chosen = [0.0] * count, [False] * count
        for node in range(count - 1, -1 if how.allow_single_cluster else 0, -1):
            if below[node] > stability[node] or size[node] > limit:
                stability[node] = below[node]
            else:
                chosen[node] = True
            if node:
                below[parent[node]] += stability[node]
        inside = [False] * count
        for node in range(1, count):
            inside[node] = chosen[parent[node]] or inside[parent[node]]
            chosen[node] = chosen[node] and not inside[node]
        return np.array(chosen)

    def labels(self, chosen: Array, how: Selection) -> tuple[Array, Array]:
        """Return labels and strengths of the rows for the clusters that are taken."""
        names = np.where(chosen, np.cumsum(chosen) - 1, NOISE)
        owner = np.where(chosen, np.arange(len(chosen)), 0)
        for node in np.flatnonzero(~chosen[1:]) + 1:
            owner[node] = owner[self.parent[node]]
        death = np.zeros(len(chosen))
        np.maximum.at(death, self.cluster, self.leaves)
        np.maximum.at(death, self.parent[1:], self.birth[1:])
        own = owner[self.cluster]
        labels = names[own]
        alone = how.allow_single_cluster and chosen[0] and np.count_nonzero(chosen) == 1
        least = 1 / how.epsilon if how.epsilon else death[0]
        labels[(own == 0) & ~(alone & (self.leaves >= least))] = NOISE
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.minimum(self.leaves, death[own]) / death[own]
        strength = np.where((death[own] == 0) | np.isinf(self.leaves), 1.0, share)
        return labels, np.where(labels == NOISE, 0.0, strength)


def cut(one: Array, other: Array, weight: Array, distance: float, smallest: int) -> Array:
    """Return labels of the rows that edges shorter than a distance join, (n,); -1 of fewer rows than a number.

    Edges are ascending. Clusters are numbered by one of their rows, that which scikit-learn's union-find has on top.
    """
    top, rank = list(range(len(one) + 1)), [0] * (len(one) + 1)
    for left, right in zip(*(ends[weight < distance].tolist() for ends in (one, other)), strict=True):
        ends: list[int] = []
        for row in (left, right):
            while top[row] != row:
                top[row] = row = top[top[row]]
            ends.append(row)
        left, right = ends
        rank[left] = max(rank[left], 1)
        if rank[right] == rank[left]:
            rank[right] += 1
        if rank[right] > rank[left]:
            left, right = right, left
        top[right] = left
    roots = torch.as_tensor(top)
    for _ in range(len(top).bit_length()):
        roots = roots[roots]
    _, labels, sizes = np.unique(roots.numpy(), return_inverse=True, return_counts=True)
    large = sizes >= smallest
    return np.where(large, np.cumsum(large) - 1, NOISE)[labels]
