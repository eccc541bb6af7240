"""Nearest neighbours by a metric or a kernel."""

from __future__ import annotations

from typing import Any

from .distance import of_names
from .neighbours import check_count, check_indices
from .own_metric import Metric, check_distance, check_names, kernel_of


def argkmin(
    x: Any, y: Any = None, count: int = 1, *, metric: Metric = "minkowski", return_values: bool = False, **options: Any
) -> Any:
    """Return the indices of the ``count`` rows of y that are nearest to each row of x, nearest first.

    Parameters
    ----------
    x : array, shape (..., m, k)
        Tensor, numpy or DLPack array.
    y : array, shape (..., n, k), optional
        By default ``x``; every row is then its own neighbour.
    count : int
        At most n.
    metric : str, callable, Kernel or Contraction
        A metric of :func:`cdist`, or your own distance: a lambda of one entry of each row, whose values are
        summed over the columns, as ``lambda a, b: abs(a - b)``; a ``km.Kernel(map, epilogue)``; a contraction of two
        sets of rows. The smallest value is the nearest. A named kernel is a similarity, whose largest values are near,
        and refused here: use ``k.argkmax``.
    return_values : bool
        Whether the distances are returned as well.
    **options
        ``p, w, V, VI, base`` as of :func:`cdist`; of a lambda or a contraction its parameters.

    Returns
    -------
    array of int64, shape (..., m, count), or the pair (distances, indices)

    Raises
    ------
    KernmantleError
        Before anything is computed; names the argument, or what may be given.

    Notes
    -----
    The matrix of distances is not stored. Rows at the same distance come in any order, NaN comes last. The
    distances have gradients where the metric has; indices alone have none, and asking for them while one is recorded
    is an error.

    Cost: all m n distances once, and memory of inputs and result; on GPUs up to 256 MB more. Types are those of
    :func:`cdist`.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> km.argkmin(np.array([[0.0], [5.0]]), np.array([[4.0], [1.0], [2.0]]), 2)
    array([[1, 2],
           [0, 2]])
    """
    kernel = kernel_of(metric, options)
    if kernel is not None:
        check_distance(kernel, "call k.argkmax(x, y, count) on it; k.argkmin finds its smallest values")
        return kernel.argkmin(x, y, count, return_values=return_values)
    check_names(options)
    wanted, found = of_names(metric, options, x, x if y is None else y)
    count = check_count(count, found.operands[1].shape[-2])
    if not return_values:
        check_indices({"x": x, "y": y, **options})
    values, indices = found.smallest(count, precision=None)
    return (wanted.wrap(values.to(wanted.dtype)), wanted.wrap(indices)) if return_values else wanted.wrap(indices)
