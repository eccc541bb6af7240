"""Shortest paths between all nodes of a road network: the closure of a matrix in the semiring (min, +).

Squaring the matrix of direct distances in this semiring doubles the number of roads a path may use, so log2(n) products
give all shortest paths. With "max" and min(a, b) instead, the result is the widest paths; with "any" and a & b,
reachability.
"""
# ruff: noqa: T201

from __future__ import annotations

import math

import torch

import kernmantle as km

product = km.Contraction("ik,kj->ij", lambda a, b: a + b, reduce="min")


def closure(roads: torch.Tensor) -> torch.Tensor:
    """Lengths of all shortest paths, from a matrix of direct roads (infinity where there is none)."""
    lengths = roads.clone().fill_diagonal_(0)
    for _ in range(max(1, math.ceil(math.log2(len(roads))))):
        lengths = product(lengths, lengths)
    return lengths


def network(places: int, seed: int = 0) -> torch.Tensor:
    """Random places, each with roads to its four nearest neighbours."""
    where = torch.rand(places, 2, generator=torch.Generator().manual_seed(seed))
    straight = km.cdist(where)
    near = straight.topk(5, largest=False).indices
    roads = torch.full_like(straight, math.inf).scatter(1, near, straight.gather(1, near))
    return torch.minimum(roads, roads.T)


def floyd_warshall(roads: torch.Tensor) -> torch.Tensor:
    """The textbook algorithm, one place after another."""
    lengths = roads.double().clone().fill_diagonal_(0)
    for via in range(len(lengths)):
        lengths = torch.minimum(lengths, lengths[:, via, None] + lengths[None, via])
    return lengths


def main() -> None:
    """Compare both and say how far the farthest places are apart."""
    roads = network(200)
    lengths, wanted = closure(roads), floyd_warshall(roads)
    torch.testing.assert_close(lengths.double(), wanted, rtol=1e-5, atol=1e-5)
    reached = lengths.isfinite()
    print(f"{len(roads)} places, {int(roads.isfinite().sum() - len(roads)) // 2} roads")
    print(f"{100 * reached.double().mean():.1f} % of pairs are connected, the farthest by {lengths[reached].max():.3f}")


if __name__ == "__main__":
    main()
