"""The minimum spanning tree of mutual reachability, by Borůvka's algorithm on reductions of distances.

Many edges are as long as a core distance, so that there are many smallest trees. Of few rows the tree is the one that
scikit-learn's and hdbscan's implementations of Prim's algorithm find, which grow it from the first row.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

from ..ir.functions import FUNCTIONS
from ..pairwise.distance import Distances, Entry, numbered

_where, _maximum = (FUNCTIONS[name] for name in ("where", "maximum"))
_REACH = Entry(
    lambda d, alpha, core, own, core_of, other: _where(
        own == other, math.inf, _maximum(_maximum(core, core_of), d / alpha)
    ),
    rows=("alpha", "core", "own"), columns=("core_of", "other"),
)  # fmt: skip


GROWN = 20_000
"""Most rows of which the tree is that of Prim's algorithm: 0.2 s of one core for 20 000 rows and 5 neighbours."""


def _joined(labels: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the components of every row, 0, 1, ..., after edges between components."""
    size = int(labels.max()) + 1
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(size, size))
    return connected_components(graph, directed=False)[1][labels]


class Tree(NamedTuple):
    """Edges of a tree: two rows and the mutual reachability between them, (m - 1,) each."""

    one: np.ndarray
    other: np.ndarray
    weight: np.ndarray

    def ascending(self) -> Tree:
        """Return the edges in the order of their weights."""
        order = np.argsort(self.weight)
        return Tree(self.one[order], self.other[order], self.weight[order])

    def rooted(self) -> Tree:
        """Return the edges with first the end that is closer to the first row, as trees have that grow from it."""
        shape = (len(self.weight) + 1,) * 2
        graph = coo_matrix((np.ones(len(self.weight)), (self.one, self.other)), shape).tocsr()
        _, parents = breadth_first_order(graph, 0, False)
        down = parents[self.other] == self.one
        return Tree(np.where(down, self.one, self.other), np.where(down, self.other, self.one), self.weight)


class _Reach:
    """For every row a candidate: a row of another component, which is the nearest by mutual reachability if valid.

    Where it is not, because the two have been joined, its weight is still a lower bound of that of the next one.
    """

    def __init__(self, found: Distances, count: int, alpha: float, bar: Any) -> None:
        values, indices = found.smallest(count, bar=bar)
        values = values.nan_to_num(math.inf, math.inf)
        core, every = values[:, -1], numbered(found.shape[1], found)
        mutual = torch.maximum(torch.maximum(core[:, None], core[indices]), values / alpha)
        mutual = torch.where(indices == torch.arange(len(core), device=core.device)[:, None], math.inf, mutual)
        weight, position = mutual.min(1)
        bound = torch.maximum(core, core / alpha)  # of all rows that are not among the nearest
        valid = (weight <= bound) & weight.isfinite()
        self._found, self._core, self._numbers, self._bar = found, core, every, bar
        self._alpha = torch.full_like(core[:1], alpha)
        self.nearest = (mutual, indices) if len(core) <= GROWN else None
        self.weight = torch.where(valid, weight, bound).double().cpu().numpy()
        self.other = indices.gather(1, position[:, None])[:, 0].cpu().numpy()
        self.valid = valid.cpu().numpy()

    def ask(self, rows: np.ndarray, labels: np.ndarray) -> None:
        """Find the candidates of some rows."""
        index = torch.from_numpy(rows).to(self._core.device)
        own = self._numbers[torch.from_numpy(labels).to(index.device)]
        weight, other = self._found.part(index).smallest(
            1, _REACH, bar=self._bar, alpha=self._alpha.expand(len(rows)), core=self._core[index], own=own[index],
            core_of=self._core, other=own,
        )  # fmt: skip
        self.weight[rows] = weight[:, 0].nan_to_num(math.inf, math.inf).double().cpu().numpy()
        self.other[rows], self.valid[rows] = other[:, 0].cpu().numpy(), np.isfinite(self.weight[rows])


def spanning_tree(found: Distances, count: int, alpha: float, bar: Any = None) -> Tree:
    """Return the minimum spanning tree of ``max(c_i, c_j, d(i, j) / alpha)``, c_i the distance of the count-th row.

    In every round each component but the largest takes its smallest edge to another one, so that their number falls at
    least to half. A row is asked again only where its candidate is of its own component by now, and where its last
    weight does not exceed what the component has already. Rows of which no distance is finite get infinite edges.
    """
    rows = found.shape[0]
    labels, edges = np.arange(rows), [np.empty((0, 3))]
    reach = _Reach(found, count, alpha, bar)
    while rows and (size := int(labels.max()) + 1) > 1:
        least = np.full(size, math.inf)
        np.minimum.at(least, labels[reach.valid], reach.weight[reach.valid])
        asks = labels != np.bincount(labels).argmax()
        stale = np.flatnonzero(asks & ~reach.valid & (reach.weight < least[labels]))
        if len(stale):
            reach.ask(stale, labels)
        usable = np.flatnonzero(asks & reach.valid)
        usable = usable[np.argsort(reach.weight[usable], kind="stable")]
        chosen = usable[np.unique(labels[usable], return_index=True)[1]]
        if not len(chosen):
            first = np.unique(labels, return_index=True)[1]
            edges.append(np.stack([first[1:], np.full(size - 1, first[0]), np.full(size - 1, math.inf)], 1))
            break
        edges.append(np.stack([chosen, reach.other[chosen], reach.weight[chosen]], 1).astype(float))
        labels = _joined(labels, labels[chosen], labels[reach.other[chosen]])
        reach.valid &= labels != labels[reach.other]
    tree = _tree(np.concatenate(edges), rows)
    return tree.rooted() if reach.nearest is None else _grown(tree, *(part.cpu().numpy() for part in reach.nearest))


def _grown(tree: Tree, mutual: np.ndarray, indices: np.ndarray) -> Tree:
    """Return the tree that Prim's algorithm grows from the first row, edges in its order.

    Of edges of equal length it takes the one to the row of the smallest index, from the row that came first. Equal ones
    are as long as the core distance of an end, so that they lead to one of its nearest rows, which are given with the
    lengths of the edges to them, (n, k).
    """
    rows = len(mutual)
    if rows < 2:
        return tree
    own = np.repeat(np.arange(rows), indices.shape[1])
    one = np.concatenate([tree.one, tree.other, own, indices.ravel()])
    other = np.concatenate([tree.other, tree.one, indices.ravel(), own])
    weight = np.concatenate([tree.weight, tree.weight, mutual.ravel(), mutual.ravel()]).astype(float)
    order = np.argsort(one, kind="stable")
    begins = np.searchsorted(one[order], np.arange(rows + 1)).tolist()
    to, length = other[order].tolist(), weight[order].tolist()
    best, source, inside = [math.inf] * rows, [-1] * rows, [False] * rows
    heap: list[tuple[float, int]] = [(0.0, 0)]
    found: list[tuple[int, int, float]] = []
    while heap:
        shortest, row = heappop(heap)
        if inside[row]:
            continue
        inside[row] = True
        if source[row] >= 0:
            found.append((source[row], row, shortest))
        for edge in range(begins[row], begins[row + 1]):
            end = to[edge]
            if not inside[end] and (length[edge] < best[end] or source[end] < 0):
                best[end], source[end] = length[edge], row
                heappush(heap, (length[edge], end))
    ends = np.array([edge[:2] for edge in found])
    return Tree(ends[:, 0], ends[:, 1], np.array([edge[2] for edge in found]))


def _tree(edges: np.ndarray, rows: int) -> Tree:
    """Return the tree of edges in which two components may have chosen each other, or a round of equals."""
    ends = np.sort(edges[:, :2].astype(np.int64), 1)
    weight = edges[:, 2]
    _, first = np.unique(ends, axis=0, return_index=True)
    order = first[np.argsort(weight[first], kind="stable")]
    ends, weight = ends[order], weight[order]
    ranks = coo_matrix((np.arange(1.0, len(ends) + 1), (ends[:, 0], ends[:, 1])), shape=(rows, rows))
    tree_ranks = np.sort(minimum_spanning_tree(ranks.tocsr()).data.astype(np.int64)) - 1
    return Tree(ends[tree_ranks, 0], ends[tree_ranks, 1], weight[tree_ranks])
