"""Nearest neighbours for any distance, in blocks of queries to limit memory.

The power p is a runtime argument of the kernel: the loop over powers compiles only once.
"""
# ruff: noqa: T201

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

import kernmantle as km


def nearest(queries: np.ndarray, points: np.ndarray, p: float, block: int = 256) -> Iterator[np.ndarray]:
    """Index of the nearest point of each query, block after block; ``out=`` reuses one buffer."""
    buffer = np.empty((block, len(points)), points.dtype)
    for begin in range(0, len(queries), block):
        rows = queries[begin : begin + block]
        yield km.cdist(rows, points, p=p, root=False, out=buffer[: len(rows)]).argmin(1)


def main() -> None:
    """Read handwritten digits by their nearest neighbour."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.astype(np.float32)
    points, queries = pixels[:1200], pixels[1200:]
    for p in (0.5, 1.0, 1.3, 2.0, 3.7):
        found = np.concatenate(list(nearest(queries, points, p)))
        right = float((labels[:1200][found] == labels[1200:]).mean())
        assert right > 0.9
        print(f"p = {p:g}: {100 * right:.1f} % of {len(queries)} digits read right")


if __name__ == "__main__":
    main()
