"""Kronecker products in numpy and float64, and the sizes that every implementation is held to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def oracle(x: Any, factors: Sequence[Any], side: str = "right") -> np.ndarray:
    """The product along one axis after the other, batches included; an integer is an identity."""

    def exact(array: Any) -> np.ndarray:
        values = array.detach().cpu() if isinstance(array, torch.Tensor) else np.asarray(array)
        if isinstance(values, torch.Tensor):
            values = values.double().numpy() if values.is_floating_point() else values.resolve_conj().numpy()
        return values

    value = exact(x)
    if side == "left":
        rest = [f if isinstance(f, int) else np.swapaxes(exact(f), -1, -2) for f in factors]
        return np.swapaxes(oracle(np.swapaxes(value, -1, -2), rest), -1, -2)
    matrices = [np.eye(f) if isinstance(f, int) else exact(f) for f in factors]
    extents = [matrix.shape[-2] for matrix in matrices]
    for place, matrix in enumerate(matrices):
        left, right = math.prod(extents[:place]), math.prod(extents[place + 1 :])
        wide = value.reshape(*value.shape[:-1], left, extents[place], right)
        spread = np.swapaxes(matrix, -1, -2)[..., None, None, :, :]
        result = np.matmul(spread, wide)
        extents[place] = matrix.shape[-1]
        value = result.reshape(*result.shape[:-3], left * extents[place] * right)
    return value


def terms(x: Any, factors: Sequence[Any], side: str = "right") -> np.ndarray:
    """Root of the sum of the squares of each entry's terms, and beside it that of the mean square of the result."""
    squares = [f if isinstance(f, int) else f.detach().cpu().double() ** 2 for f in factors]
    exact = oracle(x, factors, side)
    return np.sqrt(oracle(x.detach().cpu().double() ** 2, squares, side) + np.mean(exact**2))


def powers(rows: int, base: int, count: int) -> tuple[int, list[tuple[int, int]]]:
    """``rows`` times the ``count``-th power of a square factor."""
    return rows, [(base, base)] * count


# Published benchmark sizes of fused Kronecker products and the shapes that are awkward for tiles.
SQUARE = [powers(3, p, n) for p in (1, 2, 3) for n in range(1, 10)]
SQUARE += [powers(3, p, n) for p in (4, 5, 6) for n in range(1, 10) if p**n < 1 << 21]
SQUARE += [powers(3, 8, n) for n in range(1, 6)]
SQUARE += [powers(5, p, n) for p in (12, 16, 24) for n in (1, 2, 3)]
SQUARE += [powers(5, p, n) for p in (31, 32, 50, 55, 62, 64) for n in (1, 2)]
SQUARE += [powers(2, p, 2) for p in (127, 128, 129, 255, 297)]
SQUARE += [powers(7, p, 1) for p in (384, 505, 512, 739, 1024)]
MIXED = [
    (5, [(1, 4)]), (5, [(5, 1)]), (5, [(31, 63)]), (3, [(297, 127)]), (3, [(936, 505)]),
    (9, [(1, 4), (5, 1), (31, 63)]), (4, [(5, 1), (1, 4)]), (2, [(31, 63), (63, 31)]),
    (3, [(14, 15), (19, 13), (34, 23)]), (2, [(14, 15), (19, 13), (34, 23), (21, 34)]), (1, [(21, 34), (34, 21)]),
    (300, [(2, 3), (3, 2)]), (130, [(7, 7), (3, 3)]), (2, [(50, 50), (3, 3)]), (1, [(2, 2)] * 14), (2, [(1, 1)] * 64),
]  # fmt: skip
REAL_WORLD = [
    powers(20, 2, 7), powers(20, 2, 9), powers(50, 2, 9), powers(20, 2, 10), powers(1, 2, 11), powers(10, 64, 2),
    powers(50, 64, 2), powers(4, 2, 9), powers(8, 2, 9), powers(16, 2, 9), powers(20, 2, 9), powers(8, 8, 3),
    powers(16, 8, 3), powers(20, 8, 3), powers(1024, 4, 7), powers(1024, 4, 9), powers(256, 8, 7), powers(1, 8, 4),
    powers(1, 32, 4), powers(1526, 4, 6), powers(156, 8, 3), powers(2967, 4, 7), powers(16, 8, 8), powers(16, 16, 6),
    powers(16, 32, 5), powers(16, 64, 3), powers(1, 6, 9),
]  # fmt: skip


def limited(size: tuple[int, list[tuple[int, int]]], most: int) -> tuple[int, list[tuple[int, int]]]:
    """A size with so few rows that no array has more than ``most`` entries, but one row at least."""
    rows, factors = size
    width = max(math.prod(p for p, _ in factors), math.prod(q for _, q in factors))
    return max(1, min(rows, most // width)), factors


def named(size: tuple[int, list[tuple[int, int]]]) -> str:
    """Such as "1024*8x8^5"."""
    rows, factors = size
    if len(set(factors)) == 1:
        return f"{rows}*{factors[0][0]}x{factors[0][1]}^{len(factors)}"
    return f"{rows}*" + "*".join(f"{p}x{q}" for p, q in factors)


def drawn(
    size: tuple[int, list[tuple[int, int]]], dtype: torch.dtype, side: str = "right", device: str = "cpu", seed: int = 0
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Random x and factors whose product is about as large as x; one tensor for equal factors."""
    rows, sizes = size
    generator = torch.Generator().manual_seed(seed)
    known: dict[tuple[int, int], torch.Tensor] = {}
    for place, (p, q) in enumerate(sizes):
        key = (p, q) if len(sizes) > 9 else (p, q, place)
        if key not in known:
            known[key] = torch.randn(p, q, generator=generator, dtype=torch.float64) / math.sqrt(p)
    factors = [known[(p, q) if len(sizes) > 9 else (p, q, place)] for place, (p, q) in enumerate(sizes)]
    unique = {id(f): f.to(device, dtype) for f in factors}
    given = [unique[id(f)] for f in factors]
    if side == "left":
        x = torch.randn(math.prod(q for _, q in sizes), rows, generator=generator, dtype=torch.float64)
        return x.to(device, dtype), given
    x = torch.randn(rows, math.prod(p for p, _ in sizes), generator=generator, dtype=torch.float64)
    return x.to(device, dtype), given
