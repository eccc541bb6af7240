"""Nearest neighbours under any distance, without storing the distances.

The power p is a runtime argument of the kernel, so the loop over powers compiles once. The last search is by a distance
of your own.
"""
# ruff: noqa: T201

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import kernmantle as km


def relative(a: Any, b: Any) -> Any:
    """Relative difference of two entries; it is summed over the columns."""
    return abs(a - b) / (1 + abs(a) + abs(b))


def vote(labels: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return the most frequent label among the neighbours of each row."""
    return np.stack([np.bincount(row, minlength=10) for row in labels[found]]).argmax(1)


def main() -> None:
    """Read handwritten digits by the vote of their nearest neighbours."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = pixels.astype(np.float32)
    points, queries = pixels[:1200], pixels[1200:]
    searches = {f"p = {p:g}": {"p": p} for p in (0.5, 1.0, 1.3, 2.0, 3.7)}
    for name, options in {**searches, "own distance": {"metric": relative}}.items():
        found = km.argkmin(queries, points, 3, **options)
        right = float((vote(labels[:1200], found) == labels[1200:]).mean())
        assert right > 0.9
        print(f"{name:12}: {100 * right:.1f} % of {len(queries)} digits read right")


if __name__ == "__main__":
    main()
