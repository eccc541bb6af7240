"""Chains of patterns by name, and the transforms that are exactly such chains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import ParameterError, ShapeError
from ..ops.kronsparse_keep import KeptChain
from .matmul import check_way, dense_of, multiply
from .pattern import KSPattern, fuse_weights
from .picture import html


def _divides(part: int, whole: int, name: str, of: str) -> int:
    if part < 1 or whole % part:
        raise ParameterError(f"{name} = {part} must divide {of} = {whole}")
    return whole // part


def block_diagonal(shape: Sequence[int], blocks: int) -> list[KSPattern]:
    """One block-diagonal factor.

    Parameters
    ----------
    shape : (out_features, in_features)
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
    rows, columns = shape
    high, wide = _divides(blocks, rows, "blocks", "rows"), _divides(blocks, columns, "blocks", "columns")
    return [KSPattern(blocks, high, wide, 1)]


def low_rank_like(shape: Sequence[int], rank: int) -> list[KSPattern]:
    """Two dense factors with ``rank`` features between them.

    Parameters
    ----------
    shape : (out_features, in_features)
    rank : int

    Returns
    -------
    list of KSPattern
        ``(1, rank, in, 1)`` and ``(1, out, rank, 1)``.

    Raises
    ------
    ParameterError
        For a rank that is no positive integer.

    Examples
    --------
    >>> import kernmantle as km
    >>> km.kronsparse.low_rank_like((6, 4), 2)
    [KSPattern(a=1, b=2, c=4, d=1), KSPattern(a=1, b=6, c=2, d=1)]
    """
    rows, columns = shape
    return [KSPattern(1, rank, columns, 1), KSPattern(1, rows, rank, 1)]


