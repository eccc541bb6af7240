"""Predicted times of the vendor's matrix products on a GPU, and of algorithms that are made of them.

One roofline for all of them: a launch, bytes, and multiplications of extents that are rounded up to tiles, which takes
at least what the longest tile does. Fitted to 600 products and 500 gradients of random patterns on one H100, within 12
to 51 % (root mean square; decision 0028).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...compiler.nest import BYTES
from .tile_cost import quicker

Pattern = tuple[int, int, int, int]
MOST_CALLS = 16  # batched products, one after the other, where blocks have two strides
MOST_DENSE = 2**26  # entries of a matrix that is filled with zeros to be multiplied by
_SQUARE, _PROCESSORS = 128, 132  # edge of the tiles that are shared out, and among how many multiprocessors
_SMALL = 64  # edge of those of halves that are not aligned
# Many blocks of halves of so few rows and so many positions of k, not aligned, take what their bytes take: (2, 5, 870,
# 100) with 273 rows and (5, 2, 770, 19) with 3660, of 97 products measured on one H200 (decision 0067).
_THIN, _LONG = 8, 200
_AGAIN = 1.4  # times as fast as from memory what the second-level cache has still
_VECTOR = 16  # bytes to which rows must be aligned for the quickest kernels
_WORD = 4  # the same for blocks whose features are contiguous


@dataclass(frozen=True)
class ProductRates:
    """Seconds of a launch, bytes and multiplications a second, the tile, seconds of a position of k in a tile.

    Halves whose rows are not aligned take ``unaligned`` times as long to multiply, at ``unaligned_bytes`` a second, and
    in smaller tiles ``unaligned_position`` for each position; of the smaller of memory and multiplications a share
    ``overlap`` is added.
    """

    launch: float
    bytes: float
    products: float
    high: float
    wide: float
    deep: float
    position: float
    unaligned: float
    overlap: float
    unaligned_bytes: float = 0.0
    unaligned_position: float = 0.0


# By the type, "dense" the matrix, "bmm" products in place, "copies" those between copies; by the batch last in memory.
_RATES = {
    ("f32", "dense", False): ProductRates(3.9e-6, 2.3e12, 2.72e13, 42, 115, 39, 2.9e-9, 1.0, 0.82),
    ("f32", "dense", True): ProductRates(6.6e-6, 2.8e12, 2.59e13, 82, 77, 15, 4.2e-9, 1.0, 0.56),
    ("f32", "bmm", False): ProductRates(3.5e-6, 2.1e12, 2.62e13, 53, 71, 19, 1.6e-8, 1.0, 0.3),
    ("f32", "bmm", True): ProductRates(3.3e-6, 2e12, 3e13, 72, 61, 23, 1.7e-8, 1.0, 0.29),
    ("f32", "copies", False): ProductRates(3.9e-6, 4.7e12, 2.7e13, 21, 28, 34, 2.7e-9, 1.0, 0.32),
    ("f32", "copies", True): ProductRates(7.5e-6, 1.6e13, 6.33e13, 26, 61, 7.2, 2e-9, 1.0, 0.17),
    ("f16", "dense", False): ProductRates(3.7e-6, 7.1e12, 4.87e14, 61, 72, 7, 4.9e-10, 4.6, 0.88, 1.5e12),
    ("f16", "dense", True): ProductRates(5e-6, 5.3e12, 4.65e14, 34, 135, 19, 1.5e-10, 6.3, 0.46),
    ("f16", "bmm", False): ProductRates(3.1e-6, 4.2e12, 1.02e14, 30, 147, 23, 4.1e-9, 2.6, 0.33),
    ("f16", "bmm", True): ProductRates(3e-6, 5.1e12, 4.74e14, 66, 67, 61, 1.5e-9, 6.7, 0.82, 1.88e12),
    ("f16", "copies", False): ProductRates(4.7e-6, 3.9e12, 5.34e14, 47, 25, 86, 2.1e-10, 6, 1.3),
    ("f16", "copies", True): ProductRates(4.3e-6, 2.9e12, 2.91e14, 49, 84, 69, 1.9e-9, 2.5, 1.1),
}  # fmt: skip
_SUMS = {
    ("f32", "bmm", False): ProductRates(7e-6, 5.7e11, 1.8e13, 46, 90, 8.8, 1.6e-9, 1.0, 0.3),
    ("f32", "bmm", True): ProductRates(7e-6, 2.1e12, 2.51e13, 95, 57, 21, 1.8e-8, 1.0, 0.18),
    ("f32", "copies", False): ProductRates(5.9e-6, 1.1e12, 1.32e13, 34, 63, 12, 2.5e-8, 1.0, 0.15),
    ("f32", "copies", True): ProductRates(6.9e-6, 4.1e12, 2.71e13, 65, 34, 24, 1.3e-8, 1.0, 0.16),
    ("f32", "dense", False): ProductRates(2.7e-6, 2.1e12, 2.55e13, 66, 64, 16, 1.3e-9, 1.0, 0.3),
    ("f32", "dense", True): ProductRates(4.1e-6, 1.6e12, 2.25e13, 75, 73, 16, 3.2e-9, 1.0, 0.3),
    ("f16", "bmm", False): ProductRates(5.1e-6, 1.4e12, 9.47e13, 26, 68, 34, 3.9e-9, 2.3, 0.36),
    ("f16", "bmm", True): ProductRates(6.3e-6, 6.4e12, 1.53e14, 71, 118, 305, 5e-9, 1.2, 0.17, 8.01e11, 1.6e-8),
    ("f16", "copies", False): ProductRates(7e-6, 4e12, 5.44e14, 55, 69, 58, 9.8e-10, 8.9, 1.4),
    ("f16", "copies", True): ProductRates(7.4e-6, 1.2e12, 2.09e14, 53, 64, 238, 3.7e-9, 1.0, 1.7, 9.33e11),
    ("f16", "dense", False): ProductRates(3.8e-6, 2.8e12, 4.7e14, 62, 63, 33, 7.1e-10, 3.7, 0.82),
    ("f16", "dense", True): ProductRates(4.8e-6, 2.2e12, 1.22e14, 69, 75, 16, 5.9e-10, 2.0, 0.3),
}  # of the sums over the batch that are gradients of weights
# The same of blocks of halves in whole vectors, features together: 18 us for 32 blocks of 128 x 128 and for 64 of
# 64 x 64, with 4096 rows on one H200 (decisions 0042 and 0049).
_ALIGNED_SUMS, _WIDE_BLOCK = ProductRates(3.5e-6, 4.2e12, 9.47e13, 26, 68, 34, 3.9e-9, 1.0, 0.1), 64
_LAST_BLOCKS = ProductRates(3.8e-6, 4.0e12, 4.74e14, 64, 64, 61, 1.5e-9, 1.0, 0.1)  # of a step of two factors
# Products in place of halves in whole vectors, by the batch last in memory, of more tiles a call than four for each
# multiprocessor: blocks at least so wide with features together, or with a batch that is last and several values of l.
# 98 and 227 products of 25088 rows on one H200, within 9 and 18 % (root mean square; decision 0088).
_WHOLE = {
    False: ProductRates(4e-6, 5.4e12, 4.2e14, 66, 67, 61, 1.5e-9, 1.0, 0.2),
    True: ProductRates(4e-6, 3.6e12, 4.74e14, 66, 67, 61, 1.5e-9, 1.0, 0.5),
}
_WHOLE_TILES, _WHOLE_WIDTH = 4 * _PROCESSORS, 96  # tiles and extents of blocks from which these rates hold
# With a batch that is last, blocks of more outputs than one and up to two tiles take this share of it: 0.78 to 0.95 of
# 58 products of 192 and 256 outputs, by 192 to 768 (decision 0088); of three tiles this of 60 by 96 and 384. Two tiles
# of fewer values of k than so many take so many times as long, but where the second-level cache has all bytes still: 8
# products of 192 by 48 (decision 0095).
_TWO_TILES, _THREE_TILES, _SHALLOW, _SHALLOW_SHARE, _SHALLOW_CACHED = 0.84, 0.96, 64, 1.15, 0.97
_WHOLE_CACHED = 5e7  # bytes of x and of the result up to which the second-level cache has them still


@dataclass(frozen=True)
class _OneTile:
    """Batched products of halves in whole vectors of one tile of outputs, the batch last in memory.

    They take what their bytes take: a launch, bytes of x and of the result a second, what is left of the time where the
    second-level cache has all bytes of a call still, and how many times as long several calls take. 37 products of
    25088 rows on one H200, within 6 % (root mean square). One call of at least ``wide`` outputs takes a ``share`` of
    that in the choice, as tiles of our kernel take 0.98 to 1.2 times what is predicted of them (decision 0095).
    """

    launch: float = 3e-6
    read: float = 4.41e12
    written: float = 3.15e12
    again: float = 0.8
    calls: float = 1.1
    share: float = 0.93
    wide: int = 64

    def seconds(self, pattern: Pattern, batch: int, size: int, calls: int) -> float:
        """Return the seconds of so many calls."""
        a, b, c, d = pattern
        rows = size * batch * a * d / calls
        moved = rows * (c / self.read + b / self.written) + size * a * b * c * d / calls / self.read
        if calls > 1:
            return self.calls * calls * (self.launch + moved)
        taken = self.launch + moved * (self.again if rows * (b + c) <= _WHOLE_CACHED else 1.0)
        return taken * (self.share if b >= self.wide else 1.0)


_ONE_TILE = _OneTile()
# Times as long for the bytes of halves where a dense matrix has at least twice as many outputs as inputs, and fewer
# inputs than that; and with features together twice as many inputs as outputs: 96 x 384 and 192 x 768 with 25088 rows
# took 10.0 and 20.9 us, the other way round 7.5 and 14.2 (H200, decision 0095).
_WRITTEN, _READ, _UNEQUAL = 1.6, 0.8, 256
# Seconds to begin with one of halves in whole vectors whose batch is last, of up to so many inputs, and bytes of x and
# y: 3.4 to 6.1 us of four random products, where 5.1 to 7.6 were expected (H200, decision 0106).
_WHOLE_START, _MOST_INPUTS, _MOST_BYTES = 3.6e-6, 1024, 2e7
# Seconds to begin with the copies around batched products, what sums without any take less, and bytes a second of
# copies where the batch is last. Others bring together numbers that lie apart: bytes a second of rows, and of the
# sectors that numbers are read from, out of the second-level cache and of memory, where what is read until a sector is
# read again no longer fits.
_COPIES_START, _UNCOPIED, _COPIED = 4e-6, -2e-6, 1.5e12
_WORD_BYTES = 1.3e12  # bytes a second of halves whose batch is last and begins at words (H200, decision 0086)
_ANOTHER_CALL = 2.5e-6  # seconds to begin with one batched product behind another
_APART = 3e-6  # seconds to begin with taking weights out of the gradient of the matrix
_ROWS, _CACHED_SECTORS, _SECTORS, _CACHE, _BEYOND_CACHE = 1.9e12, 8.1e12, 2.7e12, 2.8e7, 1.1e8
_SECTOR = 32  # bytes that are read at once


def product_seconds(
    rows: int, columns: int, depth: int, count: float, dtype: str, own: ProductRates, aligned: bool = True
) -> float:
    """``count`` products of rows x depth by depth x columns."""
    size = BYTES[dtype]
    tiles = count * math.ceil(rows / _SQUARE) * math.ceil(columns / _SQUARE)
    padded = math.ceil(rows / own.high) * own.high * math.ceil(columns / own.wide) * own.wide
    work = count * padded * max(depth, own.deep) / own.products
    work = max(work, math.ceil(tiles / _PROCESSORS) * depth * own.position)
    whole = size * count * (rows * depth + depth * columns + rows * columns)
    moved = whole / own.bytes
    if size == 2 and not aligned:
        work *= own.unaligned
        small = count * math.ceil(rows / _SMALL) * math.ceil(columns / _SMALL)
        work = max(work, math.ceil(small / _PROCESSORS) * depth * own.unaligned_position)
        moved = whole / (own.unaligned_bytes or own.bytes / math.sqrt(own.unaligned))
    elif size == 2:
        moved /= quicker(whole, _AGAIN)
    return own.launch + max(work, moved) + own.overlap * min(work, moved)


def _gathered_seconds(numbers: float, size: int, apart: int, again: float) -> float:
    """A copy of numbers whose neighbours lie ``apart`` bytes from each other; so many are read ``again`` before."""
    lost = min(1.0, max(0.0, math.log(again / _CACHE) / math.log(_BEYOND_CACHE / _CACHE)))
    sector = min(_SECTOR, apart) * ((1 - lost) / _CACHED_SECTORS + lost / _SECTORS)
    return numbers * (max(sector, size / _ROWS) + size / _ROWS)


def _rates(dtype: str, kind: str, last: bool) -> ProductRates:
    return _RATES["f16" if BYTES[dtype] == 2 else "f32", kind, last]


def _aligned(size: int, *lengths: int) -> bool:
    return not any(length * size % _VECTOR for length in lengths)


def matrix_seconds(shape: tuple[int, int], batch: int, dtype: str, last: bool = False) -> float:
    """Return a dense layer (out_features, in_features)."""
    rows, columns = shape
    aligned = _aligned(BYTES[dtype], columns, batch if last else rows)
    sides, own = (rows, batch) if last else (batch, rows), _rates(dtype, "dense", last)
    if BYTES[dtype] == 2 and aligned:
        writes = 2 * columns <= rows and columns < _UNEQUAL
        reads = 2 * rows <= columns and rows < _UNEQUAL and not last
        own = replace(own, bytes=own.bytes / (_WRITTEN if writes else _READ if reads else 1.0))
        if last and columns <= _MOST_INPUTS and 2 * batch * (rows + columns) <= _MOST_BYTES:
            own = replace(own, launch=_WHOLE_START)
    return product_seconds(*sides, columns, 1, dtype, own, aligned)


def _whole_share(pattern: Pattern, batch: int, size: int) -> float:
    """Return what products of two and of three tiles, the batch last, take of the time that is predicted of any."""
    a, b, c, d = pattern
    if b > 2 * _SQUARE:
        return _THREE_TILES if b <= 3 * _SQUARE else 1.0
    if c >= _SHALLOW:
        return _TWO_TILES if c >= _SQUARE else 1.0
    return _SHALLOW_CACHED if size * batch * a * d * (b + c) <= _WHOLE_CACHED else _SHALLOW_SHARE


def blocks_seconds(pattern: Pattern, batch: int, dtype: str, last: bool) -> float:
    """Batched products through the matrices of the blocks, in place where they can be, else between copies."""
    a, b, c, d = pattern
    size, sides = BYTES[dtype], (b, batch) if last else (batch, b)
    aligned = _aligned(size, c, batch if last else b)
    calls = min(a, d)
    if (last or d == 1) and calls <= MOST_CALLS:
        tiles = a * d / calls * math.ceil(sides[0] / _SQUARE) * math.ceil(sides[1] / _SQUARE)
        if size == 2 and aligned and tiles > _WHOLE_TILES and (d > 1 if last else min(b, c) >= _WHOLE_WIDTH):
            if last and b <= _SQUARE:
                return _ONE_TILE.seconds(pattern, batch, size, calls)
            share = _whole_share(pattern, batch, size) if last else 1.0
            return share * calls * product_seconds(*sides, c, a * d / calls, dtype, _WHOLE[last])
        aligned, own = aligned or not (last or c * size % _WORD or b * size % _WORD), _rates(dtype, "bmm", last)
        if last and size == 2 and not aligned and b <= _THIN and c >= _LONG and tiles > _PROCESSORS:
            own = replace(own, products=math.inf, position=0.0)
        return calls * product_seconds(*sides, c, a * d / calls, dtype, own, aligned)
    return between_copies_seconds(pattern, batch, dtype, last)


def between_copies_seconds(pattern: Pattern, batch: int, dtype: str, last: bool) -> float:
    """Return batched products through the matrices of the blocks, between copies."""
    a, b, c, d = pattern
    size, sides = BYTES[dtype], (b, batch) if last else (batch, b)
    aligned = _aligned(size, c, batch if last else b)
    rows = batch * a * d
    if last:
        copied = 2.0 * size * rows * (b + (c if a > 1 else 0)) / _COPIED
    else:
        copied = _gathered_seconds(rows * c, size, size * d, size * batch * c * d) + 2.0 * size * rows * b / _ROWS
    return _COPIES_START + copied + product_seconds(*sides, c, a * d, dtype, _rates(dtype, "copies", last), aligned)


def batch_last_seconds(rows: int, columns: int, depth: int, count: int, dtype: str) -> float:
    """Return batched products of blocks of halves in whole vectors, of which one is or has a batch that is last."""
    return product_seconds(rows, columns, depth, count, dtype, _LAST_BLOCKS)


def sums_strided(pattern: Pattern, batch: int, size: int) -> bool:
    """Return whether gradients of weights whose batch is last are some batched products rather than one of copies."""
    a, b, c, d = pattern
    calls = min(a, d)
    copied = 2.0 * size * batch * a * d * (b + c) / _COPIED
    return 1 < calls <= MOST_CALLS and copied > (calls - 1) * _ANOTHER_CALL


def gradient_seconds(pattern: Pattern, batch: int, dtype: str, last: bool) -> dict[str, float]:
    """Return the gradient of the weights by batched products and through the gradient of the matrix."""
    a, b, c, d = pattern
    size = BYTES[dtype]
    kind, rows, product, copied, calls = "f16" if size == 2 else "f32", batch * a * d, "bmm", _UNCOPIED, 1
    if last and sums_strided(pattern, batch, size):
        calls = min(a, d)
        copied += (calls - 1) * (_ANOTHER_CALL - _SUMS[kind, product, last].launch)
    elif d > 1 and not (last and a == 1):
        product, copied = "copies", _COPIES_START
        if last:
            copied += 2.0 * size * rows * (b + c) / _COPIED
        else:
            copied += _gathered_seconds(rows * c, size, size * d, size * batch * c * d)
            copied += _gathered_seconds(rows * b, size, _SECTOR, size * batch * b * d)
    found: dict[str, float] = {}
    for name, own, rows, columns, count, times, extra in (
        ("bmm", product, b, c, a * d, calls, copied), ("dense", "dense", a * b * d, a * c * d, 1, 1, _APART),
    ):  # fmt: skip
        # One batched product after the other is multiplied as halves that are not aligned.
        aligned = times == 1 and _aligned(size, batch) if last else _aligned(size, rows, columns)
        whole = own == "bmm" and size == 2 and d == 1 and not last and aligned and min(b, c) >= _WIDE_BLOCK
        rates = _ALIGNED_SUMS if whole else _SUMS[kind, own, last]
        if own == "bmm" and size == 2 and last and d == 1 and not batch * size % _WORD:
            rates = replace(rates, unaligned_bytes=_WORD_BYTES, unaligned_position=rates.position)
        taken = product_seconds(rows, columns, batch, count / times, dtype, rates, aligned)
        found[name] = extra + times * taken
    return found
