"""The hierarchy of a spanning tree by operations on arrays: that of a union-find which joins edge after edge."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from kernmantle.estimators.hdbscan import NOISE, Selection, cut
from kernmantle.estimators.hierarchy import condensed, joins

PARENTS = {
    "chain": lambda _, row: row - 1, "star": lambda _, __: 0, "any": lambda random, row: random.integers(0, row),
    "close": lambda random, row: max(0, row - random.integers(1, 4)),
}  # fmt: skip
SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 31, 200)


def tree(rows, shape, seed):
    """Edges of a tree over rows in any order, of which either end may be the first."""
    random = np.random.default_rng(seed)
    edges = np.array([(PARENTS[shape](random, row), row) for row in range(1, rows)])
    edges = random.permutation(rows)[edges][random.permutation(rows - 1)]
    swapped = random.random(rows - 1) < 0.5
    return np.where(swapped, edges[:, 1], edges[:, 0]), np.where(swapped, edges[:, 0], edges[:, 1])


def merged(one, other):
    """Both parts that every edge joins, as rows in a list and the edge that made it (-1 of a row)."""
    part = {row: ([row], -1) for row in range(len(one) + 1)}
    for edge, ends in enumerate(zip(one.tolist(), other.tolist(), strict=True)):
        left, right = (part[row] for row in ends)
        yield left, right
        for row in (*left[0], *right[0]):
            part[row] = left[0] + right[0], edge


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("shape", PARENTS)
def test_every_row_and_every_edge_is_joined_by_the_edge_that_joins_it_one_after_the_other(rows, shape):
    for seed in range(6):
        one, other = tree(rows, shape, seed)
        of_rows, of_edges = np.full(rows, rows - 1), np.full(rows - 1, rows - 1)
        for edge, parts in enumerate(merged(one, other)):
            for members, made in parts:
                (of_rows if made < 0 else of_edges)[members[0] if made < 0 else made] = edge
        found = joins(torch.from_numpy(one), torch.from_numpy(other))
        assert (found[0].numpy() == of_rows).all()
        assert (found[1].numpy() == of_edges).all()


def walked(one, other, density, smallest):
    """Clusters from the top: parent, birth and size of each, and the last cluster and density of every row."""
    steps = list(merged(one, other))
    clusters, cluster, leaves = [(-1, 0.0, len(one) + 1)], {}, {}
    level = [(len(one) - 1, 0)]
    while level:
        following = []
        for edge, own in level:
            parts = steps[edge]
            large = [part for part in parts if len(part[0]) >= smallest]
            for members, made in parts:
                inside = own
                if len(large) == 2:
                    inside = len(clusters)
                    clusters.append((own, density[edge], len(members)))
                if len(members) >= smallest:
                    following.append((made, inside))
                else:
                    cluster.update(dict.fromkeys(members, own))
                    leaves.update(dict.fromkeys(members, density[edge]))
        level = following
    return clusters, [[found[row] for row in range(len(one) + 1)] for found in (cluster, leaves)]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("shape", PARENTS)
def test_condensed_clusters_are_those_of_a_walk_from_the_top(rows, shape):
    for seed, smallest in ((0, 2), (1, 3), (2, 5), (3, rows), (4, rows + 1)):
        one, other = tree(rows, shape, seed)
        density = np.linspace(9.0, 1.0, rows - 1)
        clusters, (cluster, leaves) = walked(one, other, density, max(2, smallest))
        found = condensed(*(torch.from_numpy(part) for part in (one, other, density)), max(2, smallest))
        assert (found.parent.numpy() == [each[0] for each in clusters]).all()
        assert (found.birth.numpy() == [each[1] for each in clusters]).all()
        assert (found.size.numpy() == [each[2] for each in clusters]).all()
        assert (found.cluster.numpy() == cluster).all()
        assert (found.leaves.numpy() == leaves).all()
        assert (np.diff(found.leaves[found.order].numpy()) >= 0).all()


def test_clusters_that_begin_below_a_distance_give_way_to_one_that_does_not():
    """Two pairs of close clusters: each pair is one cluster where all distances below 3 join."""
    rows = np.concatenate([centre + np.arange(6) * 0.1 for centre in (0, 2, 20, 22)])
    one, other, weight = np.arange(23), np.arange(1, 24), np.diff(rows)
    order = np.argsort(weight, kind="stable")
    edges = [torch.from_numpy(part[order]) for part in (one, other, 1 / weight)]
    found = condensed(*edges, 4)
    plain, _ = Selection("leaf", 4, 0.0, None, False).of(found)
    joined, strength = Selection("leaf", 4, 3.0, None, False).of(found)
    assert len(set(plain.tolist())) == 4
    pairs = np.repeat([0, 1], 12)
    assert adjusted_rand_score(joined, pairs) == 1
    assert strength.max() == 1
    assert strength.min() > 0
    alone, _ = Selection("leaf", 4, 100.0, None, True).of(found)
    assert set(alone.tolist()) <= {0, NOISE}
    assert adjusted_rand_score(cut(one[order], other[order], weight[order], 3.0, 4), pairs) == 1
    assert (cut(one[order], other[order], weight[order], 0.5, 7) == NOISE).all()
