"""``scipy.spatial.distance`` with the distances of this library: ``from kernmantle.compat import scipy as distance``.

``cdist`` and ``pdist`` have scipy's signatures and, as scipy, compute in float64 and return numpy arrays. What they do
not compute here, functions as metrics among it, and every other name of the module are scipy's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.spatial.distance as _scipy

from ..pairwise.condensed import pdist as _pdist
from ..pairwise.distances import cdist as _cdist
from ..pairwise.metrics import ALIASES, METRICS


def __getattr__(name: str) -> Any:
    """A function of scipy's module that has no counterpart here."""
    return getattr(_scipy, name)


def _takes(metric: Any, options: dict[str, Any]) -> bool:
    row = METRICS.get(ALIASES.get(metric, metric)) if isinstance(metric, str) else None
    return row is not None and hasattr(_scipy, row.name) and set(options) <= {"p", "w", "V", "VI"}


def _rows(values: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    return array if array.dtype == bool else array.astype(np.float64, copy=False)


def cdist(XA: Any, XB: Any, metric: str | Callable[..., Any] = "euclidean", *, out: Any = None, **kwargs: Any) -> Any:
    """Return the distances between the rows of two collections, as ``scipy.spatial.distance.cdist``.

    Parameters
    ----------
    XA : array_like, shape (m, k)
        Rows.
    XB : array_like, shape (n, k)
        Rows.
    metric : str or callable
        A name of scipy's. A function of two rows is called by scipy for every pair.
    out : ndarray of float64, shape (m, n), optional
        Written in place.
    **kwargs
        Options of the metric: p, w, V, VI.

    Returns
    -------
    ndarray of float64, shape (m, n)

    Raises
    ------
    KernmantleError
        For what :func:`kernmantle.cdist` refuses.

    Examples
    --------
    >>> from kernmantle.compat import scipy as distance
    >>> distance.cdist(XA=[[0, 0]], XB=[[3, 4], [1, 0]], metric="cityblock")
    array([[7., 1.]])
    """
    if not _takes(metric, kwargs):
        return _scipy.cdist(XA, XB, metric, out=out, **kwargs)  # pyright: ignore
    return _cdist(_rows(XA), _rows(XB), metric, out=out, **kwargs)  # pyright: ignore


def pdist(X: Any, metric: str | Callable[..., Any] = "euclidean", *, out: Any = None, **kwargs: Any) -> Any:
    """Return the distances between the rows of one collection, each pair once, as ``scipy.spatial.distance.pdist``.

    Parameters
    ----------
    X : array_like, shape (n, k)
        Rows.
    metric : str or callable
        A name of scipy's. A function of two rows is called by scipy for every pair.
    out : ndarray of float64, shape (n (n - 1) / 2,), optional
        Written in place.
    **kwargs
        Options of the metric: p, w, V, VI.

    Returns
    -------
    ndarray of float64, shape (n (n - 1) / 2,)

    Raises
    ------
    KernmantleError
        For what :func:`kernmantle.pdist` refuses.

    Examples
    --------
    >>> from kernmantle.compat import scipy as distance
    >>> distance.squareform(distance.pdist([[0.0, 0.0], [3.0, 4.0]]))
    array([[0., 5.],
           [5., 0.]])
    """
    if not _takes(metric, kwargs):
        return _scipy.pdist(X, metric, out=out, **kwargs)  # pyright: ignore
    return _pdist(_rows(X), metric, out=out, **kwargs)  # pyright: ignore
