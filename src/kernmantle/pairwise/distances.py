"""Distances between all rows of two arrays."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from ..arrays import has_strides
from ..torch_ops.autograd import constant
from ..torch_ops.checks import check_out, check_precision
from ..torch_ops.contract import Contraction
from ..torch_ops.dtypes import NAMES
from ..torch_ops.execute import Types
from .inputs import FLOATS, Request, find, number_variant, request
from .metric import Metric, Ready
from .metric_forms import POWERS
from .metrics import METRICS


def _own() -> Any:
    """Your own metrics, which need the kernels."""
    return import_module(".own_metric", __package__)


def own_metric(metric: Any, root: bool, **options: Any) -> Any:
    """Return the name, or the kernel, of a metric that is not a name; errors are those of its use."""
    return _own().named_or_own(metric, root, **options)


class _Made:
    """Contractions as attributes, which torch.compile looks up at the moment it needs them."""


_MADE = _Made()


@constant
def _made(name: str, variant: str, weighted: bool, root: bool) -> str:
    """Return the name under which the contraction of a metric is stored; it is made at the first call."""
    key = f"{name} {variant} {weighted} {root}"
    if variant == "steep" and not root:  # a sum of powers is what it is
        variant = "power"
    form = POWERS[variant] if variant else METRICS[name].form
    setattr(_MADE, key, form.contraction(weighted, root))
    return key


def contraction(name: str, variant: str, weighted: bool, root: bool) -> Contraction:
    """Return the contraction of a metric, made once."""
    return getattr(_MADE, _made(name, variant, weighted, root))


def cdist(
    x: Any,
    y: Any = None,
    metric: Any = "minkowski",
    *,
    p: Any = None,
    w: Any = None,
    V: Any = None,
    VI: Any = None,
    base: Any = None,
    root: bool = True,
    out: Any = None,
    precision: str | None = None,
) -> Any:
    """Return the distances between the rows of ``x`` and those of ``y``.

    Parameters
    ----------
    x : array, shape (..., m, k)
        Tensor, numpy or DLPack array, nested list or data frame. Batch axes on the left broadcast.
    y : array, shape (..., n, k), optional
        By default ``x``, for half the work where the metric is symmetric.
    p : number or array, optional
        Power of the Minkowski distance, from 0 to infinity; 2 by default. An array is a batch of powers.
    metric : str, callable, km.Kernel or km.Contraction
        A name of scipy's, ``"hellinger"``, ``"kl"`` or ``"inner_product"``; ``docs/distances.md`` has the table. Or
        your own: a lambda of one entry of each row, whose values are summed over the columns, as
        ``lambda a, b: abs(a - b) / (1 + abs(a - b))``, or a kernel that is a distance.
    w : array, shape (..., k), optional
        Weights, not negative. For p = inf and chebyshev the entries with w > 0 count.
    V : array, shape (..., k), optional
        Variances of seuclidean; by default those of the rows of x and y together.
    VI : array, shape (..., k, k), optional
        Matrix of mahalanobis; by default the inverse covariance of the rows of x and y together.
    base : number or array, optional
        Base of the logarithm of jensenshannon; e by default.
    root : bool
        Whether to take the final root of the metrics that have one; sums of powers, squares, divergences without.
    out : array, shape (..., m, n), optional
        Written in place; of the result's dtype, overlapping no input, and without a gradient.
    precision : {None, "ieee", "tf32", "half"}
        Arithmetic of products and squared differences; "half" also that of sums of float16: ``docs/numerics.md``.

    Returns
    -------
    array, shape (..., m, n)
        Of the kind of x; lists and data frames give numpy arrays. Its dtype is the widest of the arrays' dtypes, where
        integers and bool count as float32 in torch tensors and as float64 elsewhere; under autocast it is float32.

    Raises
    ------
    KernmantleError
        Before anything is computed; names the argument.

    Notes
    -----
    One pass over all pairs and columns, memory of inputs and result only. No value of p or w compiles anew. A
    tensor p on a device is never read: where it is negative or NaN, the result is NaN. Gradients of every order
    exist for all tensors, but not of hamming, jaccard, rogerstanimoto, russellrao, sokalsneath and yule; they are
    0 between equal rows, at equal entries and for p = 0.

    Examples
    --------
    >>> import kernmantle as km, numpy as np
    >>> x, y = np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[3.0, 0.0]])
    >>> km.cdist(x, y)
    array([[3.],
           [4.]])
    >>> km.cdist(x, p=1)
    array([[0., 7.],
           [7., 0.]])
    """
    other = x if y is None else y
    if not isinstance(metric, str):
        found = own_metric(metric, root, p=p, w=w, V=V, VI=VI, base=base)
        if not isinstance(found, str):
            return found(x, y, out=out, precision=precision)
        metric = found
    row = find(metric)
    if row.prepare is None and V is None and VI is None and base is None and _is_number(row, p):
        result = _direct(row, x, other, p, w, bool(root), out, precision)
        if result is not None:
            return result
    wanted = request(row, x, other, p=p, w=w, V=V, VI=VI, base=base)
    return _deliver(wanted, bool(root), out, precision)


def _direct(row: Metric, x: Any, y: Any, p: Any, w: Any, root: bool, out: Any, precision: str | None) -> Any:
    """Return the result for tensors that need no preparation, else None."""
    operands = (x, y) if w is None else (x, y, w)
    variant, parameters = number_variant(2 if p is None else p) if "p" in row.options else ("", {})
    contract = contraction(row.name, variant, w is not None, root)
    is_bound, result = contract.warm(operands, parameters, out, precision)
    if not is_bound and _is_direct(row, x, y, w):
        return contract(*operands, out=out, precision=precision, **parameters)
    return result


def _is_number(row: Metric, p: Any) -> bool:
    """Return whether a power is absent or a number, and one that the metric takes."""
    return p is None or ("p" in row.options and (type(p) is float or type(p) is int))


def _is_direct(row: Metric, x: Any, y: Any, w: Any) -> bool:
    """Return whether tensors can go to the contraction as they are; the contraction does not know their names."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    if not has_strides(x) or not has_strides(y):
        return False
    if not (x.dtype == y.dtype and x.device == y.device and x.dtype in FLOATS):
        return False
    shape, other = x.shape, y.shape
    if len(shape) < 2 or len(other) < 2 or shape[-1] != other[-1]:
        return False
    if len(shape) + len(other) > 4 and shape[:-2] != other[:-2]:
        return False
    if w is None:
        return True
    return (
        isinstance(w, torch.Tensor) and w.dtype == x.dtype and w.device == x.device and w.shape == shape[-1:]
        and "w" in row.options
    )  # fmt: skip


