"""Nearest neighbours by a metric or a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ..distances import cdist
from ..distances.arguments import find
from ..errors import ParameterError
from ..expr.node import var
from .call import prepare
from .form import Form
from .kernel import Kernel
from .neighbours import check_count, nearest

_OF_ALL_ROWS = {"seuclidean": "V", "mahalanobis": "VI"}


@lru_cache(maxsize=1)
def _nothing() -> Form:
    return Form((), (), var("s0"))


def argkmin(
    x: Any,
    y: Any = None,
    count: int = 1,
    *,
    metric: str | Kernel = "minkowski",
    return_values: bool = False,
    **options: Any,
) -> Any:
    """Indices of the ``count`` rows of y that are nearest to each row of x, nearest first.

    Parameters
    ----------
    x : array, shape (..., m, k)
        Tensor, numpy or DLPack array.
    y : array, shape (..., n, k), optional
        By default ``x``; every row is then its own neighbour.
    count : int
        At most n.
    metric : str or Kernel
        A metric of :func:`cdist`, or a kernel whose smallest values are wanted (its largest: ``k.argkmax``).
    return_values : bool
        Whether the distances are returned as well.
    **options
        ``p, w, V, VI, base`` as of :func:`cdist`.

    Returns
    -------
    array of int64, shape (..., m, count), or the pair (distances, indices)

    Notes
    -----
    Computed in blocks of bounded memory. Rows at the same distance come in any order, NaN comes last. The
    distances have gradients where the metric has.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> km.argkmin(np.array([[0.0], [5.0]]), np.array([[4.0], [1.0], [2.0]]), 2)
    array([[1, 2],
           [0, 2]])
    """
    if isinstance(metric, Kernel):
        if options:
            raise ParameterError(f"a kernel takes no {next(iter(options))}; its hyperparameters are its own")
        return metric.argkmin(x, y, count, return_values=return_values)
    return _by_metric(x, y, count, metric, return_values, options)


def _by_metric(x: Any, y: Any, count: int, metric: str, return_values: bool, options: Mapping[str, Any]) -> Any:
    row = find(metric)
    unknown = next((name for name in options if name not in ("p", "w", "V", "VI", "base")), None)
    if unknown is not None:
        raise ParameterError(f"argkmin has no option {unknown!r}; it has p, w, V, VI, base")
    missing = _OF_ALL_ROWS.get(row.name)
    if missing is not None and options.get(missing) is None:
        raise ParameterError(f"metric {row.name!r} needs {missing}= here: blocks of rows have their own statistics")
    arrays = {name: value for name, value in options.items() if hasattr(value, "shape") and value.ndim}
    call, tensors = prepare(_nothing(), {}, {}, x, y, arrays)
    check_count(count, call.y.shape[-2])
    fixed = {name: value for name, value in options.items() if name not in arrays}

    def compare(left: torch.Tensor, right: torch.Tensor, _: Any) -> torch.Tensor:
        given: dict[str, Any] = {**fixed, **dict(zip(arrays, tensors, strict=True))}
        return cdist(left, right, metric=metric, **given)

    values, indices = nearest(call, compare, count, False)
    return (call.finished(values), call.wrap(indices)) if return_values else call.wrap(indices)
