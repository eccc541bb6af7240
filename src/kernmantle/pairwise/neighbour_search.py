"""Nearest neighbours by a metric or a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ParameterError
from ..torch_ops.row_select import nearest
from .distances import contraction
from .inputs import check_options, find, request
from .kernel import Kernel
from .neighbours import check_count

OPTIONS = ("p", "w", "V", "VI", "base")


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
        A metric of :func:`cdist`, or a distance of one's own as ``km.Kernel(lambda x, y: ...)``. The smallest value
        is the nearest. A named kernel is a similarity, whose largest values are near, and refused here: use
        ``k.argkmax``.
    return_values : bool
        Whether the distances are returned as well.
    **options
        ``p, w, V, VI, base`` as of :func:`cdist`.

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
    distances have gradients where the metric has.

    Cost: all m n distances once, and memory of inputs and result; on Hopper GPUs Euclidean distances take up to 256 MB
    more. Types are those of :func:`cdist`.

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
        check_distance(metric, "call k.argkmax(x, y, count) on it; k.argkmin finds its smallest values")
        return metric.argkmin(x, y, count, return_values=return_values)
    check_distance(metric, "")
    return _by_metric(x, y, count, metric, return_values, options)


def check_distance(metric: Any, instead: str) -> None:
    """ParameterError for what is no distance: similarities, and functions that are not traced yet."""
    if isinstance(metric, Kernel):
        if metric.is_similarity:
            raise ParameterError(
                f"metric= is a distance, whose smallest value is the nearest; {metric!r} is a similarity, larger where "
                f"rows are nearer: {instead}"
            )
    elif callable(metric):
        raise ParameterError(
            "metric= is a name or a km.Kernel, not a function; for a distance of your own, summed over the columns, "
            "pass metric=km.Kernel(lambda x, y: abs(x - y))"
        )


def check_metric(metric: str, options: Mapping[str, Any]) -> None:
    """ParameterError for an unknown metric, or options that it does not take."""
    check_names(options)
    row = find(metric)
    check_options(row, options)
    if row.name == "inner_product":
        raise ParameterError("metric= is a distance; 'inner_product' is a similarity: pass similarity=km.Linear()")


def check_names(options: Mapping[str, Any]) -> None:
    """ParameterError for what is an option of no metric."""
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        raise ParameterError(f"metrics have no option {unknown!r}; there are {', '.join(OPTIONS)}")


def _by_metric(x: Any, y: Any, count: int, metric: str, return_values: bool, options: Mapping[str, Any]) -> Any:
    check_names(options)
    p, w, V, VI, base = (options.get(name) for name in OPTIONS)
    wanted = request(find(metric), x, x if y is None else y, p=p, w=w, V=V, VI=VI, base=base)
    ready = wanted.prepared()
    check_count(count, ready.operands[1].shape[-2])
    contract = contraction(wanted.row.name, wanted.variant, ready.weighted, True)
    values, indices = nearest(contract, ready.operands, ready.parameters, count, False)
    return (wanted.wrap(values.to(wanted.dtype)), wanted.wrap(indices)) if return_values else wanted.wrap(indices)
