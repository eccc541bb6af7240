"""Chains of patterns by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...checks import integer
from ...errors import ParameterError
from .dense import check_shape
from .pattern import KSPattern


def _divides(part: int, whole: int, name: str, of: str) -> int:
    if whole % integer(part, name):
        raise ParameterError(f"{name} = {part} must divide {of} = {whole}")
    return whole // part


def block_diagonal(shape: Sequence[int], blocks: int) -> list[KSPattern]:
    """Return one block-diagonal factor.

    Parameters
    ----------
    shape : (out_features, in_features), matrix or layer
    blocks : int
        Number of dense blocks; it divides both sizes.

    Returns
    -------
    list of KSPattern
        ``(blocks, out / blocks, in / blocks, 1)``.

    Raises
    ------
    ParameterError
        For sizes that the number of blocks does not divide.

    Examples
    --------
    >>> import kernmantle as km
    >>> km.kronsparse.block_diagonal((6, 4), 2)
    [KSPattern(a=2, b=3, c=2, d=1)]
    """
    rows, columns = check_shape(shape)
    high, wide = _divides(blocks, rows, "blocks", "rows"), _divides(blocks, columns, "blocks", "columns")
    return [KSPattern(blocks, high, wide, 1)]


def low_rank_like(shape: Sequence[int], rank: int) -> list[KSPattern]:
    """Return two dense factors with ``rank`` features between them.

    Parameters
    ----------
    shape : (out_features, in_features), matrix or layer
    rank : int

    Returns
    -------
    list of KSPattern
        ``(1, rank, in, 1)`` and ``(1, out, rank, 1)``.

    Raises
    ------
    ParameterError
        For a rank that is not a positive integer.

    Examples
    --------
    >>> import kernmantle as km
    >>> km.kronsparse.low_rank_like((6, 4), 2)
    [KSPattern(a=1, b=2, c=4, d=1), KSPattern(a=1, b=6, c=2, d=1)]
    """
    (rows, columns), rank = check_shape(shape), integer(rank, "rank")
    return [KSPattern(1, rank, columns, 1), KSPattern(1, rows, rank, 1)]


def monarch(shape: Sequence[int], p: int, q: int, rank: int = 1) -> list[KSPattern]:
    """Return two factors: p diagonal blocks, then q interleaved ones, all entries of the product free up to their rank.

    Parameters
    ----------
    shape : (out_features, in_features), matrix or layer
    p, q : int
        p divides in_features, q divides out_features.
    rank : int
        Rank of each of the p q blocks that the product falls into.

    Returns
    -------
    list of KSPattern
        ``(p, q rank, in / p, 1)`` and ``(1, out / q, p rank, q)``: ``rank (q in + p out)`` weights.

    Raises
    ------
    ParameterError
        For sizes that p or q do not divide.

    Notes
    -----
    Source: Dao et al., Monarch, arXiv:2204.00595.

    Examples
    --------
    >>> import kernmantle as km
    >>> km.kronsparse.monarch((1536, 384), p=6, q=2, rank=32)
    [KSPattern(a=6, b=64, c=64, d=1), KSPattern(a=1, b=768, c=192, d=2)]
    """
    (rows, columns), rank = check_shape(shape), integer(rank, "rank")
    inner, outer = _divides(p, columns, "p", "columns"), _divides(q, rows, "q", "rows")
    return [KSPattern(p, q * rank, inner, 1), KSPattern(1, outer, p * rank, q)]


def butterfly(n: int, radix: int = 2, levels: int = 1) -> list[KSPattern]:
    """Return the levels of a butterfly on n = radix^L features, ``levels`` of them taken together in each factor.

    Parameters
    ----------
    n : int
        A power of the radix.
    radix : int
        b = c of a single level.
    levels : int
        Neighbouring levels that make one factor with b = c = radix^levels; fewer passes, more weights.

    Returns
    -------
    list of KSPattern
        L / levels of them, n radix^levels weights each.

    Raises
    ------
    ParameterError
        For an n that is not a power of the radix.

    Examples
    --------
    >>> import kernmantle as km
    >>> [tuple(pattern) for pattern in km.kronsparse.butterfly(8)]
    [(4, 2, 2, 1), (2, 2, 2, 2), (1, 2, 2, 4)]
    >>> [tuple(pattern) for pattern in km.kronsparse.butterfly(16, levels=2)]
    [(4, 4, 4, 1), (1, 4, 4, 4)]
    """
    n, radix, levels = integer(n, "n"), integer(radix, "radix"), integer(levels, "levels")
    if radix < 2:
        raise ParameterError("radix must be at least 2, not 1")
    depth = round(math.log(n, radix)) if n > 1 else 0
    if depth < 1 or radix**depth != n:
        raise ParameterError(f"n = {n} must be a power of {radix} above 1")
    patterns: list[KSPattern] = []
    for level in range(0, depth, levels):
        size = radix ** min(levels, depth - level)
        patterns.append(KSPattern(n // (radix**level * size), size, size, radix**level))
    return patterns