def monarch(shape: Sequence[int], p: int, q: int, rank: int = 1) -> list[KSPattern]:
    """Two factors: p diagonal blocks, then q interleaved ones, all entries of the product free up to their rank.

    Parameters
    ----------
    shape : (out_features, in_features)
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
    rows, columns = shape
    inner, outer = _divides(p, columns, "p", "columns"), _divides(q, rows, "q", "rows")
    return [KSPattern(p, q * rank, inner, 1), KSPattern(1, outer, p * rank, q)]


def butterfly(n: int, radix: int = 2, levels: int = 1) -> list[KSPattern]:
    """The levels of a butterfly on n = radix^L features, ``levels`` of them taken together in each factor.

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
        For an n that is no power of the radix.

    Examples
    --------
    >>> import kernmantle as km
    >>> [tuple(pattern) for pattern in km.kronsparse.butterfly(8)]
    [(4, 2, 2, 1), (2, 2, 2, 2), (1, 2, 2, 4)]
    >>> [tuple(pattern) for pattern in km.kronsparse.butterfly(16, levels=2)]
    [(4, 4, 4, 1), (1, 4, 4, 4)]
    """
    if radix < 2 or levels < 1:
        raise ParameterError(f"a butterfly needs radix >= 2 and levels >= 1, got {radix} and {levels}")
    depth = round(math.log(n, radix)) if n > 1 else 0
    if depth < 1 or radix**depth != n:
        raise ParameterError(f"n = {n} is no power of {radix} above 1")
    patterns: list[KSPattern] = []
    for level in range(0, depth, levels):
        size = radix ** min(levels, depth - level)
        patterns.append(KSPattern(n // (radix**level * size), size, size, radix**level))
    return patterns


@dataclass(frozen=True)
class Chain:
    """Factors whose product is a known matrix, behind a permutation of what they are applied to.

    Attributes
    ----------
    weights : tuple of tensors (a, b, c, d)
        Applied from the first to the last.
    permutation : tensor or None
        The chain is applied to ``x[..., permutation]``.

    Notes
    -----
    What is made of the weights before they are multiplied by is kept, as :meth:`KSLinear.prepack` does it: the levels
    of a transform run as the few factors that should be quickest.
    """

    weights: tuple[torch.Tensor, ...]
    permutation: torch.Tensor | None = None
    _kept: KeptChain = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kept", KeptChain(len(self.weights)))

    @property
    def patterns(self) -> tuple[KSPattern, ...]:
        """Shapes of the weights."""
        return tuple(KSPattern(*weight.shape) for weight in self.weights)

    @property
    def nnz(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self.weights)

    def __call__(
        self, x: Any, batch_last: bool = False, *, bias: Any = None, activation: str | None = None, out: Any = None,
        precision: str | None = None, algorithm: str = "auto",
    ) -> Any:  # fmt: skip
        """Apply the chain; options are those of :func:`kernmantle.kron_sparse_matmul`."""
        if self.permutation is not None:
            x = x.index_select(0 if batch_last else -1, self.permutation)
        way = check_way(batch_last, algorithm, precision)
        return multiply(x, self.weights, None, bias, activation, out, way, self._kept)

    def to_dense(self) -> torch.Tensor:
        """The matrix."""
        matrix = dense_of(self.weights)
        if self.permutation is None:
            return matrix
        return torch.empty_like(matrix).index_copy(1, self.permutation, matrix)

    def __repr__(self) -> str:
        behind = "" if self.permutation is None else ", behind a permutation"
        return f"Chain({', '.join(map(str, self.patterns))}{behind})"

    def _repr_html_(self) -> str:
        return html(self.patterns, f"{self!r}: {self.nnz} weights")

    def fused(self, levels: int) -> Chain:
        """The same matrix from fewer factors: every ``levels`` neighbours are multiplied."""
        if levels < 1:
            raise ParameterError(f"levels must be at least 1, got {levels}")
        weights: list[torch.Tensor] = []
        for place, weight in enumerate(self.weights):
            if place % levels:
                weights[-1] = fuse_weights(weight, weights[-1])
            else:
                weights.append(weight)
        return replace(self, weights=tuple(weights))


def _levels(n: int) -> int:
    if n < 2 or n & (n - 1):
        raise ParameterError(f"n = {n} must be a power of 2, at least 2")
    return n.bit_length() - 1


def hadamard(n: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Chain:
    """Sylvester's Hadamard matrix (n, n) of ones and minus ones, in ``log2 n`` factors of 2 n weights.

    Parameters
    ----------
    n : int
        A power of 2.
    dtype, device
        Of the weights.

    Returns
    -------
    Chain

    Raises
    ------
    ParameterError
        For an n that is no power of 2.

    Notes
    -----
    A product costs ``2 n log2 n`` multiplications a row where the matrix costs n².

    Examples
    --------
    >>> import kernmantle as km
    >>> km.kronsparse.hadamard(4).to_dense()
    tensor([[ 1.,  1.,  1.,  1.],
            [ 1., -1.,  1., -1.],
            [ 1.,  1., -1., -1.],
            [ 1., -1., -1.,  1.]])
    """
    block = torch.tensor([[1, 1], [1, -1]], dtype=dtype, device=device)
    levels = [1 << level for level in range(_levels(n))]
    return Chain(tuple(block[None, :, :, None].repeat(n // (2 * d), 1, 1, d) for d in levels))


def _bit_reversal(n: int) -> torch.Tensor:
    places = torch.arange(n)
    result = torch.zeros_like(places)
    for level in range(_levels(n)):
        result |= (places >> level & 1) << (_levels(n) - 1 - level)
    return result


def _fourier(n: int) -> list[torch.Tensor]:
    """Real factors (float64) of the DFT of bit-reversed real input.

    A level turns the digits (half, part) into (part, half): the part, real or imaginary, comes in behind the digit
    that the level combines and goes out in front of it, where the next level finds it. At last it is the first digit.
    """
    factors: list[torch.Tensor] = []
    for level in range(_levels(n)):
        below = 1 << level
        angle = -math.pi * torch.arange(below, dtype=torch.float64) / below
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(2, 2, below)
        block = torch.empty(2, 2, 2, 2, below, dtype=torch.float64)  # part out, half out, half in, part in, place
        block[:, :, 0] = torch.eye(2, dtype=torch.float64)[:, None, :, None]
        block[:, 0, 1], block[:, 1, 1] = turn, -turn
        if level == 0:
            block = block[:, :, :, :1]
        factors.append(block.reshape(1, 4, -1, below).repeat(n // (2 * below), 1, 1, 1))
    return factors


def dft(n: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Chain:
    """The discrete Fourier transform of n real numbers, real parts (n) before imaginary parts (n).

    ``torch.fft.fft(x)`` is ``torch.complex(*chain(x).chunk(2, -1))``: ``log2 n`` factors of b = c = 4, the first of
    c = 2, behind the bit reversal of x.

    Parameters
    ----------
    n : int
        A power of 2.
    dtype, device
        Of the weights.

    Returns
    -------
    Chain

    Raises
    ------
    ParameterError
        For an n that is no power of 2.

    Notes
    -----
    A product costs ``8 n log2 n`` multiplications a row where the real matrix costs 2 n². Source: Cooley and
    Tukey, 1965.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x = torch.randn(16, dtype=torch.float64)
    >>> chain = km.kronsparse.dft(16, torch.float64)
    >>> torch.allclose(torch.complex(*chain(x).chunk(2, -1)), torch.fft.fft(x))
    True
    """
    weights = tuple(factor.to(device, dtype).contiguous() for factor in _fourier(n))
    return Chain(weights, _bit_reversal(n).to(device))


def dct(n: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Chain:
    """The orthonormal discrete cosine transform of type II of n numbers, ``y_k = s_k Σ_j x_j cos(π k (j + ½) / n)``.

    By the Fourier transform of its even, then of its odd numbers backwards; the last factor keeps the real part.

    Parameters
    ----------
    n : int
        A power of 2.
    dtype, device
        Of the weights.

    Returns
    -------
    Chain

    Raises
    ------
    ParameterError
        For an n that is no power of 2.

    Notes
    -----
    A product costs a little less than that of :func:`dft`. Source: Makhoul, A fast cosine transform in one and two
    dimensions, 1980.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> matrix = km.kronsparse.dct(8, torch.float64).to_dense()
    >>> torch.allclose(matrix @ matrix.T, torch.eye(8, dtype=torch.float64))
    True
    """
    factors = _fourier(n)
    half = n // 2
    order = torch.cat([torch.arange(0, n, 2), torch.arange(n - 1, 0, -2)])[_bit_reversal(n)]
    scale = torch.full((n,), math.sqrt(2 / n), dtype=torch.float64)
    scale[0] = math.sqrt(1 / n)
    angle = math.pi * torch.arange(n, dtype=torch.float64) / (2 * n)
    turned = torch.stack([scale * angle.cos(), scale * angle.sin()]).reshape(2, 2, half)  # [part, half, place]
    last = factors[-1].reshape(2, 2, -1, half)  # [part, half, columns, place]
    factors[-1] = (turned[:, :, None] * last).sum(0)[None]
    weights = tuple(factor.to(device, dtype).contiguous() for factor in factors)
    return Chain(weights, order.to(device))


def check_shape(shape: Any) -> tuple[int, int]:
    """(out_features, in_features) of a shape, a matrix or a layer."""
    found = getattr(getattr(shape, "weight", shape), "shape", shape)
    if len(found) != 2:
        raise ShapeError(f"a shape has two entries (out_features, in_features), got {tuple(found)}")
    return int(found[0]), int(found[1])
