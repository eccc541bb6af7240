"""Objects that ``reduce=`` takes besides the names of the table: reductions of the user's, and selections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import integer
from .node import Number

Lambda = Callable[..., Any]


@dataclass(frozen=True)
class Semiring:
    """Reduction by an associative and commutative ``plus`` with identity ``zero``; it has no gradient.

    Parameters
    ----------
    plus : callable
        ``plus(a, b)``, traced once.
    zero : number
        The value with ``plus(zero, a) == a`` for every ``a``; also the result over an empty axis.

    Raises
    ------
    TraceError, ParameterError
        When a contraction is made with it: a ``plus`` that cannot be traced, a ``zero`` that is not a number or not
        an identity, a ``plus`` that depends on the order or is not associative. All three laws are tested on samples; a
        ``plus`` that is associative only for numbers of one sign, from 0 to 1, or for 0 and 1 is taken.
    GradientError
        When an operand requires a gradient.

    Notes
    -----
    Edges of tiles are padded with ``zero``, so a value that is not an identity would change results.
    Cost: one ``plus`` for every element of all axes, in any order, so that floating point results may differ in their
    last bits from machine to machine.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> largest = km.Semiring(lambda a, b: km.maximum(a, b), float("-inf"))
    >>> km.contract("mk,nk->mn", lambda a, b: a + b, np.eye(2), np.eye(2), reduce=largest)
    array([[2., 1.],
           [1., 2.]])
    """

    plus: Lambda
    zero: Number


@dataclass(frozen=True)
class Fold:
    """Reduction in order whose ``step(acc, *operands)`` sees the accumulator; it has no gradient.

    Parameters
    ----------
    step : callable
        ``step(acc, a, b, ...) -> acc``, traced once; it takes the place of the map.
    init : number
        The accumulator before the first position.

    Raises
    ------
    TraceError, ParameterError
        When a contraction is made with it: a ``step`` that cannot be traced, an ``init`` that is not a number.
    GradientError
        When an operand requires a gradient.

    Notes
    -----
    Cost: one ``step`` for every element of all axes, along the reduced ones in order. Types are those of sums.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> horner = km.Fold(lambda acc, a, b: acc * b + a, 0.0)
    >>> km.contract("mk,n->mn", None, np.array([[1.0, 2.0, 3.0]]), np.array([10.0]), reduce=horner)
    array([[123.]])
    """

    step: Lambda
    init: Number


@dataclass(frozen=True)
class Selection:
    """Some entries of every row."""

    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", integer(self.count, f"the count of {type(self).__name__}"))


@dataclass(frozen=True)
class Smallest(Selection):
    """Reduction of the rows of scores to their ``count`` smallest values, smallest first, and where they are.

    Parameters
    ----------
    count : int
        From 1 to the number of entries of a row.

    Raises
    ------
    ParameterError
        If the count is not a positive integer; when called, if rows have fewer entries or the operand is not a score.

    Notes
    -----
    A contraction with it returns the pair (values, indices), each of shape (..., m, count), the indices int64. NaN
    comes last; of equal values any may be chosen. The values have gradients of every order, by computing these entries
    again. Cost: one pass over the scores, which are not stored.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> scores = km.Contraction("mk,nk->mn", lambda a, b: abs(a - b)).lazy(np.zeros((1, 1)), np.array([[3.0], [1.0]]))
    >>> km.contract("mn->m", lambda s: s, scores, reduce=km.Smallest(1))
    (array([[1.]]), array([[1]]))
    """


@dataclass(frozen=True)
class Largest(Selection):
    """Reduction of the rows of scores to their ``count`` largest values, largest first, and where they are.

    Parameters
    ----------
    count : int
        From 1 to the number of entries of a row.

    Raises
    ------
    ParameterError
        If the count is not a positive integer; when called, if rows have fewer entries or the operand is not a score.

    Notes
    -----
    A contraction with it returns the pair (values, indices), each of shape (..., m, count), the indices int64. NaN
    comes last; of equal values any may be chosen. The values have gradients of every order. Cost: one pass over the
    scores.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> scores = km.Contraction("mk,nk->mn", lambda a, b: a * b).lazy(np.eye(2), np.array([[1.0, 2.0], [3.0, 0.0]]))
    >>> km.contract("mn->m", lambda s: s, scores, reduce=km.Largest(1))
    (array([[3.],
           [2.]]), array([[1],
           [0]]))
    """


Reduce = str | Semiring | Fold | Smallest | Largest | Sequence["str | Semiring"]