def evaluate(
    wanted: Request, ready: Ready, root: bool, operands: tuple[torch.Tensor, ...], precision: str | None
) -> Any:
    """Return the distances between the rows of these operands, in the type they are computed in."""
    contract = contraction(wanted.row.name, wanted.variant, ready.weighted, root)
    return contract(*operands, precision=precision, **ready.parameters)


def _deliver(wanted: Request, root: bool, out: Any, precision: str | None) -> Any:
    check_precision(precision)
    rows = wanted.arguments.x.shape[-2], wanted.arguments.y.shape[-2]
    target = None if out is None else checked(wanted, out, rows)
    ready = wanted.prepared()
    if target is None:
        result = evaluate(wanted, ready, root, ready.operands, precision)
        return wanted.wrap(result.to(wanted.dtype) if wanted.is_converted else result)
    if wanted.is_converted:
        target.copy_(evaluate(wanted, ready, root, ready.operands, precision))
    else:
        contract = contraction(wanted.row.name, wanted.variant, ready.weighted, root)
        contract(*ready.operands, out=target, precision=precision, **ready.parameters)
    return out


def checked(wanted: Request, out: Any, rows: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor on the memory of ``out``, which can take a result over these axes behind the batch."""
    inputs = list(wanted.inputs.values())
    tracked = torch.is_grad_enabled() and any(value.requires_grad for value in inputs)
    types = Types(NAMES[wanted.dtype], (NAMES[wanted.dtype],)).text
    return check_out(out, (*wanted.batch, *rows), types, inputs, tracked, True)[0]
