"""The chain of Kronecker-sparse factors that is nearest to a dense matrix, or provably near to the nearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ...arrays import unwrap
from ...errors import ShapeError
from ..mode_product.torch_products import unit_of
from .dense import decomposable
from .matmul import dense_of
from .pattern import KSPattern, check_chain, join_left, join_right, split_blocks


class Projection(NamedTuple):
    """Factors near a matrix, as :func:`project` finds them.

    Attributes
    ----------
    patterns : tuple of KSPattern
    weights : tuple of arrays (a, b, c, d)
        Of the kind of the matrix, NumPy arrays for one of NumPy; those of ``weights[0]`` are applied first.
    error : float
        Relative error in the Frobenius norm.
    bound : float
        The error is at most this many times that of the best factors of these patterns; 1 means that they are the best.
    """

    patterns: tuple[KSPattern, ...]
    weights: tuple[Any, ...]
    error: float
    bound: float


def project(matrix: Any, patterns: Sequence[Any]) -> Projection:
    r"""Approximate a matrix by a chain of Kronecker-sparse factors.

    One pattern keeps the entries on its support; two (Monarch and its kin) are solved in closed form, a singular value
    decomposition of each block; longer chains peel one factor after another from the left, each with orthonormal
    columns, so that :math:`\|A - W\|_F \le \sqrt{L-1} \min_{W^*} \|A - W^*\|_F` for L factors.

    Parameters
    ----------
    matrix : array (out_features, in_features)
        Real floating point and finite; halves are decomposed in float32.
    patterns : sequence of KSPattern or of four numbers
        Neighbours must be chainable, see :meth:`KSPattern.rank`.

    Returns
    -------
    Projection
        Named tuple (patterns, weights, error, bound), weights of the kind and type of the matrix with equal norms.

    Raises
    ------
    ShapeError
        For patterns that do not fit the matrix or are not chainable.
    DtypeError, DeviceError, ParameterError
        For a matrix that is not real floating point, is on meta, or is not finite.

    Notes
    -----
    A decomposition costs ``O(b c min(b, c))`` for each of the blocks that the matrix falls into. The method and its
    guarantee are those of [1]_.

    The factors have no gradient with respect to the matrix.

    References
    ----------
    .. [1] Le, Zheng, Riccietti, Gribonval: Butterfly factorization with error guarantees, arXiv:2411.04506.

    Examples
    --------
    >>> import torch, kernmantle as km
    >>> found = km.kronsparse.project(torch.eye(8), [(4, 2, 2, 1), (2, 2, 2, 2), (1, 2, 2, 4)])
    >>> round(found.error, 6), round(found.bound, 3)
    (0.0, 1.414)
    """
    (matrix,), wrap = unwrap(matrix, names=("the matrix",))
    chain = check_chain(patterns)
    if tuple(matrix.shape) != (chain[-1].out_features, chain[0].in_features):
        raise ShapeError(
            f"the matrix has shape {tuple(matrix.shape)}, the patterns make "
            f"({chain[-1].out_features}, {chain[0].in_features})"
        )
    products = _products(chain)
    exact = decomposable(matrix)
    unit = unit_of(exact)
    exact = exact / unit
    rest = products[-1].from_dense(exact)
    weights: list[torch.Tensor] = []
    for index in range(len(chain) - 1, 0, -1):
        left, rest = _peel(rest, chain[index], products[index - 1])
        weights.insert(0, left)
    weights.insert(0, rest)
    weights = _balanced(weights)
    error = _relative_error(exact, weights)
    share = unit ** (1 / len(weights))
    found_weights = tuple(wrap((weight * share).to(matrix.dtype).contiguous()) for weight in weights)
    return Projection(chain, found_weights, error, math.sqrt(max(1, len(chain) - 1)))


def _products(chain: Sequence[KSPattern]) -> list[KSPattern]:
    """Return the patterns of the products of the first factors."""
    products = [chain[0]]
    for index, pattern in enumerate(chain[1:], 1):
        if pattern.rank(chain[index - 1]) is None or pattern.rank(products[-1]) is None:
            first = chain[index - 1]
            raise ShapeError(
                f"patterns {index - 1} and {index} are not chainable: {pattern} after {first} needs "
                f"{pattern.a} | {first.a}, {first.d} | {pattern.d} and an integer rank; projections exist only then"
            )
        products.append(pattern.fuse(products[-1]))
    return products


def _peel(weight: torch.Tensor, second: KSPattern, first: KSPattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Return best factors of a product of two patterns, the left one with orthonormal columns."""
    blocks = split_blocks(weight, second, first)
    rank = second.rank(first)
    assert rank is not None
    left, values, right = torch.linalg.svd(blocks, full_matrices=False)
    columns = min(rank, values.shape[-1])
    left, right = left[..., :columns], values[..., :columns, None] * right[..., :columns, :]
    if columns < rank:
        left = torch.nn.functional.pad(left, (0, rank - columns))
        right = torch.nn.functional.pad(right, (0, 0, 0, rank - columns))
    return join_left(left, second), join_right(right, first)


def _balanced(weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return factors of the same product whose entries have equal mean squares times c."""
    gains = [float(weight.norm()) / math.sqrt(weight.numel() / weight.shape[2]) for weight in weights]
    if not all(gain > 0 and math.isfinite(gain) for gain in gains):
        return list(weights)
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return [weight * (mean / gain) for weight, gain in zip(weights, gains, strict=True)]


def _relative_error(matrix: torch.Tensor, weights: Sequence[torch.Tensor]) -> float:
    wide = matrix.double()
    product = dense_of([weight.double() for weight in weights])
    size = float(wide.norm())
    return float((wide - product).norm()) / size if size else float(product.norm())
