"""Patterns of Kronecker-sparse matrices: ``I_a ⊗ 1_{b x c} ⊗ I_d``, chains of them and their weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ...arrays import unwrap
from ...checks import integer
from ...errors import ParameterError, ShapeError
from ..mode_product.torch_products import dense, fused
from .picture import html


class _Pattern(NamedTuple):
    a: int
    b: int
    c: int
    d: int


class KSPattern(_Pattern):
    """Support of a Kronecker-sparse matrix, ``I_a ⊗ 1_{b x c} ⊗ I_d`` of size (a b d, a c d).

    Its weights are an array (a, b, c, d): entry (i, j, k, l) stands in row ``i b d + j d + l`` and column
    ``i c d + k d + l``. A pattern is a tuple of its four numbers.

    Parameters
    ----------
    a, b, c, d : int
        At least 1.

    Raises
    ------
    ParameterError
        For an entry that is not a positive integer.

    Examples
    --------
    >>> import kernmantle as km
    >>> pattern = km.KSPattern(2, 3, 4, 5)
    >>> pattern.in_features, pattern.out_features, pattern.nnz, pattern.density
    (40, 30, 120, 0.1)
    >>> pattern.T
    KSPattern(a=2, b=4, c=3, d=5)
    """

    __slots__ = ()

    def __new__(cls, a: int, b: int, c: int, d: int) -> KSPattern:
        """Check the entries."""
        entries = (a, b, c, d)
        if type(a) is type(b) is type(c) is type(d) is int and min(entries) > 0:
            return super().__new__(cls, *entries)
        named = zip("abcd", entries, strict=True)
        return super().__new__(cls, *(integer(n, f"{name} of the pattern ({a}, {b}, {c}, {d})") for name, n in named))

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> KSPattern:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return what ``_replace`` makes its tuples by, which checks nothing."""
        return cls(*iterable)

    @staticmethod
    def of(value: Any) -> KSPattern:
        """Return the pattern of four numbers (a, b, c, d), itself if it is one.

        Raises
        ------
        ParameterError
            For anything but four positive integers.
        """
        if isinstance(value, KSPattern):
            return value
        try:
            entries = tuple(value)
        except TypeError:
            entries = ()
        if len(entries) != 4:
            raise ParameterError(f"a pattern has four entries (a, b, c, d), got {value!r}")
        return KSPattern(*entries)

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""
        return self.a * self.c * self.d

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""
        return self.a * self.b * self.d

    @property
    def nnz(self) -> int:
        """Number of weights."""
        return self.a * self.b * self.c * self.d

    @property
    def density(self) -> float:
        """Share of the dense matrix that is not zero, ``1 / (a d)``."""
        return 1 / (self.a * self.d)

    @property
    def T(self) -> KSPattern:
        """Pattern of the transposed matrix; its weights are ``weight.transpose(-3, -2)``."""
        return KSPattern(self.a, self.c, self.b, self.d)

    def rank(self, first: KSPattern) -> int | None:
        """Return the rank of the blocks of ``self @ first``, None if the two are not chainable.

        Two patterns are chainable if ``a`` divides ``first.a``, ``first.d`` divides ``d``, and the rank
        ``a c / first.a = first.b first.d / d`` is an integer. Then the support of the product is a pattern again, see
        :meth:`fuse`.

        Examples
        --------
        >>> import kernmantle as km
        >>> first, second = km.kronsparse.monarch((16, 16), p=4, q=4)
        >>> second.rank(first)
        1
        """
        first = KSPattern.of(first)
        fits = self.in_features == first.out_features and first.a % self.a == 0 and self.d % first.d == 0
        return self.a * self.c // first.a if fits and self.a * self.c % first.a == 0 else None

    def fuse(self, first: KSPattern) -> KSPattern:
        """Return the pattern of the product ``self @ first`` (``first`` is applied first).

        Raises
        ------
        ShapeError
            If the sizes differ, or the support of the product is not a pattern.

        Examples
        --------
        >>> import kernmantle as km
        >>> km.KSPattern(1, 2, 2, 4).fuse(km.KSPattern(2, 2, 2, 2))
        KSPattern(a=1, b=4, c=4, d=2)
        """
        first, _ = check_chain([first, self])
        if self.rank(first) is None:
            raise ShapeError(f"the product of {self} and {first} is supported on no pattern")
        return KSPattern(self.a, self.b * self.d // first.d, first.a * first.c // self.a, first.d)

    def to_dense(self, weight: Any) -> Any:
        """Return the matrix of weights, with zeros outside the support.

        Parameters
        ----------
        weight : array, shape (..., a, b, c, d)

        Returns
        -------
        array, shape (..., a b d, a c d)
            Of the kind and dtype of the weights. Gradients exist.

        Raises
        ------
        ShapeError
            For weights of another shape.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> km.KSPattern(2, 1, 2, 1).to_dense(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(2, 1, 2, 1))
        tensor([[1., 2., 0., 0.],
                [0., 0., 3., 4.]])
        """
        (weight,), wrap = unwrap(weight, names=("weight",))
        if tuple(weight.shape[-4:]) != self:
            raise ShapeError(f"weight has shape {tuple(weight.shape)}, the pattern {self} asks for (..., a, b, c, d)")
        return wrap(dense(weight))

    def from_dense(self, matrix: Any) -> Any:
        """Return the weights of a matrix; entries outside the support are dropped.

        Parameters
        ----------
        matrix : array, shape (..., a b d, a c d)

        Returns
        -------
        array, shape (..., a, b, c, d)
            Of the kind and dtype of the matrix. Gradients exist.

        Raises
        ------
        ShapeError
            For a matrix of another shape.

        Examples
        --------
        >>> import torch, kernmantle as km
        >>> pattern = km.KSPattern(2, 1, 2, 1)
        >>> pattern.to_dense(pattern.from_dense(torch.ones(2, 4)))
        tensor([[1., 1., 0., 0.],
                [0., 0., 1., 1.]])
        """
        (matrix,), wrap = unwrap(matrix, names=("matrix",))
        if tuple(matrix.shape[-2:]) != (self.out_features, self.in_features):
            raise ShapeError(
                f"matrix has shape {tuple(matrix.shape)}, the pattern {self} asks for "
                f"(..., {self.out_features}, {self.in_features})"
            )
        a, b, c, d = self
        entries = matrix.unflatten(-1, (a, c, d)).unflatten(-4, (a, b, d))
        return wrap(entries.diagonal(dim1=-6, dim2=-3).diagonal(dim1=-4, dim2=-2).movedim(-2, -4))

    def mask(self, device: torch.device | str | None = None) -> torch.Tensor:
        """Return the support as a boolean matrix (a b d, a c d).

        Examples
        --------
        >>> import kernmantle as km
        >>> km.KSPattern(2, 1, 2, 1).mask()
        tensor([[ True,  True, False, False],
                [False, False,  True,  True]])
        """
        return dense(torch.ones(self, dtype=torch.bool, device=device))

    def _repr_html_(self) -> str:
        return html([self], f"{self!r}: {self.out_features} x {self.in_features}, {self.nnz} weights")

    def __str__(self) -> str:
        return f"({self.a}, {self.b}, {self.c}, {self.d})"


def check_chain(patterns: Iterable[Any]) -> tuple[KSPattern, ...]:
    """Return the patterns, applied from the first to the last; ShapeError for the first two whose sizes differ."""
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise ParameterError(
            f"patterns must be a sequence of patterns (a, b, c, d), not {patterns!r}: "
            "km.kronsparse.monarch((out_features, in_features), p, q) makes a usual one"
        )
    entries = list(patterns)
    if entries and isinstance(entries[0], int):
        raise ParameterError(f"patterns must be a sequence of patterns; a chain of one is [{tuple(entries)!r}]")
    chain = tuple(map(KSPattern.of, entries))
    if not chain:
        raise ParameterError("a chain needs at least one pattern")
    for index, (first, second) in enumerate(itertools.pairwise(chain)):
        if first.out_features != second.in_features:
            raise ShapeError(
                f"patterns {index} and {index + 1} do not chain: {first} gives a b d = {first.out_features} features, "
                f"{second} takes a c d = {second.in_features}"
            )
    return chain


def check_weights(patterns: Sequence[KSPattern], weights: Sequence[torch.Tensor]) -> None:
    """Raise ShapeError unless there is one weight of the right shape for each pattern."""
    if len(weights) != len(patterns):
        raise ShapeError(f"there are {len(patterns)} patterns but {len(weights)} weights")
    for index, (pattern, weight) in enumerate(zip(patterns, weights, strict=True)):
        if tuple(weight.shape) != (pattern.a, pattern.b, pattern.c, pattern.d):  # tracers tell it from a named tuple
            raise ShapeError(f"weight {index} has shape {tuple(weight.shape)}, its pattern is {pattern}")


def fuse_weights(second: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Return the weights of the product of two chainable factors, ``first`` applied first.

    Parameters
    ----------
    second, first : tensor (a, b, c, d) each
        Weights of chainable patterns, see :meth:`KSPattern.rank`.

    Returns
    -------
    tensor
        Weights of the pattern ``second.fuse(first)``, differentiable.

    Raises
    ------
    ShapeError
        For weights that are not chainable.

    Notes
    -----
    Cost: one small matrix product for each pair of overlapping blocks. Gradients exist for both.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> second, first = torch.ones(1, 2, 2, 4), torch.ones(2, 2, 2, 2)
    >>> km.kronsparse.fuse_weights(second, first).shape
    torch.Size([1, 4, 4, 2])
    """
    KSPattern.of(second.shape).fuse(KSPattern.of(first.shape))
    return fused(second, first)


def split_blocks(weight: torch.Tensor, second: KSPattern, first: KSPattern) -> torch.Tensor:
    """Blocks (a, P, Q, d, b, c) of the weights of ``second.fuse(first)``: each has rank at most ``second.rank(first)``.

    P runs over the ``first.a / second.a`` parts of the columns, Q over the ``second.d / first.d`` parts of the rows.
    """
    outer, inner = first.a // second.a, second.d // first.d
    parts = weight.reshape(second.a, second.b, inner, outer, first.c, first.d)
    return parts.permute(0, 3, 2, 5, 1, 4)


def join_left(blocks: torch.Tensor, second: KSPattern) -> torch.Tensor:
    """Return the weights of ``second`` from the left factors (a, P, Q, d, b, rank) of the blocks."""
    return blocks.permute(0, 4, 1, 5, 2, 3).reshape(second)


def join_right(blocks: torch.Tensor, first: KSPattern) -> torch.Tensor:
    """Return the weights of ``first`` from the right factors (a, P, Q, d, rank, c) of the blocks."""
    return blocks.permute(0, 1, 4, 2, 5, 3).reshape(first)
