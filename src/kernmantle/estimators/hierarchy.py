"""The hierarchy of a spanning tree: which edge joins what, by operations on whole arrays, on the device of the tree.

Edges are numbered from the shortest to the longest. What an edge joins is either a row, or what an edge before it made.
Sources: Sao, Prokopenko and Lebrun-Grandié, PANDORA: a parallel dendrogram construction algorithm for single linkage
clustering on GPU, 2024; Campello, Moulavi and Sander, Density-based clustering based on hierarchical density estimates,
2013.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


class Level(NamedTuple):
    """A tree of which every vertex has chosen its shortest edge; vertices that these join are one of the next level."""

    first: torch.Tensor
    """Shortest edge of every vertex."""
    chosen: torch.Tensor
    """Edges that were chosen, ascending."""
    owner: torch.Tensor
    """Vertex of the next level to which each chosen edge belongs."""
    rest: torch.Tensor
    """Edges of the next level, ascending."""


def _jumped(parents: torch.Tensor) -> torch.Tensor:
    """Return the root above every vertex, of parents of which roots are their own."""
    for _ in range(len(parents).bit_length()):
        parents = parents[parents]
    return parents


def roots(toward: torch.Tensor) -> torch.Tensor:
    """Return the root of every vertex, each of which goes to another one; of two that go to each other it is the first.

    Of longer rounds there is none: what is returned for their vertices is one of them.
    """
    own = torch.arange(len(toward), device=toward.device)
    return _jumped(torch.where((toward[toward] == own) & (own < toward), own, toward))


def _levels(one: torch.Tensor, other: torch.Tensor, rows: int) -> list[Level]:
    """Return trees, each of at most half as many vertices as the one before."""
    count, levels = len(one), []
    rest = torch.arange(count, device=one.device)
    while len(rest):
        first = rest.new_full((rows,), count).scatter_reduce(0, torch.cat([one, other]), rest.repeat(2), "amin")
        position = rest.new_empty(count)
        position[rest] = torch.arange(len(rest), device=rest.device)
        position = position[first]
        toward = one[position] + other[position] - torch.arange(rows, device=rest.device)
        vertices, owner = roots(toward).unique(return_inverse=True)
        is_chosen = torch.zeros(count, dtype=torch.bool, device=rest.device)
        is_chosen[first] = True
        chosen = is_chosen[rest]
        levels.append(Level(first, rest[chosen], owner[one[chosen]], rest[~chosen]))
        rest, one, other, rows = rest[~chosen], owner[one[~chosen]], owner[other[~chosen]], len(vertices)
    return levels


def _last_before(start: torch.Tensor, limit: torch.Tensor, edges: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Return the last edge from each start upwards that is below a limit; the start itself is.

    ``edges`` are ascending, ``parents`` their positions, with a last one above all that is its own parent.
    """
    tables = [parents]
    for _ in range(len(edges).bit_length()):
        tables.append(tables[-1][tables[-1]])
    for table in reversed(tables):
        above = table[start]
        start = torch.where(edges[above] < limit, above, start)
    return start


