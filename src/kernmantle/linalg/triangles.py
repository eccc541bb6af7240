"""Passes over the triangles of a matrix in place, tile by tile, with decisions that stay on the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch

TILE = 1024  # rows


def _tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of the tiles on and below the diagonal; those on it, which are copied, are smaller."""
    half = max(1, TILE // 2)
    for top in range(0, n, TILE):
        stop = min(top + TILE, n)
        yield from ((slice(top, stop), slice(left, left + TILE)) for left in range(0, top, TILE))
        for upper in range(top, stop, half):
            below = slice(upper, min(upper + half, stop))
            yield from ((below, slice(left, min(left + half, stop))) for left in range(top, upper + 1, half))


def copy_triangle(a: torch.Tensor, lower: bool, where: torch.Tensor | None = None) -> None:
    """Write the transpose of one strict triangle to the other, for all items or for some.

    ``lower`` says which is read; the diagonal stays.
    """
    choice = None if where is None else where[..., None, None]
    for rows, columns in _tiles(a.shape[-1]):
        below, above = a[..., rows, columns], a[..., columns, rows].mT
        source, target = (below, above) if lower else (above, below)
        if rows == columns:
            tile = a[..., rows, columns]
            strict = (tile.tril(-1) if lower else tile.triu(1)).mT
            if choice is None:
                tile = tile.tril_() if lower else tile.triu_()
                tile += strict
            else:
                triangle = tile.tril() if lower else tile.triu()
                tile.copy_(torch.where(choice, triangle + strict, tile))
        else:
            target.copy_(source if choice is None else torch.where(choice, source, target))


def clear_triangle(a: torch.Tensor, lower: bool) -> None:
    """Zeros in the strict triangle that is not meant."""
    _ = a.tril_() if lower else a.triu_()
