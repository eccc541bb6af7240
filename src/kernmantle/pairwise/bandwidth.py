"""Scales of data, found on the device they are on: the median heuristic, standardisation."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..arrays import dtype_name, is_numpy_like, unwrap
from ..errors import ParameterError, ShapeError
from .condensed import pdist
from .inputs import check_rows, floating

SAMPLE = 1000  # rows


def median_bandwidth(
    x: Any,
    *,
    sample: int | None = SAMPLE,
    generator: torch.Generator | None = None,
    p: Any = None,
    metric: str = "minkowski",
    w: Any = None,
) -> Any:
    """Return the median of the distances between rows, a common choice of the bandwidth.

    Parameters
    ----------
    x : array, shape (..., n, k)
        At least two rows.
    sample : int or None
        Number of rows that are drawn, without replacement, if there are more; None takes the exact median of
        all n (n - 1) / 2 distances, which are then stored.
    generator : torch.Generator, optional
        On the device of x; torch's own by default.
    p, metric, w
        The distance, as of :func:`cdist`.

    Returns
    -------
    array, shape (...)
        0-d for one matrix, on the device of x; nothing is read back, it can go to a kernel as it is.

    Raises
    ------
    ShapeError, ParameterError
        For fewer than two rows, a sample below two, or an option that :func:`cdist` refuses.

    Notes
    -----
    In units of the distance. Cost: at most ``sample`` (sample - 1) / 2 distances, which are stored. The gradient by x
    is that of the one or two distances in the middle. Source: Garreau, Jitkrittum and Kanagawa, Large sample analysis
    of the median heuristic, 2017.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> float(km.median_bandwidth(np.array([[0.0], [1.0], [4.0]])))
    3.0
    """
    (rows,), wrap = unwrap(x, names="x")
    if rows.dim() < 2 or rows.shape[-2] < 2:
        raise ShapeError(f"x must have at least two rows, it has shape {tuple(rows.shape)}")
    if sample is not None:
        if not isinstance(sample, int) or sample < 2:
            raise ParameterError(f"sample must be None or an integer of at least 2, got {sample!r}")
        if sample < rows.shape[-2]:
            chosen = torch.randperm(rows.shape[-2], device=rows.device, generator=generator)[:sample]
            rows = rows.index_select(-2, chosen)
    distances = pdist(rows, p=p, metric=metric, w=None if w is None else unwrap(w)[0][0])
    pairs = distances.shape[-1]
    low = distances.kthvalue((pairs + 1) // 2, -1).values
    if pairs % 2:
        return wrap(low)
    return wrap((low + distances.kthvalue(pairs // 2 + 1, -1).values) / 2)


def typical_distance(rows: torch.Tensor) -> float:
    """Median distance of rows that differ, so that a repeated row counts as one of a larger weight; 1 of one row."""
    rows = torch.unique(rows, dim=0)
    if rows.shape[0] < 2:
        return 1.0
    distance = float(median_bandwidth(rows, generator=torch.Generator(rows.device).manual_seed(0)))
    if not 0 < distance < math.inf:
        raise ParameterError(
            f"the default bandwidth, the median distance of the rows, is {distance} in {dtype_name(rows.dtype)}: rows "
            "must be finite, and of a scale at which squares are too, as those of km.standardise; or pass a bandwidth"
        )
    return distance


def standardise(x: Any, *others: Any) -> Any:
    """Return the columns of mean 0 and standard deviation 1; columns that do not vary become 0.

    Parameters
    ----------
    x : array, shape (..., n, k)
        Floating point.
    *others : array
        Further rows, moved and scaled as x.

    Returns
    -------
    array, or a tuple of arrays with ``others``

    Raises
    ------
    ShapeError
        For no rows, or further rows with another number of columns.

    Notes
    -----
    The deviation divides by n, not n - 1. Halves are averaged in float32. A few passes over the data, differentiable.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> km.standardise(np.array([[1.0, 5.0], [3.0, 5.0]]))
    array([[-1.,  0.],
           [ 1.,  0.]])
    """
    names = ["x", *(f"rows {1 + index}" for index in range(len(others)))]
    tensors, wrap = unwrap(x, *others, names=names)
    tensors = [floating(tensor, name, is_numpy_like(x)) for tensor, name in zip(tensors, names, strict=True)]
    first = tensors[0]
    for tensor in tensors:
        check_rows(first, tensor)
    if not first.shape[-2]:
        raise ShapeError(f"x must have at least one row, it has shape {tuple(first.shape)}")
    wide = first.float() if first.dtype in (torch.float16, torch.bfloat16) else first
    varies = (wide != wide[..., :1, :]).any(-2, keepdim=True)
    mean = torch.where(varies, wide.mean(-2, keepdim=True), wide[..., :1, :])
    centred = wide - mean
    largest = centred.detach().abs().amax(-2, keepdim=True)
    unit = torch.where(largest > 0, largest, 1.0)  # of which no square overflows or is lost
    variance = (centred / unit).square().mean(-2, keepdim=True)
    scale = torch.where(variance > 0, variance, 1.0).sqrt()
    results = tuple(((tensor - mean) / unit / scale).to(first.dtype) for tensor in tensors)
    return wrap(results if others else results[0])