def joins(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edge that joins every row, (n,), and that which joins the cluster of every edge, (n - 1,); or n - 1.

    Edges of a tree, ascending, are contracted from level to level. In the hierarchy of the next level the chosen edges
    of this one are inserted: all that lie between two edges of it are a chain.
    """
    count, device = len(one), one.device
    parents = torch.full((count + 1,), count, device=device)
    levels = _levels(one, other, count + 1)
    if not levels:
        return one.new_full((1,), 0), parents[:0]
    above = one.new_full((1,), count)
    for first, chosen, owner, rest in reversed(levels):
        edges = torch.cat([rest, rest.new_full((1,), count)])
        position = torch.empty_like(parents)
        position[edges] = torch.arange(len(edges), device=device)
        start = position[above[owner]]
        inserted = edges[start] < chosen
        last = _last_before(start, chosen, edges, position[parents[edges]])
        anchor = torch.where(inserted, len(above) + last, owner)
        anchor, order = anchor.sort(stable=True)
        chain = chosen[order]
        upper = torch.cat([above, parents[rest]])[anchor]
        differs = anchor[1:] != anchor[:-1]
        begins = torch.nn.functional.pad(differs, (1, 0), value=True) & (anchor >= len(above))
        parents[rest[anchor[begins] - len(above)]] = chain[begins]
        parents[chain] = torch.where(
            torch.nn.functional.pad(differs, (0, 1), value=True), upper, torch.cat([chain[1:], chain[:1]])
        )
        above = first
    return above, parents[:count]


def _below(own: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Return the sum over each edge and all edges below it."""
    count = len(own)
    total, jump = torch.cat([own, own.new_zeros(1)]), torch.cat([parents, parents.new_full((1,), count)])
    while bool((jump < count).any()):
        total = total.index_add(0, jump, total)
        jump = jump[jump]
    return total[:count]


def _above(own: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    """Return the sum over each edge and all edges above it."""
    count = len(own)
    total, jump = torch.cat([own, own.new_zeros(1)]), torch.cat([parents, parents.new_full((1,), count)])
    while bool((jump < count).any()):
        total = total + torch.where(jump < count, total[jump], 0)
        jump = jump[jump]
    return total[:count]


@dataclass(frozen=True)
class Condensed:
    """Clusters of a smallest size, the first that of all rows, and when rows leave them; densities are 1 / distance."""

    parent: torch.Tensor
    """Parent of every cluster, (k,), -1 of the first; the children of one are consecutive."""
    birth: torch.Tensor
    """Density at which the cluster begins, 0 of the first, (k,)."""
    size: torch.Tensor
    """Rows with which it begins, (k,)."""
    cluster: torch.Tensor
    """The last cluster of every row, (n,)."""
    leaves: torch.Tensor
    """Density at which the row leaves it, (n,)."""
    order: torch.Tensor
    """Rows by when they leave, of each cluster those of the least density first, (n,)."""


def condensed(one: torch.Tensor, other: torch.Tensor, density: torch.Tensor, smallest: int) -> Condensed:
    """Return the clusters of edges of a tree that descend in density; of each the first end is the left one.

    An edge that joins two clusters of the smallest size or more splits what it made. Clusters are numbered by levels of
    the hierarchy, each from left to right.
    """
    count, device = len(one), one.device
    numbers = torch.arange(count, device=device)
    of_row, parents = joins(one, other)
    size = _below(torch.bincount(of_row, minlength=count), parents)
    edges = torch.arange(count + 1, device=device)
    padded = torch.cat([parents, parents.new_full((1,), count)])

    def child(row: torch.Tensor) -> torch.Tensor:
        """Return what made the part of each edge in which a row is, the edge itself where the row is all of it."""
        start = of_row[row]
        return torch.where(start < numbers, _last_before(start, numbers, edges, padded), numbers)

    left, right = child(one), child(other)
    of_left, of_right = (torch.where(side < numbers, size[side], 1) for side in (left, right))
    is_split = (of_left >= smallest) & (of_right >= smallest)
    is_big = size >= smallest
    is_big[-1] = True
    splits = torch.cat([is_split, is_split.new_ones(1)])  # above the last edge
    head = _jumped(torch.where(splits[parents], numbers, parents.clamp(max=count - 1)))
    depth = _above(torch.ones_like(numbers), parents)
    shift = torch.zeros_like(padded).index_put((torch.where(right < numbers, right, count),), of_left)[:count]
    from_left = _above(shift, parents)
    split = is_split.nonzero()[:, 0]
    split = split[from_left[split].argsort(stable=True)]
    split = split[depth[split].argsort(stable=True)]
    name = torch.zeros_like(numbers)
    name[left[split]] = 1 + 2 * torch.arange(len(split), device=device)
    name[right[split]] = 2 + 2 * torch.arange(len(split), device=device)
    name = name[head]
    own = _jumped(torch.where(is_big, numbers, parents.clamp(max=count - 1)))[of_row]
    twice = split.repeat_interleave(2)
    first = name.new_zeros(1)
    return Condensed(
        torch.cat([first - 1, name[twice]]), torch.cat([density.new_zeros(1), density[twice]]),
        torch.cat([first + count + 1, torch.stack([of_left[split], of_right[split]], 1).flatten()]),
        name[own], density[own], own.argsort(descending=True),
    )  # fmt: skip
