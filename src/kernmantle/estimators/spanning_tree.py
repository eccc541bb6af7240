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
from .hierarchy import roots
from .neighbourhood import Rounded

_where, _maximum = (FUNCTIONS[name] for name in ("where", "maximum"))
_REACH = Entry(
    lambda d, alpha, core, own, core_of, other: _where(
        own == other, math.inf, _maximum(_maximum(core, core_of), d / alpha)
    ),
    rows=("alpha", "core", "own"), columns=("core_of", "other"),
)  # fmt: skip
_HALF_SQUARE = Entry(
    lambda s, row, own, column, other, core_of: _where(own == other, math.inf, _maximum(core_of, row + column - s)),
    rows=("row", "own"), columns=("column", "other", "core_of"),
)  # fmt: skip
"""Half the square of a mutual reachability, but for the core distance of the row, by a product of centred rows."""
_ROUNDING = 1e-6
"""Relative error of bounds that are computed in float32: several of its last bits."""


GROWN = 20_000
"""Most rows of which the tree is that of Prim's algorithm: 0.2 s of one core for 20 000 rows and 5 neighbours."""
ASKED = 1 << 10
"""Rows that are asked by differences at once: 3 ms of an H200 for 100 000 rows of 64 numbers, as long as a product."""
PAIRS = 1 << 16
"""Rows of which pairs are compared in float64 at a time: 64 MiB of 128 numbers."""


