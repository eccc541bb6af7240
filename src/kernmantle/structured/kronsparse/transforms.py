"""Transforms that are exactly chains of Kronecker-sparse factors, with their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...arrays import check_same_device, unwrap
from ...checks import integer
from ...errors import DtypeError, GradientError, ParameterError
from ...torch_ops.info import RunInfo
from ..mode_product.pack import PackedChain
from .matmul import FLOATS, check_features, check_options, dense_of, multiply
from .packed import snapshot
from .pattern import KSPattern, check_chain, fuse_weights
from .picture import html


class Chain:
    """Factors whose product is a fixed matrix, applied after a permutation of the input.

    Parameters
    ----------
    weights : sequence of tensors (a, b, c, d)
        Applied from the first to the last; copied.
    permutation : tensor of indices, optional
        The chain is applied to ``x[..., permutation]``; copied.

    Raises
    ------
    GradientError
        For weights that require gradients; ``KSLinear(..., weights=...)`` trains factors.

    Attributes
    ----------
    weights : tuple of tensors (a, b, c, d)
        Copies of the factors.
    permutation : tensor of indices or None
        A copy.
    patterns : tuple of KSPattern
        Shapes of the weights.
    nnz : int
        Number of weights.
    info : str
        The backend and plan of the last call; empty before the first.

    Notes
    -----
    A chain is immutable: it holds copies, and ``weights`` and ``permutation`` return copies. Its packed weights are
    stored as in :class:`PackedKSLinear`, so the levels of a transform run as the few merged factors that are predicted
    to be fastest. A call costs ``nnz`` multiplications a row, and memory for its result.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> chain = km.kronsparse.hadamard(4)
    >>> chain.patterns
    (KSPattern(a=2, b=2, c=2, d=1), KSPattern(a=1, b=2, c=2, d=2))
    >>> chain(torch.tensor([1.0, 0.0, 0.0, 1.0]))
    tensor([2., 0., 0., 2.])
    """

    def __init__(self, weights: Sequence[torch.Tensor], permutation: torch.Tensor | None = None) -> None:
        if any(weight.requires_grad for weight in weights):
            raise GradientError("a chain never changes: detach its weights, or train KSLinear(..., weights=weights)")
        self._weights = tuple(map(snapshot, weights))
        self._permutation = None if permutation is None else snapshot(permutation)
        self._patterns = check_chain(weight.shape for weight in self._weights)
        self._packed, self._info = PackedChain(len(self._weights)), ""

    @property
    def weights(self) -> tuple[torch.Tensor, ...]:
        """Copies of the weights (a, b, c, d)."""
        return tuple(weight.clone() for weight in self._weights)

    @property
    def permutation(self) -> torch.Tensor | None:
        """A copy of the permutation, or None."""
        return None if self._permutation is None else self._permutation.clone()

    @property
    def info(self) -> str:
        """The backend and plan of the last call; empty before the first."""
        return self._info

    @property
    def patterns(self) -> tuple[KSPattern, ...]:
        """Shapes of the weights."""
        return self._patterns

    @property
    def nnz(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self._weights)

    def __call__(
        self, x: Any, batch_last: bool = False, *, bias: Any = None, activation: str | None = None, out: Any = None,
        precision: str | None = None, algorithm: str = "auto",
    ) -> Any:  # fmt: skip
        """Return the product of the chain's matrix with every row of x.

        Parameters
        ----------
        x : array, shape (..., in_features), or (in_features, ...) with ``batch_last``
        batch_last, bias, activation, out, precision, algorithm
            As of :func:`kernmantle.kron_sparse_matmul`.

        Returns
        -------
        array, shape (..., out_features), or (out_features, ...)

        Raises
        ------
        ShapeError, DtypeError, DeviceError, ParameterError, OutputError
            As of :func:`kernmantle.kron_sparse_matmul`.

        Notes
        -----
        Cost: ``nnz`` multiplications a row. Gradients exist for x and the bias; the weights are constants.
        """
        options = check_options(batch_last, algorithm, precision)
        own, wrap = x, None
        if self._permutation is not None:
            (tensor,), wrap = unwrap(x, names=("x",))
            check_same_device((tensor, self._permutation), ("x", "the chain"))
            check_features(tensor, self._patterns, batch_last)
            own = tensor.index_select(0 if batch_last else -1, self._permutation)
        if torch.compiler.is_compiling():
            found = multiply(own, self._weights, None, bias, activation, out, options)
        else:
            info = RunInfo()
            found = multiply(own, self._weights, None, bias, activation, out, options, self._packed, info)
            self._info = info.route
        return found if wrap is None or out is not None else wrap(found)

    def to_dense(self) -> torch.Tensor:
        """Return the matrix."""
        matrix = dense_of(self._weights)
        if self._permutation is None:
            return matrix
        return torch.empty_like(matrix).index_copy(1, self._permutation, matrix)

    def __repr__(self) -> str:
        suffix = "" if self._permutation is None else ", after a permutation"
        return f"Chain({', '.join(map(str, self.patterns))}{suffix})"

    def _repr_html_(self) -> str:
        return html(self.patterns, f"{self!r}: {self.nnz} weights")

    def fused(self, levels: int) -> Chain:
        """Return the same matrix as fewer factors: the products of every ``levels`` consecutive ones.

        Raises
        ------
        ParameterError
            If ``levels`` is not a positive integer.
        ShapeError
            If the support of the product of two factors is not a pattern.

        Notes
        -----
        Cost: the products of the weights, once; a call then makes fewer passes with more multiplications.

        Examples
        --------
        >>> import kernmantle as km
        >>> [tuple(pattern) for pattern in km.kronsparse.hadamard(16).fused(2).patterns]
        [(4, 4, 4, 1), (1, 4, 4, 4)]
        """
        levels = integer(levels, "levels")
        weights: list[torch.Tensor] = []
        for index, weight in enumerate(self._weights):
            if index % levels:
                weights[-1] = fuse_weights(weight, weights[-1])
            else:
                weights.append(weight)
        return Chain(weights, self._permutation)


def _floating(dtype: torch.dtype) -> torch.dtype:
    if dtype not in FLOATS:
        raise DtypeError(f"dtype must be a floating-point type that products take, not {dtype}")
    return dtype


def hadamard(n: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Chain:
    """Return Sylvester's Hadamard matrix (n, n) of ones and minus ones, in ``log2 n`` factors of 2 n weights.

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
        For an n that is not a power of 2.

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
    n = integer(n, "n")
    if n & (n - 1):
        raise ParameterError(f"n = {n} must be a power of 2")
    if n == 1:
        return Chain((torch.ones((1, 1, 1, 1), dtype=_floating(dtype), device=device),))
    block = torch.tensor([[1, 1], [1, -1]], dtype=_floating(dtype), device=device)
    levels = [1 << level for level in range(n.bit_length() - 1)]
    return Chain(tuple(block[None, :, :, None].repeat(n // (2 * d), 1, 1, d) for d in levels))


def _primes(n: int) -> list[int]:
    """Return the prime factors in ascending order, [1] of 1."""
    found: list[int] = []
    prime = 2
    while prime * prime <= n:
        if n % prime:
            prime += 1
        else:
            found.append(prime)
            n //= prime
    return [*found, n] if n > 1 or not found else found


def _cos_sin(indices: torch.Tensor, whole: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of ``2 π indices / whole``, exact at multiples of a right angle."""
    quarters = (8 * indices + whole) // (2 * whole)  # the nearest one
    angle = (4 * indices - quarters * whole).double() * (math.pi / (2 * whole))
    along, across = angle.cos(), angle.sin()
    swapped, back = quarters % 2 == 1, quarters % 4 >= 2
    cosine = torch.where(swapped, -across, along)
    sine = torch.where(swapped, along, across)
    return torch.where(back, -cosine, cosine), torch.where(back, -sine, sine)


def _digits_reversed(radices: Sequence[int]) -> torch.Tensor:
    """Return the order in which the levels find their numbers, the last level's digit in front."""
    return torch.arange(math.prod(radices)).reshape(*radices).permute(*reversed(range(len(radices)))).flatten()


def _fourier(radices: Sequence[int]) -> list[torch.Tensor]:
    """Return the real factors (float64) of the DFT of real input in the order of :func:`_digits_reversed`.

    A level sums over the digit h of where its numbers come from and gives the digit q of where they go. Real and
    imaginary parts come in behind h and go out in front of q, where the next level finds them; at last they are the
    first digit.
    """
    factors: list[torch.Tensor] = []
    n, below = math.prod(radices), 1
    for radix in radices:
        whole = radix * below
        goes, comes = torch.arange(whole).reshape(radix, 1, below), torch.arange(radix)[:, None]
        cosine, sine = _cos_sin(-goes * comes % whole, whole)  # [q, h, place]
        real, imaginary = torch.stack([cosine, -sine], 2), torch.stack([sine, cosine], 2)  # [q, h, part in, place]
        block = torch.stack([real, imaginary])
        if below == 1:
            block = block[:, :, :, :1]
        factors.append(block.reshape(1, 2 * radix, -1, below).repeat(n // whole, 1, 1, 1))
        below = whole
    return factors


def dft(n: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Chain:
    """Return the discrete Fourier transform of n real numbers, real parts (n) before imaginary parts (n).

    ``torch.fft.fft(x)`` is ``torch.complex(*chain(x).chunk(2, -1))``: a factor of b = c = 2 r for each prime factor r
    of n, the first of c = r, after a permutation of x.

    Parameters
    ----------
    n : int
        Any; the more small prime factors, the fewer weights.
    dtype, device
        Of the weights.

    Returns
    -------
    Chain

    Raises
    ------
    ParameterError
        For an n that is not a positive integer.

    Notes
    -----
    A product costs ``4 n r`` multiplications a row for each prime factor r, ``8 n log2 n`` for powers of 2, where the
    real matrix costs 2 n². Source: Cooley and Tukey, 1965.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> x = torch.randn(60, dtype=torch.float64)
    >>> chain = km.kronsparse.dft(60, torch.float64)
    >>> torch.allclose(torch.complex(*chain(x).chunk(2, -1)), torch.fft.fft(x))
    True
    """
    radices = _primes(integer(n, "n"))
    weights = tuple(factor.to(device, _floating(dtype)).contiguous() for factor in _fourier(radices))
    return Chain(weights, _digits_reversed(radices).to(device))


def dct(n: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Chain:
    """Return the orthonormal DCT-II of n numbers, ``y_k = s_k Σ_j x_j cos(π k (j + ½) / n)``.

    It is the Fourier transform of the even-indexed numbers followed by the reversed odd-indexed ones; the last factor
    takes the real part.

    Parameters
    ----------
    n : int
        Any; the more small prime factors, the fewer weights.
    dtype, device
        Of the weights.

    Returns
    -------
    Chain

    Raises
    ------
    ParameterError
        For an n that is not a positive integer.

    Notes
    -----
    A product costs a little less than that of :func:`dft`. Source: Makhoul, A fast cosine transform in one and two
    dimensions, 1980.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> matrix = km.kronsparse.dct(12, torch.float64).to_dense()
    >>> torch.allclose(matrix @ matrix.T, torch.eye(12, dtype=torch.float64))
    True
    """
    radices = _primes(integer(n, "n"))
    factors = _fourier(radices)
    last = factors[-1].unflatten(1, (2, -1))[0]  # [part, q, columns, place]
    order = torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2).flip(0)])[_digits_reversed(radices)]
    scale = torch.full((n,), math.sqrt(2 / n), dtype=torch.float64)
    scale[0] = math.sqrt(1 / n)
    rotated = torch.stack(_cos_sin(torch.arange(n), 4 * n)) * scale
    factors[-1] = (rotated.reshape(2, last.shape[1], 1, -1) * last).sum(0)[None]
    weights = tuple(factor.to(device, _floating(dtype)).contiguous() for factor in factors)
    return Chain(weights, order.to(device))