def _joined(labels: torch.Tensor, toward: torch.Tensor) -> torch.Tensor:
    """Return the components of every row, 0, 1, ..., after each component was joined to one, or to itself."""
    root = roots(toward)
    if bool((toward[toward[root]] != root).any()):  # a round of edges of equal length
        size = len(toward)
        graph = coo_matrix((np.ones(size), (np.arange(size), toward.cpu().numpy())), shape=(size, size))
        found = torch.from_numpy(connected_components(graph, directed=False)[1]).to(labels)
    else:
        found = root.unique(return_inverse=True)[1]
    return found[labels]


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

    Where it is not, because the two have been joined, its weight is still a lower bound of that of the next one. With
    ``products`` of centred rows distances are Euclidean: products decide which rows are asked by differences, and
    weights are computed in float64.
    """

    def __init__(self, found: Distances, count: int, alpha: float, products: Rounded | None, bar: Any) -> None:
        self._found, self._alpha, self._products, self._bar = found, alpha, products, bar
        values, indices = found.smallest(count, precision=None if products else "ieee", bar=bar)
        if products:
            rows = torch.arange(len(indices), device=indices.device)[:, None].expand_as(indices)
            values, order = self._lengths(rows, indices).sort(1)
            indices = indices.gather(1, order)
        values = values.nan_to_num(math.inf, math.inf)
        core = values[:, -1]
        mutual = torch.maximum(torch.maximum(core[:, None], core[indices]), values / alpha)
        mutual = torch.where(indices == torch.arange(len(core), device=core.device)[:, None], math.inf, mutual)
        weight, position = mutual.min(1)
        bound = torch.maximum(core, core / alpha)  # of all rows that are not among the nearest
        self.valid = (weight <= bound) & weight.isfinite()
        self._core, self._numbers = core, numbered(found.shape[1], found)
        self.nearest = (mutual, indices) if len(core) <= GROWN else None
        self.weight = torch.where(self.valid, weight, bound).double()
        self.other = indices.gather(1, position[:, None])[:, 0]

    def _lengths(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return Euclidean distances between pairs of rows, in float64."""
        left, right = self._found.operands
        found = [
            torch.linalg.vector_norm(left[i].double() - right[j].double(), dim=-1)
            for i, j in zip(one.split(PAIRS), other.split(PAIRS), strict=True)
        ]
        return torch.cat(found)

    def ask(self, rows: torch.Tensor, labels: torch.Tensor) -> None:
        """Find the candidates of some rows."""
        own = self._numbers[labels]
        core = self._core.to(own)
        weight, other = self._found.part(rows).smallest(
            1, _REACH, bar=self._bar, alpha=own.new_full(rows.shape, self._alpha), core=core[rows], own=own[rows],
            core_of=core, other=own,
        )  # fmt: skip
        weight, other = weight[:, 0].nan_to_num(math.inf, math.inf).double(), other[:, 0]
        if self._products:
            length = self._lengths(rows, other) / self._alpha
            exact = torch.maximum(torch.maximum(self._core[rows], self._core[other]), length)
            weight = torch.where(weight.isfinite(), exact, weight)
        self.weight[rows], self.other[rows], self.valid[rows] = weight, other, weight.isfinite()

    def bound(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Raise the lower bounds of some rows by products, and return upper ones."""
        assert self._products is not None
        found = self._products.part(rows, None)
        own = self._numbers[labels]
        scale = self._alpha**2
        core = self._core.square() * (scale / 2)
        half = found.products.reduced(
            "min", _HALF_SQUARE, bar=self._bar, row=found.rows, own=own[rows], column=found.columns, other=own,
            core_of=core,
        ).double()  # fmt: skip
        lower, upper = (
            torch.maximum(core[rows], half + side * (found.band + _ROUNDING * half)).mul(2 / scale).sqrt()
            for side in (-1, 1)
        )
        self.weight[rows] = torch.maximum(self.weight[rows], (1 - _ROUNDING) * lower)
        return (1 + _ROUNDING) * upper

    def least(self, labels: torch.Tensor, count: int, asks: torch.Tensor) -> None:
        """Find the candidates of the components that ask, as far as these are the nearest of their component."""
        best = _smallest(torch.where(self.valid, self.weight, math.inf), labels, count)
        stale = (asks & ~self.valid & (self.weight < best[labels])).nonzero()[:, 0]
        if len(stale) > ASKED and self._products:
            upper = self.bound(stale, labels)
            best = torch.minimum(best, _smallest(upper, labels[stale], count))
            stale = stale[self.weight[stale] <= best[labels[stale]]]
        if len(stale):
            self.ask(stale, labels)


def _smallest(values: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
    """Return the smallest value of every label."""
    start = values.new_full((count,), math.inf if values.is_floating_point() else len(values))
    return start.scatter_reduce(0, labels, values, "amin")


def spanning_tree(
    found: Distances, count: int, alpha: float, bar: Any = None, *, products: Rounded | None = None
) -> Tree:
    """Return the minimum spanning tree of ``max(c_i, c_j, d(i, j) / alpha)``, c_i the distance of the count-th row.

    In every round each component but the largest takes its smallest edge to another one, so that their number falls at
    least to half. A row is asked again only where its candidate is of its own component by now, and where its last
    weight does not exceed what the component has already. Rows of which no distance is finite get infinite edges.
    Where distances are Euclidean, ``products`` of the rows say which of them need not be asked.
    """
    rows, reach = found.shape[0], _Reach(found, count, alpha, products, bar)
    numbers = torch.arange(rows, device=found.device)
    labels, size = numbers, rows
    edges = [(numbers[:0], numbers[:0], reach.weight[:0])]
    while size > 1:
        asks = labels != torch.bincount(labels).argmax()
        reach.least(labels, size, asks)
        usable = asks & reach.valid
        weight = torch.where(usable, reach.weight, math.inf)
        is_least = usable & (weight == _smallest(weight, labels, size)[labels])
        chosen = _smallest(torch.where(is_least, numbers, rows), labels, size)
        joins = chosen < rows
        chosen = chosen[joins]
        if not len(chosen):
            first = _smallest(numbers, labels, size)
            edges.append((first[1:], first[:1].expand(size - 1), reach.weight.new_full((size - 1,), math.inf)))
            break
        edges.append((chosen, reach.other[chosen], reach.weight[chosen]))
        toward = numbers[:size].masked_scatter(joins, labels[reach.other[chosen]])
        labels = _joined(labels, toward)
        size = int(labels.max()) + 1
        reach.valid &= labels != labels[reach.other]
    one, other, weight = (torch.cat(parts) for parts in zip(*edges, strict=True))
    tree = _tree(one, other, weight, rows)
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


def _tree(one: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, rows: int) -> Tree:
    """Return the tree of edges in which two components may have chosen each other, or a round of equals."""
    pairs, order = (torch.minimum(one, other) * rows + torch.maximum(one, other)).sort(stable=True)
    first = torch.nn.functional.pad(pairs[1:] != pairs[:-1], (1, 0), value=True)
    weight, ascending = weight[order[first]].sort(stable=True)
    pairs, lengths = (part.cpu().numpy() for part in (pairs[first][ascending], weight))
    tree = Tree(pairs // rows, pairs % rows, lengths)
    if len(lengths) == rows - 1:
        return tree
    ranks = coo_matrix((np.arange(1.0, len(lengths) + 1), (tree.one, tree.other)), shape=(rows, rows))
    chosen = np.sort(minimum_spanning_tree(ranks.tocsr()).data.astype(np.int64)) - 1
    return Tree(*(part[chosen] for part in tree))
